package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// faults lets commits fail at chosen points.
type faults struct {
	before, after atomic.Pointer[error]
	reopening     chan struct{} // every try to open again takes one
}

func newFaults() *faults { return &faults{reopening: make(chan struct{}, 1000)} }

func (f *faults) hook(p CommitPoint) error {
	take := func(e *atomic.Pointer[error]) error {
		if p := e.Swap(nil); p != nil {
			return *p
		}
		return nil
	}
	switch p {
	case BeforeCommit:
		return take(&f.before)
	case AfterCommit:
		return take(&f.after)
	case Reopening:
		<-f.reopening
	}
	return nil
}

var errDisk = errors.New("input/output error")

// joinAgain joins once the store was opened again.
func joinAgain(t testing.TB, s *Store) uuid.UUID {
	t.Helper()
	in := commitstep.Instance{ID: uuid.New(), Name: "again"}
	for {
		_, err := s.Join(context.Background(), in)
		if err == nil {
			return in.ID
		}
		require.ErrorIs(t, err, commitstep.ErrStoreFailed)
		time.Sleep(time.Millisecond)
	}
}

func TestAFailedCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		point  func(f *faults) *atomic.Pointer[error]
		stored bool
	}{
		{"nothing was written", func(f *faults) *atomic.Pointer[error] { return &f.before }, false},
		{"the answer was lost", func(f *faults) *atomic.Pointer[error] { return &f.after }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			f := newFaults()
			s := newStore(t, &Options{CommitHook: f.hook})
			me := join(t, s)
			kept := put(t, s, me, dataset("kept"), 3)
			require.NoError(t, s.Release(ctx, fenceOf(kept)))
			claimed, err := s.ClaimOne(ctx, me, kept.Key) // an epoch that only memory knows
			require.NoError(t, err)

			c.point(f).Store(&errDisk)
			d := draft(dataset("new"), 3, nil)
			_, err = s.Put(ctx, d, me)
			require.ErrorIs(t, err, commitstep.ErrOutcomeUnknown)
			require.ErrorIs(t, err, errDisk)

			// Until it was opened and read again it refuses everything.
			_, err = s.Put(ctx, draft(dataset("other"), 3, nil), me)
			require.ErrorIs(t, err, commitstep.ErrStoreFailed)
			require.ErrorIs(t, s.Record(ctx, fenceOf(claimed), true, store.Event{Type: store.EventDone}), commitstep.ErrStoreFailed)
			require.ErrorIs(t, s.Record(ctx, fenceOf(claimed), false, store.Event{Type: store.EventDone}), commitstep.ErrStoreFailed)
			_, err = s.Join(ctx, commitstep.Instance{ID: uuid.New()})
			require.ErrorIs(t, err, commitstep.ErrStoreFailed)
			_, err = s.Get(ctx, kept.Key)
			require.ErrorIs(t, err, commitstep.ErrStoreFailed)
			f.reopening <- struct{}{}
			next := joinAgain(t, s)

			_, err = s.Renew(ctx, me)
			require.ErrorIs(t, err, commitstep.ErrFenced, "all leases ended")
			_, err = s.Find(ctx, d.ID)
			if c.stored {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, commitstep.ErrNotFound)
			}
			again, err := s.ClaimOne(ctx, next, kept.Key)
			require.NoError(t, err)
			require.Greater(t, again.Epoch, claimed.Epoch, "epochs are never given twice")
			require.ErrorIs(t, s.Record(ctx, fenceOf(claimed), true, store.Event{Type: store.EventDone}), commitstep.ErrFenced)
			require.NoError(t, s.Record(ctx, fenceOf(again), true, store.Event{Type: store.EventDone}))
			// Asking again by the same id tells the truth.
			l, err := s.Put(ctx, d, next)
			require.NoError(t, err)
			require.Equal(t, d.ID, l.ID)
		})
	}
}

