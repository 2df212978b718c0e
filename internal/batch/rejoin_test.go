package batch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Waiting for company costs no more than the commit it may save, and never more
// than was allowed.
func TestRejoinFollowsTheCommit(t *testing.T) {
	t.Parallel()
	o := Options{Rejoin: 200 * time.Microsecond, RejoinMost: time.Millisecond}
	for took, want := range map[time.Duration]time.Duration{
		0:                      200 * time.Microsecond,
		150 * time.Microsecond: 200 * time.Microsecond,
		600 * time.Microsecond: 600 * time.Microsecond,
		time.Second:            time.Millisecond,
	} {
		require.Equal(t, want, o.rejoin(took), "commits of %s", took)
	}
	fixed := Options{Rejoin: 200 * time.Microsecond}
	require.Equal(t, 200*time.Microsecond, fixed.rejoin(time.Second))
	require.Zero(t, (&Options{}).rejoin(time.Second))
}
