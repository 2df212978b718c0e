package fsrename

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Prepare refuses what can be seen to fail, makes the staged data durable (a
// promise to publish it must survive the same power cut as the data), and
// records what was staged.
func (b *step) Prepare(ctx context.Context, p *commitstep.Preparation) error {
	err := b.prepare(ctx, p)
	if cause := ctx.Err(); err != nil && cause != nil && errors.Is(err, cause) {
		// Whoever ended the context has nothing to learn from where it was met,
		// and a look that was cut short refuses nothing.
		return cause
	}
	return err
}

func (b *step) prepare(ctx context.Context, p *commitstep.Preparation) error {
	if p.Cleanup {
		return p.Errorf("name it in a stage", "cannot be a cleanup")
	}
	if err := b.Resolve(p); err != nil {
		return err
	}
	if b.from.Contains(b.to) {
		return p.Errorf("publish to a place outside the source", "moves %s into itself (%s)", b.from, b.to)
	}
	if b.to.Contains(b.from) {
		return p.Errorf("publish to another name", "moves %s over the directory %s that holds it", b.from, b.to)
	}
	src, _, err := b.statFrom(ctx)
	switch {
	case errors.Is(err, filesys.ErrNameTooLong):
		return b.refuse("cannot exist", "name the file that was written", "source", b.from, err)
	case filesys.Missing(err):
		return b.refuse("is missing", "write it first, or leave the step out", "source", b.from, err)
	case errors.Is(err, filesys.ErrEscapes):
		return b.refuse("leaves the file system's root", "name the file without the link", "source", b.from, err)
	case err != nil:
		return fmt.Errorf("%s: %w", b.where, err)
	case src.Other && src.Special != "":
		return b.refuse("is a "+src.Special+" and neither a regular file nor a directory", "write the data to a file and publish that", "source", b.from, nil)
	case src.Other:
		return b.refuse("is neither a regular file nor a directory", "name the file that a link stands for", "source", b.from, nil)
	case b.toDirectory && !src.Dir:
		// Nothing is moved into a directory here: a file of that name would be made.
		return b.refuse("is written with a slash at its end, and the source is a file", "give the file's whole new name, as in "+short(b.to)+"/"+b.from.Base(), "destination", b.to, nil)
	}
	uses := [2]commitstep.PathUse{commitstep.SourceFile, commitstep.DestinationFile}
	if src.Dir {
		uses = [2]commitstep.PathUse{commitstep.SourceTree, commitstep.DestinationTree}
	}
	if err := p.Claim(b.from, uses[0]); err != nil {
		return err
	}
	if err := p.Claim(b.to, uses[1]); err != nil {
		return err
	}
	if src.Dir {
		// Not every file system can refuse to replace an empty directory, and
		// nothing but a lock keeps two plans from filling one.
		if err := p.AddLock(dirLock(b.to), true); err != nil {
			return err
		}
	}
	if err := b.checkDestination(ctx, p, src); err != nil {
		return err
	}
	if _, err := b.fs.HasAttributes(src, b.params.Attributes); err != nil {
		return &commitstep.PlanError{Where: b.where, Problem: "asks for attributes that cannot be set", Err: err}
	}
	if b.params.Length == nil && b.fs.Capabilities().NeedsLength {
		return b.refuse("needs its length in the plan", "on "+b.fs.Resource()+" a file that is still being written cannot be told from a finished one; add `length: BYTES`, for a directory the sum over its files", "source", b.from, nil)
	}
	if !src.Dir {
		if err := b.checkLength(src.Size); err != nil {
			return err
		}
		if err := b.checkWriter(ctx, b.from); err != nil {
			return err
		}
	}
	e, err := b.gather(ctx, p, src)
	if err != nil {
		return err
	}
	if e.Dir {
		if err := b.checkLength(e.Tree.Bytes); err != nil {
			return err
		}
	}
	b.evidence = e
	return p.Set(b.params, e)
}

func (b *step) checkLength(bytes int64) error {
	if n := b.params.Length; n != nil && *n != bytes {
		return b.refuse(fmt.Sprintf("has %d bytes, its writer wrote %d", bytes, *n), "the writer did not finish or another file has its name; write it again", "source", b.from, nil)
	}
	return nil
}

// checkWriter refuses a file that somebody still writes, where that can be told.
func (b *step) checkWriter(ctx context.Context, a commitstep.Address) error {
	w, ok := b.fs.(filesys.WriterChecker)
	if !ok {
		return nil
	}
	open, err := w.Writing(ctx, a)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", b.where, err)
	case open && a == b.from:
		return b.refuse("is still being written", "publish a file once its writer has closed it", "source", a, nil)
	case open:
		return b.refuse("holds "+a.String()+", which is still being written", "publish a directory once its last writer has closed its files", "source directory", b.from, nil)
	}
	return nil
}

