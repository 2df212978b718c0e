package hive_test

import (
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// directory writes version 1 as the table's format into a directory of its own,
// which Hive makes, since it belongs to Hive, and gives its location.
func (w *world) directory(t testing.TB) string {
	t.Helper()
	loc := w.server.URL("published/" + w.DB + "/" + w.Day + "/token=" + uuid.NewString())
	w.sql.Exec(t, "INSERT OVERWRITE DIRECTORY '"+loc+"' STORED AS ORC SELECT id, version FROM "+w.staged(1))
	return loc
}

// TestReadersOfASwap: a reader that never stops sees the old rows, then the new
// ones, and nothing else; the location that Hive tells is the published one.
func TestReadersOfASwap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hivekit.Shared(t))
	loc := w.directory(t)
	// By a job, so that a read lasts for a while.
	r := w.watchBy(t, "SELECT dt, id, version FROM "+w.table()+" ORDER BY dt, id, version", nil)
	r.await(t, 1)
	e := w.open(t, settings{})
	res, err := e.Publish(t.Context(), w.plan(hivepublish.SwapLocation(hivepublish.Swap{Target: w.target(), Location: loc})))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	e.shut(t)
	// The read that runs now may have begun before the swap.
	r.await(t, 2)
	r.stop(t)
	require.Equal(t, []int{0, 1}, r.history(w.Day))
	require.Equal(t, loc, w.location(t))
	require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
}
