package hivepublish

import (
	"context"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// lostAlter is a step whose ALTER was sent and not answered; the list is empty, and the
// clock is the test's.
func lostAlter(t *testing.T) (b *stepBench, list *shortList, pass func(time.Duration), session sessionRef) {
	t.Helper()
	b, _ = swapBench(t)
	b.w.script = hold("SET LOCATION")
	b.server.list = deadList{}
	require.Error(t, b.process().Execute(t.Context()))
	b.w.script = nil
	open, ok := b.noted().open()
	require.True(t, ok)
	list = &shortList{}
	b.server.list = list
	return b, list, handClock(b.server), open.Session
}

func (b *stepBench) reattach() error {
	p := b.process()
	return p.Step.(commitstep.Reattacher).Reattach(b.t.Context(), p.Attempt)
}

// HiveServer2 forgets a closed statement as soon as some others were closed, and all
// of them with a restart. That an ALTER is not listed is no proof then that nothing of
// it lands: its session was closed, and its task may go on.
func TestAForgottenAlterHasTimeToEnd(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(b *stepBench, l *shortList, cut hs2.Query){
		// It ran when its session was closed, and others were closed since.
		"others were closed meanwhile": func(_ *stepBench, l *shortList, cut hs2.Query) {
			l.closed = others(3)
			l.next = append([]hs2.Query{cut}, others(100)[50:50+shortKeeps]...)
		},
		"the server was restarted":     func(b *stepBench, _ *shortList, _ hs2.Query) { b.w.restart() },
		"it was closed by another one": func(b *stepBench, l *shortList, _ hs2.Query) { b.w.restart(); l.closed = others(shortKeeps) },
		"it keeps none":                func(*stepBench, *shortList, hs2.Query) {},
		"no web UI is bound":           func(b *stepBench, _ *shortList, _ hs2.Query) { b.server.list = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, list, pass, session := lostAlter(t)
			began := b.server.now()
			forget(b, list, hs2.Query{State: hs2.Running, Session: session.guid, Operation: "o", End: began, Tasks: []hs2.Task{{Begin: began}}})
			for range 3 {
				require.ErrorIs(t, b.reattach(), commitstep.ErrInProgress)
				_, err := b.process().Verify(t.Context())
				require.ErrorIs(t, err, commitstep.ErrInProgress, "it is neither done nor not done")
				require.ErrorContains(t, withdraw(b, false), "wait until "+stamp(began.Add(compileQuiet)))
				require.NotContains(t, b.w.sessions, session.handle)
				pass(compileQuiet / 4)
			}
			require.NoError(t, withdraw(b, true), "a server that is gone ends nothing any more")
			pass(compileQuiet / 4)
			b.want(commitstep.NotDone)
			require.NoError(t, withdraw(b, false))
		})
	}
}

// One that is seen to run after its session was closed, and then forgotten, has all of
// the time from then on.
func TestAnAlterSeenToRunIsGivenTimeAnew(t *testing.T) {
	t.Parallel()
	b, list, pass, session := lostAlter(t)
	b.w.restart()
	require.ErrorIs(t, b.reattach(), commitstep.ErrInProgress)
	pass(compileQuiet / 2)
	list.active = []hs2.Query{{State: hs2.Running, StateText: "RUNNING", QueryID: "q", Session: session.guid, Running: true}}
	require.ErrorContains(t, b.reattach(), "still lists query q")
	list.active = nil
	pass(compileQuiet / 2)
	require.ErrorIs(t, b.reattach(), commitstep.ErrInProgress)
	pass(compileQuiet - 1)
	require.ErrorIs(t, b.reattach(), commitstep.ErrInProgress)
	pass(1)
	require.NoError(t, b.reattach())
}

// What the list shows to have ended, or would show if it had ever arrived, needs no
// waiting.
func TestAnAlterThatIsShownIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(b *stepBench, l *shortList, session sessionRef){
		"it never arrived": func(_ *stepBench, l *shortList, _ sessionRef) {
			l.closed = others(3)
			l.next = others(50)[3 : 3+shortKeeps-1] // as many as leave the newest in place
		},
		"it ended": func(b *stepBench, l *shortList, session sessionRef) {
			b.w.restart()
			l.closed = []hs2.Query{{State: hs2.Finished, Session: session.guid, Operation: "o"}}
		},
		"it ended, and is forgotten between two looks": func(_ *stepBench, l *shortList, session sessionRef) {
			l.closed = []hs2.Query{{State: hs2.Finished, Session: session.guid, Operation: "o"}}
			l.next = others(shortKeeps)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, list, _, session := lostAlter(t)
			tell(b, list, session)
			require.NoError(t, b.reattach())
			require.NotContains(t, b.w.sessions, session.handle)
			b.want(commitstep.NotDone)
		})
	}
}

// A refused decision leaves behind what it has closed, and what it waits for.
func TestARefusedDecisionKeepsWhatItClosed(t *testing.T) {
	t.Parallel()
	b, list, pass, _ := lostAlter(t)
	list.closed = others(3)
	require.NoError(t, withdraw(b, false))
	list.closed = nil
	pass(time.Second)
	require.NoError(t, withdraw(b, false), "that it cannot land was noted")

	// What cannot be noted is not remembered, and lets nothing through.
	b, _, pass, _ = lostAlter(t)
	b.w.restart()
	for range 3 {
		p := b.process()
		var n swapNote
		_, err := p.Attempt.LastNote(&n)
		require.NoError(t, err)
		a := commitstep.NewAttempt(p.Attempt.Sequence, p.Attempt.Key, p.Attempt.Index, commitstep.Progress{Note: raw(t, n)}, nil)
		require.ErrorContains(t, p.Step.(commitstep.Withdrawer).Withdraw(context.Background(), a, false), "could not be noted")
		pass(time.Hour)
	}
}

// A server that answers, and has the session in which an ALTER may still arrive, is not
// gone, whatever a person says; what it does not have, or does not say, is believed.
func TestAServerWithAnOpenAlterIsNotGone(t *testing.T) {
	t.Parallel()
	b, list, _, session := lostAlter(t)
	err := withdraw(b, true)
	require.ErrorContains(t, err, "is open there; it is not gone: decide without --server-gone")
	require.Contains(t, b.w.sessions, session.handle, "nothing is closed by what is refused")
	list.active = []hs2.Query{{State: hs2.Running, StateText: "RUNNING", Running: true, QueryID: "q", Session: session.guid}}
	require.ErrorContains(t, withdraw(b, true), "still lists query q")
	list.active = []hs2.Query{{State: hs2.Running, StateText: "RUNNING", Running: true, QueryID: "x", Session: "another", Text: mark("another", 1, "INSERT")}}
	require.ErrorContains(t, withdraw(b, true), "is open there")
	b.w.down = true
	require.NoError(t, withdraw(b, true), "it does not answer")
	b.w.down = false
	b.w.restart()
	require.NoError(t, withdraw(b, true), "what answers in its place knows nothing of it")
}
