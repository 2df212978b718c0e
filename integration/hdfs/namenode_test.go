package hdfs_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// load is many datasets that are published at once while something happens to
// the name nodes.
type load struct {
	*world
	ids map[string]uint64 // file ids by name "dataset/file"
}

const (
	loadDatasets = 50
	loadFiles    = 5
	loadWorkers  = 8
)

func newLoad(t testing.TB, c *hadoopkit.Cluster, transport string) *load {
	t.Helper()
	cl := c.Client(t, "root")
	l := &load{world: &world{where: whereIs(c, transport), client: cl, dir: "/load-" + transport, root: t.TempDir()}, ids: map[string]uint64{}}
	_ = cl.RemoveAll(l.dir) // of an earlier load
	for d := range loadDatasets {
		require.NoError(t, cl.MkdirAll(fmt.Sprintf("%s/in/run-%d", l.dir, d), 0o755))
		require.NoError(t, cl.MkdirAll(fmt.Sprintf("%s/out/%d", l.dir, d), 0o755))
		for f := range loadFiles {
			p := fmt.Sprintf("%s/in/run-%d/%d", l.dir, d, f)
			require.NoError(t, hadoopkit.Put(cl, p, ""))
			l.ids[fmt.Sprintf("%d/%d", d, f)] = hadoopkit.FileID(cl, p)
		}
	}
	st, err := boltstore.Init(filepath.Join(l.root, "commit.db"), nil)
	require.NoError(t, err)
	require.NoError(t, st.Close())
	return l
}

func (l *load) plan(d int) *commitstep.Plan {
	p := commitstep.NewPlan(job, fmt.Sprint(d))
	var specs []commitstep.StepSpec
	for f := range loadFiles {
		specs = append(specs, fsrename.Move(l.address(fmt.Sprintf("%s/in/run-%d/%d", l.dir, d, f)), l.address(fmt.Sprintf("%s/out/%d/%d", l.dir, d, f)), fsrename.Length(0)))
	}
	return p.Step(specs...)
}

// tally is what the results of a load say.
type tally struct {
	mu                                   sync.Mutex
	completed                            int
	executed, recovered, inPlace, marked int
	longest                              time.Duration
	errs                                 []error
}

func (y *tally) add(res driver.Result, err error, took time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.longest = max(y.longest, took)
	if res.Status != driver.StatusCompleted {
		y.errs = append(y.errs, err)
		return // what it did is found by the one that ends the sequence
	}
	y.completed++
	y.executed += res.Executed
	y.recovered += res.Recovered
	y.inPlace += res.InPlace
	y.marked += res.Recorded
}

// fault is what happens in the middle of loads: not before each of them did a
// third of its work, and a few renames after they all go on from there.
type fault struct {
	loads   int32
	fn      func()
	waiting atomic.Int32
	gate    chan struct{} // closed when all loads are there
	after   atomic.Int64  // renames since
	once    sync.Once
	over    chan struct{}
}

func newFault(loads int, fn func()) *fault {
	return &fault{loads: int32(loads), fn: fn, gate: make(chan struct{}), over: make(chan struct{})}
}

// pass waits until all loads are there.
func (f *fault) pass(once *sync.Once) {
	once.Do(func() {
		if f.waiting.Add(1) == f.loads {
			close(f.gate)
		}
	})
	<-f.gate
}

// renamed counts, and lets it happen.
func (f *fault) renamed() {
	select {
	case <-f.gate:
	default:
		return
	}
	if f.after.Add(1) == 20 {
		f.once.Do(func() { go func() { defer close(f.over); f.fn() }() })
	}
}

