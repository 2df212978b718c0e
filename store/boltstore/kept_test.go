package boltstore

import (
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// TestAbandonedStepsAreKept: the steps of an abandoned sequence can be read,
// also after the store was opened again, until they are dropped.
func TestAbandonedStepsAreKept(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t, nil)
	me := join(t, s)
	const steps = 2*store.PageSize + 7
	l := put(t, s, me, dataset("long"), steps)
	require.NoError(t, s.Record(ctx, fenceOf(l), false, store.Event{Type: store.EventDone, Step: steps - 1}))
	require.NoError(t, s.Park(ctx, fenceOf(l), store.Parking{Reason: commitstep.ConflictFound, Step: 0}))
	l, err := s.Find(ctx, l.ID)
	require.NoError(t, err)
	require.ErrorIs(t, s.DropSteps(ctx, l.ID), commitstep.ErrNotFound, "it is live")
	_, err = s.Decide(ctx, store.Decision{Key: l.Key, ID: l.ID, Kind: store.DecideAbandon, Version: l.Version, Person: somebody, State: commitstep.Abandoned})
	require.NoError(t, err)
	medium := put(t, s, me, dataset("medium"), store.HistoryDetailSteps+1)
	require.NoError(t, s.Park(ctx, fenceOf(medium), store.Parking{Reason: commitstep.ConflictFound, Step: 0}))
	medium, err = s.Find(ctx, medium.ID)
	require.NoError(t, err)
	_, err = s.Decide(ctx, store.Decision{Key: medium.Key, ID: medium.ID, Kind: store.DecideAbandon, Version: medium.Version, Person: somebody, State: commitstep.Abandoned})
	require.NoError(t, err)
	done := put(t, s, me, dataset("done"), steps)
	require.NoError(t, s.Complete(ctx, fenceOf(done), false, store.HistoryNotes{}))

	requireKept := func(s *Store) {
		t.Helper()
		require.NoError(t, s.waitCollected(ctx))
		for n, want := range []int{store.PageSize, store.PageSize, 7} {
			p, err := s.Steps(ctx, l.ID, n)
			require.NoError(t, err)
			require.Len(t, p.Steps, want)
			require.Len(t, p.Progress, want)
			require.Equal(t, n*store.PageSize, p.Steps[0].Index)
			require.Equal(t, n == 2, p.Progress[want-1].Done)
		}
		_, err := s.Steps(ctx, l.ID, 3)
		require.ErrorIs(t, err, commitstep.ErrNotFound)
		_, err = s.Steps(ctx, done.ID, 0)
		require.ErrorIs(t, err, commitstep.ErrNotFound)
		h, err := s.LookupHistory(ctx, medium.ID)
		require.NoError(t, err)
		require.Len(t, h.Detail, store.HistoryDetailSteps+1)
	}
	requireKept(s)
	path := s.path
	require.NoError(t, s.Close())
	s = openStore(t, path, nil)
	requireKept(s)

	require.NoError(t, s.DropSteps(ctx, l.ID))
	require.NoError(t, s.DropSteps(ctx, l.ID), "repeating it is fine")
	_, err = s.Steps(ctx, l.ID, 0)
	require.ErrorIs(t, err, commitstep.ErrNotFound)
	require.ErrorIs(t, s.DropSteps(ctx, done.ID), commitstep.ErrNotFound, "completed, not abandoned")
	require.NoError(t, s.Close())
	s = openStore(t, path, nil)
	_, err = s.Steps(ctx, l.ID, 0)
	require.ErrorIs(t, err, commitstep.ErrNotFound)
}
