package hs2_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
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

// TestNothingIsSentWhereNothingCanBe lists what happens before the request.
func TestNothingIsSentWhereNothingCanBe(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{Login: func(user, password string) string {
		if password != "right" {
			return "Error validating LDAP user"
		}
		return ""
	}})
	execute := func(t *testing.T, c *hs2.Client, ctx context.Context) error {
		good := connect(t, srv.Addr(), hs2.Config{Password: "right"})
		_, err := c.Session(open(t, good).Handle()).Execute(ctx, "INSERT", nil)
		return err
	}
	t.Run("refused login", func(t *testing.T) {
		err := execute(t, connect(t, srv.Addr(), hs2.Config{Password: "wrong-secret"}), t.Context())
		transportError(t, err, false)
		require.ErrorIs(t, err, hs2.ErrLogin)
		require.ErrorContains(t, err, "Error validating LDAP user")
		require.NotContains(t, err.Error(), "wrong-secret")
	})
	t.Run("no server", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		transportError(t, execute(t, connect(t, l.Addr().String(), hs2.Config{}), t.Context()), false)
	})
	t.Run("context is over", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := execute(t, connect(t, srv.Addr(), hs2.Config{Password: "right"}), ctx)
		transportError(t, err, false)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("client is closed", func(t *testing.T) {
		c := connect(t, srv.Addr(), hs2.Config{Password: "right"})
		require.NoError(t, c.Close())
		err := execute(t, c, t.Context())
		transportError(t, err, false)
		require.ErrorIs(t, err, hs2.ErrClosed)
	})
	t.Run("server wants no SASL", func(t *testing.T) {
		addr := serveEach(t, func(net.Conn) {})
		err := execute(t, connect(t, addr, hs2.Config{}), t.Context())
		transportError(t, err, false)
		require.ErrorContains(t, err, "NOSASL")
	})
	t.Run("server takes the connection and is silent", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		err = execute(t, connect(t, l.Addr().String(), hs2.Config{CallTimeout: 50 * time.Millisecond}), t.Context())
		transportError(t, err, false)
		require.ErrorIs(t, err, hs2.ErrCallTimeout)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's context has none")
	})
	t.Run("server speaks something else", func(t *testing.T) {
		addr := serveEach(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		})
		err := execute(t, connect(t, addr, hs2.Config{}), t.Context())
		transportError(t, err, false)
	})
	require.Zero(t, srv.Count("INSERT"))
}

// TestARefusalIsAnAnswer and its kinds.
func TestARefusalIsAnAnswer(t *testing.T) {
	t.Parallel()
	srv, _, session := fake(t)
	srv.Statement("SELEC", hs2test.Run{Reject: hs2test.SyntaxError()})
	srv.Statement("full", hs2test.Run{Reject: hs2test.PoolFull()})
	_, err := session.Execute(t.Context(), "SELEC 1", nil)
	var se *hs2.ServerError
	require.ErrorAs(t, err, &se)
	require.Equal(t, "ExecuteStatement", se.RPC)
	require.Equal(t, "42000", se.SQLState)
	require.EqualValues(t, 40000, se.Code)
	require.Contains(t, se.Message, "ParseException")
	require.NotErrorIs(t, err, hs2.ErrUnknownHandle)
	_, err = session.Execute(t.Context(), "full", nil)
	require.ErrorAs(t, err, &se)
	require.NotErrorIs(t, err, hs2.ErrUnknownHandle)
}

// TestAnExceptionIsNoAnswer: it does not say whether the statement runs.
func TestAnExceptionIsNoAnswer(t *testing.T) {
	t.Parallel()
	srv, _, session := fake(t)
	srv.On("ExecuteStatement", 1, hs2test.Exception)
	_, err := session.Execute(t.Context(), "INSERT", nil)
	transportError(t, err, true)
}

