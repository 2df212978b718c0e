package hive_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// held publishes a partition by a process that is killed while the proxy has its
// statement in its hands, and gives what lets the statement go.
func (w *world) held(t testing.TB, p *faultproxy.Proxy, place string) *faultproxy.Hook {
	t.Helper()
	hook := p.On(onTrail(place, faultproxy.Hold))
	b, err := json.Marshal(w.where)
	require.NoError(t, err)
	child := testkit.Start(t, "run", string(b), "stage_and_swap", "publish", path.Join(t.TempDir(), "journal"), "0")
	fired(t, hook)
	child.Kill()
	return hook
}

// letGo releases a statement and waits until the server has answered it.
func letGo(t testing.TB, p *faultproxy.Proxy, hook *faultproxy.Hook) {
	t.Helper()
	soon(t, "there are connections besides that of the statement", func() bool { return p.Open() == 1 })
	hook.Release()
	soon(t, "the statement is not answered", func() bool { return p.Open() == 0 })
}

// publishAgain publishes version 2, as the next load does.
func (w *world) publishAgain(t testing.TB) {
	t.Helper()
	e := w.open(t, settings{})
	defer e.shut(t)
	_, err := e.Publish(t.Context(), commitstep.NewPlan(job, w.dataset()).Step(w.stageAndSwapAgain()))
	require.NoError(t, err)
}

// TestDelayedSetLocation holds the first SET LOCATION back while its process dies,
// another one finishes the publish and the next load is published too. When it
// arrives at last it does nothing: its session was closed before anything else was
// tried.
func TestDelayedSetLocation(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	w := g.alone(t)
	p := w.behind(t)
	r := g.watch(t, nil)
	r.await(t, 1)
	hook := w.held(t, p, "alter/ExecuteStatement")
	require.Equal(t, want(0, oldRows), w.holds(t))

	_, killed := w.run(t, "stage_and_swap", "recover", 0)
	require.False(t, killed)
	require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Equal(t, "attempt=1", w.stagedHere(t), "the rows were counted before, and are not written again")
	r.await(t, 2)
	w.publishAgain(t)
	second := w.location(t)
	require.Len(t, w.altersOf(t), 2)

	letGo(t, p, hook)
	require.Equal(t, second, w.location(t))
	require.Len(t, w.altersOf(t), 2, "the late one was run")
	r.await(t, 2)
	r.stop(t)
	require.Equal(t, []int{0, 1, 2}, r.history(w.Day))
}

// lines are the connections of an engine, which a test can cut on the engine's side
// alone.
type lines struct {
	mu   sync.Mutex
	open []net.Conn
}

func (l *lines) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err == nil {
		l.mu.Lock()
		l.open = append(l.open, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open {
		_ = c.Close() // the engine's, which may have closed it
	}
	l.open = nil
}

// TestUnansweredSetLocationIsClosedFirst: the engine loses its connection while SET
// LOCATION is on the way. Before it sends another one it closes the session of the
// first and sees that it is closed; the first comes to nothing when it arrives.
func TestUnansweredSetLocationIsClosedFirst(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	patience := impatient
	patience.WaitBudget = 10 * time.Minute
	var wires lines
	l := g.lane(t, settings{conf: driver.Config{Policy: patience}, hive: hivepublish.Config{Dial: wires.dial}})
	w := l.part(t)
	var mu sync.Mutex
	var after []string // the calls for ALTERs
	var names trail
	l.proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool {
		if n := names.next(m); strings.HasPrefix(n, "alter") {
			mu.Lock()
			defer mu.Unlock()
			after = append(after, n)
		}
		return false
	}})
	hook := l.proxy.On(onTrail("alter/ExecuteStatement", faultproxy.Hold))
	var cut sync.WaitGroup
	cut.Go(func() {
		select {
		case <-hook.Fired():
			wires.cut()
		case <-t.Context().Done():
		}
	})
	_, err := l.publish(t, w.publishing(w.stageAndSwap()))
	cut.Wait()
	require.NoError(t, err)
	l.swapped(t, w)
	mu.Lock()
	calls := slices.Clone(after)
	mu.Unlock()
	first := slices.Index(calls, "alter/ExecuteStatement")
	require.GreaterOrEqual(t, first, 0, "%v", calls)
	rest := calls[first+1:]
	second := slices.Index(rest, "alter/ExecuteStatement")
	require.GreaterOrEqual(t, second, 0, "%v", calls)
	require.Contains(t, rest[:second], "alter/CloseSession", "%v", calls)
	require.Contains(t, rest[:second], "alter/GetInfo", "that it is closed was not looked at: %v", calls)

	l.reopen(t) // only the connection of the held statement is left
	_, err = l.publish(t, commitstep.NewPlan(job, w.dataset()).Step(w.stageAndSwapAgain()))
	require.NoError(t, err)
	alters := len(w.altersOf(t))
	l.e.shut(t)
	l.e = nil
	letGo(t, l.proxy, hook)
	l.reopen(t)
	require.Len(t, w.altersOf(t), alters, "the late one was run")
	require.Equal(t, want(2, thirdRows), w.holds(t))
}

