package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Copyable is a store that Fill and SameContent work on.
type Copyable interface {
	store.Full
	store.Copier
}

// Fill puts one of everything into an empty store and leaves it without a live
// lease: sequences short and long, pending, parked, cleaning, completed and
// abandoned, with notes, attempts and marks; watermarks, acceptances and audit.
func Fill(t interface {
	require.TestingT
	Helper()
}, st store.Full) {
	t.Helper()
	w := &world{st: st, ctx: context.Background()}
	w.fill(t)
}

func (w *world) fill(t require.TestingT) {
	me := commitstep.Instance{ID: uuid.New(), Name: "filler", Host: "host", PID: 7}
	_, err := w.st.Join(w.ctx, me)
	require.NoError(t, err)
	using := func(q seqSpec, u uses) seqSpec {
		q, err := q.withPaths(u)
		require.NoError(t, err)
		return q
	}
	put := func(q seqSpec) commitstep.Live {
		l, err := w.st.Put(w.ctx, q.withDefaults().draft(), me.ID)
		require.NoError(t, err)
		return l
	}
	record := func(l commitstep.Live, events ...store.Event) {
		require.NoError(t, w.st.Record(w.ctx, fence(l), true, events...))
	}
	from := move("j", "s", commitstep.None(), commitstep.Int(7))
	done1 := put(seqSpec{key: key("j", "done"), plan: "plan 1", locks: []string{"a lock"}, moves: []commitstep.WatermarkMove{from}})
	require.NoError(t, w.st.Complete(w.ctx, fence(done1), false, store.HistoryNotes{Executed: 2, Driver: "filler"}, store.Event{Type: store.EventMove, Step: 2, Move: from}))
	text := commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "j\x00\x01", Source: "text/ö"}, To: commitstep.Text("2015-12-09 <&>\x00").InEpoch(3), Token: uuid.New()}
	require.NoError(t, w.st.SetWatermark(w.ctx, text, someone))

	cleaning := put(seqSpec{key: key("j", "cleaning"), clean: cleanupStep(), plan: "plan 2"})
	record(cleaning, note(1, `{"n":1}`))
	require.NoError(t, w.st.Complete(w.ctx, fence(cleaning), true, store.HistoryNotes{}, done(0), done(1), done(2)))
	cleaned := put(using(seqSpec{key: key("j", "cleaned"), clean: cleanupStep()}, uses{sources: []string{"hdfs://p/s/run-1/a", "hdfs://p/loose"}, cleanups: []string{"hdfs://p/s/run-1"}, accept: "staged again"}))
	require.NoError(t, w.st.Complete(w.ctx, fence(cleaned), true, store.HistoryNotes{}))
	require.NoError(t, w.st.Cleaned(w.ctx, fence(cleaned), "one file stays"))

	pending := put(seqSpec{key: key("j", "pending\x00\x01\x02"), locks: []string{"b lock\x00"}, plan: "plan 3", steps: 5, moves: []commitstep.WatermarkMove{move("j", "t", commitstep.None(), commitstep.Int(1))}})
	for n := 1; n <= commitstep.KeptAttempts+4; n++ {
		record(pending, attempt(1, n))
		what := commitstep.AttemptFailed
		if n%3 == 0 {
			what = commitstep.AttemptWaiting
		}
		record(pending, outcome(1, n, what))
	}
	record(pending, attempt(2, 1), noReturn(2, `"handle"`), note(3, `null`), done(0), store.Event{Type: store.EventMessage, Message: "so far\x00"})

	long := put(using(seqSpec{key: key("j2", "long"), steps: 2*store.PageSize + 3}, uses{sources: []string{"/s/run-2/a", "/s/run-2/b"}, cleanups: []string{"/s/run-2"}}))
	record(long, done(0), done(store.PageSize), done(2*store.PageSize+2), note(store.PageSize+1, `[1]`), attempt(store.PageSize, 1))
	parked := put(seqSpec{key: key("j2", "parked"), steps: 80})
	record(parked, attempt(70, 1), done(3))
	require.NoError(t, w.st.Park(w.ctx, fence(parked), store.Parking{Reason: commitstep.PublishUnknown, Step: 70, Message: "who knows"}))
	for _, steps := range []int{3, store.HistoryDetailSteps + 1, 2*store.PageSize + 1} {
		gone := put(seqSpec{key: key("j3", fmt.Sprint("gone ", steps)), steps: steps, plan: "p"})
		record(gone, done(0))
		require.NoError(t, w.st.Park(w.ctx, fence(gone), store.Parking{Reason: commitstep.ConflictFound, Step: 1, Message: "taken"}))
		l, err := w.st.Find(w.ctx, gone.ID)
		require.NoError(t, err)
		_, err = w.st.Decide(w.ctx, store.Decision{Key: l.Key, ID: l.ID, Kind: store.DecideAbandon, Version: l.Version, Person: someone, State: commitstep.Abandoned,
			Notes: store.HistoryNotes{PartialVisible: []string{"step 1"}}})
		require.NoError(t, err)
	}
	w.fillTried(t, put, record)
	_, err = w.st.AcceptWatermarks(w.ctx, "j", someone)
	require.NoError(t, err)
	require.NoError(t, w.st.Leave(w.ctx, me.ID))
}