// TestRubbishIsAnError whatever it is, and costs little memory.
func TestRubbishIsAnError(t *testing.T) {
	t.Parallel()
	// The head of an answer to ExecuteStatement, as strict Thrift has it.
	head := []byte("\x80\x01\x00\x02\x00\x00\x00\x10ExecuteStatement\x00\x00\x00\x01")
	for name, b := range map[string][]byte{
		"empty":             {},
		"zeros":             make([]byte, 100),
		"ones":              bytes.Repeat([]byte{0xff}, 100),
		"text":              []byte("Internal Server Error"),
		"another call":      []byte("\x80\x01\x00\x02\x00\x00\x00\x04Ping\x00\x00\x00\x01\x00"),
		"no result":         append(bytes.Clone(head), 0),
		"half a result":     append(bytes.Clone(head), 12, 0, 0, 12, 0, 1),
		"status is missing": append(bytes.Clone(head), 12, 0, 0, 0, 0),
		"unknown status":    append(bytes.Clone(head), 12, 0, 0, 12, 0, 1, 8, 0, 1, 0, 0, 0, 99, 0, 0, 0),
		"no handle":         append(bytes.Clone(head), 12, 0, 0, 12, 0, 1, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0),
		"a huge list":       append(bytes.Clone(head), 12, 0, 0, 12, 0, 1, 15, 0, 2, 11, 0x03, 0xff, 0xff, 0xff),
		"a negative list":   append(bytes.Clone(head), 12, 0, 0, 12, 0, 1, 15, 0, 2, 11, 0xff, 0xff, 0xff, 0xff),
		"a huge text":       append(bytes.Clone(head), 12, 0, 0, 12, 0, 1, 11, 0, 5, 0x7f, 0xff, 0xff, 0xff),
		"a huge name":       []byte("\x80\x01\x00\x02\x7f\xff\xff\xff"),
		"deep nesting":      append(bytes.Clone(head), bytes.Repeat([]byte{12, 0, 9}, 10000)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, o := range []hs2test.Options{{}, {NoSASL: true}, {HTTP: true}} {
				srv := start(t, o)
				config := hs2.Config{CallTimeout: patience, SubmitTimeout: time.Second}
				if o.NoSASL {
					config.Auth = hs2.AuthNoSASL
				}
				if o.HTTP {
					config.Transport = hs2.TransportHTTP
				}
				c := connect(t, srv.Addr(), config)
				session := open(t, c)
				srv.OnRubbish("ExecuteStatement", 1, b)
				// Once in the second call of a connection, and then in the first.
				_, err := session.Execute(t.Context(), "INSERT", nil)
				transportError(t, err, true)
				require.Equal(t, 1, srv.Count("INSERT"))
				alive, err := session.Alive(bounded(t))
				require.NoError(t, err)
				require.True(t, alive)
			}
		})
	}
}

// TestAnAnswerHasALimit, whether one value breaks it or all of them.
func TestAnAnswerHasALimit(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{})
	columns := []hs2.Column{{Name: "a", Type: "STRING"}}
	one := [][]any{{strings.Repeat("x", 1<<20)}}
	var many [][]any
	for range 100 {
		many = append(many, []any{strings.Repeat("x", 10<<10)})
	}
	srv.Statement("one", hs2test.Run{Columns: columns, Rows: one})
	srv.Statement("many", hs2test.Run{Columns: columns, Rows: many})
	small := connect(t, srv.Addr(), hs2.Config{MaxMessage: 1 << 19})
	large := connect(t, srv.Addr(), hs2.Config{})
	for sql, want := range map[string][][]any{"one": one, "many": many} {
		_, err := small.Query(t.Context(), open(t, small), sql)
		te := transportError(t, err, true)
		require.Equal(t, "FetchResults", te.RPC)
		table, err := large.Query(t.Context(), open(t, large), sql)
		require.NoError(t, err)
		require.Equal(t, want, table.Rows)
	}
}

// TestWaitSurvivesLostConnections, and gives up when there is nobody to ask.
func TestWaitSurvivesLostConnections(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.Statement("INSERT", hs2test.Run{Steps: []hs2test.Step{hs2test.Running(), hs2test.Running(), hs2test.Moving(), hs2test.Finished(3)}})
	op, err := session.Execute(t.Context(), "INSERT", nil)
	require.NoError(t, err)
	srv.On("GetOperationStatus", 1, hs2test.CutBefore)
	srv.On("GetOperationStatus", 2, hs2test.CutBefore)
	var seen []hs2.State
	st, err := op.Wait(bounded(t), func(s hs2.Status) { seen = append(seen, s.State) })
	require.NoError(t, err)
	require.Equal(t, []hs2.State{hs2.Running, hs2.Running, hs2.Running, hs2.Finished}, seen)
	require.EqualValues(t, 3, *st.ModifiedRows)

	srv.On("GetOperationStatus", 0, hs2test.CutBefore)
	_, err = c.Operation(op.Handle()).Wait(bounded(t), nil)
	transportError(t, err, true)
	require.Equal(t, 1, srv.Count("INSERT"))
}

// TestWaitEndsWithItsContextAndLeavesTheStatementAlone.
func TestWaitEndsWithItsContextAndLeavesTheStatementAlone(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.Statement("INSERT", hs2test.Run{Steps: []hs2test.Step{hs2test.Running()}})
	op, err := session.Execute(t.Context(), "INSERT", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = op.Wait(ctx, func(hs2.Status) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, c.Close())
	require.Zero(t, srv.Calls("CancelOperation")+srv.Calls("CloseOperation")+srv.Calls("CloseSession"))
	require.Len(t, srv.Sessions(), 1)
	again := connect(t, srv.Addr(), hs2.Config{})
	st, err := again.Operation(op.Handle()).Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, hs2.Running, st.State)
}

// TestQueryLeavesAloneWhatItLost: closing would cancel what may still run.
func TestQueryLeavesAloneWhatItLost(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.On("GetOperationStatus", 0, hs2test.CutAfter)
	_, err := c.Query(bounded(t), session, "INSERT")
	transportError(t, err, true)
	require.Zero(t, srv.Calls("CloseOperation"))
}

