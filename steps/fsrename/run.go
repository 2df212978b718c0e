package fsrename

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Verify compares what is at the destination, and if nothing is there what is
// at the source, with what was planned.
func (b *step) Verify(ctx context.Context, _ *commitstep.Attempt) (commitstep.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return commitstep.Verdict{}, err
	}
	if b.evidence == nil {
		return commitstep.IsUnknown("nothing was recorded when %s was planned, so neither place can be compared", b.Summary()), nil
	}
	b.seen = time.Time{}
	dst, parent, err := b.statTo(ctx)
	switch {
	case err == nil:
		return b.verifyDestination(ctx, dst)
	case errors.Is(err, filesys.ErrNotDirectory), errors.Is(err, filesys.ErrEscapes):
		return commitstep.InConflict("the destination %s cannot be made: %v", b.to, err), nil
	case !errors.Is(err, fs.ErrNotExist):
		return commitstep.Verdict{}, err
	}
	src, at, err := b.statFrom(ctx)
	switch {
	case filesys.Missing(err):
		// The rename may have taken place between the two looks.
		if dst, err := b.fs.Stat(ctx, b.to); err == nil {
			return b.verifyDestination(ctx, dst)
		}
		return commitstep.IsUnknown("neither the source %s nor the destination %s is there: it was published and then moved on, or it was lost%s", b.from, b.to, b.whereabouts(ctx)), nil
	case errors.Is(err, filesys.ErrEscapes):
		return commitstep.InConflict("the source %s was replaced: %v", b.from, err), nil
	case err != nil:
		return commitstep.Verdict{}, err
	}
	is, why, err := b.compare(ctx, src, true)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	switch is {
	case same:
		if !parent && b.fs.Capabilities().BlursNotDirectory {
			var file commitstep.Address
			if parent, file, err = b.directoryAbove(ctx); err != nil {
				return commitstep.Verdict{}, err
			} else if file != (commitstep.Address{}) {
				return commitstep.InConflict("the destination %s cannot be made: %s is a file where a directory must be", b.to, file), nil
			}
		}
		b.seen, b.parent = at, parent
		return commitstep.IsNotDone("the source %s is as planned (%s), the destination is free", b.from, why), nil
	case undecided:
		return commitstep.IsUnknown("source %s: %s", b.from, why), nil
	}
	return commitstep.InConflict("the source %s changed after it was planned: %s", b.from, why), nil
}

// directoryAbove looks whether the destination's directory is there, or can be
// made: a file system that calls everything below a file missing does not tell
// by itself that a file is in the way.
func (b *step) directoryAbove(ctx context.Context) (there bool, file commitstep.Address, err error) {
	for at := b.to.Dir(); ; at = at.Dir() {
		info, err := b.fs.Stat(ctx, at)
		switch {
		case err == nil && !info.Dir:
			return false, at, nil
		case err == nil:
			return at == b.to.Dir(), file, nil
		case !filesys.Missing(err):
			return false, file, err
		case at == at.Dir():
			return false, file, nil
		}
	}
}

// whereabouts says what became of a file that is at neither place, as far as
// the file system knows.
func (b *step) whereabouts(ctx context.Context) string {
	f, ok := b.fs.(filesys.Finder)
	if !ok || b.evidence.ID.IsZero() {
		return ""
	}
	at, err := f.Find(ctx, b.evidence.ID)
	switch {
	case err == nil:
		return fmt.Sprintf("; its file id %s is now at %s", b.evidence.ID.Text, at)
	case errors.Is(err, errors.ErrUnsupported):
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("; nothing has its file id %s any more", b.evidence.ID.Text)
	}
	return fmt.Sprintf("; where it went cannot be told: %v", err)
}

func (b *step) verifyDestination(ctx context.Context, dst filesys.Info) (commitstep.Verdict, error) {
	b.links = dst.Links
	is, why, err := b.compare(ctx, dst, false)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	switch is {
	case another:
		return commitstep.InConflict("the destination %s is not what was planned: %s", b.to, why), nil
	case altered:
		return commitstep.InConflict("the destination %s was changed: %s", b.to, why).ButVisible(), nil
	case undecided:
		return commitstep.IsUnknown("destination %s: %s", b.to, why), nil
	}
	ok, err := b.fs.HasAttributes(dst, b.params.Attributes)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	if !ok {
		return commitstep.IsNotDone("the destination %s is what was planned (%s), only the attributes are missing: it has mode %s, owner %s, group %s", b.to, why, octal(dst.Mode), dst.Owner, dst.Group).ButVisible(), nil
	}
	return commitstep.IsDone("the destination %s is what was planned: %s", b.to, why), nil
}

// octal writes permission bits as chmod reads them.
func octal(m fs.FileMode) string {
	n := uint32(m.Perm())
	for _, s := range []struct {
		bit fs.FileMode
		n   uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&s.bit != 0 {
			n |= s.n
		}
	}
	return fmt.Sprintf("%04o", n)
}

