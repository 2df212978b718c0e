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

var _ filesys.Sweeper = (*Files)(nil)

// Sweep finishes what a [Files.Remove] or [Files.DropSecondName] left directly
// inside a directory when its process died; see [filesys.Sweeper].
func (f *Files) Sweep(ctx context.Context, a commitstep.Address, ours func(filesys.Info) bool, look bool) (filesys.Swept, error) {
	if err := ctx.Err(); err != nil {
		return filesys.Swept{}, commitstep.NotSent(err)
	}
	d, err := f.openDir(a)
	if err != nil {
		return filesys.Swept{}, missingIsFine(err)
	}
	defer d.close()
	s := sweep{f: f, dir: d, addr: a, ours: ours, look: look}
	err = s.run()
	return s.found, classify(err)
}

type sweep struct {
	f     *Files
	dir   dir
	addr  commitstep.Address
	ours  func(filesys.Info) bool
	look  bool
	found filesys.Swept
}

func (s *sweep) run() error {
	names, err := namesIn(s.dir)
	if err != nil {
		return pathError("list", s.addr.Path, err)
	}
	var errs []error
	for _, name := range names {
		if !strings.HasPrefix(name, privatePrefix) {
			continue
		}
		if err := s.private(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *sweep) private(name string) error {
	info, err := s.f.infoAt(s.dir, name, s.child(name))
	if err != nil {
		return err
	}
	if !info.Dir { // from a removal on a full disk; its name is forgotten
		if !s.ours(info) {
			s.stays("%q is a file of unknown name: it was taken away by a removal on a full disk that did not end", info.Path.Path)
			return nil
		}
		s.found.Todo++
		if s.look {
			return nil
		}
		return pathError("remove", info.Path.Path, s.f.unlinkAt(s.dir, name))
	}
	fd, err := retryInt(func() (int, error) {
		return unix.Openat(s.dir.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return pathError("open directory", info.Path.Path, err)
	}
	trash := dir{fd, s.dir.join(name)}
	defer trash.close()
	victims, err := namesIn(trash)
	if err != nil {
		return pathError("list", trash.real, err)
	}
	left := 0
	for _, v := range victims {
		stays, err := s.victim(trash, v)
		if err != nil {
			return err
		}
		if stays {
			left++
		}
	}
	if left > 0 {
		return nil
	}
	s.found.Todo++
	if s.look {
		return nil
	}
	if err := s.f.rmdirAt(s.dir, name); err != nil && err != unix.ENOTEMPTY {
		return pathError("remove directory", trash.real, err)
	}
	return nil
}

// victim removes one file of a private directory or puts it back. It reports
// whether the file stays there.
func (s *sweep) victim(trash dir, name string) (stays bool, err error) {
	info, err := s.f.infoAt(trash, name, s.child(name))
	if err != nil {
		return false, err
	}
	if !info.Dir && s.ours(info) {
		s.found.Todo++
		if s.look {
			return false, nil
		}
		return false, pathError("remove", trash.join(name), s.f.unlinkAt(trash, name))
	}
	if there, err := statAt(s.dir, name); err == nil {
		if v, err := statAt(trash, name); err != nil {
			return false, err
		} else if v.Ino == there.Ino && v.Dev_major == there.Dev_major && v.Dev_minor == there.Dev_minor && !info.Dir {
			// It was being put back by a link; the private name goes.
			s.found.Todo++
			if s.look {
				return false, nil
			}
			return false, pathError("remove", trash.join(name), s.f.unlinkAt(trash, name))
		}
		s.stays("%q was taken away from %q, which is another file now", trash.join(name), info.Path.Path)
		return true, nil
	} else if err != unix.ENOENT {
		return false, err
	}
	s.found.Todo++
	if s.look {
		return false, nil
	}
	if err := s.f.moveOut(trash, name, s.dir, name); err != nil {
		return false, pathError("put back from "+fmt.Sprintf("%q", trash.join(name))+" to", info.Path.Path, err)
	}
	return false, nil
}

func (s *sweep) child(name string) commitstep.Address {
	return s.f.address(strings.TrimSuffix(s.addr.Path, "/") + "/" + name)
}

func (s *sweep) stays(format string, a ...any) {
	s.found.Stays = append(s.found.Stays, fmt.Sprintf(format, a...))
}

func namesIn(d dir) ([]string, error) {
	r, err := openForReading(d, ".")
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Readdirnames(-1)
}
