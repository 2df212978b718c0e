package hs2_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

// rpcs are all calls of the client. Each gets a session and an operation that were
// made behind the fault.
var rpcs = []struct {
	name string
	read bool
	call func(ctx context.Context, c *hs2.Client, s hs2.SessionHandle, o hs2.OperationHandle) error
}{
	{"OpenSession", false, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, _ hs2.OperationHandle) error {
		_, err := c.OpenSession(ctx, nil)
		return err
	}},
	{"GetInfo", true, func(ctx context.Context, c *hs2.Client, s hs2.SessionHandle, _ hs2.OperationHandle) error {
		_, err := c.Session(s).Alive(ctx)
		return err
	}},
	{"ExecuteStatement", false, func(ctx context.Context, c *hs2.Client, s hs2.SessionHandle, _ hs2.OperationHandle) error {
		_, err := c.Session(s).Execute(ctx, "INSERT again", nil)
		return err
	}},
	{"GetQueryId", true, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, o hs2.OperationHandle) error {
		_, err := c.Operation(o).QueryID(ctx)
		return err
	}},
	{"GetOperationStatus", true, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, o hs2.OperationHandle) error {
		_, err := c.Operation(o).Status(ctx)
		return err
	}},
	{"GetResultSetMetadata", true, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, o hs2.OperationHandle) error {
		_, err := c.Operation(o).Rows(ctx)
		return err
	}},
	{"FetchResults", false, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, o hs2.OperationHandle) error {
		_, err := c.Operation(o).Logs(ctx)
		return err
	}},
	{"CancelOperation", false, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, o hs2.OperationHandle) error {
		return c.Operation(o).Cancel(ctx)
	}},
	{"CloseOperation", false, func(ctx context.Context, c *hs2.Client, _ hs2.SessionHandle, o hs2.OperationHandle) error {
		return c.Operation(o).Close(ctx)
	}},
	{"CloseSession", false, func(ctx context.Context, c *hs2.Client, s hs2.SessionHandle, _ hs2.OperationHandle) error {
		return c.Session(s).Close(ctx)
	}},
}

func isCall(name string) func(faultproxy.Message) bool {
	return func(m faultproxy.Message) bool { return faultproxy.ThriftMethod(m.Data) == name }
}

// TestACutConversationIsNeverSentTwice cuts every call at every point, on a new
// connection and on one that has been used: what the server did is what the cut
// lets through, only reads are asked again, and the next call works.
func TestACutConversationIsNeverSentTwice(t *testing.T) {
	t.Parallel()
	for _, rpc := range rpcs {
		for _, cut := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropAfter, faultproxy.DropReply} {
			for _, reused := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/reused=%v", rpc.name, cut, reused), func(t *testing.T) {
					t.Parallel()
					ctx := bounded(t)
					srv, _, session := fake(t)
					srv.Statement("", hs2test.Run{Columns: []hs2.Column{{Name: "a", Type: "INT"}}, Logs: []string{"one"}})
					op, err := session.Execute(ctx, "INSERT", nil)
					require.NoError(t, err)
					p, err := faultproxy.Listen(srv.Addr(), faultproxy.SASLPlain)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, p.Close()) })
					c := connect(t, p.Addr(), hs2.Config{})
					if reused {
						_, err := c.Operation(op.Handle()).Status(ctx)
						require.NoError(t, err)
					}
					before := srv.Calls(rpc.name)
					lost := p.On(faultproxy.Rule{Match: isCall(rpc.name), Nth: 1, Do: cut})

					err = rpc.call(ctx, c, session.Handle(), op.Handle())
					within(t, lost.Fired())
					reached := 1
					if cut == faultproxy.DropBefore {
						reached = 0
					}
					repeated := rpc.read && reused
					if rpc.name == "GetInfo" && !reused {
						require.NoError(t, err, "another call tells that the session lives")
					} else if repeated {
						require.NoError(t, err, "a read on a connection that was dead is asked again")
						reached++
					} else {
						te := transportError(t, err, true)
						require.Equal(t, rpc.name, te.RPC)
					}
					require.Eventually(t, func() bool { return srv.Calls(rpc.name)-before == reached }, patience, time.Millisecond)
					_, err = c.OpenSession(ctx, nil)
					require.NoError(t, err, "the next call works")
					want := 1 + reached
					if rpc.name != "ExecuteStatement" {
						want = 1
					}
					require.Equal(t, want, srv.Count("INSERT"))
				})
			}
		}
	}
}

// TestAnIdleConnectionThatDiedIsNoticed: the server was restarted between two
// calls, so nothing was sent, and nobody sees it.
func TestAnIdleConnectionThatDiedIsNoticed(t *testing.T) {
	t.Parallel()
	for _, o := range []hs2test.Options{{}, {NoSASL: true}, {HTTP: true}} {
		srv := start(t, o)
		c := hs2.Config{}
		if o.NoSASL {
			c.Auth = hs2.AuthNoSASL
		}
		if o.HTTP {
			c.Transport = hs2.TransportHTTP
		}
		client := connect(t, srv.Addr(), c)
		session := open(t, client)
		for range 20 {
			srv.DropConnections()
			require.Eventually(t, func() bool { return srv.Connections() == 0 }, patience, time.Millisecond)
			_, err := session.Execute(bounded(t), "INSERT", nil)
			require.NoError(t, err)
		}
		require.Equal(t, 20, srv.Count("INSERT"))
	}
}

// TestAContextEndsEveryCall: the server has the call and does not answer. Goroutines
// and connections are gone afterwards: the test main looks.
func TestAContextEndsEveryCall(t *testing.T) {
	t.Parallel()
	for _, rpc := range rpcs {
		for _, how := range []string{"cancel", "deadline", "timeout"} {
			t.Run(rpc.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				srv, _, session := fake(t)
				op, err := session.Execute(bounded(t), "INSERT", nil)
				require.NoError(t, err)
				h := srv.On(rpc.name, 0, hs2test.Hang)
				config := hs2.Config{}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				why := errors.New("the driver stops")
				switch how {
				case "deadline":
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, 20*time.Millisecond)
					defer stop()
				case "timeout":
					config.CallTimeout, config.SubmitTimeout = 200*time.Millisecond, 200*time.Millisecond
				}
				c := connect(t, srv.Addr(), config)
				got := make(chan error, 1)
				go func() { got <- rpc.call(ctx, c, session.Handle(), op.Handle()) }()
				if how == "cancel" {
					within(t, h.Fired())
					cancel(why)
				}
				err = within(t, got)
				var te *hs2.TransportError
				require.ErrorAs(t, err, &te)
				switch how {
				case "cancel":
					require.ErrorIs(t, err, context.Canceled)
					require.ErrorIs(t, err, why)
					require.True(t, te.Sent)
				case "deadline": // it may have come while connecting
					require.ErrorIs(t, err, context.DeadlineExceeded)
				case "timeout":
					require.ErrorIs(t, err, hs2.ErrCallTimeout)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
				}
				h.Release()
				require.Equal(t, 1, len(srv.Statements())-btoi(rpc.name == "ExecuteStatement" && te.Sent))
			})
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
