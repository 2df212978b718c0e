package hive_test

import (
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/stretchr/testify/require"
)

// attempts is the directory below which hive.stage_and_swap writes, outside of the
// table. It follows from the database's name, so that a child process knows it too.
func (w where) attempts() string { return w.FS + w.attemptsPath() }

func (w where) attemptsPath() string { return "/attempts-" + w.DB }

// staging is a step that publishes what a query gives by hive.stage_and_swap.
func (w where) staging(query string, rows int) commitstep.StepSpec {
	n := int64(rows)
	return hivepublish.StageAndSwap(hivepublish.Stage{
		Target:   w.target(),
		Bindings: hivepublish.Bindings{Stage: w.staged(1)},
		Query:    query,
		Under:    w.attempts(),
		Rows:     &n,
	})
}

// stageAndSwap publishes version 1.
func (w where) stageAndSwap() commitstep.StepSpec {
	return w.staging("SELECT id, version FROM ${stage}", newRows)
}

// thirdRows is how many rows version 2 has, which a later publish brings.
const thirdRows = 9

// stageAndSwapAgain publishes version 2.
func (w where) stageAndSwapAgain() commitstep.StepSpec {
	return w.staging("SELECT id, version FROM "+w.staged(2), thirdRows)
}

// newStaging is a ground where partitions are published by swapping their
// locations, with a version 2.
func newStaging(t testing.TB, s *hivekit.Server) *ground {
	t.Helper()
	g := newGround(t, s)
	g.makeAttempts(t)
	g.stage(t, 2, thirdRows)
	return g
}

// makeAttempts makes the directory of attempts, which Hive may write into.
func (w *world) makeAttempts(t testing.TB) {
	t.Helper()
	require.NoError(t, w.client.MkdirAll(w.attemptsPath(), 0o755))
	require.NoError(t, w.client.Chown(w.attemptsPath(), hivekit.User, hivekit.User))
	t.Cleanup(func() { require.NoError(t, w.client.RemoveAll(w.attemptsPath())) })
}

// stagedHere wants the partition to lie in the directory of an attempt, and gives
// the attempt's name.
func (w *world) stagedHere(t testing.TB) string {
	t.Helper()
	loc := w.location(t)
	require.True(t, strings.HasPrefix(loc, w.attempts()+"/"+w.table()+"/dt="+w.Day+"/token="), loc)
	return path.Base(loc)
}

// dirsOf are the directories that attempts wrote for the partition, as
// token=…/attempt=….
func (w *world) dirsOf(t testing.TB) []string {
	t.Helper()
	top := w.attemptsPath() + "/" + w.table() + "/dt=" + w.Day
	var out []string
	tokens, _ := w.client.ReadDir(top) // absent before the first
	for _, token := range tokens {
		tries, err := w.client.ReadDir(top + "/" + token.Name())
		require.NoError(t, err)
		for _, try := range tries {
			out = append(out, token.Name()+"/"+try.Name())
		}
	}
	return out
}

// swapped wants the new rows in the partition, from the directory of an attempt,
// and the watermark moved.
func (l *lane) swapped(t testing.TB, w *world) {
	t.Helper()
	require.Equal(t, []commitstep.State{commitstep.Completed}, l.ended(t, w))
	require.Equal(t, want(1, newRows), w.holds(t))
	w.stagedHere(t)
	require.Equal(t, commitstep.Int(100), l.moved(t, w))
}

// follow goes on with what is pending of the lane's store until it ended, and
// holds that nothing was parked.
func (l *lane) follow(t testing.TB) {
	t.Helper()
	for until := time.Now().Add(2 * patient); time.Now().Before(until); {
		waiting := 0
		_, err := l.e.Recover(t.Context(), job, driver.Each(func(r driver.Result) {
			require.NotEqual(t, driver.StatusParked, r.Status, "%s: %s", r.Reason, r.Message)
			if r.Status != driver.StatusCompleted {
				waiting++
			}
		}))
		require.NoError(t, err)
		if waiting == 0 {
			return
		}
	}
	t.Fatalf("it is pending after recoveries for %s", 2*patient)
}

// altersOf are the publishing ALTERs of a partition that the server was given and
// began to run.
func (w *world) altersOf(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, q := range w.submitted(t) {
		if strings.Contains(q.Text, "ALTER TABLE") {
			out = append(out, q.Text)
		}
	}
	return out
}

// versionOf says which of the versions some rows are, -1 for none or a mixture.
func versionOf(rows []string) int {
	slices.Sort(rows)
	for v, n := range []int{oldRows, newRows, thirdRows} {
		if slices.Equal(rows, want(v, n)) {
			return v
		}
	}
	return -1
}
