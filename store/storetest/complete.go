package storetest

import (
	"encoding/json"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

func cleanupStep() []commitstep.Step {
	return []commitstep.Step{{Kind: "fs.remove", Version: 1, Params: []byte(`{"path":"/x"}`), Evidence: []byte(`{"files":["a"]}`)}}
}

var completeTests = []test{
	{"frees key and locks, moves watermarks, keeps the plan id and the history", func(w *world) {
		m := move("j", "s", commitstep.None(), commitstep.Int(7))
		q := seqSpec{key: key("j", "d"), plan: "p", hash: "h", locks: []string{"l", m.Lock()}, moves: []commitstep.WatermarkMove{m}}.withDefaults()
		l := w.put(q)
		require.NoError(w, w.st.Record(w.ctx, fence(l), false, done(0)))
		notes := store.HistoryNotes{Executed: 2, Already: 1, Driver: "me", DeclaredPublished: []int{1}}
		require.NoError(w, w.st.Complete(w.ctx, fence(l), false, notes, done(1), store.Event{Type: store.EventMove, Step: 2, Move: m}))
		for range 2 {
			_, err := w.st.Get(w.ctx, q.key)
			require.ErrorIs(w, err, commitstep.ErrNotFound)
			_, err = w.st.Find(w.ctx, q.id)
			require.ErrorIs(w, err, commitstep.ErrNotFound)
			_, err = w.st.Steps(w.ctx, q.id, 0)
			require.ErrorIs(w, err, commitstep.ErrNotFound)
			require.Equal(w, commitstep.Int(7), w.watermark(m))
			e, err := w.st.LookupHistory(w.ctx, q.id)
			require.NoError(w, err)
			require.Equal(w, commitstep.Completed, e.State)
			require.Equal(w, notes, e.Notes)
			require.Equal(w, q.key, e.Key)
			require.Equal(w, "p", e.PlanID)
			require.Equal(w, "h", e.PlanHash)
			require.Equal(w, 3, e.Steps)
			require.Len(w, e.Detail, 3)
			require.JSONEq(w, string(stepAt(2).Params), string(e.Detail[2].Params))
			require.Equal(w, 2, e.Detail[2].Index)
			require.Len(w, e.Moves, 1)
			require.Equal(w, uint64(1), e.Epoch)
			require.False(w, e.Ended.Before(e.Created))
			rec, err := w.st.LookupPlan(w.ctx, q.key, "p")
			require.NoError(w, err)
			require.Equal(w, commitstep.Completed, rec.State)
			require.Empty(w, w.scan(store.Filter{}))
			w.reopen()
		}
		w.put(seqSpec{key: q.key, locks: []string{"l"}})
	}},
	{"again with the same fence is success, with another it is fenced", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		w.complete(l)
		w.complete(l)
		require.Len(w, w.history(store.HistoryFilter{}), 1)
		require.ErrorIs(w, w.st.Complete(w.ctx, store.Fence{ID: l.ID, Epoch: 2}, false, store.HistoryNotes{}), commitstep.ErrFenced)
		w.reopen()
		w.complete(l)
	}},
	{"a stale move refuses all of it", func(w *world) {
		m := move("j", "s", commitstep.None(), commitstep.Int(7))
		l := w.put(seqSpec{key: key("j", "d"), plan: "p"})
		require.NoError(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(1)), someone))
		err := w.st.Complete(w.ctx, fence(l), false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: m})
		require.ErrorIs(w, err, commitstep.ErrStale)
		require.Equal(w, commitstep.Pending, w.get(l.Key).State)
		require.Empty(w, w.history(store.HistoryFilter{}))
		require.Equal(w, commitstep.Int(1), w.watermark(m))
	}},
	{"a parked sequence is not completed", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.PublishUnknown, Step: 0}))
		require.Error(w, w.st.Complete(w.ctx, fence(l), false, store.HistoryNotes{}))
		require.Equal(w, commitstep.Parked, w.get(l.Key).State)
	}},
	{"with cleaning it counts as completed, and keeps its steps until cleaned", func(w *world) {
		for _, steps := range []int{3, 2*store.PageSize + 3} {
			q := seqSpec{key: key("j", fmt.Sprint(steps)), plan: "p", hash: "h", steps: steps, locks: []string{"l"}, clean: cleanupStep()}.withDefaults()
			l := w.put(q)
			require.NoError(w, w.st.Record(w.ctx, fence(l), false, done(1)))
			require.NoError(w, w.st.Complete(w.ctx, fence(l), true, store.HistoryNotes{}, done(0)))
			require.NoError(w, w.st.Complete(w.ctx, fence(l), true, store.HistoryNotes{}, done(0)), "again")
			e, err := w.st.LookupHistory(w.ctx, q.id)
			require.NoError(w, err)
			require.Equal(w, commitstep.Completed, e.State)
			got := w.get(q.key)
			require.Equal(w, commitstep.Completed, got.State)
			require.True(w, got.Cleaning)
			require.Len(w, got.Header.Cleanup, 1)
			require.True(w, w.progress(q.id, 0).Done)
			require.True(w, w.progress(q.id, 1).Done)
			rec, err := w.st.LookupPlan(w.ctx, q.key, "p")
			require.NoError(w, err)
			require.Equal(w, commitstep.Completed, rec.State)

			// Key and lock are free; the live one is what Get shows.
			next := w.put(seqSpec{key: q.key, locks: []string{"l"}})
			require.Equal(w, next.ID, w.get(q.key).ID)
			found, err := w.st.Find(w.ctx, q.id)
			require.NoError(w, err)
			require.True(w, found.Cleaning)
			require.Len(w, w.scan(store.Filter{States: []commitstep.State{commitstep.Completed}}), 1)
			require.Len(w, w.scan(store.Filter{}), 2)
			w.complete(next)

			// Its driver died: another claims it to clean up.
			w.reopen()
			got2 := w.claim(w.me.ID, store.ClaimFilter{})
			require.Len(w, got2, 1)
			require.True(w, got2[0].Cleaning)
			require.Len(w, got2[0].Header.Cleanup, 1)
			page, err := w.st.Steps(w.ctx, q.id, (steps-1)/store.PageSize)
			require.NoError(w, err)
			require.NotEmpty(w, page.Steps)
			require.NoError(w, w.st.Cleaned(w.ctx, fence(got2[0]), "left: a.tmp"))
			w.reopen()
			require.Empty(w, w.scan(store.Filter{}))
			e, err = w.st.LookupHistory(w.ctx, q.id)
			require.NoError(w, err)
			require.Equal(w, "left: a.tmp", e.CleanupReport)
			require.Equal(w, commitstep.Completed, e.State)
		}
	}},
	{"a cleaning sequence without a claim is free for anyone; Cleaned needs the newest epoch", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d"), clean: cleanupStep()})
		require.NoError(w, w.st.Complete(w.ctx, fence(l), true, store.HistoryNotes{}))
		require.NoError(w, w.st.Release(w.ctx, fence(l)))
		got, err := w.st.ClaimOne(w.ctx, w.me.ID, l.Key)
		require.NoError(w, err)
		require.True(w, got.Cleaning)
		require.ErrorIs(w, w.st.Cleaned(w.ctx, fence(l), ""), commitstep.ErrFenced)
		require.NoError(w, w.st.Cleaned(w.ctx, fence(got), ""))
	}},
	{"the history of a long sequence leaves its steps out", func(w *world) {
		small := w.put(seqSpec{key: key("j", "s"), steps: store.HistoryDetailSteps})
		large := w.put(seqSpec{key: key("j", "l"), steps: store.HistoryDetailSteps + 1})
		huge := w.put(seqSpec{key: key("j", "h"), steps: 2 * store.PageSize})
		for _, l := range []commitstep.Live{small, large, huge} {
			w.complete(l)
		}
		for i, e := range w.history(store.HistoryFilter{}) {
			want := []commitstep.Live{huge, large, small}[i]
			require.Equal(w, want.ID, e.ID, "newest first")
			require.Equal(w, want.Steps, e.Steps)
			require.Equal(w, want.ID == small.ID, e.Detail != nil)
		}
	}},
}

