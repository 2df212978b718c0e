package watermark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// CompareAndSet implements [Target]. It is atomic and durable when it returns
// nil. A context that ends while it waits for the lock is NotSent; once the
// value is being written it is finished.
func (t *FileTarget) CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	if err := m.Check(); err != nil {
		return commitstep.Permanent(err)
	}
	if m.Token == uuid.Nil {
		return commitstep.Permanent(errors.New("a move needs a token"))
	}
	return t.swap(ctx, m, sequence)
}

// Set is for a person's hand: it stores to, in any direction, if from is what
// is stored now; otherwise the error wraps commitstep.ErrStale. It does not know
// whether a live sequence is about to move this watermark; whoever calls it
// looks at the commit store first and records who decided and why.
func (t *FileTarget) Set(ctx context.Context, k commitstep.WatermarkKey, from, to commitstep.Watermark) error {
	if to.IsNone() {
		return &commitstep.PlanError{Where: fmt.Sprintf("watermark %q", k.Source), Problem: "has no value to set", Hint: "a source that is to be read from its start is given its first position"}
	}
	if from == to {
		return &commitstep.PlanError{Where: fmt.Sprintf("watermark %q", k.Source), Problem: fmt.Sprintf("is to be set from %s to the same value", from), Hint: "nothing was changed; name another value"}
	}
	token, err := uuid.NewRandom()
	if err != nil {
		return fmt.Errorf("watermark %q: token: %w", k.Source, err)
	}
	return t.swap(ctx, commitstep.WatermarkMove{WatermarkKey: k, From: from, To: to, Token: token}, uuid.Nil)
}

func (t *FileTarget) swap(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	if err := checkKey(m.WatermarkKey); err != nil {
		return commitstep.Permanent(err)
	}
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	root, err := t.open()
	if err != nil {
		return commitstep.NotSent(err)
	}
	defer root.Close()
	base := baseOf(m.WatermarkKey)
	// What fails up to the rename has no effect.
	if err := t.mkdirs(root, path.Dir(base)); err != nil {
		return refused(fmt.Errorf("watermark directory %s: %w", t.dir, err))
	}
	unlock, err := t.lock(ctx, root, base+lockSuffix)
	if err != nil {
		if ctx.Err() != nil {
			return commitstep.NotSent(err)
		}
		return refused(err)
	}
	defer unlock()

	v, err := t.read(root, m.WatermarkKey)
	if err != nil && !errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.Refused(err)
	}
	switch verdict := m.Judge(v.Watermark, v.Token); verdict.Outcome {
	case commitstep.Done:
		return t.sync(root, path.Dir(base), nil)
	case commitstep.NotDone:
	default:
		return commitstep.Refused(fmt.Errorf("%s%s: %w", verdict.Evidence, origin(v, true), commitstep.ErrStale))
	}
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	b, err := json.Marshal(commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey, Watermark: m.To, Token: m.Token, Sequence: sequence, SetAt: t.now().UTC()})
	if err != nil {
		return commitstep.Permanent(fmt.Errorf("watermark %q: %w", m.Source, err))
	}
	record := commitstep.Seal(commitstep.RecordWatermark, []byte(m.Lock()), b)
	if err := t.writeTemp(root, base+tempSuffix, record); err != nil {
		return refused(fmt.Errorf("watermark file %s: %w", filepath.Join(t.dir, base+tempSuffix), err))
	}
	// From here on the outcome is unknown to the caller unless it is nil.
	if err := t.do("rename", func() error { return root.Rename(base+tempSuffix, base+valueSuffix) }); err != nil {
		err = fmt.Errorf("watermark file %s: %w", filepath.Join(t.dir, base+valueSuffix), err)
		if noSpace(err) {
			return commitstep.NotSent(err)
		}
		return err
	}
	return t.sync(root, path.Dir(base), nil)
}