// run publishes everything with 8 workers.
func (l *load) run(t testing.TB, s settings, f *fault) *tally {
	t.Helper()
	s.conf.StepConcurrency = 2
	s.conf.Observer = driver.ObserverFunc(func(_ context.Context, ev driver.Event) {
		if ev.Type == driver.EventExecuted && ev.Err == nil {
			f.renamed()
		}
	})
	e := l.open(t, s)
	defer e.shut(t)
	y := &tally{}
	work := make(chan int)
	var wg sync.WaitGroup
	var there sync.Once
	for range loadWorkers {
		wg.Go(func() {
			for d := range work {
				if d >= loadDatasets/3 {
					f.pass(&there)
				}
				start := time.Now()
				res, err := e.Publish(t.Context(), l.plan(d))
				y.add(res, err, time.Since(start))
			}
		})
	}
	for d := range loadDatasets {
		work <- d
	}
	close(work)
	wg.Wait()
	return y
}

// finish recovers what is left, publishes what was never promised, and looks
// at every file.
func (l *load) finish(t testing.TB, y *tally) {
	t.Helper()
	e := l.open(t, settings{})
	defer e.shut(t)
	rep, err := e.Recover(t.Context(), job)
	require.NoError(t, err)
	for _, res := range rep.Results {
		require.Equal(t, driver.StatusCompleted, res.Status, "%+v", res)
		y.add(res, nil, 0)
	}
	for d := range loadDatasets {
		require.True(t, rep.MayIngest(fmt.Sprint(d)))
		done := true
		for f := range loadFiles {
			done = done && hadoopkit.FileID(l.client, fmt.Sprintf("%s/out/%d/%d", l.dir, d, f)) != 0
		}
		if !done {
			res, err := e.Publish(t.Context(), l.plan(d))
			require.NoError(t, err)
			y.add(res, nil, 0)
		}
	}
	l.checkPlaces(t)
	require.Equal(t, loadDatasets, y.completed, "completed sequences: %v", errors.Join(y.errs...))
}

// checkPlaces holds that every file is where it belongs and nowhere else, by
// the name node's own listings.
func (l *load) checkPlaces(t testing.TB) {
	t.Helper()
	for d := range loadDatasets {
		in, err := l.client.ReadDir(fmt.Sprintf("%s/in/run-%d", l.dir, d))
		require.NoError(t, err)
		require.Empty(t, in, "files left in staging")
		out, err := l.client.ReadDir(fmt.Sprintf("%s/out/%d", l.dir, d))
		require.NoError(t, err)
		require.Len(t, out, loadFiles)
		for _, fi := range out {
			require.Equal(t, l.ids[fmt.Sprintf("%d/%s", d, fi.Name())], fi.Sys().(*clib.FileStatus).GetFileId(), "%d/%s is another file", d, fi.Name())
		}
	}
}

// both runs a load on each transport at the same time, with one fault.
func both(t *testing.T, c *hadoopkit.Cluster, s settings, fn func()) []*tally {
	t.Helper()
	loads := []*load{newLoad(t, c, "hdfs"), newLoad(t, c, "webhdfs")}
	f := newFault(len(loads), fn)
	tallies := make([]*tally, len(loads))
	var wg sync.WaitGroup
	for i, l := range loads {
		wg.Go(func() { tallies[i] = l.run(t, s, f) })
	}
	wg.Wait()
	<-f.over
	for i, l := range loads {
		l.client = c.Client(t, "root") // the old one has seen too much
		l.finish(t, tallies[i])
		y := tallies[i]
		require.Equal(t, loadDatasets*loadFiles, y.executed+y.recovered+y.inPlace+y.marked, "steps in the reports: %+v", y)
		t.Logf("%s: %d executed, %d recovered, %d in place, %d recorded; %d publishes did not end at once, the longest took %s", l.transport, y.executed, y.recovered, y.inPlace, y.marked, len(y.errs), y.longest.Round(time.Millisecond))
	}
	return tallies
}

