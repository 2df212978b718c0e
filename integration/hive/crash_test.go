package hive_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/stretchr/testify/require"
)

// TestInsertOverwriteCrashes kills a publishing process at every named point, and
// goes on in another process as the job's next run does. The statement is sent at
// most once; what the store says of the outcome is what the partition holds.
func TestInsertOverwriteCrashes(t *testing.T) {
	t.Parallel()
	g := newGround(t, hivekit.Shared(t))
	w := g.alone(t)
	points, killed := w.run(t, "insert_overwrite", "publish", 0)
	require.False(t, killed)
	require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
	require.Equal(t, want(1, newRows), w.holds(t))
	index := func(prefix string) int {
		i := slices.IndexFunc(points, func(p string) bool { return strings.HasPrefix(p, prefix) })
		require.GreaterOrEqual(t, i, 0, "no point %s in %v", prefix, points)
		return i + 1
	}
	promised, noReturn, executed := index("put.after"), index("noreturn.after"), index("execute.after")
	require.Less(t, promised, noReturn)
	require.Less(t, noReturn, executed)
	for n := 1; n <= len(points); n++ {
		t.Run(fmt.Sprintf("%02d %s", n, points[n-1]), func(t *testing.T) {
			t.Parallel()
			w := g.alone(t)
			passed, killed := w.run(t, "insert_overwrite", "publish", n)
			require.True(t, killed)
			require.Equal(t, points[:n], passed)
			if n < noReturn {
				require.Empty(t, w.submitted(t), "sent without a mark")
				require.Equal(t, want(0, oldRows), w.holds(t))
			}
			if n == noReturn {
				// It may have been sent as far as the store knows: never again.
				got := w.recover(t, settings{})
				require.Equal(t, driver.StatusParked, got.Status, got.Message)
				require.Equal(t, commitstep.PublishUnknown, got.Reason)
				require.Empty(t, w.submitted(t))
				require.Empty(t, w.outcomes(t))
				require.Equal(t, want(0, oldRows), w.holds(t))
				return
			}
			_, killed = w.run(t, "insert_overwrite", "recover", 0)
			require.False(t, killed)
			if n < promised {
				require.Empty(t, w.outcomes(t), "published, and nothing was promised")
				_, killed = w.run(t, "insert_overwrite", "publish", 0)
				require.False(t, killed)
			}
			require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
			require.Len(t, w.submitted(t), 1)
			require.Equal(t, want(1, newRows), w.holds(t))
			require.Equal(t, commitstep.Int(100), w.watermark(t))
		})
	}
}
