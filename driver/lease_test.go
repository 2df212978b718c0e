package driver

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// twoClocks shows a wall clock and a boot-time clock that a test moves apart.
type twoClocks struct {
	t     time.Time
	boot  time.Duration
	reads int
}

func (c *twoClocks) Now() time.Time                             { return c.t }
func (c *twoClocks) Sleep(context.Context, time.Duration) error { return nil }
func (c *twoClocks) Boot() time.Duration                        { c.reads++; return c.boot }

// A machine that slept must not believe in its old lease, although the boot
// clock is not read for every effect.
func TestBootCacheNoticesSuspension(t *testing.T) {
	t.Parallel()
	var cache bootCache
	c := &twoClocks{t: time.Now(), boot: time.Hour}
	require.Equal(t, time.Hour, cache.now(c, c))

	c.t = c.t.Add(2 * time.Millisecond) // wall and monotonic move together
	c.boot += 2 * time.Millisecond
	require.Equal(t, c.boot, cache.now(c, c))
	require.Equal(t, 1, c.reads, "counted on")

	c.t = c.t.Round(0).Add(time.Minute) // asleep: only the wall clock went on
	c.boot += time.Minute
	require.Equal(t, c.boot, cache.now(c, c))

	c.t = c.t.Add(-time.Hour) // the wall clock was set back
	c.boot += time.Second
	require.Equal(t, c.boot, cache.now(c, c))

	c.t = c.t.Add(bootFresh) // too long ago
	c.boot += bootFresh
	reads := c.reads
	require.Equal(t, c.boot, cache.now(c, c))
	require.Equal(t, reads+1, c.reads)
}
