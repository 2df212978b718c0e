package hs2_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

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