func (b *step) refuse(problem, hint, which string, a commitstep.Address, err error) error {
	return &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("cannot be planned: the %s %s %s", which, a, problem), Hint: hint, Err: err}
}

// dirLock is the lock of a directory destination; a lock's name is bounded, a
// path is not.
func dirLock(a commitstep.Address) string {
	l := "path:" + a.String()
	if len(l) > commitstep.MaxNameBytes {
		h := sha256.Sum256([]byte(a.String()))
		l = "path-sha256:" + hex.EncodeToString(h[:])
	}
	return l
}

func (b *step) checkDestination(ctx context.Context, p *commitstep.Preparation, src filesys.Info) error {
	dst, parent, err := b.statTo(ctx)
	switch {
	case err == nil:
		// A crash on a file system that renames by link and unlink leaves one
		// file with both names; then this step only has to drop the first.
		if !dst.Dir && !dst.Other && !src.ID.IsZero() && src.ID == dst.ID {
			return nil
		}
		return b.refuse("is taken by "+describe(dst), "publish under another name, or move what is there away; a rename never overwrites", "destination", b.to, fs.ErrExist)
	case errors.Is(err, filesys.ErrNameTooLong):
		return b.nameTooLong(err)
	case errors.Is(err, filesys.ErrEscapes):
		return b.refuse("leaves the file system's root", "publish to a place below the root", "destination", b.to, err)
	case !filesys.Missing(err):
		return fmt.Errorf("%s: %w", b.where, err)
	}
	// What is asked of the directories is the same for all files that go from
	// one to the other.
	b.parent = parent
	key := "fs.rename move\x00" + b.from.Dir().String() + "\x00" + b.to.Dir().String() + "\x00" + src.Device + "\x00" + src.Owner
	if src.Dir {
		key += "\x00" + b.from.String() // may be special itself
	}
	if n := len(b.to.Base()); n > shortName {
		key += "\x00" + strconv.Itoa(n) // may be too long
	}
	return p.Once(key, func() error {
		if parent && b.fs.Capabilities().Remote {
			return b.checkMove(ctx) // which looks at the directory anyway
		}
		return b.checkDirectories(ctx, src)
	})
}

// shortName is the length of names that every file system takes.
const shortName = 100

func (b *step) nameTooLong(err error) error {
	return b.refuse("cannot be made", "publish under a shorter name", "destination", b.to, err)
}

// checkDirectories refuses a destination whose directory cannot be made, is on
// another file system, or may not be written to.
func (b *step) checkDirectories(ctx context.Context, src filesys.Info) error {
	for at := b.to.Dir(); ; at = at.Dir() {
		info, err := b.fs.Stat(ctx, at)
		switch {
		case err == nil && !info.Dir && !info.Other:
			return b.refuse(fmt.Sprintf("cannot be made: %s is a file where a directory must be", at), "publish elsewhere, or move that file away", "destination", b.to, filesys.ErrNotDirectory)
		case err == nil:
			if info.Dir && info.Device != "" && src.Device != "" && info.Device != src.Device {
				return b.otherFileSystem(fmt.Errorf("%s is on %s, %s on %s: %w", b.from, src.Device, at, info.Device, filesys.ErrOtherFileSystem))
			}
			return b.checkMove(ctx)
		case !filesys.Missing(err):
			return fmt.Errorf("%s: %w", b.where, err)
		case at == at.Dir():
			return b.checkMove(ctx)
		}
	}
}

func (b *step) checkMove(ctx context.Context) error {
	c, ok := b.fs.(filesys.PlanChecker)
	if !ok {
		return nil
	}
	err := c.CheckMove(ctx, b.from, b.to)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, filesys.ErrOtherFileSystem):
		return b.otherFileSystem(err)
	case errors.Is(err, filesys.ErrNameTooLong):
		return b.nameTooLong(err)
	case errors.Is(err, filesys.ErrEscapes), errors.Is(err, filesys.ErrNotDirectory):
		return b.refuse("cannot be made", "publish to another place", "destination", b.to, err)
	case errors.Is(err, filesys.ErrQuota):
		return b.refuse("has no room", "raise the quota, or make room", "destination", b.to, err)
	case commitstep.IsPermanent(err):
		return b.refuse("can never be moved to "+b.to.String(), "publish another way", "source", b.from, err)
	case errors.Is(err, fs.ErrPermission):
		return &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("may not move %s to %s", b.from, b.to), Hint: "give this user write permission on both directories", Err: err}
	}
	return fmt.Errorf("%s: %w", b.where, err)
}

func (b *step) otherFileSystem(err error) error {
	return &commitstep.PlanError{Where: b.where, Problem: fmt.Sprintf("moves %s to %s, another file system", b.from, b.to), Hint: "no rename between file systems is atomic; stage on the one that you publish to", Err: commitstep.Permanent(err)}
}

