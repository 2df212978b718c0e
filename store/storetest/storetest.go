// Package storetest is the conformance suite of commit stores: every sentence
// of the contract in package store is held by a test here, and every store,
// ours and others', runs all of them, and the same benchmarks.
//
//	func TestConformance(t *testing.T) {
//		storetest.Exercise(t, storetest.Harness{Open: …, Reopen: …})
//	}
//
// The suite knows the contract only; what a store promises beyond it is tested
// beside that store.
package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Harness is how the suite gets at a kind of store. All functions fail the
// test themselves.
type Harness struct {
	// Open makes a store of its own for the test, empty, and closes it when the
	// test ends. Required.
	Open func(t testing.TB) store.Full
	// Reopen closes st and opens the same store again. Required.
	Reopen func(t testing.TB, st store.Full) store.Full
	// Advance lets d pass for the leases of st: with an injected clock, or by
	// moving what is stored. Required.
	Advance func(t testing.TB, st store.Full, d time.Duration)
	// Copy makes a stamped copy of st and opens it. nil when the store cannot
	// be copied.
	Copy func(t testing.TB, st store.Full) store.Full
	// Seal seals st as copied to target. nil when the store cannot be sealed.
	Seal func(t testing.TB, st store.Full, target string)
	// Shared: several processes may have the store open at once.
	Shared bool
}

// Exercise runs the suite. The tests run in parallel with each other.
func Exercise(t *testing.T, h Harness) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"put", putTests}, {"claim", claimTests}, {"record", recordTests}, {"complete", completeTests},
		{"park", parkTests}, {"decide", decideTests}, {"read", readTests}, {"watermark", watermarkTests},
		{"admin", adminTests}, {"copy", copyTests}, {"race", raceTests}, {"paths", pathTests}, {"model", modelTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range group.tests {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, h)
					c.run(w)
					w.check()
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(w *world)
}

// world is one test's store with a driver instance that has a lease on it.
type world struct {
	testing.TB
	h      Harness
	st     store.Full
	ctx    context.Context
	me     commitstep.Instance
	joined []uuid.UUID
}

func newWorld(t testing.TB, h Harness) *world {
	w := &world{TB: t, h: h, st: h.Open(t), ctx: t.Context()}
	w.me = w.join("me")
	return w
}

// check runs the store's own check; a store is sound after every test.
func (w *world) check() {
	w.Helper()
	for p, err := range w.st.Check(w.ctx) {
		require.NoError(w, err, "check")
		w.Errorf("the store is not sound after the test: %s", p)
	}
}

// reopen closes the store and opens it again. A store that many processes
// share keeps the leases of those that ended without a word, so they leave.
func (w *world) reopen() {
	w.Helper()
	w.st = w.h.Reopen(w, w.st)
	for _, id := range w.joined {
		require.NoError(w, w.st.Leave(w.ctx, id))
	}
	w.joined = nil
	w.me = w.join("me, again")
}

func (w *world) join(name string) commitstep.Instance {
	w.Helper()
	in := commitstep.Instance{ID: uuid.New(), Name: name, Host: "host", PID: 1}
	_, err := w.st.Join(w.ctx, in)
	require.NoError(w, err)
	w.joined = append(w.joined, in.ID)
	return in
}

var someone = store.Person{Name: "op", Host: "desk", Tool: "storetest", Reason: "because of the test"}

func key(job, dataset string) commitstep.Key { return commitstep.Key{Job: job, Dataset: dataset} }

// seqSpec describes a sequence to be put. The zero value is one of 3 steps in
// one stage.
type seqSpec struct {
	id    uuid.UUID
	key   commitstep.Key
	steps int
	hash  string
	plan  string
	locks []string
	moves []commitstep.WatermarkMove
	clean []commitstep.Step
	pages iter.Seq2[[]commitstep.Step, error]

	used   *commitstep.UsedPaths
	roots  []commitstep.StagingRoot
	accept string
}

func (q seqSpec) withDefaults() seqSpec {
	if q.id == uuid.Nil {
		q.id = uuid.Must(uuid.NewV7())
	}
	if q.steps == 0 {
		q.steps = 3
	}
	if q.hash == "" {
		q.hash = "hash of " + q.id.String()
	}
	if q.pages == nil {
		q.pages = pagesOf(q.steps)
	}
	return q
}