// SameContent compares what two stores hold, but for the names of the stores
// themselves and for the audit rows of being copied.
func SameContent(t require.TestingT, a, b store.Copier) {
	x, y := Content(t, a), Content(t, b)
	for k, v := range x {
		require.Empty(t, cmp.Diff(v, y[k]), k)
	}
	for k := range y {
		_, both := x[k]
		require.True(t, both, "%s is only in the second", k)
	}
}

// Content is everything of a store as JSON by what it is.
func Content(t require.TestingT, c store.Copier) map[string]string {
	out := map[string]string{}
	for it, err := range c.Export(context.Background()) {
		require.NoError(t, err)
		var k string
		var v any
		switch {
		case it.Store != nil:
			continue
		case it.Sequence != nil:
			l := *it.Sequence
			l.Cleanup, l.Updated = withoutIndex(l.Cleanup), rounded(l.Updated)
			k, v = "sequence "+l.ID.String(), l
		case it.Page != nil:
			for i := range it.Page.Progress {
				p := &it.Page.Progress[i]
				p.Attempts = slices.Clone(p.Attempts)
				for j := range p.Attempts {
					p.Attempts[j].Started, p.Attempts[j].Ended = rounded(p.Attempts[j].Started), rounded(p.Attempts[j].Ended)
				}
			}
			k, v = fmt.Sprintf("page %s %d", it.Page.Sequence, it.Page.Number), it.Page
		case it.Plan != nil:
			k, v = fmt.Sprintf("plan %q %q", it.Plan.Key, it.Plan.PlanID), it.Plan
		case it.Watermark != nil:
			k, v = fmt.Sprintf("watermark %q", it.Watermark.WatermarkKey), it.Watermark
		case it.Accepted != nil:
			k, v = "accepted "+it.Accepted.Job, it.Accepted
			it.Accepted.At = rounded(it.Accepted.At)
		case it.History != nil:
			h := *it.History
			h.Cleanup = withoutIndex(h.Cleanup)
			if len(h.Detail) > store.HistoryDetailSteps {
				h.Detail = nil // more than is promised
			}
			k, v = "history "+h.ID.String(), h
		case it.Path != nil:
			k, v = fmt.Sprintf("path %x", it.Path.Path), it.Path
		case it.Attempts != nil:
			k, v = fmt.Sprintf("attempts %s %d", it.Attempts.Sequence, it.Attempts.Number), it.Attempts
		case it.Audit != nil:
			if it.Audit.Action == "store.seal" {
				continue
			}
			k, v = fmt.Sprint("audit ", it.Audit.Number), it.Audit
		}
		b, err := json.Marshal(v)
		require.NoError(t, err)
		out[k] = string(b)
	}
	return out
}

