package main

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUnion(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	spans := []span{{at(7), at(12)}, {at(1), at(3)}, {at(2), at(5)}, {at(3), at(4)}, {at(-2), at(-1)}}
	require.Equal(t, 7*time.Second, union(spans, at(0), at(10)))
	require.Equal(t, 9*time.Second, union(spans, at(0), at(20)))
	require.Zero(t, union(nil, at(0), at(10)))
}

// TestCallsAreSeen: the time until an answer has come counts, however many pieces
// call and answer have; the time between calls does not.
func TestCallsAreSeen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	const pause = 50 * time.Millisecond
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 2)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if b[n-1] != 'e' { // the end of the call
				continue
			}
			time.Sleep(pause)
			_, _ = c.Write([]byte("x"))
			time.Sleep(pause)
			_, _ = c.Write([]byte("y"))
		}
	}()
	var w waiting
	c, err := w.dial(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	start := time.Now()
	b := make([]byte, 1)
	for range 2 {
		for _, piece := range []string{"b", "e"} {
			_, err := c.Write([]byte(piece))
			require.NoError(t, err)
		}
		for range 2 {
			_, err := c.Read(b)
			require.NoError(t, err)
		}
		time.Sleep(4 * pause)
	}
	end := time.Now()
	for range 2 { // open, then closed
		waited, calls := w.since(start, end)
		require.Equal(t, 2, calls)
		require.GreaterOrEqual(t, waited, 4*pause)
		require.LessOrEqual(t, waited, end.Sub(start)-8*pause)
		require.NoError(t, func() error { _ = c.Close(); return nil }())
	}
	w.reset()
	waited, calls := w.since(start, end)
	require.Zero(t, waited)
	require.Zero(t, calls)
}
