package cli

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"github.com/stretchr/testify/require"
)

// Who needs a table while another opens it waits for that, as long as its own
// context lasts, and takes over when the other's has ended.
func TestATableIsOpenedOnceForAll(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	accepted := make(chan struct{}, 100)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			wg.Go(func() { // it says nothing
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		wg.Wait()
	})
	tb := &tableTarget{cfg: pgtarget.Config{Name: "marks", DSN: "postgres://etl@" + l.Addr().String() + "/db?sslmode=disable", Table: "public.marks",
		Columns: pgtarget.Columns{Source: "source", Value: "pos", Token: "token"}}}
	read := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := tb.Watermark(ctx, commitstep.WatermarkKey{Job: "j", Source: "s"})
			ended <- err
		}()
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := read(ctx)
	<-accepted
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.ErrorIs(t, <-read(gone), context.Canceled)
	second := read(t.Context())
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	err = <-second
	require.ErrorIs(t, err, commitstep.ErrUnavailable)
	require.NotErrorIs(t, err, context.Canceled)
}
