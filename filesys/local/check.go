//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

var _ filesys.PlanChecker = (*Files)(nil)

// CheckMove refuses, before anything is promised, a move between file systems
// and one for which this process lacks permission; see [filesys.PlanChecker].
func (f *Files) CheckMove(ctx context.Context, from, to commitstep.Address) error {
	info, err := f.Stat(ctx, from)
	if err != nil {
		return err
	}
	src, name, err := f.openParent(from)
	if err != nil {
		return err
	}
	defer src.close()
	if name == "." {
		return fmt.Errorf("%q is the root of the files: %w", from.Path, filesys.ErrEscapes)
	}
	if err := mayChange(src); err != nil {
		return err
	}
	// The nearest directory that exists is where the missing ones will be
	// made; it decides the file system.
	for at := to.Dir(); ; at = at.Dir() {
		dst, err := f.openDir(at)
		if errors.Is(err, fs.ErrNotExist) && at != at.Dir() {
			// A link to nowhere is no missing directory: nothing can be made there.
			if info, err := f.Stat(ctx, at); err == nil && info.Other {
				return fmt.Errorf("%q is a link that leads nowhere: %w", at.Path, filesys.ErrNotDirectory)
			}
			continue
		}
		if err != nil {
			return err
		}
		defer dst.close()
		there, err := f.infoOf(dst.fd, at)
		if err != nil {
			return err
		}
		if there.Device != info.Device {
			return fmt.Errorf("%q is on %s, %q on %s: %w", from.Path, info.Device, at.Path, there.Device, filesys.ErrOtherFileSystem)
		}
		if err := f.checkNames(dst, at, to); err != nil {
			return err
		}
		return mayChange(dst)
	}
}

// checkNames refuses names below the open directory at that its file system
// has no room for. As long as a directory is missing, no look at the path
// tells: it says "no such file" before it comes to the name.
func (f *Files) checkNames(dst dir, at, to commitstep.Address) error {
	var st unix.Statfs_t
	longest := unix.NAME_MAX
	if err := retry(func() error { return unix.Fstatfs(dst.fd, &st) }); err == nil && st.Namelen > 0 {
		longest = int(st.Namelen)
	}
	rel, _ := below(at.Path, to.Path)
	for name := range strings.SplitSeq(rel, "/") {
		if len(name) > longest {
			return fmt.Errorf("%w: the name %.40q… has %d bytes, the longest below %q has %d", filesys.ErrNameTooLong, name, len(name), at.Path, longest)
		}
	}
	return nil
}

func mayChange(d dir) error {
	err := retry(func() error { return unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS) })
	return pathError("change entries of directory", d.real, err)
}