// TestAnErrorsReasonMayComeLate: the state is shown a moment before the reason.
func TestAnErrorsReasonMayComeLate(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.Statement("late", hs2test.Run{Steps: []hs2test.Step{hs2test.ErrorBare(), hs2test.FailedMap()}})
	srv.Statement("never", hs2test.Run{Steps: []hs2test.Step{hs2test.ErrorBare()}})
	_, err := c.Query(bounded(t), session, "late")
	var se *hs2.StatementError
	require.ErrorAs(t, err, &se)
	require.EqualValues(t, 2, se.Status.Code)
	require.Equal(t, "08S01", se.Status.SQLState)
	_, err = c.Query(bounded(t), session, "never")
	require.ErrorAs(t, err, &se)
	require.Equal(t, hs2.Error, se.Status.State)
	require.Zero(t, se.Status.Code)
}

// TestHandlesWorkFromAnotherClient and unknown ones are told from all else.
func TestHandlesWorkFromAnotherClient(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	op, err := session.Execute(t.Context(), "INSERT", map[string]string{"hive.query.tag": "t1"})
	require.NoError(t, err)
	require.Equal(t, "t1", srv.Statements()[0].Overlay["hive.query.tag"])
	require.True(t, srv.Statements()[0].Async)
	require.NoError(t, c.Close())

	other := connect(t, srv.Addr(), hs2.Config{})
	op, session = other.Operation(op.Handle()), other.Session(session.Handle())
	id, err := op.QueryID(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, id)
	alive, err := session.Alive(t.Context())
	require.NoError(t, err)
	require.True(t, alive)

	srv.Forget()
	_, err = op.QueryID(t.Context())
	require.ErrorIs(t, err, hs2.ErrUnknownHandle)
	_, err = op.Status(t.Context())
	require.ErrorIs(t, err, hs2.ErrUnknownHandle)
	require.ErrorIs(t, op.Cancel(t.Context()), hs2.ErrUnknownHandle)
	require.ErrorIs(t, op.Close(t.Context()), hs2.ErrUnknownHandle)
	_, err = op.Logs(t.Context())
	require.ErrorIs(t, err, hs2.ErrUnknownHandle)
	_, err = session.Execute(t.Context(), "INSERT", nil)
	require.ErrorIs(t, err, hs2.ErrUnknownHandle)
	alive, err = session.Alive(t.Context())
	require.NoError(t, err)
	require.False(t, alive)
	require.ErrorIs(t, session.Close(t.Context()), hs2.ErrUnknownHandle)
}

// TestAnOldServerIsRefused: its results have another form.
func TestAnOldServerIsRefused(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{Protocol: 4}) // V5
	_, err := connect(t, srv.Addr(), hs2.Config{}).OpenSession(t.Context(), nil)
	var se *hs2.ServerError
	require.ErrorAs(t, err, &se)
	require.Contains(t, se.Message, "V5")
	require.Empty(t, srv.Sessions())
}

// TestSessionsOutliveTheirConnections, unless the caller wants otherwise.
func TestSessionsOutliveTheirConnections(t *testing.T) {
	t.Parallel()
	const disconnect, packed = "hive.server2.close.session.on.disconnect", "hive.server2.thrift.resultset.serialize.in.tasks"
	srv := start(t, hs2test.Options{})
	c := connect(t, srv.Addr(), hs2.Config{})
	for _, x := range []struct{ conf, want map[string]string }{
		{nil, map[string]string{disconnect: "false", packed: "false"}},
		{map[string]string{disconnect: "true", "use:database": "dw"}, map[string]string{disconnect: "true", packed: "false", "use:database": "dw"}},
		{map[string]string{disconnect: "", packed: "", "a": ""}, map[string]string{"a": ""}},
	} {
		s, err := c.OpenSession(t.Context(), x.conf)
		require.NoError(t, err)
		require.Equal(t, x.want, srv.Sessions()[s.Handle().GUID()])
	}
}

// TestTheClientReusesConnections and keeps no more than it may.
func TestTheClientReusesConnections(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{})
	c := connect(t, srv.Addr(), hs2.Config{MaxIdle: 2})
	s := open(t, c)
	for range 10 {
		_, err := c.Query(t.Context(), s, "SELECT")
		require.NoError(t, err)
	}
	require.Equal(t, 1, srv.Logins())
	h := srv.On("GetInfo", 0, hs2test.Hang)
	done := make(chan error, 8)
	for range 8 {
		go func() { _, err := s.Alive(bounded(t)); done <- err }()
	}
	require.Eventually(t, func() bool { return srv.Calls("GetInfo") == 8 }, patience, time.Millisecond)
	h.Release()
	for range 8 {
		require.NoError(t, within(t, done))
	}
	require.Eventually(t, func() bool { return srv.Connections() == 2 }, patience, time.Millisecond)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return srv.Connections() == 0 }, patience, time.Millisecond)
}
