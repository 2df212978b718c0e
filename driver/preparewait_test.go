package driver_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/stretchr/testify/require"
)

// A server that cannot be reached while a plan is prepared is waited for, within
// the budget; afterwards nothing is stored, and the answer says so.
func TestPreparationWaitsForAServer(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("look at the source: %w", fmt.Errorf("nn1:8020: %w", commitstep.ErrUnavailable))
	t.Run("it comes back", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, nil)
		var looks atomic.Int32
		b.w.prepare = func() error {
			if looks.Add(1) < 4 {
				return away
			}
			return nil
		}
		// Two steps, so that the second preparation claims and looks anew.
		res, err := b.e.Publish(ctx, plan(source("a"), source("b")).WithID("run-1"))
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
		require.Equal(t, 1, b.w.count("a"))
		require.Equal(t, 1, b.w.count("b"))
	})
	t.Run("it stays away", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, func(c *driver.Config) { c.Policy.WaitBudget = 25 * time.Second })
		looks := 0
		b.w.prepare = func() error { looks++; return away }
		start := b.clock.Now()
		res, err := b.e.Publish(ctx, plan(source("a")))
		require.ErrorIs(t, err, commitstep.ErrUnavailable)
		require.ErrorContains(t, err, "nn1:8020")
		require.ErrorContains(t, err, "nothing was stored: publish the plan again")
		require.Empty(t, res.Status)
		require.Equal(t, 25*time.Second, b.clock.Now().Sub(start))
		require.Greater(t, looks, 2)
		require.Zero(t, b.count(commitstep.Pending))
	})
}

// A call that ran into its own time limit is not the caller's context.
func TestATimeoutOfAServerIsNotTheCallers(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.prepare = func() error { return fmt.Errorf("nn1:9870: no answer within 3s: %w", context.DeadlineExceeded) }
	for _, p := range []*commitstep.Plan{plan(source("a")), plan(source("a"), source("b"))} {
		_, err := b.e.Publish(ctx, p)
		require.ErrorContains(t, err, "nn1:9870: no answer within 3s")
		require.ErrorContains(t, err, "(test.source)")
		require.NotContains(t, err.Error(), "stopped while")
	}
}