func TestEveryCallerOfAFailedBatchIsTold(t *testing.T) {
	t.Parallel()
	const n = 20
	entered, release := make(chan struct{}), make(chan struct{})
	var commits atomic.Int64
	s := newStore(t, &Options{CommitHook: func(p CommitPoint) error {
		if p != BeforeCommit {
			return nil
		}
		switch commits.Add(1) {
		case 1:
			close(entered)
			<-release
		case 2:
			return errDisk
		}
		return nil
	}})
	me := join(t, s)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Put(context.Background(), draft(dataset("first"), 1, nil), me); err != nil {
			t.Errorf("first: %v", err)
		}
	})
	<-entered
	// These queue up behind the commit that is held open and share the next; who
	// comes later finds the store failed, or open again and his lease ended.
	var unknown atomic.Int64
	for i := range n {
		wg.Go(func() {
			_, err := s.Put(context.Background(), draft(dataset(fmt.Sprint(i)), 1, nil), me)
			switch {
			case errors.Is(err, commitstep.ErrOutcomeUnknown):
				unknown.Add(1)
			case !errors.Is(err, commitstep.ErrStoreFailed) && !errors.Is(err, commitstep.ErrFenced):
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	close(release)
	wg.Wait()
	require.Positive(t, unknown.Load())
	joinAgain(t, s)
	left := 0
	for _, err := range s.Scan(t.Context(), store.Filter{}) {
		require.NoError(t, err)
		left++
	}
	require.Equal(t, 1, left, "only the first was stored")
}

func TestAStoreThatCannotBeOpenedAgainCanBeClosed(t *testing.T) {
	t.Parallel()
	f := newFaults()
	s, err := Init(filepath.Join(t.TempDir(), "a.db"), &Options{CommitHook: func(p CommitPoint) error {
		if p == Reopening {
			return errDisk
		}
		return f.hook(p)
	}})
	require.NoError(t, err)
	me := join(t, s)
	f.before.Store(&errDisk)
	_, err = s.Put(t.Context(), draft(dataset("a"), 1, nil), me)
	require.ErrorIs(t, err, commitstep.ErrOutcomeUnknown)
	require.NoError(t, s.Close())
	_, err = s.Put(t.Context(), draft(dataset("a"), 1, nil), me)
	require.ErrorIs(t, err, ErrClosed)
	openStore(t, s.path, nil)
}

func TestAFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may mount a small file system")
	}
	ctx := t.Context()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	ballast := filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 1<<20), 0o600))
	s, err := Init(filepath.Join(dir, "a.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	me := join(t, s)
	acknowledged := map[uuid.UUID]bool{}
	var full error
	for i := 0; full == nil; i++ {
		require.Less(t, i, 100_000, "the disk never filled up")
		var l commitstep.Live
		if l, full = s.Put(ctx, draft(dataset(fmt.Sprint(i)), 40, nil), me); full == nil {
			acknowledged[l.ID] = true
		}
	}
	require.ErrorIs(t, full, commitstep.ErrOutcomeUnknown)
	require.ErrorIs(t, full, unix.ENOSPC)
	require.NotEmpty(t, acknowledged)
	me = joinAgain(t, s)
	check := func() {
		t.Helper()
		for id := range acknowledged {
			_, err := s.Find(ctx, id)
			require.NoError(t, err)
		}
		for p, err := range s.Check(ctx) {
			t.Errorf("check: %s (%v)", p, err)
		}
	}
	check()
	// Still full: the same again, and the process lives.
	_, err = s.Put(ctx, draft(dataset("long"), 20*store.PageSize, nil), me)
	require.Error(t, err)
	joinAgain(t, s)
	require.NoError(t, os.Remove(ballast))
	me = joinAgain(t, s)
	l := put(t, s, me, dataset("at last"), 3)
	require.NoError(t, s.Complete(ctx, fenceOf(l), false, store.HistoryNotes{}))
	require.NoError(t, s.waitCollected(ctx))
	check()
}

// What writes in the background goes on after the file was opened again.
func TestEventsBehindAreWrittenAlsoAfterAFailedCommit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	f := newFaults()
	s := newStore(t, &Options{CommitHook: f.hook, MarkDelay: time.Millisecond})
	me := join(t, s)
	l := put(t, s, me, dataset("a"), 3)
	f.before.Store(&errDisk)
	require.NoError(t, s.Record(ctx, fenceOf(l), false, store.Event{Type: store.EventDone, Step: 0}))
	f.reopening <- struct{}{}
	// The flush fails; nobody waits for it.
	for {
		if _, err := s.Renew(ctx, me); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	me = joinAgain(t, s)
	again, err := s.ClaimOne(ctx, me, l.Key)
	require.NoError(t, err)
	page, err := s.Steps(ctx, l.ID, 0)
	require.NoError(t, err)
	require.False(t, page.Progress[0].Done, "lost, which Verify finds out")
	require.NoError(t, s.Record(ctx, fenceOf(again), false, store.Event{Type: store.EventDone, Step: 1}))
	for waiting := true; waiting; {
		s.mu.Lock()
		waiting = len(s.queued) > 0
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	path := s.path
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	copied := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, os.WriteFile(copied, b, 0o600))
	c := openStore(t, copied, nil)
	page, err = c.Steps(ctx, l.ID, 0)
	require.NoError(t, err)
	require.True(t, page.Progress[1].Done, "it is in the file")
}

// After a failed commit only the very file that was open is opened again.
func TestAnotherFileIsNotAdoptedAfterAFailedCommit(t *testing.T) {
	t.Parallel()
	f := newFaults()
	s, err := Init(filepath.Join(t.TempDir(), "a.db"), &Options{CommitHook: f.hook})
	require.NoError(t, err)
	me := join(t, s)
	f.before.Store(&errDisk)
	_, err = s.Put(t.Context(), draft(dataset("a"), 1, nil), me)
	require.ErrorIs(t, err, commitstep.ErrOutcomeUnknown)
	moved := s.path + ".moved"
	require.NoError(t, os.Rename(s.path, moved))
	other, err := Init(s.path, nil)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	f.reopening <- struct{}{}
	f.reopening <- struct{}{} // taken once the first try has failed
	for len(f.reopening) > 0 {
		time.Sleep(time.Millisecond)
	}
	_, err = s.Join(t.Context(), commitstep.Instance{ID: uuid.New()})
	require.ErrorIs(t, err, commitstep.ErrStoreFailed)
	require.NoError(t, os.Rename(moved, s.path))
	f.reopening <- struct{}{}
	joinAgain(t, s)
	require.NoError(t, s.Close())
}
