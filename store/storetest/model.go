package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is what a store should say, kept in plain maps.
type model struct {
	w     *world
	live  map[commitstep.Key]*modelSeq
	done  map[uuid.UUID]commitstep.State
	marks map[string]int64
	audit int
}

type modelSeq struct {
	live commitstep.Live // as of the last claim, for its fence
	held bool
	// written is the newest epoch that a durable write carried. A store that
	// only one process can open may forget higher ones when it is opened anew.
	written uint64
	state   commitstep.State
	lock    string
	marked  map[int]bool
	failed  int
	count   int
}

var modelTests = []test{
	{"random work agrees with a model in memory", func(w *world) {
		rapid.Check(w.TB, func(rt *rapid.T) {
			m := &model{w: newWorld(w.TB, w.h), live: map[commitstep.Key]*modelSeq{}, done: map[uuid.UUID]commitstep.State{}, marks: map[string]int64{}}
			rt.Repeat(map[string]func(*rapid.T){
				"":         m.agree,
				"put":      m.put,
				"claim":    m.claim,
				"mark":     m.mark,
				"attempt":  m.attempt,
				"park":     m.park,
				"decide":   m.decide,
				"complete": m.complete,
				"reopen":   m.reopen,
			})
			m.w.check()
		})
	}},
}

func (m *model) draw(rt *rapid.T) (commitstep.Key, *modelSeq) {
	if len(m.live) == 0 {
		rt.Skip("nothing live")
	}
	keys := slices.SortedFunc(maps.Keys(m.live), commitstep.Key.Compare)
	k := rapid.SampledFrom(keys).Draw(rt, "key")
	return k, m.live[k]
}

func (m *model) put(rt *rapid.T) {
	k := key(rapid.SampledFrom([]string{"j", "k"}).Draw(rt, "job"), rapid.SampledFrom([]string{"a", "b", "c", "a/b"}).Draw(rt, "dataset"))
	lock := rapid.SampledFrom([]string{"", "l1", "l2"}).Draw(rt, "lock")
	steps := rapid.SampledFrom([]int{1, 3, store.PageSize + 1}).Draw(rt, "steps")
	q := seqSpec{key: k, steps: steps}
	if lock != "" {
		q.locks = []string{lock}
	}
	l, err := m.w.tryPut(q)
	blocked := m.live[k] != nil
	for _, s := range m.live {
		blocked = blocked || lock != "" && s.lock == lock
	}
	if blocked {
		require.ErrorIs(rt, err, commitstep.ErrPending)
		return
	}
	require.NoError(rt, err)
	m.live[k] = &modelSeq{live: l, held: true, written: 1, state: commitstep.Pending, lock: lock, marked: map[int]bool{}}
}

func (m *model) claim(rt *rapid.T) {
	k, s := m.draw(rt)
	l, err := m.w.st.ClaimOne(m.w.ctx, m.w.me.ID, k)
	if s.held {
		require.ErrorIs(rt, err, commitstep.ErrBusy)
		if rapid.Bool().Draw(rt, "release") {
			require.NoError(rt, m.w.st.Release(m.w.ctx, fence(s.live)))
			s.held = false
		}
		return
	}
	require.NoError(rt, err)
	require.Greater(rt, l.Epoch, s.live.Epoch)
	s.live, s.held = l, true
}

func (m *model) mark(rt *rapid.T) {
	_, s := m.draw(rt)
	if !s.held {
		return
	}
	step := rapid.IntRange(0, s.live.Steps-1).Draw(rt, "step")
	m.record(rt, s, done(step))
	s.marked[step] = true
}

func (m *model) attempt(rt *rapid.T) {
	_, s := m.draw(rt)
	if !s.held {
		return
	}
	what := rapid.SampledFrom([]string{"", commitstep.AttemptFailed, commitstep.AttemptDone, commitstep.AttemptWaiting}).Draw(rt, "outcome")
	s.count++
	events := []store.Event{attempt(0, s.count)}
	if what != "" {
		events = append(events, outcome(0, s.count, what))
	}
	if what == "" || what == commitstep.AttemptFailed {
		s.failed++
	}
	m.record(rt, s, events...)
}

func (m *model) record(rt *rapid.T, s *modelSeq, events ...store.Event) {
	durable := rapid.Bool().Draw(rt, "durable")
	require.NoError(rt, m.w.st.Record(m.w.ctx, fence(s.live), durable, events...))
	if durable {
		s.written = s.live.Epoch
	}
}

