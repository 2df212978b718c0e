package storetest

import (
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// fillTried puts sequences that ended after several attempts. Stores may forget
// those, or keep them and copy them.
func (w *world) fillTried(t require.TestingT, put func(seqSpec) commitstep.Live, record func(commitstep.Live, ...store.Event)) {
	short := put(seqSpec{key: key("j4", "short")})
	record(short, attempt(0, 1))
	record(short, outcome(0, 1, commitstep.AttemptFailed), attempt(0, 2), attempt(2, 1))
	require.NoError(t, w.st.Complete(w.ctx, fence(short), false, store.HistoryNotes{}, outcome(0, 2, commitstep.AttemptDone)))

	const steps = 2*store.PageSize + 3
	long := put(seqSpec{key: key("j4", "long"), steps: steps})
	for n := 1; n <= commitstep.KeptAttempts+4; n++ {
		record(long, attempt(steps-1, n), outcome(steps-1, n, commitstep.AttemptWaiting))
	}
	record(long, attempt(1, 1), attempt(store.PageSize, 1), outcome(store.PageSize, 1, commitstep.AttemptFailed))
	require.NoError(t, w.st.Complete(w.ctx, fence(long), false, store.HistoryNotes{}))

	gone := put(seqSpec{key: key("j4", "gone")})
	record(gone, attempt(1, 1), outcome(1, 1, commitstep.AttemptFailed))
	require.NoError(t, w.st.Park(w.ctx, fence(gone), store.Parking{Reason: commitstep.AttemptsExhausted, Step: 1, Message: "failed"}))
	l, err := w.st.Find(w.ctx, gone.ID)
	require.NoError(t, err)
	// A retry forgives what failed before.
	d := store.Decision{Key: l.Key, ID: l.ID, Kind: store.DecideRetry, Version: l.Version, Person: someone, State: commitstep.Pending, ResetAttempts: true}
	c, err := w.st.Decide(w.ctx, d)
	require.NoError(t, err)
	f := store.Fence{ID: l.ID, Epoch: c.Epoch}
	require.NoError(t, w.st.Record(w.ctx, f, true, attempt(1, 2), outcome(1, 2, commitstep.AttemptFailed)))
	require.NoError(t, w.st.Park(w.ctx, f, store.Parking{Reason: commitstep.AttemptsExhausted, Step: 1, Message: "failed again"}))
	l, err = w.st.Find(w.ctx, gone.ID)
	require.NoError(t, err)
	_, err = w.st.Decide(w.ctx, store.Decision{Key: l.Key, ID: l.ID, Kind: store.DecideAbandon, Version: l.Version, Person: someone, State: commitstep.Abandoned})
	require.NoError(t, err)
}