// Execute makes the missing directories, renames, and sets the attributes. It
// looks again at what it is about to do unless Verify has just done so: time
// may have passed.
func (b *step) Execute(ctx context.Context, _ *commitstep.Attempt) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	if b.evidence == nil {
		return commitstep.Permanent(fmt.Errorf("rename %s: nothing was recorded when it was planned", b.Summary()))
	}
	fresh := b.freshSource()
	b.seen = time.Time{}
	if !fresh {
		if done, err := b.lookAgain(ctx); err != nil {
			return err
		} else if done {
			return b.failed
		}
	}
	parent := b.parentSeen()
	if !parent {
		if err := b.fs.MkdirAll(ctx, b.to.Dir()); err != nil {
			return fmt.Errorf("rename %s: %w", b.Summary(), err)
		}
	}
	err := b.fs.Rename(ctx, b.from, b.to)
	if parent && errors.Is(err, fs.ErrNotExist) {
		// A definite no: somebody removed the source, or the directory that it
		// was to go to.
		if err := b.fs.MkdirAll(ctx, b.to.Dir()); err != nil {
			return fmt.Errorf("rename %s: %w", b.Summary(), err)
		}
		err = b.fs.Rename(ctx, b.from, b.to)
	}
	if err != nil {
		err = fmt.Errorf("rename %s: %w", b.Summary(), err)
		switch {
		case errors.Is(err, fs.ErrExist):
			// After a crash the source can be a second name of the destination;
			// then the attributes may still be missing.
			if done, err := b.executed(ctx); done || err != nil {
				return err
			}
		case commitstep.ClassOf(err) != commitstep.ClassNotSent && !b.params.Attributes.IsZero():
			return b.finishFailed(ctx, err)
		}
		return err
	}
	if b.params.Attributes.IsZero() {
		return nil
	}
	dst, err := b.fs.Stat(ctx, b.to)
	if err != nil {
		return fmt.Errorf("rename %s: after the rename: %w", b.Summary(), err)
	}
	return b.attributes(ctx, dst)
}

// lookAgain is the look of Execute: the source must be as planned. done says
// that the rename was found in place already.
func (b *step) lookAgain(ctx context.Context) (done bool, err error) {
	// A rename that never overwrites looks at the destination by itself.
	if !b.fs.Capabilities().NoClobber {
		if done, err := b.executed(ctx); done || err != nil {
			return done, err
		}
	}
	src, err := b.fs.Stat(ctx, b.from)
	if filesys.Missing(err) {
		if done, err := b.executed(ctx); done || err != nil {
			return done, err
		}
		return false, commitstep.Refused(err)
	} else if err != nil {
		return false, commitstep.NotSent(err)
	}
	is, why, err := b.compare(ctx, src, true)
	if err != nil {
		return false, commitstep.NotSent(err)
	}
	if is != same {
		// The next run may have staged another file there, after our rename.
		if done, err := b.executed(ctx); done || err != nil {
			return done, err
		}
		return false, commitstep.Refused(fmt.Errorf("rename %s: %w: %s", b.Summary(), filesys.ErrChanged, why))
	}
	return false, nil
}

// executed looks at the destination. Where the rename is done already, only the
// attributes are left to be set; something else there is a refusal.
func (b *step) executed(ctx context.Context) (bool, error) {
	dst, err := b.fs.Stat(ctx, b.to)
	switch {
	case filesys.Missing(err):
		return false, nil
	case err != nil:
		return false, commitstep.NotSent(err)
	}
	is, why, err := b.compare(ctx, dst, false)
	if err != nil {
		return false, commitstep.NotSent(err)
	}
	if is != same {
		return false, commitstep.Refused(fmt.Errorf("rename %s: %w: %s", b.Summary(), fs.ErrExist, why))
	}
	return true, b.attributes(ctx, dst)
}

// finishFailed goes on after a rename that failed with err and may have taken
// place in spite of it: its answer was lost, or it was refused because an
// earlier one whose answer was lost has won. If it did, only the attributes are
// missing, which Verify must call "not done", and so the attempt would count as
// failed although nothing went wrong. They are set at once instead. err is
// returned all the same: that the step is done in spite of it is for the Verify
// that follows to find.
func (b *step) finishFailed(ctx context.Context, err error) error {
	b.failed = err
	dst, serr := b.fs.Stat(ctx, b.to)
	if serr != nil {
		return err // Verify cannot look either, and waits
	}
	if is, _, cerr := b.compare(ctx, dst, false); cerr != nil || is != same {
		return err
	}
	if aerr := b.attributes(ctx, dst); aerr != nil {
		return aerr
	}
	return err
}

// attributes sets what is asked for on what is at the destination and was just
// found to be ours.
func (b *step) attributes(ctx context.Context, dst filesys.Info) error {
	ok, err := b.fs.HasAttributes(dst, b.params.Attributes)
	if err != nil {
		return commitstep.Refused(err)
	}
	if ok {
		return nil
	}
	if err := b.fs.SetAttributes(ctx, b.to, b.params.Attributes); err != nil {
		return fmt.Errorf("rename %s: the rename is done, its attributes are not: %w", b.Summary(), err)
	}
	return nil
}