// refused classifies what failed before the value got its name. A full disk is
// waited out, like a server that is down: it says nothing about the step, and
// every dataset on it would use up its attempts within seconds.
func refused(err error) error {
	if noSpace(err) {
		return commitstep.NotSent(err)
	}
	return commitstep.Refused(err)
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// writeTemp leaves a synced file. Its name is the same every time: the lock is
// held, so at most one that a dead process left is there, and it is replaced.
func (t *FileTarget) writeTemp(root *os.Root, name string, b []byte) error {
	err := t.do("remove old temporary file", func() error { return root.Remove(name) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var f *os.File
	err = t.do("create temporary file", func() (err error) {
		f, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		return err
	})
	if err == nil {
		err = t.do("write temporary file", func() error { _, err := f.Write(b); return err })
	}
	if err == nil {
		err = t.do("sync temporary file", f.Sync)
	}
	if f != nil {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = root.Remove(name) // gives the space of a full disk back
		}
	}
	return err
}

// mkdirs makes the directories of a watermark below the root.
func (t *FileTarget) mkdirs(root *os.Root, dir string) error {
	parts := strings.Split(dir, "/")
	for i := range parts {
		d := path.Join(parts[:i+1]...)
		if info, err := root.Lstat(d); err == nil && info.IsDir() {
			continue
		}
		err := t.do("make directory", func() error { return root.Mkdir(d, 0o755) })
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// sync makes the entries from dir up to the root durable. Those further up are
// synced every time too: another process may have made them and died before it
// could.
func (t *FileTarget) sync(root *os.Root, dir string, s *commitstep.Settling) error {
	for d := dir; ; d = path.Dir(d) {
		one := func() error {
			return t.do("sync directory", func() error {
				f, err := root.Open(d)
				if err != nil {
					return err
				}
				defer f.Close()
				return f.Sync()
			})
		}
		var err error
		if s == nil {
			err = one()
		} else {
			err = s.Do("watermark directory "+filepath.Join(t.dir, d), one)
		}
		if err != nil {
			return fmt.Errorf("watermark directory %s: sync: %w", filepath.Join(t.dir, d), err)
		}
		if d == "." {
			return nil
		}
	}
}

// Settle implements [Target]: the rename of the value becomes durable. Its
// content was before it had its name.
func (t *FileTarget) Settle(ctx context.Context, k commitstep.WatermarkKey, s *commitstep.Settling) error {
	if err := checkKey(k); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	root, err := t.open()
	if err != nil {
		return err
	}
	defer root.Close()
	return t.sync(root, path.Dir(fileOf(k)), s)
}

// lockPauses: the lock is polled, since a blocking flock would not end with the
// context. It is held for some milliseconds.
const (
	firstLockPause = time.Millisecond
	maxLockPause   = 50 * time.Millisecond
)

// lock takes the exclusive lock of one watermark, over all goroutines and
// processes. The kernel releases it when the process dies. Lock files stay:
// removing one would let two holders hold two different files.
func (t *FileTarget) lock(ctx context.Context, root *os.Root, name string) (unlock func(), err error) {
	leave, err := t.gates.enter(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("watermark lock %s: %w", filepath.Join(t.dir, name), err)
	}
	defer func() {
		if unlock == nil { // also when a panic passes
			leave()
		}
	}()
	for pause := firstLockPause; ; pause = min(2*pause, maxLockPause) {
		release, err := t.tryLock(root, name)
		if release != nil {
			return func() { release(); leave() }, nil
		}
		if err == nil {
			err = sleep(ctx, pause)
		}
		if err != nil {
			return nil, fmt.Errorf("watermark lock %s: %w", filepath.Join(t.dir, name), err)
		}
	}
}

// tryLock returns nil without an error when somebody else holds the lock.
func (t *FileTarget) tryLock(root *os.Root, name string) (unlock func(), err error) {
	var f *os.File
	held := false
	defer func() {
		// Also when a panic passes: the lock must not outlive its holder.
		if unlock == nil && f != nil {
			_ = f.Close()
		}
	}()
	err = t.do("lock", func() (err error) {
		if f, err = root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
			return err
		}
		held, err = flock(root, f, name)
		return err
	})
	if err != nil || !held {
		return nil, err
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

// flock tries once, and holds that the locked file still has its name: one that
// somebody removed protects nothing.
func flock(root *os.Root, f *os.File, name string) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("flock", err)
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// gates are mutexes by name that a context can end the wait for. They keep the
// goroutines of one process from polling for each other's file lock.
type gates struct {
	mu sync.Mutex
	m  map[string]*gate
}

type gate struct {
	turn  chan struct{}
	users int
}

func (g *gates) enter(ctx context.Context, name string) (leave func(), err error) {
	g.mu.Lock()
	if g.m == nil {
		g.m = make(map[string]*gate)
	}
	e := g.m[name]
	if e == nil {
		e = &gate{turn: make(chan struct{}, 1)}
		g.m[name] = e
	}
	e.users++
	g.mu.Unlock()
	gone := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(g.m, name)
		}
	}
	select {
	case e.turn <- struct{}{}:
		return func() { <-e.turn; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, ctx.Err()
	}
}
