package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/stretchr/testify/require"
)

// noop is a step without an effect of its own: it is done once it was executed
// in this process, so a recovery executes what was not recorded.
type noop struct{ done *atomic.Bool }

func (n noop) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	if n.done.Load() {
		return commitstep.IsDone("executed"), nil
	}
	return commitstep.IsNotDone("not executed"), nil
}

func (n noop) Execute(context.Context, *commitstep.Attempt) error { n.done.Store(true); return nil }

func noopKind() commitstep.Kind {
	return commitstep.Kind{Name: "test.noop", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return noop{new(atomic.Bool)}, nil }}
}

// manySteps streams a plan that nobody ever holds as a whole.
func manySteps(dataset string, n int) *commitstep.Plan {
	p := commitstep.NewPlan("big", dataset)
	p.Stream = func(yield func(commitstep.StagedSpec, error) bool) {
		for i := range n {
			// As long as the parameters of a rename.
			params := json.RawMessage(fmt.Sprintf(`{"from":"file:///data/task-output/run-17/MyTopic/2015-12-09/%09d.avro","to":"file:///data/job-output/MyTopic/2015-12-09/%09d.avro"}`, i, i))
			if !yield(commitstep.StagedSpec{Stage: i * 4 / n, StepSpec: commitstep.StepSpec{Kind: "test.noop", Params: params}}, nil) {
				return
			}
		}
	}
	return p
}

// memoryChild publishes, or recovers, N steps and says the most memory of its
// own that it ever used: ROOT publish|recover N POINT.
func memoryChild(c *testkit.Child) int {
	n, err := strconv.Atoi(c.Args[2])
	if err != nil {
		return c.Fail("%v", err)
	}
	s := settings{kinds: []commitstep.Kind{noopKind()}}
	if point := c.Args[3]; point != "" {
		s.conf.KillPoint = func(p string) {
			if p == point {
				testkit.Die()
			}
		}
	}
	e, err := openEngine(c.Args[0], s)
	if err != nil {
		return c.Fail("%v", err)
	}
	peak := watchMemory()
	ctx := context.Background()
	start := time.Now()
	switch c.Args[1] {
	case "publish":
		_, err = e.Publish(ctx, manySteps("steps", n))
	case "recover":
		var rep driver.Report
		if rep, err = e.Recover(ctx, "big", driver.Budget(10*time.Minute)); err == nil && !rep.MayIngest("steps") {
			err = fmt.Errorf("not finished: %+v", rep.Counts)
		}
	}
	if err != nil {
		return c.Fail("%v", err)
	}
	took := time.Since(start)
	if err := e.close(); err != nil {
		return c.Fail("%v", err)
	}
	c.Say("%d %d", peak(), took.Milliseconds())
	return 0
}

// watchMemory samples the anonymous memory of this process, which leaves out
// the mapped store file.
func watchMemory() (peak func() int64) {
	var most atomic.Int64
	look := func() {
		if n := rssAnon(); n > most.Load() {
			most.Store(n)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				look()
			}
		}
	}()
	return func() int64 { close(stop); <-done; look(); return most.Load() }
}

func rssAnon() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return -1
}

// inMemoryChild returns the peak of a child's own memory and its time.
func inMemoryChild(t *testing.T, root, what string, n int) (peak int64, took time.Duration) {
	t.Helper()
	p := testkit.Start(t, "memory", root, what, strconv.Itoa(n), "")
	var ms int64
	_, err := fmt.Sscan(p.Line(), &peak, &ms)
	require.NoError(t, err)
	code, by := p.Exit()
	require.Zero(t, by)
	require.Zero(t, code, p.Output())
	require.Positive(t, peak)
	return peak, time.Duration(ms) * time.Millisecond
}

// TestCaseC67ManyStepsAreStreamed: a sequence of very many steps is planned,
// run and recovered without ever being held in memory. Ten times the steps do
// not take ten times the memory.
func TestCaseC67ManyStepsAreStreamed(t *testing.T) {
	t.Parallel()
	many := 200_000
	if raceEnabled {
		many = 60_000 // the detector is slow and multiplies memory
	}
	if os.Getenv("COMMITSTEP_SOAK") != "" {
		many = 1_000_000
	}
	measure := func(n int) (publish, recovery int64) {
		root := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(root, "data"), 0o755))
		initStore(t, filepath.Join(root, "commit.db"))
		publish, took := inMemoryChild(t, root, "publish", n)
		t.Logf("%d steps published in %s with %d MiB", n, took, publish>>20)
		root = t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(root, "data"), 0o755))
		initStore(t, filepath.Join(root, "commit.db"))
		p := testkit.Start(t, "memory", root, "publish", strconv.Itoa(n), fmt.Sprintf("execute.after#%d", n/2))
		_, by := p.Exit()
		require.NotZero(t, by, "it should have died half-way: %s", p.Output())
		recovery, took = inMemoryChild(t, root, "recover", n)
		t.Logf("%d steps recovered from the middle in %s with %d MiB", n, took, recovery>>20)
		return publish, recovery
	}
	smallPublish, smallRecovery := measure(many / 10)
	publish, recovery := measure(many)
	if !raceEnabled {
		require.Less(t, publish, int64(128<<20))
		require.Less(t, recovery, int64(128<<20))
	}
	require.Less(t, publish, 3*smallPublish+32<<20)
	require.Less(t, recovery, 3*smallRecovery+32<<20)
}
