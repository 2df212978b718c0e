package dfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

var _ filesys.Finder = (*Files)(nil)

// inodes is where the name node finds files by their ids.
const inodes = "/.reserved/.inodes/"

// rootInode is the id of the root in every namespace.
const rootInode = 16385

// maxDepth bounds the way up to the root.
const maxDepth = 1000

// Find says where a file is now; see [filesys.Finder]. No call gives the path of
// an id, but the directory above an id has a name in the inode path, and its
// listing names the file; so on up to the root.
func (f *Files) Find(ctx context.Context, id filesys.ID) (commitstep.Address, error) {
	fail := func(err error) (commitstep.Address, error) {
		return commitstep.Address{}, fmt.Errorf("find file id %s: %w", id.Text, err)
	}
	ns, err := f.t.Namespace(ctx)
	if err != nil {
		return fail(err)
	}
	number, ok := strings.CutPrefix(id.Text, ns+"/")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil {
		return fail(errors.ErrUnsupported) // of another namespace
	}
	names := ""
	for depth := 0; n != rootInode; depth++ {
		if depth > maxDepth {
			return fail(fmt.Errorf("it lies more than %d directories deep", maxDepth))
		}
		up, err := f.t.Stat(ctx, inodes+strconv.FormatUint(n, 10)+"/..")
		if err != nil {
			return fail(err)
		}
		name := ""
		for s, err := range f.entries(ctx, inodes+strconv.FormatUint(up.FileID, 10), "") {
			if err != nil {
				return fail(err)
			}
			if s.FileID == n {
				name = s.Name
				break
			}
		}
		if name == "" {
			return fail(fmt.Errorf("it is being moved: %w", fs.ErrNotExist))
		}
		names, n = "/"+name+names, up.FileID
	}
	if names == "" {
		names = "/"
	}
	return commitstep.Address{Resource: f.resource, Path: names}, nil
}
