package storetest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

func attempt(step, number int) store.Event {
	return store.Event{Type: store.EventAttempt, Step: step, Attempt: commitstep.AttemptRecord{Number: number, Started: time.Date(2020, 1, 1, 0, 0, number, 0, time.UTC), Driver: "d"}}
}

func outcome(step, number int, what string) store.Event {
	return store.Event{Type: store.EventOutcome, Step: step, Attempt: commitstep.AttemptRecord{Number: number, Outcome: what, Class: "unknown", Error: "e", Ended: time.Date(2020, 1, 1, 1, 0, number, 0, time.UTC)}}
}

func note(step int, v string) store.Event {
	return store.Event{Type: store.EventNote, Step: step, Data: json.RawMessage(v)}
}

func noReturn(step int, v string) store.Event {
	return store.Event{Type: store.EventNoReturn, Step: step, Data: json.RawMessage(v)}
}

var recordTests = []test{
	{"a durable event is there after opening again, and at once", func(w *world) {
		for _, steps := range []int{3, 2*store.PageSize + 3} {
			last := steps - 1
			l := w.put(seqSpec{key: key("j", fmt.Sprint(steps)), steps: steps})
			version := w.get(l.Key).Version
			w.record(l, done(0), attempt(last, 1), outcome(last, 1, commitstep.AttemptFailed), note(last, `{"a":1}`), noReturn(1, `"x"`), store.Event{Type: store.EventMessage, Message: "msg ä"})
			require.Greater(w, w.get(l.Key).Version, version, "a person could see the change")
			for range 2 {
				require.True(w, w.progress(l.ID, 0).Done)
				p := w.progress(l.ID, last)
				require.False(w, p.Done)
				require.Equal(w, 1, p.Count)
				require.Equal(w, 1, p.Failed)
				require.JSONEq(w, `{"a":1}`, string(p.Note))
				require.Nil(w, p.NoReturn)
				require.Len(w, p.Attempts, 1)
				require.Equal(w, commitstep.AttemptFailed, p.Attempts[0].Outcome)
				require.Equal(w, "e", p.Attempts[0].Error)
				require.True(w, p.Attempts[0].Started.Equal(time.Date(2020, 1, 1, 0, 0, 1, 0, time.UTC)))
				require.JSONEq(w, `"x"`, string(w.progress(l.ID, 1).NoReturn))
				require.Equal(w, "msg ä", w.get(l.Key).Message)
				w.reopen()
			}
		}
	}},
	{"the version grows with what a person decides on, and with nothing else", func(w *world) {
		for _, steps := range []int{3, 2*store.PageSize + 3} {
			l := w.put(seqSpec{key: key("j", fmt.Sprint(steps)), steps: steps, clean: cleanupStep()})
			version := l.Version
			same := func(what string) { w.Helper(); require.Equal(w, version, w.get(l.Key).Version, what) }
			grew := func(what string) {
				w.Helper()
				now := w.get(l.Key).Version
				require.Greater(w, now, version, what)
				version = now
			}
			message := store.Event{Type: store.EventMessage, Message: "waits"}
			same("put")
			w.record(l, done(0), attempt(1, 1), outcome(1, 1, commitstep.AttemptFailed), note(1, "1"), noReturn(1, "2"))
			same("progress")
			require.NoError(w, w.st.Record(w.ctx, fence(l), false, done(2)))
			require.NoError(w, w.st.Release(w.ctx, fence(l)))
			l, err := w.st.ClaimOne(w.ctx, w.me.ID, l.Key)
			require.NoError(w, err)
			same("claim")
			w.record(l, message)
			grew("message")
			w.record(l, message, done(1))
			same("the same message")
			require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound, Step: 1, Message: "m"}))
			grew("park")
			l = w.get(l.Key)
			_, err = w.st.Decide(w.ctx, decision(l, store.DecideRetry))
			require.NoError(w, err)
			grew("decision")
			l, err = w.st.ClaimOne(w.ctx, w.me.ID, l.Key)
			require.NoError(w, err)
			require.NoError(w, w.st.Complete(w.ctx, fence(l), true, store.HistoryNotes{}))
			grew("completion")
			w.reopen()
			same("opened again")
		}
	}},
	{"events behind are seen at once, and ride with the next durable write", func(w *world) {
		for _, steps := range []int{3, 2*store.PageSize + 3} {
			last := steps - 1
			l := w.put(seqSpec{key: key("j", fmt.Sprint(steps)), steps: steps})
			require.NoError(w, w.st.Record(w.ctx, fence(l), false, done(0), note(last, "1")))
			require.NoError(w, w.st.Record(w.ctx, fence(l), false, note(last, "2")))
			require.True(w, w.progress(l.ID, 0).Done)
			require.Equal(w, "2", string(w.progress(l.ID, last).Note))
			w.record(l, note(last, "3"), done(1))
			require.Equal(w, "3", string(w.progress(l.ID, last).Note), "the order is kept")
			w.reopen()
			require.True(w, w.progress(l.ID, 0).Done)
			require.True(w, w.progress(l.ID, 1).Done)
			require.Equal(w, "3", string(w.progress(l.ID, last).Note))
		}
	}},
	{"closing writes the events behind", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		require.NoError(w, w.st.Record(w.ctx, fence(l), false, done(2)))
		w.reopen()
		require.True(w, w.progress(l.ID, 2).Done)
	}},
	{"an attempt counts as failed until its outcome says otherwise", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		failed := 0
		for i, c := range []struct {
			outcome string
			counts  bool
		}{{commitstep.AttemptFailed, true}, {commitstep.AttemptDone, false}, {commitstep.AttemptStopped, false}, {commitstep.AttemptWaiting, false}, {commitstep.AttemptUnknown, true}, {"", true}} {
			w.record(l, attempt(0, i+1))
			require.Equal(w, failed+1, w.progress(l.ID, 0).Failed)
			if c.outcome != "" {
				w.record(l, outcome(0, i+1, c.outcome))
			}
			if c.counts {
				failed++
			}
			p := w.progress(l.ID, 0)
			require.Equal(w, failed, p.Failed, c.outcome)
			require.Equal(w, i+1, p.Count)
		}
		// An outcome without its attempt: the first one costs no write of its own.
		w.record(l, outcome(1, 1, commitstep.AttemptFailed))
		require.Equal(w, 1, w.progress(l.ID, 1).Failed)
		require.Equal(w, 1, w.progress(l.ID, 1).Count)
	}},
	{"the same events again change nothing", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		for range 3 {
			w.record(l, attempt(0, 1), outcome(0, 1, commitstep.AttemptFailed), done(1), note(0, "1"))
		}
		p := w.progress(l.ID, 0)
		require.Equal(w, 1, p.Count)
		require.Equal(w, 1, p.Failed)
		require.Len(w, p.Attempts, 1)
	}},
	{"the newest attempts are kept, all are counted", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		n := commitstep.KeptAttempts + 5
		for i := 1; i <= n; i++ {
			w.record(l, attempt(0, i), outcome(0, i, commitstep.AttemptFailed))
		}
		p := w.progress(l.ID, 0)
		require.Equal(w, n, p.Count)
		require.Equal(w, n, p.Failed)
		require.Len(w, p.Attempts, commitstep.KeptAttempts)
		require.Equal(w, n, p.Attempts[len(p.Attempts)-1].Number)
		require.Equal(w, 6, p.Attempts[0].Number)
	}},
	{"a point of no return without a value is a mark all the same", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		w.record(l, store.Event{Type: store.EventNoReturn, Step: 1})
		require.NotNil(w, w.progress(l.ID, 1).NoReturn)
		w.reopen()
		require.NotNil(w, w.progress(l.ID, 1).NoReturn)
		require.Nil(w, w.progress(l.ID, 0).NoReturn)
	}},
	{"what could not be stored is refused whole", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		for _, durable := range []bool{true, false} {
			require.Error(w, w.st.Record(w.ctx, fence(l), durable, done(0), done(3)))
			require.Error(w, w.st.Record(w.ctx, fence(l), durable, done(0), done(-1)))
			require.Error(w, w.st.Record(w.ctx, fence(l), durable, done(0), note(1, "{")))
			require.Error(w, w.st.Record(w.ctx, fence(l), durable, done(0), store.Event{Type: 99, Step: 1}))
		}
		require.False(w, w.progress(l.ID, 0).Done)
		require.NoError(w, w.st.Record(w.ctx, fence(l), true), "no events")
	}},
	{"a move and its mark are one", func(w *world) {
		m := move("j", "s", commitstep.None(), commitstep.Int(7))
		l := w.put(seqSpec{key: key("j", "d"), locks: []string{m.Lock()}, moves: []commitstep.WatermarkMove{m}})
		ev := store.Event{Type: store.EventMove, Step: 2, Move: m}
		require.NoError(w, w.st.Record(w.ctx, fence(l), false, ev), "moves are durable whatever is asked for")
		for range 2 {
			require.Equal(w, commitstep.Int(7), w.watermark(m))
			require.True(w, w.progress(l.ID, 2).Done)
			w.reopen()
		}
		v, err := w.st.Watermark(w.ctx, m.WatermarkKey)
		require.NoError(w, err)
		require.Equal(w, m.Token, v.Token)
		require.Equal(w, l.ID, v.Sequence)
		require.False(w, v.SetAt.IsZero())
	}},
	{"finding our own token is success, another value is stale and writes nothing", func(w *world) {
		m := move("j", "s", commitstep.None(), commitstep.Text("b"))
		l := w.put(seqSpec{key: key("j", "d")})
		ev := store.Event{Type: store.EventMove, Step: 2, Move: m}
		w.record(l, ev)
		w.record(l, ev)
		other := move("j", "s", commitstep.None(), commitstep.Text("c"))
		err := w.st.Record(w.ctx, fence(l), true, done(0), store.Event{Type: store.EventMove, Step: 1, Move: other})
		var stale *store.StaleError
		require.ErrorAs(w, err, &stale)
		require.Equal(w, commitstep.Text("b"), stale.Stored)
		require.Equal(w, commitstep.Conflict, stale.Verdict.Outcome)
		require.False(w, w.progress(l.ID, 0).Done)
		require.False(w, w.progress(l.ID, 1).Done)
		require.Equal(w, commitstep.Text("b"), w.watermark(m))
		// Two moves of which one fails move nothing.
		fresh := move("j", "s2", commitstep.None(), commitstep.Int(1))
		require.ErrorIs(w, w.st.Record(w.ctx, fence(l), true, store.Event{Type: store.EventMove, Step: 0, Move: fresh}, store.Event{Type: store.EventMove, Step: 1, Move: other}), commitstep.ErrStale)
		require.Equal(w, commitstep.None(), w.watermark(fresh))
	}},
	{"a lower value needs a higher source epoch", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		m1 := move("j", "s", commitstep.None(), commitstep.Int(100))
		m2 := move("j", "s", commitstep.Int(100), commitstep.Int(3).InEpoch(1))
		w.record(l, store.Event{Type: store.EventMove, Step: 0, Move: m1})
		w.record(l, store.Event{Type: store.EventMove, Step: 1, Move: m2})
		require.Equal(w, commitstep.Int(3).InEpoch(1), w.watermark(m2))
	}},
	{"after the outcome every write is fenced", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		w.complete(l)
		require.ErrorIs(w, w.st.Record(w.ctx, fence(l), true, done(0)), commitstep.ErrFenced)
		require.ErrorIs(w, w.st.Record(w.ctx, fence(l), false, done(0)), commitstep.ErrFenced)
		require.ErrorIs(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound}), commitstep.ErrFenced)
	}},
}
