package hs2_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// realPatience is for a statement of a server that shares two cores with all other
// tests.
const realPatience = 5 * time.Minute

// hive is a database of a real server with a table src of three rows.
type hive struct {
	server *hivekit.Server
	config hs2.Config
	client *hs2.Client
	list   *hs2.QueryList
	db     string
}

func (h hive) open(t *testing.T, conf map[string]string) *hs2.Session {
	t.Helper()
	all := map[string]string{"use:database": h.db}
	for k, v := range conf {
		all[k] = v
	}
	s, err := h.client.OpenSession(h.ctx(t), all)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), realPatience)
		defer cancel()
		_ = s.Close(ctx) // the test may have closed it
	})
	return s
}

func (h hive) ctx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), realPatience)
	t.Cleanup(cancel)
	return ctx
}

// token for a comment, and how often the server was given it.
func (h hive) count(t *testing.T, token string) int {
	t.Helper()
	found, err := h.list.Find(h.ctx(t), token)
	require.NoError(t, err)
	return len(found)
}

// slow writes three rows into table, for two seconds each.
func slow(token, table string) string {
	return "/* " + token + " */ INSERT OVERWRITE TABLE " + table +
		" SELECT id, concat(name, nvl(reflect('java.lang.Thread', 'sleep', 2000L), '')) FROM src"
}

// attachEnv makes this binary another process that attaches to an operation.
const attachEnv = "COMMITSTEP_TEST_ATTACH"

type attach struct {
	Address, User string
	Operation     hs2.OperationHandle
	Session       hs2.SessionHandle
}

// TestAnotherProcess is no test: TestAgainstARealServer starts it.
func TestAnotherProcess(t *testing.T) {
	t.Parallel()
	text := os.Getenv(attachEnv)
	if text == "" {
		return // in the first process
	}
	var a attach
	require.NoError(t, json.Unmarshal([]byte(text), &a))
	c := connect(t, a.Address, hs2.Config{User: a.User})
	ctx, cancel := context.WithTimeout(t.Context(), realPatience)
	defer cancel()
	st, err := c.Operation(a.Operation).Wait(ctx, nil)
	require.NoError(t, err)
	alive, err := c.Session(a.Session).Alive(ctx)
	require.NoError(t, err)
	fmt.Printf("found %v %d %v\n", st.State, *st.ModifiedRows, alive)
}

func TestAgainstARealServer(t *testing.T) {
	t.Parallel()
	server := hivekit.Shared(t)
	sql := hivesql.Open(t, server)
	h := hive{server: server, config: hivesql.Config(t, server), list: list(t, hs2.QueryListConfig{URL: server.WebUI()}), db: sql.Database(t)}
	h.client = connect(t, server.Address(), h.config)
	sql.Exec(t, "CREATE TABLE "+h.db+".src (id INT, name STRING)", "INSERT INTO "+h.db+".src VALUES (1, 'a'), (2, 'b'), (3, NULL)")
	for name, test := range map[string]func(*testing.T, hive){
		"a session's life":              realSession,
		"rows of all types":             realRows,
		"refused statements":            realRefusals,
		"refused while it compiles":     realAsyncCompile,
		"statements that fail":          realFailures,
		"a cancelled statement":         realCancel,
		"a statement over its limit":    realTimeout,
		"a lost connection":             realLostConnection,
		"a session with its connection": realSessionOfConnection,
		"a cut ExecuteStatement":        realCuts,
		"the fake says the same":        realAndFake,
		"a login with any password":     realLogin,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, h)
		})
	}
}

