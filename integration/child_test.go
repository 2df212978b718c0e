package integration_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/powercut"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

func historyOf(job string) store.HistoryFilter { return store.HistoryFilter{Job: job} }

func allOf(job string) store.Filter { return store.Filter{Job: job} }

// A child writes one line per event to its journal before the event goes on,
// so that the journal of a killed one is complete: a named point of the driver
// ("point put.after"), both sides of a change to the file system ("op before
// rename …"), both sides of a commit of the store ("commit before").
type journal struct {
	mu    sync.Mutex
	file  *os.File
	n     int
	dieAt int // 0 is never
	root  string
	marks bool // also for a recording of system calls
}

func (j *journal) event(format string, a ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.n++
	text := fmt.Sprintf(format, a...)
	if _, err := fmt.Fprintln(j.file, text); err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(4)
	}
	if j.n == j.dieAt {
		testkit.Die()
	}
	if j.marks && strings.HasPrefix(text, "point ") {
		powercut.Mark(j.root, text)
	}
}

// runChild publishes or recovers one world: ROOT LAYOUT publish|recover
// JOURNAL DIE-AT [marks].
func runChild(c *testkit.Child) int {
	root, text, what, name := c.Args[0], c.Args[1], c.Args[2], c.Args[3]
	dieAt, err := strconv.Atoi(c.Args[4])
	if err != nil {
		return c.Fail("%v", err)
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return c.Fail("%v", err)
	}
	j := &journal{file: file, dieAt: dieAt, root: root, marks: len(c.Args) > 5}
	var s settings
	s.conf.KillPoint = func(point string) { j.event("point %s", point) }
	s.local = []local.Option{local.WithTrace(func(op local.Op) {
		side := "before"
		if op.After {
			side = "after"
		}
		j.event("op %s %s %q %q", side, op.Kind, op.Path, op.To)
	})}
	s.bolt.CommitHook = func(p boltstore.CommitPoint) error {
		j.event("commit %s", map[boltstore.CommitPoint]string{boltstore.BeforeCommit: "before", boltstore.AfterCommit: "after", boltstore.Reopening: "reopening"}[p])
		return nil
	}
	l := layoutOf(text)
	s.conf.StepConcurrency = l.slots
	e, err := openEngine(root, s)
	if err != nil {
		return c.Fail("open: %v", err)
	}
	ctx := context.Background()
	switch what {
	case "publish":
		_, err = e.Publish(ctx, l.plan())
		if err == nil {
			j.event("point published")
		}
	case "recover":
		_, err = e.Recover(ctx, l.job)
	}
	if err != nil {
		return c.Fail("%s: %v", what, err)
	}
	if err := e.close(); err != nil {
		return c.Fail("close: %v", err)
	}
	return 0
}

// run starts a child on a world and waits for its end. It returns the child's
// journal and whether it was killed.
func (w *world) run(t testing.TB, what string, dieAt int) (lines []string, killed bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "journal")
	p := testkit.Start(t, "run", w.root, w.text, what, name, strconv.Itoa(dieAt))
	code, by := p.Exit()
	killed = by != 0
	if !killed {
		require.Zero(t, code, p.Output())
	}
	b, err := os.ReadFile(name)
	require.NoError(t, err, p.Output())
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), killed
}

// indexOf is the place of a line in a journal, -1 if it is not there.
func indexOf(lines []string, line string) int {
	for i, l := range lines {
		if l == line {
			return i
		}
	}
	return -1
}

// openChild opens the store named by its argument and says how it went.
func openChild(c *testkit.Child) int {
	st, err := boltstore.Open(c.Args[0], nil)
	if err != nil {
		c.Say("error %v", err)
		return 1
	}
	c.Say("open")
	c.Hear()
	if err := st.Close(); err != nil {
		return c.Fail("%v", err)
	}
	return 0
}
