package hs2_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hivesql.Main(m)) }

// patience is far above what anything here takes.
const patience = 60 * time.Second

// start starts a fake server.
func start(t *testing.T, o hs2test.Options) *hs2test.Server {
	t.Helper()
	s, err := hs2test.Start(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// connect makes a client. Zero fields of c are filled in.
func connect(t *testing.T, addr string, c hs2.Config) *hs2.Client {
	t.Helper()
	c.Address = addr
	client, err := hs2.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func open(t *testing.T, c *hs2.Client) *hs2.Session {
	t.Helper()
	s, err := c.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	return s
}

// fake is a client with a session at a fake server.
func fake(t *testing.T) (*hs2test.Server, *hs2.Client, *hs2.Session) {
	t.Helper()
	s := start(t, hs2test.Options{})
	c := connect(t, s.Addr(), hs2.Config{})
	return s, c, open(t, c)
}

// within ends the test when ch stays silent.
func within[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing happened")
		panic("unreachable")
	}
}

// transportError asserts whether a call can have reached the server.
func transportError(t *testing.T, err error, sent bool) *hs2.TransportError {
	t.Helper()
	var te *hs2.TransportError
	require.ErrorAs(t, err, &te)
	require.Equal(t, sent, te.Sent, "%v", err)
	return te
}

// serveEach gives every connection to f, one after another, on the loopback.
func serveEach(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