func realSession(t *testing.T, h hive) {
	s := h.open(t, map[string]string{"hive.query.tag": "commitstep-tag"})
	alive, err := s.Alive(h.ctx(t))
	require.NoError(t, err)
	require.True(t, alive)
	for key, want := range map[string]string{
		"hive.server2.close.session.on.disconnect": "false", "hive.server2.thrift.resultset.serialize.in.tasks": "false", "hive.query.tag": "commitstep-tag",
	} {
		table, err := h.client.Query(h.ctx(t), s, "SET "+key)
		require.NoError(t, err)
		require.Equal(t, [][]any{{key + "=" + want}}, table.Rows)
	}
	table, err := h.client.Query(h.ctx(t), s, "SELECT current_database()")
	require.NoError(t, err)
	require.Equal(t, [][]any{{h.db}}, table.Rows)
	one, err := h.client.Single(h.ctx(t))
	require.NoError(t, err)
	require.True(t, one)
	// A statement that reads nothing is in the list, as long as it is not closed.
	op, err := s.Execute(h.ctx(t), "/* a mark of this test */ SELECT version(), current_user()", nil)
	require.NoError(t, err)
	_, err = op.Wait(h.ctx(t), nil)
	require.NoError(t, err)
	require.Equal(t, 1, h.count(t, "a mark of this test"))
	require.NoError(t, s.Close(h.ctx(t)))
	require.ErrorIs(t, s.Close(h.ctx(t)), hs2.ErrUnknownHandle)
	alive, err = s.Alive(h.ctx(t))
	require.NoError(t, err)
	require.False(t, alive)
	_, err = s.Execute(h.ctx(t), "SELECT 1", nil)
	require.ErrorIs(t, err, hs2.ErrUnknownHandle)
}

// TestAgainstARealServerWithTLS, and without SASL.
func TestAgainstARealServerWithTLS(t *testing.T) {
	t.Parallel()
	server := hivekit.Private(t, hivekit.Options{TLS: true, Auth: hivekit.NoSASL})
	c := connect(t, server.Address(), hivesql.Config(t, server))
	ctx, cancel := context.WithTimeout(t.Context(), realPatience)
	defer cancel()
	s, err := c.OpenSession(ctx, nil)
	require.NoError(t, err)
	table, err := c.Query(ctx, s, "SELECT 1 AS a")
	require.NoError(t, err)
	require.Equal(t, [][]any{{int32(1)}}, table.Rows)
	require.NoError(t, s.Close(ctx))
	alive, err := s.Alive(ctx)
	require.NoError(t, err)
	require.False(t, alive)
	// Without TLS the server says nothing that makes sense.
	plain := connect(t, server.Address(), hs2.Config{Auth: hs2.AuthNoSASL, CallTimeout: 5 * time.Second})
	_, err = plain.OpenSession(ctx, nil)
	transportError(t, err, true)
}

// TestAgainstARealServerOverHTTP: sessions have nothing to do with connections
// there, and the rest is the same.
func TestAgainstARealServerOverHTTP(t *testing.T) {
	t.Parallel()
	server := hivekit.Private(t, hivekit.Options{HTTP: true})
	p, err := faultproxy.Listen(server.Address(), faultproxy.Raw)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	config := hivesql.Config(t, server)
	c := connect(t, p.Addr(), config)
	ctx, cancel := context.WithTimeout(t.Context(), realPatience)
	defer cancel()
	s, err := c.OpenSession(ctx, nil)
	require.NoError(t, err)
	table, err := c.Query(ctx, s, "SELECT 1 AS a")
	require.NoError(t, err)
	require.Equal(t, [][]any{{int32(1)}}, table.Rows)
	require.Equal(t, 1, p.Connections(), "the connection is kept")
	_, err = s.Execute(ctx, "SELEC 1", nil)
	var se *hs2.ServerError
	require.ErrorAs(t, err, &se)
	queries := list(t, hs2.QueryListConfig{URL: server.WebUI()})
	for do, want := range map[faultproxy.Action]int{faultproxy.DropBefore: 0, faultproxy.DropReply: 1} {
		token := uuid.NewString()
		p.On(faultproxy.Rule{Match: isCall("ExecuteStatement"), Nth: 1, Do: do})
		_, err = s.Execute(ctx, "/* "+token+" */ SELECT 1", nil)
		transportError(t, err, true)
		found, err := queries.Find(ctx, token)
		require.NoError(t, err)
		require.Len(t, found, want)
		p.Clear()
	}
	alive, err := s.Alive(ctx)
	require.NoError(t, err)
	require.True(t, alive)
	require.NoError(t, s.Close(ctx))
	alive, err = s.Alive(ctx)
	require.NoError(t, err)
	require.False(t, alive)
}