// rounded is to the microsecond: databases keep no more.
func rounded(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

func withoutIndex(steps []commitstep.Step) []commitstep.Step {
	out := append([]commitstep.Step(nil), steps...)
	for i := range out {
		out[i].Index = 0
	}
	return out
}

var copyTests = []test{
	{"a copy holds all that the first held, and the first is sealed", func(w *world) {
		from := w.st.(Copyable)
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		Fill(w, from)
		to := w.h.Open(w).(Copyable)
		before := Content(w, from)
		require.Greater(w, len(before), 20)
		rep, err := store.Copy(w.ctx, from, to, "the new one", someone)
		require.NoError(w, err)
		require.False(w, rep.Already)
		require.Equal(w, 4, rep.Sequences)
		SameContent(w, from, to)
		require.Equal(w, "the new one", from.Info().SealedFor)
		rep, err = store.Copy(w.ctx, from, to, "the new one", someone)
		require.NoError(w, err, "again is success")
		require.True(w, rep.Already)
		_, err = store.Copy(w.ctx, from, w.h.Open(w).(Copyable), "another", someone)
		require.ErrorIs(w, err, commitstep.ErrSealed)

		in := w.join("looks at the sealed one")
		_, err = from.Claim(w.ctx, in.ID, store.ClaimFilter{})
		require.ErrorIs(w, err, commitstep.ErrSealed, "its sequences live on elsewhere")
		require.NoError(w, from.Leave(w.ctx, in.ID))

		w.st, w.joined = to, nil
		w.reopen()
		SameContent(w, from, w.st.(Copyable))
		got := w.claim(w.me.ID, store.ClaimFilter{})
		require.Equal(w, []string{"cleaning", "pending\x00\x01\x02", "long"}, datasets(got))
		p := w.progress(got[1].ID, 1)
		require.Equal(w, commitstep.KeptAttempts+4, p.Count)
		require.Len(w, p.Attempts, commitstep.KeptAttempts)
		w.complete(got[2])
		require.ErrorAs(w, second(w.tryPut(seqSpec{key: key("k", "x"), locks: []string{"b lock\x00"}})), new(*commitstep.PendingError))
	}},
	{"a store is not copied while a driver is at work, nor into one that holds something", func(w *world) {
		from, to := w.st.(Copyable), w.h.Open(w).(Copyable)
		_, err := store.Copy(w.ctx, from, to, "there", someone)
		require.ErrorIs(w, err, commitstep.ErrBusy)
		require.Empty(w, from.Info().SealedFor)
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		require.NoError(w, to.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(1)), someone))
		_, err = store.Copy(w.ctx, from, to, "there", someone)
		require.ErrorIs(w, err, store.ErrNotEmpty)
		require.Empty(w, from.Info().SealedFor, "a seal would leave nowhere to go")
		_, err = store.Copy(w.ctx, from, from, "itself", someone)
		require.Error(w, err)
		_, err = store.Copy(w.ctx, from, w.h.Open(w).(Copyable), "an empty one", someone)
		require.NoError(w, err)
		require.Equal(w, "an empty one", from.Info().SealedFor)
	}},
	{"a copy that broke off is repeated, and runs nothing before", func(w *world) {
		from, to := w.st.(Copyable), w.h.Open(w).(Copyable)
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		Fill(w, from)
		total := 0
		for _, err := range from.Export(w.ctx) {
			require.NoError(w, err)
			total++
		}
		for after := 0; after < total; after += 3 {
			n := 0
			_, err := to.Import(w.ctx, func(yield func(store.CopyItem, error) bool) {
				for it, err := range from.Export(w.ctx) {
					if n++; n > after {
						yield(store.CopyItem{}, fmt.Errorf("broke off"))
						return
					}
					if !yield(it, err) {
						return
					}
				}
			})
			require.ErrorContains(w, err, "broke off")
			if after == 0 {
				continue // it was not even begun
			}
			again := w.h.Reopen(w, to).(Copyable)
			to = again
			in := commitstep.Instance{ID: uuid.New(), Name: "too early"}
			_, err = to.Join(w.ctx, in)
			require.NoError(w, err)
			_, err = to.Claim(w.ctx, in.ID, store.ClaimFilter{})
			require.ErrorIs(w, err, commitstep.ErrStamped)
			_, err = to.Put(w.ctx, seqSpec{key: key("k", "early")}.withDefaults().draft(), in.ID)
			require.ErrorIs(w, err, commitstep.ErrStamped)
			_, err = to.Watermark(w.ctx, commitstep.WatermarkKey{Job: "j", Source: "s"})
			require.ErrorIs(w, err, commitstep.ErrStamped, "not none")
			require.ErrorIs(w, err, store.ErrUnfinished)
			require.ErrorContains(w, err, "store copy")
			require.True(w, to.Info().Unfinished)
			_, err = to.Adopt(w.ctx, someone)
			require.ErrorIs(w, err, commitstep.ErrDecision)
			require.ErrorIs(w, to.(store.Stamper).Stamp(w.ctx, someone), commitstep.ErrDecision)
			require.NoError(w, to.Leave(w.ctx, in.ID))
			_, err = to.Import(w.ctx, func(yield func(store.CopyItem, error) bool) {
				yield(store.CopyItem{Store: &store.CopyStore{ID: uuid.New(), Location: "another"}}, nil)
			})
			require.ErrorIs(w, err, store.ErrNotEmpty, "it is another store's")
		}
		_, err := store.Copy(w.ctx, from, to, "there", someone)
		require.NoError(w, err)
		require.False(w, to.Info().Unfinished)
		SameContent(w, from, to)
	}},
	{"pruning removes old outcomes only, and keeps their plan ids", func(w *world) {
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		Fill(w, w.st)
		pr := w.st.(store.Pruner)
		all := len(w.history(store.HistoryFilter{}))
		n, err := pr.PruneHistory(w.ctx, time.Hour)
		require.NoError(w, err)
		require.Zero(w, n, "none is that old")
		w.h.Advance(w, w.st, time.Second)
		n, err = pr.PruneHistory(w.ctx, 0)
		require.NoError(w, err)
		require.Equal(w, all-1, n, "the one that is cleaning stays")
		left := w.history(store.HistoryFilter{})
		require.Len(w, left, 1)
		require.Equal(w, "cleaning", left[0].Dataset)
		require.Len(w, w.scan(store.Filter{}), 4)
		for _, p := range []struct{ dataset, plan string }{{"done", "plan 1"}, {"cleaning", "plan 2"}, {"pending\x00\x01\x02", "plan 3"}} {
			_, err := w.st.LookupPlan(w.ctx, key("j", p.dataset), p.plan)
			require.NoError(w, err)
		}
		require.NotEmpty(w, w.audit())
	}},
}

func second[T any](_ T, err error) error { return err }