// TestNotDoneWhileAnAlterIsOpen: SET LOCATION took effect, its answer is lost, and
// its session cannot be closed. The partition is as planned, and the step is not
// done: a second landing could undo what comes later. It is waited for, not parked.
func TestNotDoneWhileAnAlterIsOpen(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	patience := impatient
	patience.WaitBudget = 5 * time.Second
	l := g.lane(t, settings{conf: driver.Config{Policy: patience}})
	w := l.part(t)
	cut := l.proxy.On(onTrail("alter/ExecuteStatement", faultproxy.DropReply))
	closing := l.proxy.On(faultproxy.Rule{Do: faultproxy.DropBefore, Match: func(m faultproxy.Message) bool {
		return cut.Count() > 0 && faultproxy.ThriftMethod(m.Data) == "CloseSession"
	}})
	res, err := l.publish(t, w.publishing(w.stageAndSwap()))
	require.Error(t, err)
	l.with = settings{}
	soon(t, "the ALTER is not sent", func() bool { // on a busy machine one run may not get as far
		require.Equal(t, driver.StatusWaiting, res.Status, res.Message)
		if cut.Count() == 0 {
			res = l.follow1(t)
			return false
		}
		return true
	})
	require.Equal(t, 1, cut.Count())
	soon(t, "the ALTER has no effect", func() bool { return versionOf(w.holds(t)) == 1 })
	// As long as the server lists the ALTER as running nobody wants to close it.
	soon(t, "its session is not closed", func() bool {
		require.NotContains(t, []driver.Status{driver.StatusParked, driver.StatusCompleted}, l.follow1(t).Status)
		return closing.Count() > 0
	})
	require.NotContains(t, []driver.Status{driver.StatusParked, driver.StatusCompleted}, l.follow1(t).Status)
	require.True(t, l.moved(t, w).IsNone(), "what follows was run")
	l.proxy.Clear()
	l.follow(t)
	l.swapped(t, w)
	require.Len(t, w.altersOf(t), 1)
}

// follow1 recovers once, briefly.
func (l *lane) follow1(t testing.TB) driver.Result {
	t.Helper()
	short := l.with
	short.conf.Policy = impatient
	short.conf.Policy.RecoverBudget = 5 * time.Second
	e, err := func() (*engine, error) { l.e.shut(t); return l.at.openEngine(short) }()
	require.NoError(t, err)
	l.e = e
	var got driver.Result
	_, err = e.Recover(t.Context(), job, driver.Each(func(r driver.Result) { got = r }))
	require.NoError(t, err)
	return got
}

// TestStagedDirectories: a query that is held back while its process dies writes
// into its own directory when it arrives, long after another attempt was published.
// Old and lost directories stay for the grace time and as long as a partition or a
// live step may name them; what is rolled back to is there. A reader never notices.
func TestStagedDirectories(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	w := g.alone(t)
	p := w.behind(t)
	r := g.watch(t, nil)
	hook := w.held(t, p, "stage/ExecuteStatement")
	_, killed := w.run(t, "stage_and_swap", "recover", 0)
	require.False(t, killed)
	require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
	require.Equal(t, "attempt=2", w.stagedHere(t))
	first := w.location(t)
	r.await(t, 2)

	letGo(t, p, hook)
	lost := path.Join(path.Dir(strings.TrimPrefix(first, w.FS)), "attempt=1")
	soon(t, "the late query has not written", func() bool {
		files, err := w.client.ReadDir(lost)
		// Its operation stays open, and with it its staging directory.
		return err == nil && slices.ContainsFunc(files, func(f os.FileInfo) bool { return !strings.HasPrefix(f.Name(), ".") })
	})
	require.Equal(t, first, w.location(t))
	require.Equal(t, want(1, newRows), w.holds(t))

	w.publishAgain(t)
	second := w.location(t)
	require.NotEqual(t, first, second)
	r.await(t, 2)
	e := w.open(t, settings{})
	var newest store.HistoryEntry
	for h, err := range e.store.ListHistory(t.Context(), store.HistoryFilter{Job: job}) {
		require.NoError(t, err)
		if newest.ID.String() < h.ID.String() {
			newest = h
		}
	}
	require.Len(t, newest.Detail, 1)
	back, err := hivepublish.RollbackSpec(newest.Detail[0])
	require.NoError(t, err)
	_, err = e.Publish(t.Context(), commitstep.NewPlan(job, w.dataset()).Step(back))
	require.NoError(t, err)
	require.Equal(t, first, w.location(t))
	require.Equal(t, want(1, newRows), w.holds(t))
	r.await(t, 2)

	sweep := hivepublish.SweepParams{Table: w.table(), Under: w.attempts(), Old: []string{w.dir(w.Day)}, Live: func(string) bool { return false }, Mine: func(_ string, byPath bool) bool { return byPath }}
	rep, err := e.hive.Sweep(t.Context(), sweep)
	require.NoError(t, err)
	require.Empty(t, rep.Removed, "within the grace time")
	require.Len(t, rep.Stays, 4)

	sweep.Grace = time.Nanosecond
	sweep.Live = func(token string) bool { return strings.Contains(second, token) }
	rep, err = e.hive.Sweep(t.Context(), sweep)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{w.FS + lost, w.dir(w.Day)}, rep.Removed)
	require.Len(t, rep.Stays, 2, "%v", rep)

	sweep.Live = func(string) bool { return false }
	rep, err = e.hive.Sweep(t.Context(), sweep)
	require.NoError(t, err)
	require.Equal(t, []string{second}, rep.Removed)
	e.shut(t)
	require.Equal(t, []string{strings.TrimPrefix(first, w.attempts()+"/"+w.table()+"/dt="+w.Day+"/")}, w.dirsOf(t))
	require.Equal(t, want(1, newRows), w.holds(t))
	r.await(t, 2)
	r.stop(t, w.Day)
	require.Equal(t, []int{0, 1, 2, 1}, r.history(w.Day))
}
