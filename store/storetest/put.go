package storetest

import (
	"errors"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

var putTests = []test{
	{"is stored as it was given, and claimed with epoch 1", func(w *world) {
		m := move("j", "src", commitstep.None(), commitstep.Int(5))
		q := seqSpec{key: key("j", "d"), plan: "p1", locks: []string{"lock a", "lock b", m.Lock()}, moves: []commitstep.WatermarkMove{m},
			clean: []commitstep.Step{{Kind: "fs.remove", Version: 1, Params: []byte(`{"path":"x"}`)}}}.withDefaults()
		l := w.put(q)
		require.Equal(w, uint64(1), l.Epoch)
		require.Equal(w, commitstep.Pending, l.State)
		require.Equal(w, w.me, l.Owner)
		require.Equal(w, -1, l.ParkStep)
		require.NotZero(w, l.Version)
		want, err := q.draft().Header()
		require.NoError(w, err)
		want.PageSize = store.PageSize
		for range 2 {
			got := w.get(q.key)
			for i := range got.Cleanup {
				got.Cleanup[i].Index = 0
			}
			require.Empty(w, cmp.Diff(want, got.Header, cmp.AllowUnexported(commitstep.Watermark{})))
			byID, err := w.st.Find(w.ctx, q.id)
			require.NoError(w, err)
			require.Equal(w, got.ID, byID.ID)
			require.Equal(w, got.Version, byID.Version)
			page, err := w.st.Steps(w.ctx, q.id, 0)
			require.NoError(w, err)
			require.Len(w, page.Steps, 3)
			for i, s := range page.Steps {
				require.Equal(w, stepAt(i).Index, s.Index)
				require.JSONEq(w, string(stepAt(i).Params), string(s.Params))
				require.JSONEq(w, string(stepAt(i).Evidence), string(s.Evidence))
				require.Equal(w, "test.noop", s.Kind)
				require.Equal(w, 2, s.Version)
				require.Empty(w, cmp.Diff(commitstep.Progress{}, page.Progress[i]))
			}
			w.reopen()
		}
	}},
	{"the same sequence again is success and returns it as it is", func(w *world) {
		q := seqSpec{key: key("j", "d"), plan: "p"}.withDefaults()
		w.put(q)
		w.record(commitstep.Live{Header: commitstep.Header{ID: q.id}, Condition: commitstep.Condition{Epoch: 1}}, store.Event{Type: store.EventMessage, Message: "busy"})
		again := w.put(q)
		require.Equal(w, q.id, again.ID)
		require.Equal(w, "busy", again.Message)
		require.Len(w, w.scan(store.Filter{}), 1)
		w.complete(again)
		l := w.put(q)
		require.Equal(w, commitstep.Completed, l.State)
		require.Empty(w, w.scan(store.Filter{}))
	}},
	{"the same long sequence again is success", func(w *world) {
		q := seqSpec{key: key("j", "d"), steps: 3*store.PageSize + 1}.withDefaults()
		l := w.put(q)
		w.record(l, done(store.PageSize+1))
		w.put(q)
		require.True(w, w.progress(q.id, store.PageSize+1).Done)
	}},
	{"an id that is taken by another plan is refused", func(w *world) {
		q := seqSpec{key: key("j", "d")}.withDefaults()
		w.put(q)
		_, err := w.tryPut(seqSpec{id: q.id, key: key("j", "d"), hash: "another"})
		require.Error(w, err)
		_, err = w.tryPut(seqSpec{id: q.id, key: key("j", "other")})
		require.Error(w, err)
		require.Len(w, w.scan(store.Filter{}), 1)
	}},
	{"another live sequence for the key is in the way", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		_, err := w.tryPut(seqSpec{key: key("j", "d")})
		var p *commitstep.PendingError
		require.ErrorAs(w, err, &p)
		require.ErrorIs(w, err, commitstep.ErrPending)
		require.Equal(w, commitstep.PendingError{Key: l.Key, ID: l.ID, State: commitstep.Pending}, *p)
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound, Step: 1, Message: "m"}))
		_, err = w.tryPut(seqSpec{key: key("j", "d")})
		require.ErrorAs(w, err, &p)
		require.Equal(w, commitstep.Parked, p.State)
		require.Equal(w, commitstep.ConflictFound, p.Reason)
		w.put(seqSpec{key: key("j", "D")})
		w.put(seqSpec{key: key("J", "d")})
	}},
	{"another live sequence with one of the locks is in the way, over all jobs", func(w *world) {
		l := w.put(seqSpec{key: key("j", "a"), locks: []string{"l1", "l2"}})
		_, err := w.tryPut(seqSpec{key: key("other job", "b"), locks: []string{"l0", "l2"}})
		var p *commitstep.PendingError
		require.ErrorAs(w, err, &p)
		require.Equal(w, l.ID, p.ID)
		require.Equal(w, l.Key, p.Key)
		require.Equal(w, "l2", p.Lock)
		_, err = w.st.Get(w.ctx, key("other job", "b"))
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		w.put(seqSpec{key: key("other job", "c"), locks: []string{"l0"}})
		w.complete(l)
		w.put(seqSpec{key: key("other job", "b"), locks: []string{"l2"}})
	}},
	{"a plan id is checked again", func(w *world) {
		q := seqSpec{key: key("j", "d"), plan: "plan 1", hash: "h1"}.withDefaults()
		_, err := w.st.LookupPlan(w.ctx, q.key, "plan 1")
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		l := w.put(q)
		rec, err := w.st.LookupPlan(w.ctx, q.key, "plan 1")
		require.NoError(w, err)
		require.Equal(w, store.PlanRecord{Key: q.key, PlanID: "plan 1", Hash: "h1", Sequence: q.id, State: commitstep.Pending}, rec)

		var already *store.AlreadyError
		_, err = w.tryPut(seqSpec{key: q.key, plan: "plan 1", hash: "h1"})
		require.ErrorAs(w, err, &already)
		require.Equal(w, q.id, already.Record.Sequence)
		require.Equal(w, commitstep.Pending, already.Record.State)
		_, err = w.tryPut(seqSpec{key: q.key, plan: "plan 1", hash: "h2"})
		require.ErrorIs(w, err, commitstep.ErrPlanConflict)

		w.complete(l)
		w.reopen()
		_, err = w.tryPut(seqSpec{key: q.key, plan: "plan 1", hash: "h1"})
		require.ErrorAs(w, err, &already)
		require.Equal(w, commitstep.Completed, already.Record.State)
		_, err = w.tryPut(seqSpec{key: q.key, plan: "plan 1", hash: "h2"})
		require.ErrorIs(w, err, commitstep.ErrPlanConflict)
		w.put(seqSpec{key: key("j", "other"), plan: "plan 1", hash: "h2"}) // ids belong to a dataset
		w.put(seqSpec{key: q.key, plan: "plan 2", hash: "h2"})
	}},
	{"an abandoned plan id is refused", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d"), plan: "p", hash: "h"})
		w.abandon(l)
		_, err := w.tryPut(seqSpec{key: l.Key, plan: "p", hash: "h"})
		require.ErrorIs(w, err, commitstep.ErrAbandoned)
		w.put(seqSpec{key: l.Key, plan: "p2", hash: "h"})
	}},
	{"a watermark that moved since the plan was made is stale", func(w *world) {
		first := move("j", "s", commitstep.None(), commitstep.Int(10))
		require.NoError(w, w.st.SetWatermark(w.ctx, first, someone))
		stale := move("j", "s", commitstep.None(), commitstep.Int(5))
		_, err := w.tryPut(seqSpec{key: key("j", "d"), plan: "p", locks: []string{"l"}, moves: []commitstep.WatermarkMove{move("j", "s2", commitstep.None(), commitstep.Int(1)), stale}})
		var e *store.StaleError
		require.ErrorAs(w, err, &e)
		require.ErrorIs(w, err, commitstep.ErrStale)
		require.Equal(w, commitstep.Int(10), e.Stored)
		require.Equal(w, stale.Token, e.Move.Token)
		// Nothing was stored: key, lock and plan id are free.
		require.Empty(w, w.scan(store.Filter{}))
		_, err = w.st.LookupPlan(w.ctx, key("j", "d"), "p")
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		w.put(seqSpec{key: key("j", "d"), plan: "p", locks: []string{"l"}, moves: []commitstep.WatermarkMove{move("j", "s", commitstep.Int(10), commitstep.Int(11))}})
	}},
	{"two live sequences never move one watermark", func(w *world) {
		m1, m2 := move("j", "s", commitstep.None(), commitstep.Int(1)), move("j", "s", commitstep.None(), commitstep.Int(2))
		l := w.put(seqSpec{key: key("j", "a"), locks: []string{m1.Lock()}, moves: []commitstep.WatermarkMove{m1}})
		_, err := w.tryPut(seqSpec{key: key("j", "b"), locks: []string{m2.Lock()}, moves: []commitstep.WatermarkMove{m2}})
		require.ErrorIs(w, err, commitstep.ErrPending)
		w.complete(l, store.Event{Type: store.EventMove, Step: 2, Move: m1})
		_, err = w.tryPut(seqSpec{key: key("j", "b"), locks: []string{m2.Lock()}, moves: []commitstep.WatermarkMove{m2}})
		require.ErrorIs(w, err, commitstep.ErrStale)
	}},
	{"a long sequence is kept in pages", func(w *world) {
		n := 2*store.PageSize + 7
		l := w.put(seqSpec{key: key("j", "d"), steps: n})
		require.Equal(w, n, l.Steps)
		for range 2 {
			seen := 0
			for p := 0; ; p++ {
				page, err := w.st.Steps(w.ctx, l.ID, p)
				if errors.Is(err, commitstep.ErrNotFound) {
					break
				}
				require.NoError(w, err)
				require.Equal(w, p, page.Number)
				require.Len(w, page.Progress, len(page.Steps))
				for _, s := range page.Steps {
					require.Equal(w, seen, s.Index)
					require.JSONEq(w, string(stepAt(seen).Params), string(s.Params))
					require.Equal(w, seen/1000, s.Stage)
					seen++
				}
			}
			require.Equal(w, n, seen)
			w.reopen()
		}
	}},
	{"an error of the steps ends the put, and nothing is stored", func(w *world) {
		boom := errors.New("boom")
		for _, after := range []int{0, store.PageSize, 5 * store.PageSize} {
			_, err := w.tryPut(seqSpec{key: key("j", "d"), steps: after + 1, pages: func(yield func([]commitstep.Step, error) bool) {
				for p, err := range pagesOf(after) {
					if !yield(p, err) {
						return
					}
				}
				yield(nil, boom)
			}})
			require.ErrorIs(w, err, boom)
			require.Empty(w, w.scan(store.Filter{}))
		}
		q := seqSpec{key: key("j", "d"), steps: 4 * store.PageSize}.withDefaults()
		d := q.draft()
		d.Header = func() (commitstep.Header, error) { return commitstep.Header{}, boom }
		_, err := w.st.Put(w.ctx, d, w.me.ID)
		require.ErrorIs(w, err, boom)
		require.Empty(w, w.scan(store.Filter{}))
		w.put(q) // the id is as good as new
	}},
	{"a refused long put leaves nothing", func(w *world) {
		w.put(seqSpec{key: key("j", "d")})
		q := seqSpec{key: key("j", "d"), steps: 3 * store.PageSize}.withDefaults()
		_, err := w.tryPut(q)
		require.ErrorIs(w, err, commitstep.ErrPending)
		_, err = w.st.Steps(w.ctx, q.id, 0)
		require.ErrorIs(w, err, commitstep.ErrNotFound)
	}},
	{"an instance without a lease is refused", func(w *world) {
		q := seqSpec{key: key("j", "d")}.withDefaults()
		_, err := w.st.Put(w.ctx, q.draft(), uuid.New())
		require.ErrorIs(w, err, commitstep.ErrFenced)
		require.Empty(w, w.scan(store.Filter{}))
	}},
	{"names that are empty or no text are refused", func(w *world) {
		for _, k := range []commitstep.Key{key("", "d"), key("j", ""), key("j", "\xff"), key("j", string(make([]byte, commitstep.MaxNameBytes+1)))} {
			_, err := w.tryPut(seqSpec{key: k})
			var p *commitstep.PlanError
			require.ErrorAs(w, err, &p)
		}
	}},
}

// abandon ends a sequence as a person does.
func (w *world) abandon(l commitstep.Live) {
	w.Helper()
	require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.AttemptsExhausted, Step: 0, Message: "four times"}))
	parked := w.get(l.Key)
	_, err := w.st.Decide(w.ctx, store.Decision{Key: l.Key, ID: l.ID, Kind: store.DecideAbandon, Version: parked.Version, Person: someone, State: commitstep.Abandoned})
	require.NoError(w, err)
}
