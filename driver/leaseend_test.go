package driver_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/stretchr/testify/require"
)

// awake is the usual clock with a boot-time clock that a test moves.
type awake struct {
	*clock
	boot atomic.Int64
}

func (c *awake) Boot() time.Duration { return time.Duration(c.boot.Load()) }

// sleeps lets the machine sleep; the wall clock tells that the other one has to
// be read again.
func (c *awake) sleeps(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.boot.Add(int64(d))
}

// What ended is told as such, and once.
func TestALeaseThatEndedIsToldInThePast(t *testing.T) {
	t.Parallel()
	for says, slept := range map[string]time.Duration{
		": the lease ended 3m30s ago;":                        4 * time.Minute,
		": the lease ends in 1s, less than the margin of 5s;": 29 * time.Second,
	} {
		var c *awake
		b := newBed(t, func(cfg *driver.Config) {
			c = &awake{clock: cfg.Clock.(*clock)}
			cfg.Clock = c
		})
		b.w.execute["a"] = func(_ int, _ *commitstep.Attempt, do func()) error {
			do()
			c.sleeps(slept)
			return nil
		}
		res, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
		require.Equal(t, driver.StatusFenced, res.Status)
		require.ErrorContains(t, err, "is fenced: this driver does not hold it any more"+says)
		require.Zero(t, b.w.called("b"))
	}
}