func (m *model) park(rt *rapid.T) {
	_, s := m.draw(rt)
	if !s.held {
		return
	}
	require.NoError(rt, m.w.st.Park(m.w.ctx, fence(s.live), store.Parking{Reason: commitstep.ConflictFound, Step: -1}))
	s.state, s.held, s.written = commitstep.Parked, false, s.live.Epoch
}

func (m *model) decide(rt *rapid.T) {
	k, s := m.draw(rt)
	if s.held || s.state != commitstep.Parked {
		return
	}
	now := m.w.get(k)
	d := decision(now, rapid.SampledFrom([]store.DecisionKind{store.DecideRetry, store.DecideAbandon}).Draw(rt, "kind"))
	d.ResetAttempts = d.Kind == store.DecideRetry
	c, err := m.w.st.Decide(m.w.ctx, d)
	require.NoError(rt, err)
	m.audit++
	if d.State == commitstep.Abandoned {
		m.done[s.live.ID] = commitstep.Abandoned
		delete(m.live, k)
		return
	}
	s.state, s.failed = commitstep.Pending, 0
	require.Greater(rt, c.Epoch, s.live.Epoch)
	s.live.Epoch, s.written = c.Epoch, c.Epoch
}

func (m *model) complete(rt *rapid.T) {
	k, s := m.draw(rt)
	if !s.held {
		require.Error(rt, m.w.st.Complete(m.w.ctx, store.Fence{ID: s.live.ID, Epoch: s.live.Epoch + 7}, false, store.HistoryNotes{}))
		return
	}
	if s.state == commitstep.Parked {
		require.Error(rt, m.w.st.Complete(m.w.ctx, fence(s.live), false, store.HistoryNotes{}))
		return
	}
	source := rapid.SampledFrom([]string{"s1", "s2"}).Draw(rt, "source")
	from := commitstep.None()
	if n, ok := m.marks[source]; ok {
		from = commitstep.Int(n)
	}
	mv := move("j", source, from, commitstep.Int(m.marks[source]+1))
	wrong := rapid.IntRange(0, 9).Draw(rt, "wrong") == 0
	if wrong {
		mv.From, mv.To = commitstep.Int(1000), commitstep.Int(1001)
	}
	err := m.w.st.Complete(m.w.ctx, fence(s.live), false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 0, Move: mv})
	if wrong {
		require.ErrorIs(rt, err, commitstep.ErrStale)
		return
	}
	require.NoError(rt, err)
	m.marks[source]++
	m.done[s.live.ID] = commitstep.Completed
	delete(m.live, k)
}

func (m *model) reopen(*rapid.T) {
	m.w.reopen()
	for _, s := range m.live {
		s.held, s.live.Epoch = false, s.written
	}
}

// agree compares everything that the store says with the model.
func (m *model) agree(rt *rapid.T) {
	got := m.w.scan(store.Filter{})
	require.Len(rt, got, len(m.live))
	require.True(rt, slices.IsSortedFunc(got, func(a, b commitstep.Live) int { return a.Key.Compare(b.Key) }))
	for _, l := range got {
		s := m.live[l.Key]
		require.NotNil(rt, s, l.Key)
		require.Equal(rt, s.live.ID, l.ID)
		require.Equal(rt, s.state, l.State)
		_, _, held, err := m.w.st.Holder(m.w.ctx, l)
		require.NoError(rt, err)
		require.Equal(rt, s.held, held)
		for n := 0; n*store.PageSize < l.Steps; n++ {
			page, err := m.w.st.Steps(m.w.ctx, l.ID, n)
			require.NoError(rt, err)
			for i, p := range page.Progress {
				if want := s.marked[n*store.PageSize+i]; want != p.Done {
					rt.Fatalf("step %d of %s: done %v, want %v", n*store.PageSize+i, l.Key, p.Done, want)
				}
			}
			if n == 0 {
				require.Equal(rt, s.count, page.Progress[0].Count)
				require.Equal(rt, s.failed, page.Progress[0].Failed)
			}
		}
	}
	hist := m.w.history(store.HistoryFilter{})
	require.Len(rt, hist, len(m.done))
	for _, e := range hist {
		require.Equal(rt, m.done[e.ID], e.State)
	}
	require.Len(rt, m.w.audit(), m.audit)
	for _, s := range []string{"s1", "s2"} {
		v, err := m.w.st.Watermark(m.w.ctx, commitstep.WatermarkKey{Job: "j", Source: s})
		if n, ok := m.marks[s]; ok {
			require.NoError(rt, err)
			require.Equal(rt, commitstep.Int(n), v.Watermark, fmt.Sprint(s))
		} else if !errors.Is(err, commitstep.ErrNotFound) {
			rt.Fatalf("watermark %s: %v", s, err)
		}
	}
}
