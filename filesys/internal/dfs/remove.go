package dfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/google/uuid"
)

// privatePrefix starts the names of directories into which a file is moved to
// be looked at before it is removed.
const privatePrefix = ".commitstep-trash-"

var _ filesys.Sweeper = (*Files)(nil)

// Remove removes exactly the file that want describes; see [filesys.FS].
//
// No call removes a path only while it stands for a given file, and one that
// removes a file by its id would find it also where somebody published it. So
// the file is moved to a directory of a random name, which nobody else moves
// anything into, and looked at there; what is foreign goes back. What a process
// leaves that dies in between is finished by [Files.Sweep].
func (f *Files) Remove(ctx context.Context, want filesys.Info) error {
	return f.change(ctx, func() error {
		if want.Dir {
			return commitstep.Permanent(fmt.Errorf("remove %s: it is a directory", want.Path))
		}
		got, err := f.Stat(ctx, want.Path)
		switch {
		case filesys.Missing(err):
			return nil
		case err != nil:
			return NotExecuted(err)
		case !sameFile(got, want):
			return fmt.Errorf("remove %s: %w", want.Path, filesys.ErrChanged)
		}
		return f.removePrivately(ctx, want)
	}, want.Path)
}

func sameFile(got, want filesys.Info) bool {
	return !got.Dir && got.Other == want.Other && got.ID == want.ID && got.Size == want.Size && got.MTime.Equal(want.MTime)
}

func (f *Files) removePrivately(ctx context.Context, want filesys.Info) error {
	private := commitstep.Address{Resource: f.resource, Path: strings.TrimSuffix(want.Path.Dir().Path, "/") + "/" + privatePrefix + uuid.NewString()}
	victim := commitstep.Address{Resource: f.resource, Path: private.Path + "/" + want.Path.Base()}
	if err := f.t.Mkdirs(ctx, private.Path); err != nil {
		return fmt.Errorf("remove %s: private directory: %w", want.Path, err)
	}
	err := f.t.Rename(ctx, want.Path.Path, victim.Path)
	if errors.Is(err, fs.ErrNotExist) {
		// Gone, or another process's sweep took the private directory away.
		_ = f.t.Delete(ctx, private.Path)
		if _, serr := f.t.Stat(ctx, want.Path.Path); filesys.Missing(serr) {
			return nil
		}
		return fmt.Errorf("remove %s: another process is cleaning up here; try again: %w", want.Path, err)
	} else if err != nil {
		if !wasLost(err) {
			_ = f.t.Delete(ctx, private.Path) // stays empty; the next sweep finds it else
		}
		return fmt.Errorf("remove %s: %w", want.Path, err)
	}
	got, err := f.Stat(ctx, victim)
	switch {
	case filesys.Missing(err):
		return nil // a sweep of another process dealt with it
	case err == nil && sameFile(got, want):
		if err := f.t.Delete(ctx, victim.Path); err != nil {
			return fmt.Errorf("remove %s: %w", want.Path, err)
		}
		if err := f.t.Delete(ctx, private.Path); err != nil {
			return fmt.Errorf("remove %s: its private directory: %w", want.Path, err)
		}
		return nil
	case err == nil:
		err = fmt.Errorf("remove %s: %w", want.Path, filesys.ErrChanged)
	}
	// Foreign, or not to be told: back to its name.
	if back := f.t.Rename(ctx, victim.Path, want.Path.Path); back != nil && !errors.Is(back, fs.ErrNotExist) {
		return fmt.Errorf("%w; the file now lies at %s and could not be put back (%w): move it by hand", err, victim, back)
	}
	_ = f.t.Delete(ctx, private.Path) // an empty one is found by the next sweep
	return err
}

// RemoveDir removes an empty directory that still has want's id; see
// [filesys.FS]. A missing one is success. An empty directory that takes the
// name right after the look can go in its place; what holds anything cannot.
func (f *Files) RemoveDir(ctx context.Context, want filesys.Info) error {
	return f.change(ctx, func() error {
		if want.Path == f.Root() {
			return commitstep.Permanent(fmt.Errorf("remove directory %s: it is the root", want.Path))
		}
		got, err := f.Stat(ctx, want.Path)
		switch {
		case filesys.Missing(err):
			return nil
		case err != nil:
			return NotExecuted(err)
		case !got.Dir || got.ID != want.ID:
			return fmt.Errorf("remove directory %s: %w", want.Path, filesys.ErrChanged)
		}
		if err := f.t.Delete(ctx, want.Path.Path); err != nil {
			return fmt.Errorf("remove directory %s: %w", want.Path, err)
		}
		return nil
	}, want.Path)
}

// Sweep finishes what a [Files.Remove] left directly inside a directory when
// its process died; see [filesys.Sweeper].
func (f *Files) Sweep(ctx context.Context, dir commitstep.Address, ours func(filesys.Info) bool, look bool) (filesys.Swept, error) {
	s := sweep{f: f, ctx: ctx, dir: dir, ours: ours, look: look}
	err := f.change(ctx, s.run, dir)
	return s.found, err
}

type sweep struct {
	f     *Files
	ctx   context.Context
	dir   commitstep.Address
	ours  func(filesys.Info) bool
	look  bool
	found filesys.Swept
}

func (s *sweep) run() error {
	var privates []commitstep.Address
	for i, err := range s.f.List(s.ctx, s.dir) {
		if filesys.Missing(err) {
			return nil
		} else if err != nil {
			return NotExecuted(err)
		}
		if i.Dir && strings.HasPrefix(i.Path.Base(), privatePrefix) {
			privates = append(privates, i.Path)
		}
	}
	for _, p := range privates {
		if err := s.private(p); err != nil && !filesys.Missing(err) {
			return err
		}
	}
	return nil
}

func (s *sweep) private(at commitstep.Address) error {
	var victims []filesys.Info
	for i, err := range s.f.List(s.ctx, at) {
		if err != nil {
			return err
		}
		victims = append(victims, i)
	}
	left := 0
	for _, v := range victims {
		home := commitstep.Address{Resource: at.Resource, Path: strings.TrimSuffix(s.dir.Path, "/") + "/" + v.Path.Base()}
		as := v
		as.Path = home
		if v.Dir || !s.ours(as) {
			stays, err := s.putBack(v.Path, home)
			if err != nil {
				return err
			}
			if stays {
				left++
			}
			continue
		}
		s.found.Todo++
		if s.look {
			continue
		}
		if err := s.f.t.Delete(s.ctx, v.Path.Path); err != nil {
			return fmt.Errorf("remove %s: %w", v.Path, err)
		}
	}
	if left > 0 {
		return nil
	}
	s.found.Todo++
	if s.look {
		return nil
	}
	if err := s.f.t.Delete(s.ctx, at.Path); err != nil && !errors.Is(err, filesys.ErrNotEmpty) {
		return fmt.Errorf("remove directory %s: %w", at, err)
	}
	return nil
}

// putBack reports whether a foreign file has to stay where it is.
func (s *sweep) putBack(victim, home commitstep.Address) (stays bool, err error) {
	if _, err := s.f.t.Stat(s.ctx, home.Path); err == nil {
		s.found.Stays = append(s.found.Stays, fmt.Sprintf("%s was taken away from %s, which is another file now", victim, home))
		return true, nil
	} else if !filesys.Missing(err) {
		return false, err
	}
	s.found.Todo++
	if s.look {
		return false, nil
	}
	if err := s.f.t.Rename(s.ctx, victim.Path, home.Path); err != nil {
		return false, fmt.Errorf("put back %s to %s: %w", victim, home, err)
	}
	return false, nil
}