// gather syncs the source and records it. It looks before and after the sync:
// a file that changes meanwhile is still being written.
func (b *step) gather(ctx context.Context, p *commitstep.Preparation, src filesys.Info) (*evidence, error) {
	e := &evidence{ID: src.ID, Dir: src.Dir, Size: src.Size, MTime: src.MTime, Device: src.Device}
	if !src.Dir {
		sync := b.fs.Capabilities().Sync
		if sync {
			if err := b.fs.SyncFile(ctx, b.from); err != nil {
				return nil, fmt.Errorf("%s: source: %w", b.where, err)
			}
			if err := b.syncStaging(ctx, p, b.from.Dir()); err != nil {
				return nil, err
			}
		}
		if e.ID.IsZero() {
			d, err := b.fs.Digest(ctx, b.from)
			if err != nil {
				return nil, fmt.Errorf("%s: source: %w", b.where, err)
			}
			e.Digest = d
		}
		if !sync && e.Digest == "" {
			return e, nil // no time passed
		}
		return e, b.unchanged(ctx, src)
	}
	var err error
	if e.Tree, err = b.readSource(ctx, b.fits); err != nil {
		return nil, err
	}
	synced, err := b.readSource(ctx, func(i filesys.Info) error {
		if i.Dir {
			return b.fs.SyncDir(ctx, i.Path)
		}
		if err := b.checkWriter(ctx, i.Path); err != nil {
			return err
		}
		return b.fs.SyncFile(ctx, i.Path)
	})
	if err != nil {
		return nil, err
	}
	// The directory itself, and its own entry.
	if err := b.syncDir(ctx, b.from); err != nil {
		return nil, err
	}
	if *synced != *e.Tree {
		return nil, b.refuse("changed while it was looked at", "publish a directory once its last writer has closed its files", "source", b.from, nil)
	}
	e.Size = 0 // of a directory, means nothing
	again, err := b.fs.Stat(ctx, b.from)
	if err != nil || again.ID != src.ID || !again.Dir {
		return nil, b.refuse("changed while it was looked at", "publish a directory once its last writer has closed its files", "source", b.from, err)
	}
	return e, nil
}

// fits refuses a directory in which a file would get a path that is too long:
// the move would work, and then nobody could look at that file any more.
func (b *step) fits(i filesys.Info) error {
	to := commitstep.Address{Resource: b.to.Resource, Path: b.to.Path + strings.TrimPrefix(i.Path.Path, b.from.Path)}
	if len(to.Path) <= len(i.Path.Path) {
		return nil
	}
	if _, err := b.fs.Resolve(to.String(), ""); err != nil {
		return b.wrap("path of "+i.Path.Base()+" in the destination", err)
	}
	return nil
}

func (b *step) readSource(ctx context.Context, each func(filesys.Info) error) (*tree, error) {
	t, err := readTree(ctx, b.fs, b.from, each)
	var odd *oddEntryError
	if errors.As(err, &odd) {
		if odd.special != "" {
			return nil, b.refuse("holds "+odd.path.String()+", which is a "+odd.special, "take it out of the directory, or publish the files one by one", "source directory", b.from, nil)
		}
		return nil, b.refuse("holds "+odd.path.String()+", which is neither a regular file nor a directory", "a link would point elsewhere once it is moved; replace it by what it stands for", "source directory", b.from, nil)
	}
	var refused *commitstep.PlanError
	if errors.As(err, &refused) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: source: %w", b.where, err)
	}
	return t, nil
}

func (b *step) unchanged(ctx context.Context, src filesys.Info) error {
	again, err := b.fs.Stat(ctx, b.from)
	if err != nil || again.ID != src.ID || again.Size != src.Size || !again.MTime.Equal(src.MTime) {
		return b.refuse("changed while it was looked at", "publish a file once its writer has closed it", "source", b.from, err)
	}
	return nil
}

// syncStaging makes the entries of a staging directory durable, once for all
// files that were in it. A plan whose steps are streamed may stage a file after
// the directory was synced; the directory's time tells.
func (b *step) syncStaging(ctx context.Context, p *commitstep.Preparation, dir commitstep.Address) error {
	info, err := b.fs.Stat(ctx, dir)
	if err != nil {
		return fmt.Errorf("%s: source: %w", b.where, err)
	}
	key := fmt.Sprintf("fs.rename sync %s %s %d", dir, info.ID.Text, info.MTime.UnixNano())
	return p.Once(key, func() error { return b.syncDir(ctx, dir) })
}

func (b *step) syncDir(ctx context.Context, dir commitstep.Address) error {
	if err := b.fs.SyncDir(ctx, dir); err != nil {
		return fmt.Errorf("%s: source: %w", b.where, err)
	}
	return nil
}
