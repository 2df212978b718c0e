package hivepublish

import (
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// beside is another HiveServer2 on the same metastore and files: it has sessions,
// statements and a list of its own. Tests use one of the two at a time.
func (w *warehouse) beside(addr string) *warehouse {
	return &warehouse{points: w.points, tables: w.tables, files: w.files, sessions: map[string]*fakeSession{}, ops: map[string]*fakeOp{}, next: 1000, rows: w.rows, disk: w.disk, addr: addr}
}

// rebind is the same step in a process whose server of that name is at w.
func (b *stepBench) rebind(w *warehouse, cfg Config) *stepBench {
	return &stepBench{t: b.t, w: w, server: w.server(b.t, cfg), planned: b.planned}
}

func withdraw(b *stepBench, gone bool) error {
	p := b.process()
	return p.Step.(commitstep.Withdrawer).Withdraw(b.t.Context(), p.Attempt, gone)
}

// The configuration names another server of the metastore since the statement was
// sent: that one knows nothing of it, so it is not asked, nothing is submitted a
// second time, and nobody may call it not published on its word.
func TestAStatementBelongsToItsServer(t *testing.T) {
	t.Parallel()
	op := &fakeOp{status: hs2.Status{State: hs2.Running, Tasks: beforeMove, TasksKnown: true}}
	here := newBench(t, insertSpec(), scripted(func() *fakeOp { return op }))
	hurry(here.server)
	require.NoError(t, here.process().Execute(t.Context()))

	there := here.rebind(here.w.beside("other:10000"), Config{})
	for range 2 {
		v := there.want(commitstep.Unknown)
		require.Contains(t, v.Evidence, "was sent to fake:10000, and this program speaks to other:10000")
	}
	require.Zero(t, there.w.submissions())
	err := withdraw(there, false)
	require.ErrorContains(t, err, "sent to fake:10000 and this program speaks to other:10000")
	require.ErrorContains(t, err, "--server-gone")
	require.NoError(t, withdraw(there, true))
	require.NotEmpty(t, here.w.ops, "nothing was closed there")

	p := there.process()
	pack, err := p.Step.(Prober).Probe(t.Context(), p.Attempt)
	require.NoError(t, err)
	require.Equal(t, "fake:10000", pack.Server)
	require.Equal(t, "other:10000", pack.Bound)
	require.True(t, pack.Now.Known, "the target is the same for both")
	require.Empty(t, pack.Suggestion.As, "it may still run there")
	require.Contains(t, pack.Suggestion.Why, "look with a program that speaks to fake:10000")
	require.Contains(t, pack.Suggestion.Why, "--server-gone")

	// Bound to its own again, however that is spelled, its end is found.
	here.w.mu.Lock()
	_, _ = op.apply()
	op.status = hs2.Status{State: hs2.Finished}
	here.w.mu.Unlock()
	here.w.addr = "FAKE.:10000"
	here.rebind(here.w, Config{}).want(commitstep.Done)
	// What was noted as its end needs no server of its own.
	there.want(commitstep.Done)
	require.NoError(t, withdraw(there, false), "nothing of it is left to land")
	require.Equal(t, 1, here.w.submissions())
}

// A query that only writes where nobody reads is left to the other server.
func TestAQueryOfAnotherServerIsLeftToIt(t *testing.T) {
	t.Parallel()
	op := &fakeOp{status: hs2.Status{State: hs2.Running}}
	here := stageBench(t, stageParams(), onStage(1, func() *fakeOp { return op }))
	hurry(here.server)
	require.ErrorIs(t, here.process().Execute(t.Context()), commitstep.ErrInProgress)

	there := here.rebind(here.w.beside("other:10000"), here.server.cfg)
	v, err := there.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome, "%s", v)
	at := there.w.location()
	require.Contains(t, at, "/attempt=2")
	before, err := there.w.visible()
	require.NoError(t, err)
	_, _ = op.apply() // it ends, late
	after, err := there.w.visible()
	require.NoError(t, err)
	require.Equal(t, before, after)
	here.want(commitstep.Done)
}

// An ALTER that was not answered is its own server's to close.
func TestAnAlterIsClosedByItsServer(t *testing.T) {
	t.Parallel()
	here := stageBench(t, stageParams(), nil)
	here.w.script = hold("SET LOCATION")
	p := here.process()
	here.server.list = deadList{} // what became of it cannot be seen
	require.Error(t, p.Execute(t.Context()))

	there := here.rebind(here.w.beside("other:10000"), here.server.cfg)
	v := there.want(commitstep.Unknown)
	require.Contains(t, v.Evidence, "an ALTER sent to fake:10000")
	require.ErrorContains(t, withdraw(there, false), "an ALTER was sent to fake:10000")
	p = there.process()
	pack, err := p.Step.(Prober).Probe(t.Context(), p.Attempt)
	require.NoError(t, err)
	require.Equal(t, "other:10000", pack.Bound)
	require.Contains(t, pack.Suggestion.Why, "look with a program that speaks to fake:10000")

	here.server.list = here.w
	here.w.script = nil
	v, err = here.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Zero(t, here.w.letGo())
}

// Behind a balancer a server that knows nothing of a session says nothing about
// the others.
func TestAnotherServersWordIsNoProof(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{lost: true} }))
	require.Error(t, b.process().Execute(t.Context()))
	b.w.restart() // or it is the other one that answers
	b.w.balanced = true
	require.ErrorContains(t, withdraw(b, false), "more than one server")
	require.NoError(t, withdraw(b, true))
	b.w.balanced = false
	require.ErrorContains(t, withdraw(b, false), "does not show any more")
	hurry(b.server)
	b.server.now() // a minute later
	require.NoError(t, withdraw(b, false))

	swap, dir := swapBench(t)
	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	swap.w.script = hold("SET LOCATION")
	swap.server.list = deadList{}
	require.Error(t, swap.process().Execute(t.Context()))
	swap.server.list = swap.w
	swap.w.restart()
	swap.w.balanced = true
	_, err := swap.process().Verify(t.Context())
	require.ErrorContains(t, err, "more than one server")
	require.ErrorContains(t, withdraw(swap, false), "more than one server")
	swap.w.balanced = false
	pass := handClock(swap.server)
	_, err = swap.process().Verify(t.Context())
	require.ErrorIs(t, err, commitstep.ErrInProgress)
	pass(compileQuiet)
	swap.want(commitstep.NotDone)
}
