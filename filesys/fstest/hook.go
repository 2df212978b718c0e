package fstest

import (
	"context"
	"errors"
	"iter"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Hook is called around every call of a file system: op is the method's name,
// p its (first) path, and do makes the call. A hook that does not call do
// returns an error; one that calls do may hide its error or add one, as a lost
// answer does.
type Hook func(op string, p commitstep.Address, do func() error) error

// Hooked puts a hook around every call of fs that looks at or changes the file
// system. The optional abilities of package filesys are kept; those that fs
// lacks answer as if there were nothing to be done, or with
// errors.ErrUnsupported where the ability allows for that.
func Hooked(fs filesys.FS, hook Hook) filesys.FS {
	h := hooked{fs, hook}
	if b, ok := fs.(filesys.BatchStater); ok {
		return hookedBatch{h, b}
	}
	return h
}

type hooked struct {
	filesys.FS
	hook Hook
}

func (h hooked) Stat(ctx context.Context, p commitstep.Address) (info filesys.Info, err error) {
	err = h.hook("Stat", p, func() error { info, err = h.FS.Stat(ctx, p); return err })
	return info, err
}

func (h hooked) List(ctx context.Context, dir commitstep.Address) iter.Seq2[filesys.Info, error] {
	return func(yield func(filesys.Info, error) bool) {
		var entries []filesys.Info
		err := h.hook("List", dir, func() error {
			for i, err := range h.FS.List(ctx, dir) {
				if err != nil {
					return err
				}
				entries = append(entries, i)
			}
			return nil
		})
		for _, i := range entries {
			if !yield(i, nil) {
				return
			}
		}
		if err != nil {
			yield(filesys.Info{}, err)
		}
	}
}

func (h hooked) Digest(ctx context.Context, p commitstep.Address) (d string, err error) {
	err = h.hook("Digest", p, func() error { d, err = h.FS.Digest(ctx, p); return err })
	return d, err
}

func (h hooked) MkdirAll(ctx context.Context, dir commitstep.Address) error {
	return h.hook("MkdirAll", dir, func() error { return h.FS.MkdirAll(ctx, dir) })
}

func (h hooked) Rename(ctx context.Context, from, to commitstep.Address) error {
	return h.hook("Rename", from, func() error { return h.FS.Rename(ctx, from, to) })
}

func (h hooked) DropSecondName(ctx context.Context, from, to commitstep.Address) error {
	return h.hook("DropSecondName", from, func() error { return h.FS.DropSecondName(ctx, from, to) })
}

func (h hooked) SetAttributes(ctx context.Context, p commitstep.Address, a filesys.Attributes) error {
	return h.hook("SetAttributes", p, func() error { return h.FS.SetAttributes(ctx, p, a) })
}

func (h hooked) Remove(ctx context.Context, want filesys.Info) error {
	return h.hook("Remove", want.Path, func() error { return h.FS.Remove(ctx, want) })
}

func (h hooked) RemoveDir(ctx context.Context, want filesys.Info) error {
	return h.hook("RemoveDir", want.Path, func() error { return h.FS.RemoveDir(ctx, want) })
}

func (h hooked) SyncFile(ctx context.Context, p commitstep.Address) error {
	return h.hook("SyncFile", p, func() error { return h.FS.SyncFile(ctx, p) })
}

func (h hooked) SyncDir(ctx context.Context, dir commitstep.Address) error {
	return h.hook("SyncDir", dir, func() error { return h.FS.SyncDir(ctx, dir) })
}

func (h hooked) Sweep(ctx context.Context, dir commitstep.Address, ours func(filesys.Info) bool, look bool) (s filesys.Swept, err error) {
	sweeper, ok := h.FS.(filesys.Sweeper)
	if !ok {
		return s, nil
	}
	err = h.hook("Sweep", dir, func() error { s, err = sweeper.Sweep(ctx, dir, ours, look); return err })
	return s, err
}

func (h hooked) CheckMove(ctx context.Context, from, to commitstep.Address) error {
	checker, ok := h.FS.(filesys.PlanChecker)
	if !ok {
		return nil
	}
	return h.hook("CheckMove", from, func() error { return checker.CheckMove(ctx, from, to) })
}

func (h hooked) Writing(ctx context.Context, p commitstep.Address) (open bool, err error) {
	w, ok := h.FS.(filesys.WriterChecker)
	if !ok {
		return false, errors.ErrUnsupported
	}
	err = h.hook("Writing", p, func() error { open, err = w.Writing(ctx, p); return err })
	return open, err
}

func (h hooked) Find(ctx context.Context, id filesys.ID) (a commitstep.Address, err error) {
	f, ok := h.FS.(filesys.Finder)
	if !ok {
		return a, errors.ErrUnsupported
	}
	err = h.hook("Find", a, func() error { a, err = f.Find(ctx, id); return err })
	return a, err
}

type hookedBatch struct {
	hooked
	batch filesys.BatchStater
}

func (h hookedBatch) StatAll(ctx context.Context, paths []commitstep.Address) (out []filesys.Look) {
	var first commitstep.Address
	if len(paths) > 0 {
		first = paths[0]
	}
	err := h.hook("StatAll", first, func() error { out = h.batch.StatAll(ctx, paths); return nil })
	if err != nil {
		out = make([]filesys.Look, len(paths))
		for i := range out {
			out[i].Err = err
		}
	}
	return out
}
