//go:build linux

package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// Files is the local file system below one root. Make one per process and
// root: it remembers which directory entries are durable. All methods are safe
// for concurrent use; two Files of one root, in one process or in several, are
// safe together too.
type Files struct {
	root     string   // as given, absolute and clean
	realRoot string   // root without links
	rootDir  *os.File // held open, so that the root cannot be swapped

	trace        func(Op)
	noRenameat2  bool // tests: as on a file system without RENAME_NOREPLACE
	noLink       bool // tests: as on a file system without hard links
	noOpenat2    bool // tests: as on a kernel before 5.6
	noHandles    bool // tests: as on a file system without file handles
	noIDs        bool // tests: as on a file system without stable identity
	fullDisk     bool // tests: no directory can be made
	stableIDs    bool
	replacesDirs atomic.Bool

	durable  durableSet
	making   makers
	names    nameCache
	unstable sync.Map // device number -> bool: its inode numbers are made up
}

var _ filesys.FS = (*Files)(nil)

// Option changes how Files works.
type Option func(*Files)

// WithTrace reports every change to the file system to fn, before it is made
// and after it succeeded, so that a test can simulate a power cut or stop the
// process at any of them. fn is called from whatever goroutine makes the
// change and holds it up.
func WithTrace(fn func(Op)) Option { return func(f *Files) { f.trace = fn } }

// New opens root, which must be an existing directory. A relative root is made
// absolute. "/" is allowed. Close the Files when it is no longer needed.
func New(root string, opts ...Option) (*Files, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("local files below %q: %w", root, err)
	}
	realRoot, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, fmt.Errorf("local files below %q: %w; make the directory first", root, err)
	}
	f := &Files{root: abs, realRoot: realRoot}
	for _, o := range opts {
		o(f)
	}
	if f.rootDir, err = openRoot(realRoot); err != nil {
		return nil, fmt.Errorf("local files below %q: %w", root, err)
	}
	info, err := f.Stat(context.Background(), f.address(abs))
	if err != nil {
		f.rootDir.Close()
		return nil, fmt.Errorf("local files below %q: %w", root, err)
	}
	f.stableIDs = !info.ID.IsZero()
	return f, nil
}

// Close releases the root. No method may be called afterwards.
func (f *Files) Close() error { return f.rootDir.Close() }

// Root is the root's address.
func (f *Files) Root() commitstep.Address { return f.address(f.root) }

// Resource is "file".
func (f *Files) Resource() string { return commitstep.LocalResource }

// Capabilities are those of the root's own file system. ReplacesEmptyDir
// becomes true once a directory rename has met a file system that cannot refuse
// to replace an empty directory.
func (f *Files) Capabilities() filesys.Capabilities {
	return filesys.Capabilities{
		StableIDs:        f.stableIDs,
		NoClobber:        true,
		ReplacesEmptyDir: f.noRenameat2 || f.replacesDirs.Load(),
		Sync:             true,
	}
}

// Resolve turns a plan's text into an address below the root; see
// [filesys.FS]. It looks at the text only.
func (f *Files) Resolve(text, base string) (commitstep.Address, error) {
	if base == "" {
		base = f.root
	}
	a, err := commitstep.ParseAddress(text, base)
	if err != nil {
		return commitstep.Address{}, err
	}
	if a.Resource != commitstep.LocalResource {
		return commitstep.Address{}, &commitstep.PlanError{
			Where:   fmt.Sprintf("path %q", text),
			Problem: fmt.Sprintf("belongs to %s and not to the local files", a.Resource),
			Hint:    "configure that resource",
		}
	}
	if _, err := f.rel(a); err != nil {
		return commitstep.Address{}, &commitstep.PlanError{
			Where:   fmt.Sprintf("path %q", text),
			Problem: fmt.Sprintf("lies outside the root %q", f.root),
			Hint:    "name a path below the root, or open the files with a wider root",
			Err:     err,
		}
	}
	if len(a.Path) >= unix.PathMax {
		return commitstep.Address{}, &commitstep.PlanError{
			Where:   fmt.Sprintf("path %.60q…", text),
			Problem: fmt.Sprintf("has %d bytes once it is absolute, and no call takes more than %d", len(a.Path), unix.PathMax-1),
			Hint:    "use fewer or shorter directory names",
			Err:     filesys.ErrNameTooLong,
		}
	}
	return a, nil
}

func (f *Files) address(p string) commitstep.Address {
	return commitstep.Address{Resource: commitstep.LocalResource, Path: p}
}

// rel is the part of a below the root, "." for the root itself.
func (f *Files) rel(a commitstep.Address) (string, error) {
	if a.Resource != commitstep.LocalResource {
		return "", fmt.Errorf("%s: %w: it is no local path", a, filesys.ErrEscapes)
	}
	if strings.IndexByte(a.Path, 0) >= 0 || !filepath.IsAbs(a.Path) || filepath.Clean(a.Path) != a.Path {
		return "", fmt.Errorf("%q: %w: it is not a clean absolute path", a.Path, filesys.ErrEscapes)
	}
	r, ok := below(f.root, a.Path)
	if !ok {
		return "", fmt.Errorf("%q: %w: it is not below %q", a.Path, filesys.ErrEscapes, f.root)
	}
	return r, nil
}

// below cuts root off p; both are clean and absolute.
func below(root, p string) (string, bool) {
	switch {
	case p == root:
		return ".", true
	case root == "/":
		return p[1:], true
	case len(p) > len(root) && p[len(root)] == '/' && strings.HasPrefix(p, root):
		return p[len(root)+1:], true
	}
	return "", false
}
