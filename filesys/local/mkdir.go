//go:build linux

package local

import (
	"context"
	"errors"
	"io/fs"

	"github.com/commitstep/engine/commitstep"
	"golang.org/x/sys/unix"
)

// MkdirAll makes the directory and its parents; see [filesys.FS]. New
// directories are not durable before [Files.SyncDir], which syncs every one of
// them: a process that dies here leaves directories that nobody synced, and
// the next one cannot tell which.
func (f *Files) MkdirAll(ctx context.Context, a commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	return classify(f.mkdirAll(a))
}

func (f *Files) mkdirAll(a commitstep.Address) error {
	d, err := f.openDir(a)
	if err == nil {
		d.close()
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if rel, err := f.rel(a); err != nil {
		return err
	} else if rel == "." {
		return pathError("make directory", a.Path, unix.ENOENT) // the root was removed
	}
	if err := f.mkdirAll(a.Dir()); err != nil {
		return err
	}
	p, name, err := f.openParent(a)
	if err != nil {
		return err
	}
	defer p.close()
	err = f.do(Op{Kind: OpMkdir, Path: p.join(name)}, p, name, func() error { return unix.Mkdirat(p.fd, name, 0o777) })
	if err == nil {
		return nil
	}
	if err == unix.EEXIST {
		// Somebody else made it, or a file or a dangling link is in the way.
		d, err := f.openDir(a)
		if err == nil {
			d.close()
		}
		return err
	}
	return pathError("make directory", a.Path, err)
}
