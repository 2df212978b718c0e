package hs2_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

// TestABalancerIsFoundOut, one that takes turns; one server behind an address is
// none, and one that does not answer says nothing.
func TestABalancerIsFoundOut(t *testing.T) {
	t.Parallel()
	a, b := start(t, hs2test.Options{}), start(t, hs2test.Options{})
	one, err := connect(t, a.Addr(), hs2.Config{}).Single(t.Context())
	require.NoError(t, err)
	require.True(t, one)
	require.Empty(t, a.Sessions(), "it leaves nothing behind")

	var turns atomic.Int32
	turn := func(ctx context.Context, network, _ string) (net.Conn, error) {
		to := a.Addr()
		if turns.Add(1)%2 == 0 {
			to = b.Addr()
		}
		var d net.Dialer
		return d.DialContext(ctx, network, to)
	}
	one, err = connect(t, "balancer:10000", hs2.Config{Dial: turn}).Single(t.Context())
	require.NoError(t, err)
	require.False(t, one)

	c := connect(t, a.Addr(), hs2.Config{})
	a.Close()
	_, err = c.Single(t.Context())
	require.Error(t, err)
}
