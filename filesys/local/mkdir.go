//go:build linux

package local

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sys/unix"
)

// MkdirAll makes the directory and its parents, and makes their names durable,
// also of those that were there; see [filesys.FS].
//
// The names come before what is moved into the directory: another step, or
// another dataset's run, may sync the directory that a file is moved out of at
// any moment, and from then on a power cut that forgets the new directory would
// take the file with it. A directory that is there may be one that a process
// made and did not live to sync, so it is trusted only once this process has
// seen to it.
func (f *Files) MkdirAll(ctx context.Context, a commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	// The steps of a stage make their directory at the same moment: who comes
	// second finds it durable instead of syncing its parents once more.
	defer f.making.turn(a)()
	if err := f.mkdirAll(a); err != nil {
		return classify(err)
	}
	d, err := f.openDir(a)
	if err != nil {
		return classify(err)
	}
	info, err := f.infoOf(d.fd, f.address(d.real))
	if err != nil || !info.ID.IsZero() && f.durable.has(chain(d, info)) {
		d.close()
		return classify(err)
	}
	return classify(f.syncAbove(ctx, d, info))
}

func (f *Files) mkdirAll(a commitstep.Address) error {
	d, err := f.openDir(a)
	if err == nil {
		d.close()
		return nil
	}
	// Where a name is too long no parents are made for it in vain.
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, filesys.ErrNameTooLong) {
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

// makers take turns where they make the same directory. The zero value is ready.
type makers struct {
	mu sync.Mutex
	m  map[commitstep.Address]*maker
}

type maker struct {
	mu sync.Mutex
	n  int // who makes it or waits; guarded by makers.mu
}

// turn waits until nobody else makes a. The function it returns ends the turn.
func (s *makers) turn(a commitstep.Address) (end func()) {
	s.mu.Lock()
	if s.m == nil {
		s.m = make(map[commitstep.Address]*maker)
	}
	w := s.m[a]
	if w == nil {
		w = new(maker)
		s.m[a] = w
	}
	w.n++
	s.mu.Unlock()
	w.mu.Lock()
	return func() {
		w.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.n--; w.n == 0 {
			delete(s.m, a)
		}
	}
}
