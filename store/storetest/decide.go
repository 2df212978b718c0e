package storetest

import (
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// parked puts a sequence and parks it with a failed step 0, and a mark on
// step 1.
func (w *world) parked(q seqSpec, reason commitstep.ParkReason) commitstep.Live {
	w.Helper()
	l := w.put(q)
	w.record(l, attempt(0, 1), outcome(0, 1, commitstep.AttemptFailed), note(1, `"n"`), noReturn(1, `"r"`))
	require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: reason, Step: 1, Message: "m"}))
	return w.get(l.Key)
}

func decision(l commitstep.Live, kind store.DecisionKind) store.Decision {
	d := store.Decision{Key: l.Key, ID: l.ID, Kind: kind, Version: l.Version, Person: someone, State: commitstep.Pending}
	switch kind {
	case store.DecideAbandon, store.DecideNotPublished:
		d.State = commitstep.Abandoned
	}
	return d
}

var decideTests = []test{
	{"retry makes it pending again with a higher epoch, counters reset", func(w *world) {
		for _, steps := range []int{3, 2*store.PageSize + 3} {
			l := w.parked(seqSpec{key: key("j", fmt.Sprint(steps)), steps: steps}, commitstep.AttemptsExhausted)
			require.Equal(w, 1, w.progress(l.ID, 0).Failed)
			d := decision(l, store.DecideRetry)
			d.ResetAttempts = true
			c, err := w.st.Decide(w.ctx, d)
			require.NoError(w, err)
			require.Equal(w, commitstep.Pending, c.State)
			require.Greater(w, c.Epoch, l.Epoch)
			require.Greater(w, c.Version, l.Version)
			for range 2 {
				got := w.get(l.Key)
				require.Equal(w, commitstep.Pending, got.State)
				require.Empty(w, got.Reason)
				require.Equal(w, -1, got.ParkStep)
				require.Equal(w, c.Version, got.Version)
				p := w.progress(l.ID, 0)
				require.Zero(w, p.Failed)
				require.Equal(w, 1, p.Count, "the count goes on")
				require.JSONEq(w, `"r"`, string(w.progress(l.ID, 1).NoReturn))
				w.reopen()
			}
			require.ErrorIs(w, w.st.Record(w.ctx, fence(l), true, done(0)), commitstep.ErrFenced)
			got := w.claim(w.me.ID, store.ClaimFilter{})
			require.Len(w, got, 1)
			w.complete(got[0])
		}
		require.Len(w, w.audit(), 2)
	}},
	{"published marks the step done and declared", func(w *world) {
		l := w.parked(seqSpec{key: key("j", "d")}, commitstep.PublishUnknown)
		d := decision(l, store.DecidePublished)
		d.Step, d.MarkDone = 1, true
		_, err := w.st.Decide(w.ctx, d)
		require.NoError(w, err)
		for range 2 {
			require.True(w, w.progress(l.ID, 1).Done)
			require.Equal(w, []int{1}, w.get(l.Key).DeclaredPublished)
			w.reopen()
		}
	}},
	{"not published, again: mark and note go, so that it is executed anew", func(w *world) {
		l := w.parked(seqSpec{key: key("j", "d")}, commitstep.PublishUnknown)
		d := decision(l, store.DecideNotPublished)
		d.State, d.Step, d.ClearNoReturn = commitstep.Pending, 1, true
		_, err := w.st.Decide(w.ctx, d)
		require.NoError(w, err)
		p := w.progress(l.ID, 1)
		require.Nil(w, p.NoReturn)
		require.Nil(w, p.Note)
		require.False(w, p.Done)
		require.Equal(w, 1, w.progress(l.ID, 0).Count)
	}},
	{"abandon ends it, frees key and locks, and remembers the plan id", func(w *world) {
		for _, steps := range []int{3, 2*store.PageSize + 3} {
			l := w.parked(seqSpec{key: key("j", fmt.Sprint(steps)), plan: "p", locks: []string{"l"}, steps: steps}, commitstep.ConflictFound)
			d := decision(l, store.DecideAbandon)
			d.Notes = store.HistoryNotes{PartialVisible: []string{"file:///a"}}
			c, err := w.st.Decide(w.ctx, d)
			require.NoError(w, err)
			require.Equal(w, commitstep.Abandoned, c.State)
			for range 2 {
				_, err = w.st.Get(w.ctx, l.Key)
				require.ErrorIs(w, err, commitstep.ErrNotFound)
				e, err := w.st.LookupHistory(w.ctx, l.ID)
				require.NoError(w, err)
				require.Equal(w, commitstep.Abandoned, e.State)
				require.Equal(w, []string{"file:///a"}, e.Notes.PartialVisible)
				rec, err := w.st.LookupPlan(w.ctx, l.Key, "p")
				require.NoError(w, err)
				require.Equal(w, commitstep.Abandoned, rec.State)
				w.reopen()
			}
			w.complete(w.put(seqSpec{key: l.Key, locks: []string{"l"}}))
		}
	}},
	{"is refused when the sequence has changed since it was shown", func(w *world) {
		l := w.parked(seqSpec{key: key("j", "d")}, commitstep.ConflictFound)
		stale := decision(l, store.DecideRetry)
		_, err := w.st.Decide(w.ctx, decision(l, store.DecideRetry))
		require.NoError(w, err)
		_, err = w.st.Decide(w.ctx, stale)
		require.ErrorIs(w, err, commitstep.ErrVersion)
		require.Len(w, w.audit(), 1, "a refused decision leaves no audit row")
	}},
	{"is refused while a live lease holds it, unless forced", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		_, err := w.st.Decide(w.ctx, decision(l, store.DecideRetry))
		var busy *store.BusyError
		require.ErrorAs(w, err, &busy)
		require.Equal(w, w.me, busy.Holder)
		require.Empty(w, w.audit())
		d := decision(l, store.DecideRetry)
		d.Force = true
		c, err := w.st.Decide(w.ctx, d)
		require.NoError(w, err)
		require.Greater(w, c.Epoch, l.Epoch)
		require.ErrorIs(w, w.st.Record(w.ctx, fence(l), true, done(0)), commitstep.ErrFenced)
		_, _, held, err := w.st.Holder(w.ctx, l)
		require.NoError(w, err)
		require.False(w, held)
	}},
	{"is refused for what is not live, and without person or reason", func(w *world) {
		l := w.parked(seqSpec{key: key("j", "d")}, commitstep.ConflictFound)
		d := decision(l, store.DecideRetry)
		d.ID = uuid.New()
		_, err := w.st.Decide(w.ctx, d)
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		for _, p := range []store.Person{{Name: "op", Reason: "four"}, {Reason: "long enough"}, {}} {
			d := decision(l, store.DecideRetry)
			d.Person = p
			_, err := w.st.Decide(w.ctx, d)
			require.ErrorIs(w, err, commitstep.ErrDecision)
		}
		w.abandonNow(l)
		_, err = w.st.Decide(w.ctx, decision(l, store.DecideRetry))
		require.ErrorIs(w, err, commitstep.ErrNotFound)
	}},
	{"is audited in full", func(w *world) {
		l := w.parked(seqSpec{key: key("j", "d")}, commitstep.ConflictFound)
		_, err := w.st.Decide(w.ctx, decision(l, store.DecideRetry))
		require.NoError(w, err)
		require.NoError(w, w.st.RecordAudit(w.ctx, store.AuditEntry{Person: someone, Action: "staging.remove", Key: l.Key, After: "3 files"}))
		for range 2 {
			rows := w.audit()
			require.Len(w, rows, 2)
			require.Equal(w, "resolve", rows[0].Action)
			require.Equal(w, someone, rows[0].Person)
			require.Equal(w, l.Key, rows[0].Key)
			require.Equal(w, l.ID, rows[0].Sequence)
			require.Equal(w, "retry", rows[0].Decision)
			require.Contains(w, rows[0].Before, "parked")
			require.Contains(w, rows[0].Before, "CONFLICT")
			require.Equal(w, "pending", rows[0].After)
			require.False(w, rows[0].At.IsZero())
			require.Equal(w, "staging.remove", rows[1].Action)
			w.reopen()
		}
	}},
	{"quarantine commands need something quarantined", func(w *world) {
		w.put(seqSpec{key: key("j", "d")})
		require.ErrorIs(w, w.st.ReleaseQuarantine(w.ctx, key("j", "d"), someone), commitstep.ErrNotFound)
		require.ErrorIs(w, w.st.AbandonQuarantine(w.ctx, key("j", "d"), someone), commitstep.ErrNotFound)
		q, err := w.st.Quarantine(w.ctx)
		require.NoError(w, err)
		require.Empty(w, q)
		require.Empty(w, w.audit())
	}},
}

func (w *world) abandonNow(l commitstep.Live) {
	w.Helper()
	_, err := w.st.Decide(w.ctx, decision(w.get(l.Key), store.DecideAbandon))
	require.NoError(w, err)
}
