package hdfs_test

import (
	"context"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/stretchr/testify/require"
)

// TestPlanningWaitsForTheNameNode: frozen or killed while a plan is prepared. The
// publish waits within its budget and goes on when the name node does; when it
// does not, nothing was stored, and the error says who did not answer.
func TestPlanningWaitsForTheNameNode(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Private(t, hadoopkit.Options{})
	for _, transport := range transports {
		w := newWorld(t, c, transport, "files")
		engine := func(budget time.Duration, waits chan<- struct{}) *engine {
			policy := impatient
			policy.WaitBudget = budget
			return w.open(t, settings{patience: patience{call: time.Second, wait: 10 * time.Millisecond}, conf: driver.Config{Policy: policy,
				Observer: driver.ObserverFunc(func(_ context.Context, ev driver.Event) {
					if ev.Type == driver.EventWaiting {
						select {
						case waits <- struct{}{}:
						default:
						}
					}
				})}})
		}
		require.NoError(t, c.Freeze(hadoopkit.NameNode))
		e := engine(2*time.Second, nil)
		res, err := e.Publish(t.Context(), w.plan())
		require.ErrorIs(t, err, commitstep.ErrUnavailable)
		require.ErrorContains(t, err, "name node")
		require.ErrorContains(t, err, "nothing was stored: publish the plan again")
		require.NotContains(t, err.Error(), "stopped while")
		require.Empty(t, res.Status)
		e.shut(t)

		waits := make(chan struct{}, 1)
		back := make(chan error, 1)
		go func() {
			<-waits
			back <- c.Thaw(hadoopkit.NameNode)
		}()
		e = engine(2*time.Minute, waits)
		res, err = e.Publish(t.Context(), w.single("late", "task-output/run-17/MyTopic/2015-12-09/1.avro", "late/1.avro", len(contents()["2015-12-09/1.avro"])))
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
		require.NoError(t, <-back)
		e.shut(t)

		require.NoError(t, c.Kill(hadoopkit.NameNode))
		go func() {
			<-waits
			back <- c.StartRole(hadoopkit.NameNode)
		}()
		e = engine(2*time.Minute, waits)
		res, err = e.Publish(t.Context(), w.single("later", "task-output/run-17/MyTopic/2015-12-09/2.avro", "late/2.avro", len(contents()["2015-12-09/2.avro"])))
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
		require.NoError(t, <-back)
		e.shut(t)
	}
}