// Settle makes the rename durable in both directories, and first drops the
// source where it is a second name of the destination. It does not ask what
// this process did: the rename may be that of one that died before its fsync.
func (b *step) Settle(ctx context.Context, s *commitstep.Settling) error {
	if !b.fs.Capabilities().Sync {
		return ctx.Err()
	}
	// A directory has no second names, but both its parents change like those
	// of a file.
	dropped := false
	if b.evidence == nil || !b.evidence.Dir {
		// Verify has just seen how many names the file has; a file with one has
		// no second one to drop.
		if b.links != 1 {
			_, err := b.fs.Stat(ctx, b.from)
			dropped = err == nil
			if err := b.fs.DropSecondName(ctx, b.from, b.to); err != nil {
				return fmt.Errorf("settle %s: %w", b.Summary(), err)
			}
		}
	}
	if !b.params.Attributes.IsZero() {
		sync := b.fs.SyncFile
		if b.evidence != nil && b.evidence.Dir {
			sync = b.fs.SyncDir
		}
		// Gone means consumed since Verify saw it.
		if err := sync(ctx, b.to); err != nil && !filesys.Missing(err) {
			return fmt.Errorf("settle %s: %w", b.Summary(), err)
		}
	}
	for _, dir := range []commitstep.Address{b.to.Dir(), b.from.Dir()} {
		err := s.Do("fs.rename sync "+dir.String(), func() error { return b.syncNearest(ctx, dir) })
		if err != nil {
			return fmt.Errorf("settle %s: %w", b.Summary(), err)
		}
	}
	if dropped {
		// Another step of the stage may have synced the directory before.
		if err := b.syncNearest(ctx, b.from.Dir()); err != nil {
			return fmt.Errorf("settle %s: %w", b.Summary(), err)
		}
	}
	return nil
}

// syncNearest syncs a directory, or if somebody removed it the nearest one
// above, where the removal is recorded.
func (b *step) syncNearest(ctx context.Context, dir commitstep.Address) error {
	for {
		err := b.fs.SyncDir(ctx, dir)
		if !filesys.Missing(err) || dir == dir.Dir() {
			return err
		}
		dir = dir.Dir()
	}
}

// Staged looks what Discard would find: whether the source is there exactly as
// it was recorded, or what is there instead and stays.
func (b *step) Staged(ctx context.Context, _ *commitstep.Attempt) (bool, []string, error) {
	_, staged, stays, err := b.staged(ctx)
	return staged, stays, err
}

func (b *step) staged(ctx context.Context) (src filesys.Info, staged bool, stays []string, err error) {
	if b.evidence == nil {
		return src, false, []string{fmt.Sprintf("%s: nothing was recorded when it was planned", b.from)}, nil
	}
	src, err = b.fs.Stat(ctx, b.from)
	if filesys.Missing(err) {
		return src, false, nil, nil
	} else if err != nil {
		return src, false, nil, err
	}
	is, why, err := b.compare(ctx, src, true)
	if err != nil {
		return src, false, nil, err
	}
	if is != same {
		return src, false, []string{fmt.Sprintf("%s: %s", b.from, why)}, nil
	}
	return src, true, nil, nil
}

// Discard removes the staged file or directory of an abandoned sequence, if it
// is still exactly what was recorded. It may be repeated.
func (b *step) Discard(ctx context.Context, _ *commitstep.Attempt) ([]string, error) {
	src, staged, stays, err := b.staged(ctx)
	if err != nil || !staged {
		return stays, err
	}
	if !src.Dir {
		if err := b.fs.Remove(ctx, src); errors.Is(err, filesys.ErrChanged) {
			return []string{fmt.Sprintf("%s: %v", b.from, err)}, nil
		} else if err != nil {
			return nil, err
		}
		return nil, nil
	}
	return b.discardTree(ctx, src)
}

// discardTree removes the files just compared, then the directories that are
// empty, innermost first.
func (b *step) discardTree(ctx context.Context, top filesys.Info) ([]string, error) {
	var files []filesys.Info
	dirs := []filesys.Info{top}
	t, err := b.readSource(ctx, func(i filesys.Info) error {
		if i.Dir {
			dirs = append(dirs, i)
		} else {
			files = append(files, i)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if *t != *b.evidence.Tree {
		return []string{fmt.Sprintf("%s: its list of files has changed", b.from)}, nil
	}
	var stays []string
	for _, i := range files {
		if err := b.fs.Remove(ctx, i); errors.Is(err, filesys.ErrChanged) {
			stays = append(stays, fmt.Sprintf("%s: %v", i.Path, err))
		} else if err != nil {
			return stays, err
		}
	}
	for n := len(dirs) - 1; n >= 0; n-- {
		if err := b.fs.RemoveDir(ctx, dirs[n]); errors.Is(err, filesys.ErrChanged) || errors.Is(err, filesys.ErrNotEmpty) {
			stays = append(stays, fmt.Sprintf("%s: %v", dirs[n].Path, err))
		} else if err != nil {
			return stays, err
		}
	}
	return stays, nil
}
