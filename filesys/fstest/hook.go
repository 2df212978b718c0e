package fstest

import (
	"context"
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
// system. The optional abilities of package filesys are kept.
func Hooked(fs filesys.FS, hook Hook) filesys.FS {
	h := hooked{fs, hook}
	s, sweeps := fs.(filesys.Sweeper)
	c, checks := fs.(filesys.PlanChecker)
	switch {
	case sweeps && checks:
		return struct {
			hooked
			hookedSweeper
			hookedChecker
		}{h, hookedSweeper{s, hook}, hookedChecker{c, hook}}
	case sweeps:
		return struct {
			hooked
			hookedSweeper
		}{h, hookedSweeper{s, hook}}
	case checks:
		return struct {
			hooked
			hookedChecker
		}{h, hookedChecker{c, hook}}
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

type hookedSweeper struct {
	sweeper filesys.Sweeper
	hook    Hook
}

func (h hookedSweeper) Sweep(ctx context.Context, dir commitstep.Address, ours func(filesys.Info) bool, look bool) (s filesys.Swept, err error) {
	err = h.hook("Sweep", dir, func() error { s, err = h.sweeper.Sweep(ctx, dir, ours, look); return err })
	return s, err
}

type hookedChecker struct {
	checker filesys.PlanChecker
	hook    Hook
}

func (h hookedChecker) CheckMove(ctx context.Context, from, to commitstep.Address) error {
	return h.hook("CheckMove", from, func() error { return h.checker.CheckMove(ctx, from, to) })
}