// check is for faults, which happen beside the test's own goroutine.
func check(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

func TestNameNodeDies(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Private(t, hadoopkit.Options{})
	// Long enough for a restart on a busy machine.
	patient := impatient
	patient.WaitBudget = 90 * time.Second
	s := settings{conf: driver.Config{Policy: patient}, patience: patience{call: 5 * time.Second, wait: 10 * time.Second}}
	t.Run("killed", func(t *testing.T) {
		both(t, c, s, func() {
			check(t, c.Kill(hadoopkit.NameNode))
			check(t, c.StartRole(hadoopkit.NameNode))
		})
	})
	for _, tr := range transports {
		t.Run("executed late "+tr, func(t *testing.T) { executedLate(t, c, tr) })
	}
	// Stopped for longer than every deadline: no worker may hang, and what was
	// sent is executed when the name node goes on.
	t.Run("frozen", func(t *testing.T) {
		brief := impatient
		brief.WaitBudget = 2 * time.Second
		s := settings{conf: driver.Config{Policy: brief}, patience: patience{call: time.Second, wait: time.Second}}
		for _, y := range both(t, c, s, func() {
			check(t, c.Freeze(hadoopkit.NameNode))
			time.Sleep(20 * time.Second) // is the fault
			check(t, c.Thaw(hadoopkit.NameNode))
		}) {
			require.NotEmpty(t, y.errs, "the name node was stopped, and nobody noticed")
			require.Less(t, y.longest, 15*time.Second, "a worker hung")
		}
	})
}

// executedLate stops the name node in front of a rename, until the engine has
// given it up. The name node then executes it all the same, and the recovery
// finds that out.
func executedLate(t *testing.T, c *hadoopkit.Cluster, transport string) {
	w := newWorld(t, c, transport, "files")
	w.put(t, "in/a", "four")
	id := hadoopkit.FileID(w.client, w.dir+"/in/a")
	// The proxy keeps the connection when the engine gives it up. Of one that is
	// closed the name node may throw the request away, or may not.
	w.behind(t).On(faultproxy.Rule{Match: renames, Nth: 1, Do: faultproxy.DropAfter})
	brief := impatient
	brief.WaitBudget = 2 * time.Second
	e := w.open(t, settings{conf: driver.Config{Policy: brief}, patience: patience{call: 3 * time.Second, wait: time.Second},
		wrap: hookOn("Rename", "in/a", func() { check(t, c.Freeze(hadoopkit.NameNode)) }, nil)})
	res, err := e.Publish(t.Context(), w.single("late", "in/a", "out/a", 4))
	for range 20 {
		if res.Status != "" {
			break
		}
		// On a busy machine three seconds may be too short for a plan.
		res, err = e.Publish(t.Context(), w.single("late", "in/a", "out/a", 4))
	}
	check(t, c.Thaw(hadoopkit.NameNode))
	require.Error(t, err)
	require.Equal(t, driver.StatusWaiting, res.Status, "%+v", res)
	e.shut(t)
	w.client = c.Client(t, "root") // the old one has seen too much
	require.Eventually(t, func() bool { return hadoopkit.FileID(w.client, w.dir+"/out/a") == id }, 60*time.Second, 10*time.Millisecond, "the rename that was given up was not executed")
	w.where = whereIs(c, transport)
	e = w.open(t, settings{})
	defer e.shut(t)
	rep, err := e.Recover(t.Context(), job)
	require.NoError(t, err)
	require.True(t, rep.MayIngest("late"))
	require.Len(t, rep.Results, 1)
	require.Zero(t, rep.Results[0].Executed, "%+v", rep)
	require.Equal(t, 1, rep.Results[0].InPlace+rep.Results[0].Recovered, "%+v", rep)
	require.Zero(t, hadoopkit.FileID(w.client, w.dir+"/in/a"))
}

func TestNameNodesFailOver(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Private(t, hadoopkit.Options{HA: true})
	patient := impatient
	patient.WaitBudget = 90 * time.Second
	s := settings{conf: driver.Config{Policy: patient}, patience: patience{call: 5 * time.Second, wait: 20 * time.Second}}
	t.Run("in good order", func(t *testing.T) {
		both(t, c, s, func() {
			check(t, c.Standby(hadoopkit.NameNode))
			check(t, c.Activate(hadoopkit.NameNode2, false))
		})
	})
	t.Run("after the death of the active one", func(t *testing.T) {
		both(t, c, s, func() {
			check(t, c.Kill(hadoopkit.NameNode2))
			check(t, c.Activate(hadoopkit.NameNode, true))
		})
	})
}