func stepAt(i int) commitstep.Step {
	return commitstep.Step{Index: i, Stage: i / 1000, Kind: "test.noop", Version: 2, Params: json.RawMessage(fmt.Sprintf(`{"n":%d,"name":"<ä&%%>"}`, i)), Evidence: json.RawMessage(fmt.Sprintf(`{"e":[%d]}`, i))}
}

func pagesOf(n int) iter.Seq2[[]commitstep.Step, error] {
	return func(yield func([]commitstep.Step, error) bool) {
		for at := 0; at < n; at += store.PageSize {
			var page []commitstep.Step
			for i := at; i < min(n, at+store.PageSize); i++ {
				page = append(page, stepAt(i))
			}
			if !yield(page, nil) {
				return
			}
		}
	}
}

func (q seqSpec) draft() store.Draft {
	return store.Draft{ID: q.id, Key: q.key, Pages: q.pages, Header: func() (commitstep.Header, error) {
		return commitstep.Header{ID: q.id, Key: q.key, PlanID: q.plan, PlanHash: q.hash, Created: time.Date(2015, 12, 9, 1, 2, 3, 4000, time.UTC),
			Steps: q.steps, Stages: (q.steps-1)/1000 + 1, FirstWatermark: -1, Locks: q.locks, Moves: q.moves, Cleanup: q.clean, Used: q.used, AcceptReusedPaths: q.accept, Writer: "storetest"}, nil
	}, Roots: func() []commitstep.StagingRoot { return q.roots }}
}

func (w *world) tryPut(q seqSpec) (commitstep.Live, error) {
	q = q.withDefaults()
	return w.st.Put(w.ctx, q.draft(), w.me.ID)
}

func (w *world) put(q seqSpec) commitstep.Live {
	w.Helper()
	l, err := w.tryPut(q)
	require.NoError(w, err)
	return l
}

func fence(l commitstep.Live) store.Fence {
	return store.Fence{ID: l.ID, Epoch: l.Epoch, Owner: l.Owner.ID}
}

func done(step int) store.Event { return store.Event{Type: store.EventDone, Step: step} }

func (w *world) record(l commitstep.Live, events ...store.Event) {
	w.Helper()
	require.NoError(w, w.st.Record(w.ctx, fence(l), true, events...))
}

func (w *world) complete(l commitstep.Live, events ...store.Event) {
	w.Helper()
	require.NoError(w, w.st.Complete(w.ctx, fence(l), false, store.HistoryNotes{}, events...))
}

func (w *world) progress(id uuid.UUID, step int) commitstep.Progress {
	w.Helper()
	p, err := w.st.Steps(w.ctx, id, step/store.PageSize)
	require.NoError(w, err)
	return p.Progress[step%store.PageSize]
}

func (w *world) get(k commitstep.Key) commitstep.Live {
	w.Helper()
	l, err := w.st.Get(w.ctx, k)
	require.NoError(w, err)
	return l
}

func (w *world) scan(f store.Filter) []commitstep.Live {
	w.Helper()
	var out []commitstep.Live
	for l, err := range w.st.Scan(w.ctx, f) {
		require.NoError(w, err)
		out = append(out, l)
	}
	return out
}

func (w *world) history(f store.HistoryFilter) []store.HistoryEntry {
	w.Helper()
	var out []store.HistoryEntry
	for e, err := range w.st.ListHistory(w.ctx, f) {
		require.NoError(w, err)
		out = append(out, e)
	}
	return out
}

func (w *world) audit() []store.AuditEntry {
	w.Helper()
	var out []store.AuditEntry
	for e, err := range w.st.ListAudit(w.ctx) {
		require.NoError(w, err)
		require.Equal(w, uint64(len(out)+1), e.Number, "audit numbers have no gaps")
		out = append(out, e)
	}
	return out
}

func move(job, source string, from, to commitstep.Watermark) commitstep.WatermarkMove {
	return commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: job, Source: source}, From: from, To: to, Token: uuid.New()}
}

func (w *world) watermark(m commitstep.WatermarkMove) commitstep.Watermark {
	w.Helper()
	v, err := w.st.Watermark(w.ctx, m.WatermarkKey)
	if err != nil {
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		return commitstep.None()
	}
	return v.Watermark
}
