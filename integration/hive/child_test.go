package hive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/stretchr/testify/require"
)

// kinds of publishes that a child knows.
var kinds = map[string]func(where) commitstep.StepSpec{
	"insert_overwrite": where.overwrite,
	"stage_and_swap":   where.stageAndSwap,
}

// patience bounds the life of a child, which waits for Hive.
const patience = 10 * time.Minute

// runChild publishes or recovers one world: WHERE KIND publish|recover JOURNAL
// DIE-AT. It writes every named point of the driver to its journal before it goes
// on, and is killed at the one with the number DIE-AT, from 1 on.
func runChild(c *testkit.Child) int {
	var w where
	if err := json.Unmarshal([]byte(c.Args[0]), &w); err != nil {
		return c.Fail("%v", err)
	}
	dieAt, err := strconv.Atoi(c.Args[4])
	if err != nil {
		return c.Fail("%v", err)
	}
	journal, err := os.OpenFile(c.Args[3], os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return c.Fail("%v", err)
	}
	// The points of one dataset are passed one after another.
	n := 0
	e, err := w.openEngine(settings{conf: driver.Config{KillPoint: func(point string) {
		n++
		if _, err := fmt.Fprintln(journal, point); err != nil {
			fmt.Fprintln(os.Stderr, "journal:", err)
			os.Exit(4)
		}
		if n == dieAt {
			testkit.Die()
		}
	}}})
	if err != nil {
		return c.Fail("open: %v", err)
	}
	if c.Args[2] == "publish" {
		_, err = e.Publish(context.Background(), w.plan(kinds[c.Args[1]](w)))
	} else {
		_, err = e.Recover(context.Background(), job)
	}
	var unfinished *driver.NotFinishedError // is for the test to judge
	if err != nil && !errors.As(err, &unfinished) {
		return c.Fail("%s: %v", c.Args[2], err)
	}
	if err := e.close(); err != nil {
		return c.Fail("close: %v", err)
	}
	return 0
}

// run starts a child on a world and waits for its end. It returns the points that
// the child passed, and whether it was killed at the last of them.
func (w *world) run(t testing.TB, kind, what string, dieAt int) (points []string, killed bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "journal")
	b, err := json.Marshal(w.where)
	require.NoError(t, err)
	p := testkit.Start(t, "run", string(b), kind, what, name, strconv.Itoa(dieAt))
	code, by := p.ExitWithin(patience)
	killed = by != 0
	if !killed {
		require.Zero(t, code, p.Output())
	}
	b, err = os.ReadFile(name)
	require.NoError(t, err, p.Output())
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), killed
}
