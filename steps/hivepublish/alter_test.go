package hivepublish

import (
	"slices"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// swappers are the kinds that change a partition by an ALTER.
var swappers = map[string]func(t *testing.T) *stepBench{
	"hive.swap_location": func(t *testing.T) *stepBench {
		b, _ := swapBench(t)
		return b
	},
	"hive.add_partition": func(t *testing.T) *stepBench {
		cfg, dir := onDisk(t)
		w := newWarehouse()
		require.NoError(t, w.drop())
		mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
		b := &stepBench{t: t, w: w, server: w.server(t, cfg)}
		p, err := steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "d").Step(addSpec()))
		require.NoError(t, err)
		b.planned = p
		return b
	},
	"hive.stage_and_swap": func(t *testing.T) *stepBench { return stageBench(t, stageParams(), nil) },
}

// whenOpen calls fn once the session of an ALTER was opened.
func (w *warehouse) whenOpen(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened = func(conf map[string]string) {
		if conf["hive.query.tag"] != "" {
			fn()
		}
	}
}

// noted are the ALTERs that the step's last note has.
func (b *stepBench) noted() alters {
	b.t.Helper()
	var n struct{ Alters alters }
	_, err := b.process().Attempt.LastNote(&n)
	require.NoError(b.t, err)
	return n.Alters
}

// Between the last look at the partition and the ALTER nothing is asked but that look's
// own answer: above all no session is opened, which takes seconds.
func TestTheLastLookIsRightBeforeTheAlter(t *testing.T) {
	t.Parallel()
	for name, bench := range swappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bench(t)
			var opened int
			b.w.whenOpen(func() { opened = len(b.w.calls) })
			require.NoError(t, b.process().Execute(t.Context()))
			b.want(commitstep.Done)
			require.NotZero(t, opened)
			calls := b.w.calls[opened:]
			sent := slices.Index(calls, "ExecuteStatement")
			require.Positive(t, sent, "it was looked at: %v", calls)
			require.Equal(t, "ExecuteStatement of a look", calls[0])
			require.NotContains(t, calls[:sent], "OpenSession")
		})
	}
}

// Somebody who knows nothing of this publish changes the partition while the session
// for the ALTER is opened: theirs stays, and neither of both hears that their rows are
// there when they are not.
func TestWhoIsFirstIsNotOverwritten(t *testing.T) {
	t.Parallel()
	const theirs = "hdfs://nn:8020/data/facts/dt=2024-01-01/token=theirs"
	for name, bench := range swappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bench(t)
			b.w.whenOpen(func() { require.NoError(t, b.w.move(theirs)()) })
			err := b.process().Execute(t.Context())
			require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, "is not what it was when it was planned")
			require.Equal(t, theirs, b.w.location())
			require.Empty(t, b.w.sent("ALTER TABLE"))
			require.Empty(t, b.noted(), "nothing was sent that could land")
			require.Len(t, b.w.sessions, 1, "that of the work; the other is closed")
			b.want(commitstep.Conflict)
		})
	}
}

// The server goes away between the session and the look: nothing was sent.
func TestALookThatFailsSendsNothing(t *testing.T) {
	t.Parallel()
	for name, bench := range swappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bench(t)
			down := func(is bool) {
				b.w.mu.Lock()
				defer b.w.mu.Unlock()
				b.w.down = is
			}
			b.w.whenOpen(func() { down(true) })
			err := b.process().Execute(t.Context())
			require.Equal(t, commitstep.ClassNotSent, commitstep.ClassOf(err), "%v", err)
			require.Empty(t, b.noted())
			down(false)
			b.w.whenOpen(func() {})
			v, err := b.process().Finish(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.Done, v.Outcome)
			require.Len(t, b.w.sent("ALTER TABLE"), 1)
		})
	}
}

// A process dies when its session is noted and nothing is sent: the next one closes
// that session, and swaps.
func TestASessionWithoutAnAlterIsClosed(t *testing.T) {
	t.Parallel()
	for name, bench := range swappers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bench(t)
			b.w.whenOpen(func() {
				b.w.mu.Lock()
				b.w.down = true // nothing of what follows is seen by anybody
				b.w.mu.Unlock()
			})
			p := b.process()
			j := &forgetful{}
			a := commitstep.NewAttempt(p.Attempt.Sequence, p.Attempt.Key, p.Attempt.Index, commitstep.Progress{}, j)
			require.Error(t, p.Step.Execute(t.Context(), a))
			require.NotNil(t, j.open, "the session was noted")
			b.w.mu.Lock()
			b.w.down = false
			b.w.mu.Unlock()
			b.w.whenOpen(func() {})
			require.NoError(t, b.process().Attempt.Note(t.Context(), j.open))
			v, err := b.process().Finish(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.Done, v.Outcome)
			require.Len(t, b.w.sent("ALTER TABLE"), 1)
			list := b.noted()
			_, open := list.open()
			require.False(t, open)
			require.NotContains(t, b.w.sessions, list[0].Session.handle)
		})
	}
}