var parkTests = []test{
	{"stops a sequence durably and releases the claim", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d"), plan: "p"})
		version := w.get(l.Key).Version
		require.NoError(w, w.st.Record(w.ctx, fence(l), false, done(0)))
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound, Step: 2, Message: "another file"}, attempt(2, 1), outcome(2, 1, commitstep.AttemptFailed)))
		_, _, held, err := w.st.Holder(w.ctx, l)
		require.NoError(w, err)
		require.False(w, held)
		require.Empty(w, w.claim(w.me.ID, store.ClaimFilter{}))
		rec, err := w.st.LookupPlan(w.ctx, l.Key, "p")
		require.NoError(w, err)
		require.Equal(w, commitstep.Parked, rec.State)
		for range 2 {
			got := w.get(l.Key)
			require.Equal(w, commitstep.Parked, got.State)
			require.Equal(w, commitstep.ConflictFound, got.Reason)
			require.Equal(w, 2, got.ParkStep)
			require.Equal(w, "another file", got.Message)
			require.False(w, got.ParkTold)
			require.Greater(w, got.Version, version)
			require.True(w, w.progress(l.ID, 0).Done)
			require.Equal(w, 1, w.progress(l.ID, 2).Failed)
			w.reopen()
		}
	}},
	{"being told is durable", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound, Step: -1}))
		require.NoError(w, w.st.ParkTold(w.ctx, fence(l)))
		w.reopen()
		require.True(w, w.get(l.Key).ParkTold)
		require.Equal(w, -1, w.get(l.Key).ParkStep)
	}},
	{"a parked sequence takes what is noted about it", func(w *world) {
		// By whoever parked it, and by whoever claims it to tell OnPark.
		l := w.put(seqSpec{key: key("j", "d")})
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.PublishUnknown, Step: 0}))
		require.NoError(w, w.st.Record(w.ctx, fence(l), true, store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`{"seen":1}`)}))
		require.JSONEq(w, `{"seen":1}`, string(w.progress(l.ID, 0).Note))
		again := w.claim(w.me.ID, store.ClaimFilter{Parked: true})
		require.Len(w, again, 1)
		require.NoError(w, w.st.Record(w.ctx, fence(again[0]), true, store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`{"seen":2}`)}))
		require.ErrorIs(w, w.st.Record(w.ctx, fence(l), true, store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`{"seen":3}`)}), commitstep.ErrFenced)
		w.reopen()
		require.JSONEq(w, `{"seen":2}`, string(w.progress(l.ID, 0).Note))
		require.Equal(w, commitstep.Parked, w.get(l.Key).State)
	}},
	{"a parked sequence can be claimed by name", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound, Step: -1}))
		got, err := w.st.ClaimOne(w.ctx, w.me.ID, l.Key)
		require.NoError(w, err)
		require.Equal(w, commitstep.Parked, got.State)
		require.Greater(w, got.Epoch, l.Epoch)
	}},
}
