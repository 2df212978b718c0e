//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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
		return mayChange(dst)
	}
}

func mayChange(d dir) error {
	err := retry(func() error { return unix.Faccessat(d.fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS) })
	return pathError("change entries of directory", d.real, err)
}
