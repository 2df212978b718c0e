//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

func openRoot(p string) (*os.File, error) {
	fd, err := retryInt(func() (int, error) {
		return unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// dir is a directory held open, so that what is done in it cannot be led
// elsewhere by a change of the path.
type dir struct {
	fd   int
	real string // absolute, without links
}

func (d dir) close() { _ = unix.Close(d.fd) }

func (d dir) join(name string) string {
	if name == "." {
		return d.real
	}
	return path.Join(d.real, name)
}

// openDir opens the directory at a, following links that stay inside the root.
func (f *Files) openDir(a commitstep.Address) (dir, error) {
	rel, err := f.rel(a)
	if err != nil {
		return dir{}, err
	}
	fd, err := f.openPlain(rel)
	if err == nil {
		return dir{fd, filepath.Join(f.realRoot, rel)}, nil
	}
	// A link is in the path. Where it leads is looked up by name, and the
	// result walked again without following any link: whoever changes a link
	// in between makes the second walk fail, never leave the root.
	for try := 0; errors.Is(err, unix.ELOOP) && try < 10; try++ {
		var where string
		where, err = filepath.EvalSymlinks(a.Path)
		if err != nil {
			if errnoOf(err) == 0 {
				err = fmt.Errorf("%w: %w", filesys.ErrEscapes, err) // links in a ring
			}
			break
		}
		rel, ok := below(f.realRoot, where)
		if !ok {
			return dir{}, fmt.Errorf("%q: %w: a link leads to %q, outside %q", a.Path, filesys.ErrEscapes, where, f.root)
		}
		if fd, err = f.openPlain(rel); err == nil {
			return dir{fd, where}, nil
		}
	}
	return dir{}, pathError("open directory", a.Path, err)
}

// openPlain opens a directory below the root for use in *at calls. Any link in
// rel is ELOOP, anything that is no directory ENOTDIR.
func (f *Files) openPlain(rel string) (int, error) {
	defer runtime.KeepAlive(f)
	root := int(f.rootDir.Fd())
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if !f.noOpenat2 {
		how := &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
		fd, err := retryInt(func() (int, error) { return unix.Openat2(root, rel, how) })
		// Kernels before 5.6 lack the call, some sandboxes forbid it.
		if err != unix.ENOSYS && err != unix.EPERM {
			return fd, err
		}
	}
	fd, err := retryInt(func() (int, error) { return unix.Openat(root, ".", flags, 0) })
	if err != nil || rel == "." {
		return fd, err
	}
	for _, name := range strings.Split(rel, "/") {
		next, err := retryInt(func() (int, error) {
			return unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			_ = unix.Close(next)
			return -1, err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
		case unix.S_IFLNK:
			_ = unix.Close(next)
			return -1, unix.ELOOP
		default:
			_ = unix.Close(next)
			return -1, unix.ENOTDIR
		}
		fd = next
	}
	return fd, nil
}

// openParent opens the directory that holds a, and gives a's name in it. The
// root is "." in itself.
func (f *Files) openParent(a commitstep.Address) (dir, string, error) {
	rel, err := f.rel(a)
	if err != nil {
		return dir{}, "", err
	}
	if rel == "." {
		d, err := f.openDir(a)
		return d, ".", err
	}
	d, err := f.openDir(a.Dir())
	return d, a.Base(), err
}

// retryInt repeats a call that a signal interrupted, or that met a concurrent
// rename during openat2.
func retryInt(fn func() (int, error)) (int, error) {
	for try := 0; ; try++ {
		n, err := fn()
		if err == unix.EINTR || err == unix.EAGAIN && try < 1000 {
			continue
		}
		return n, err
	}
}

func retry(fn func() error) error {
	_, err := retryInt(func() (int, error) { return 0, fn() })
	return err
}
