package hs2_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
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
	require.NoError(t, s.Close(h.ctx(t)))
	require.ErrorIs(t, s.Close(h.ctx(t)), hs2.ErrUnknownHandle)
	alive, err = s.Alive(h.ctx(t))
	require.NoError(t, err)
	require.False(t, alive)
	_, err = s.Execute(h.ctx(t), "SELECT 1", nil)
	require.ErrorIs(t, err, hs2.ErrUnknownHandle)
}

func realRows(t *testing.T, h hive) {
	s := h.open(t, nil)
	kinds := []struct {
		kind, sql string
		want      any
	}{
		{"BOOLEAN", "true", true},
		{"TINYINT", "CAST(-8 AS TINYINT)", int8(-8)},
		{"SMALLINT", "CAST(-300 AS SMALLINT)", int16(-300)},
		{"INT", "70000", int32(70000)},
		{"BIGINT", "9007199254740993L", int64(9007199254740993)},
		{"FLOAT", "CAST(1.5 AS FLOAT)", 1.5},
		{"DOUBLE", "CAST(-2.25 AS DOUBLE)", -2.25},
		{"DECIMAL", "CAST('12345678901234567890.10' AS DECIMAL(38,2))", "12345678901234567890.10"},
		{"STRING", "'Grüße, 世界'", "Grüße, 世界"},
		{"VARCHAR", "CAST('v' AS VARCHAR(9))", "v"},
		{"CHAR", "CAST('ab' AS CHAR(4))", "ab  "},
		{"DATE", "DATE '2024-02-29'", "2024-02-29"},
		{"TIMESTAMP", "TIMESTAMP '2024-01-02 03:04:05.678'", "2024-01-02 03:04:05.678"},
		{"BINARY", "unhex('00FF10')", []byte{0, 0xff, 0x10}},
		{"ARRAY", "array(1, 2)", "[1,2]"},
		{"MAP", "map('k', 1)", `{"k":1}`},
		{"STRUCT", "named_struct('x', 1, 'y', 'z')", `{"x":1,"y":"z"}`},
		{"INTERVAL_YEAR_MONTH", "INTERVAL '1' YEAR", "1-0"},
		{"INTERVAL_DAY_TIME", "INTERVAL '1' DAY", "1 00:00:00.000000000"},
	}
	var values, nulls []string
	var want []any
	for i, k := range kinds {
		values = append(values, fmt.Sprintf("%s AS c%d", k.sql, i))
		nulls = append(nulls, fmt.Sprintf("IF(id > 0, NULL, %s) AS c%d", k.sql, i))
		want = append(want, k.want)
	}
	// Without a reduction the server answers by itself, without a job.
	table, err := h.client.Query(h.ctx(t), s, "SELECT "+strings.Join(values, ", "))
	require.NoError(t, err)
	require.Equal(t, [][]any{want}, table.Rows)
	for i, k := range kinds {
		require.Equal(t, hs2.Column{Name: fmt.Sprintf("c%d", i), Type: k.kind}, table.Columns[i])
	}
	table, err = h.client.Query(h.ctx(t), s, "SELECT "+strings.Join(nulls, ", ")+" FROM src")
	require.NoError(t, err)
	require.Len(t, table.Rows, 3)
	for _, row := range table.Rows {
		require.Equal(t, make([]any, len(kinds)), row)
	}
	// More than one page, in order, with a null in every byte of the bitmap.
	table, err = h.client.Query(h.ctx(t), s, "SELECT pos, IF(pos % 5 = 0, NULL, pos) FROM (SELECT posexplode(split(space(2499), ' ')) AS (pos, val)) x ORDER BY pos")
	require.NoError(t, err)
	require.Len(t, table.Rows, 2500)
	for i, row := range table.Rows {
		if i%5 == 0 {
			require.Equal(t, []any{int32(i), nil}, row)
		} else {
			require.Equal(t, []any{int32(i), int32(i)}, row)
		}
	}
	// Results that the query's own tasks pack are empty on this server: an error,
	// and never no rows.
	packed := h.open(t, map[string]string{"hive.server2.thrift.resultset.serialize.in.tasks": "true"})
	_, err = h.client.Query(h.ctx(t), packed, "SELECT id, name FROM src ORDER BY id")
	transportError(t, err, true)
	require.ErrorContains(t, err, "hive.server2.thrift.resultset.serialize.in.tasks=false")
	table, err = h.client.Query(h.ctx(t), s, "SELECT id FROM src WHERE id > 99")
	require.NoError(t, err)
	require.Empty(t, table.Rows)
	require.Equal(t, []hs2.Column{{Name: "id", Type: "INT"}}, table.Columns)
}

// refusals are statements that are refused while they are compiled.
var refusals = []struct {
	sql, state string
	code       int32
	says       string
}{
	{"SELEC 1", "42000", 40000, "ParseException line 1:0 cannot recognize input near 'SELEC'"},
	{"SELECT * FROM nosuch", "42S02", 10001, "Table not found 'nosuch'"},
	{"SELECT nocol FROM src", "42000", 10004, "Invalid table alias or column reference 'nocol'"},
}

func realRefusals(t *testing.T, h hive) {
	s := h.open(t, nil)
	for _, r := range refusals {
		_, err := s.Execute(h.ctx(t), r.sql, nil)
		var se *hs2.ServerError
		require.ErrorAs(t, err, &se, r.sql)
		require.Equal(t, "ExecuteStatement", se.RPC)
		require.Equal(t, r.state, se.SQLState)
		require.Equal(t, r.code, se.Code)
		require.Contains(t, se.Message, r.says)
		require.NotErrorIs(t, err, hs2.ErrUnknownHandle)
	}
}

// realAsyncCompile: the same errors come with the status, and nothing began.
func realAsyncCompile(t *testing.T, h hive) {
	s := h.open(t, map[string]string{"hive.server2.async.exec.async.compile": "true"})
	for _, r := range refusals {
		op, err := s.Execute(h.ctx(t), r.sql, nil)
		require.NoError(t, err, r.sql)
		st, err := op.Wait(h.ctx(t), nil)
		require.NoError(t, err)
		require.Equal(t, hs2.Error, st.State)
		require.Equal(t, r.state, st.SQLState)
		require.Equal(t, r.code, st.Code)
		require.Contains(t, st.Message, r.says)
		began, known := st.MoveBegan()
		require.True(t, known)
		require.False(t, began)
		require.NoError(t, op.Close(h.ctx(t)))
	}
}

func realFailures(t *testing.T, h hive) {
	s := h.open(t, nil)
	for _, sql := range []string{
		"CREATE TABLE dst (id INT, name STRING) PARTITIONED BY (dt STRING)",
		"ALTER TABLE dst ADD PARTITION (dt='x')",
	} {
		_, err := h.client.Query(h.ctx(t), s, sql)
		require.NoError(t, err, sql)
	}
	for _, f := range []struct {
		sql, state string
		code       int32
		says       string
	}{
		{"INSERT OVERWRITE TABLE dst PARTITION (dt='x') SELECT id, CAST(assert_true(id < 0) AS STRING) FROM src", "08S01", 2, "return code 2 from org.apache.hadoop.hive.ql.exec.tez.TezTask. Vertex failed"},
		{"SELECT assert_true(false)", "", 1, "ASSERT_TRUE(): assertion failed"},
		{"ALTER TABLE dst ADD PARTITION (dt='x')", "08S01", 40000, "AlreadyExistsException"},
		{"CREATE TABLE src (id INT)", "08S01", 40000, "already exists"},
	} {
		op, err := s.Execute(h.ctx(t), f.sql, nil)
		require.NoError(t, err, f.sql)
		id, err := op.QueryID(h.ctx(t))
		require.NoError(t, err)
		require.Regexp(t, `^\w+_\d{14}_[0-9a-f-]{36}$`, id)
		st, err := op.Wait(h.ctx(t), nil)
		require.NoError(t, err)
		require.Equal(t, hs2.Error, st.State, f.sql)
		require.Equal(t, f.state, st.SQLState, f.sql)
		require.Equal(t, f.code, st.Code, f.sql)
		require.Contains(t, st.Message, f.says)
		require.Nil(t, st.ModifiedRows)
		require.False(t, st.Started.IsZero() || st.Completed.IsZero())
		if strings.HasPrefix(f.sql, "INSERT") {
			began, known := st.MoveBegan()
			require.True(t, known)
			require.False(t, began, "%+v", st.Tasks)
			lines, err := op.Logs(h.ctx(t))
			require.NoError(t, err)
			require.Contains(t, strings.Join(lines, "\n"), id)
		}
		require.NoError(t, op.Close(h.ctx(t)))
		_, err = op.Status(h.ctx(t))
		require.ErrorIs(t, err, hs2.ErrUnknownHandle)
		_, err = op.QueryID(h.ctx(t))
		require.ErrorIs(t, err, hs2.ErrUnknownHandle)
		require.ErrorIs(t, op.Close(h.ctx(t)), hs2.ErrUnknownHandle)
		require.ErrorIs(t, op.Cancel(h.ctx(t)), hs2.ErrUnknownHandle)
	}
}

func realCancel(t *testing.T, h hive) {
	s := h.open(t, nil)
	_, err := h.client.Query(h.ctx(t), s, "CREATE TABLE cancelled (id INT, name STRING)")
	require.NoError(t, err)
	op, err := s.Execute(h.ctx(t), slow("cancel", "cancelled"), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(h.ctx(t))
	st, err := op.Wait(ctx, func(st hs2.Status) {
		if st.State == hs2.Running && len(st.Tasks) > 0 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled, "%+v", st)
	require.NoError(t, op.Cancel(h.ctx(t)))
	st, err = op.Wait(h.ctx(t), nil)
	require.NoError(t, err)
	require.Equal(t, hs2.Canceled, st.State)
	require.Zero(t, st.Code)
}

func realTimeout(t *testing.T, h hive) {
	s := h.open(t, map[string]string{"hive.query.timeout.seconds": "10s"})
	op, err := s.Execute(h.ctx(t), "SELECT count(*), max(reflect('java.lang.Thread', 'sleep', 10000L)) FROM src", nil)
	var se *hs2.ServerError
	for range 5 {
		// On a busy machine the limit may come while it is compiled: then it is
		// refused.
		if !errors.As(err, &se) {
			break
		}
		require.Contains(t, se.Message, "TIMEDOUT")
		op, err = s.Execute(h.ctx(t), "SELECT count(*), max(reflect('java.lang.Thread', 'sleep', 10000L)) FROM src", nil)
	}
	require.NoError(t, err)
	st, err := op.Wait(h.ctx(t), nil)
	require.NoError(t, err)
	require.Equal(t, hs2.TimedOut, st.State)
	require.Zero(t, st.Code)
}

// realLostConnection: the statement goes on without its connection, and a new
// process finds its end.
func realLostConnection(t *testing.T, h hive) {
	s := h.open(t, nil)
	_, err := h.client.Query(h.ctx(t), s, "CREATE TABLE lost (id INT, name STRING)")
	require.NoError(t, err)
	p, err := faultproxy.Listen(h.server.Address(), faultproxy.SASLPlain)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := connect(t, p.Addr(), hs2.Config{User: h.config.User})
	token := uuid.NewString()
	session, err := c.OpenSession(h.ctx(t), map[string]string{"use:database": h.db})
	require.NoError(t, err)
	op, err := session.Execute(h.ctx(t), slow(token, "lost"), nil)
	require.NoError(t, err)
	p.Refuse(true)
	_, err = op.Status(h.ctx(t))
	require.Error(t, err)

	text, err := json.Marshal(attach{h.server.Address(), h.config.User, op.Handle(), session.Handle()})
	require.NoError(t, err)
	cmd := exec.CommandContext(h.ctx(t), "/proc/self/exe", "-test.run=^TestAnotherProcess$", "-test.v")
	cmd.Env = append(os.Environ(), attachEnv+"="+string(text))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "found FINISHED 3 true")

	// It is in the query list under its comment, and was given once.
	id, err := h.client.Operation(op.Handle()).QueryID(h.ctx(t))
	require.NoError(t, err)
	found, err := h.list.Find(h.ctx(t), token)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, hs2.Finished, found[0].State)
	require.Equal(t, id, found[0].QueryID)
	require.Equal(t, op.Handle().GUID(), found[0].Operation)
	require.Equal(t, session.Handle().GUID(), found[0].Session)
	require.True(t, strings.HasPrefix(found[0].Text, "/* "+token+" */"), found[0].Text)
	st, err := h.client.Operation(op.Handle()).Status(h.ctx(t))
	require.NoError(t, err)
	began, known := st.MoveBegan()
	require.True(t, began && known, "%+v", st.Tasks)
	table, err := h.client.Query(h.ctx(t), h.client.Session(session.Handle()), "SELECT id FROM lost ORDER BY id")
	require.NoError(t, err)
	require.Equal(t, [][]any{{int32(1)}, {int32(2)}, {int32(3)}}, table.Rows)
	require.NoError(t, h.client.Session(session.Handle()).Close(h.ctx(t)))
}

// realSessionOfConnection is what the server does when it is not told otherwise.
func realSessionOfConnection(t *testing.T, h hive) {
	p, err := faultproxy.Listen(h.server.Address(), faultproxy.SASLPlain)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := connect(t, p.Addr(), hs2.Config{User: h.config.User})
	session, err := c.OpenSession(h.ctx(t), map[string]string{"hive.server2.close.session.on.disconnect": "true"})
	require.NoError(t, err)
	p.Refuse(true)
	require.Eventually(t, func() bool {
		alive, err := h.client.Session(session.Handle()).Alive(h.ctx(t))
		return err == nil && !alive
	}, realPatience, 50*time.Millisecond)
}

// realCuts: what is counted is what the server was given.
func realCuts(t *testing.T, h hive) {
	session := h.open(t, nil)
	for _, do := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropAfter, faultproxy.DropReply} {
		p, err := faultproxy.Listen(h.server.Address(), faultproxy.SASLPlain)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		c := connect(t, p.Addr(), hs2.Config{User: h.config.User})
		lost := p.On(faultproxy.Rule{Match: isCall("ExecuteStatement"), Nth: 1, Do: do})
		token := uuid.NewString()
		_, err = c.Session(session.Handle()).Execute(h.ctx(t), "/* "+token+" */ SELECT 1", nil)
		transportError(t, err, true)
		within(t, lost.Fired())
		if do == faultproxy.DropBefore {
			require.Zero(t, h.count(t, token))
			continue
		}
		require.Eventually(t, func() bool { return h.count(t, token) == 1 }, realPatience, 50*time.Millisecond)
	}
}

// guids are different each time.
var guids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// realAndFake holds package hs2test against the server: one conversation, word for
// word, but for what is different each time.
func realAndFake(t *testing.T, h hive) {
	srv := start(t, hs2test.Options{})
	srv.Statement("SELEC 1", hs2test.Run{Reject: hs2test.SyntaxError()})
	srv.Statement("SELECT * FROM nosuch", hs2test.Run{Reject: hs2test.MissingTable()})
	srv.Statement("SELECT 1", hs2test.Run{Columns: []hs2.Column{{Name: "a", Type: "INT"}}, Rows: [][]any{{int32(1)}}})
	talk := func(c *hs2.Client) string {
		var b strings.Builder
		say := func(what string, v ...any) {
			fmt.Fprintln(&b, what, guids.ReplaceAllString(fmt.Sprint(v...), "GUID"))
		}
		fail := func(what string, err error) {
			say(what, err)
			if se, ok := err.(*hs2.ServerError); ok {
				say(what, se.RPC, se.SQLState, se.Code, se.Message, se.Infos)
			}
		}
		ctx := h.ctx(t)
		s, err := c.OpenSession(ctx, nil)
		fail("open", err)
		alive, err := s.Alive(ctx)
		say("alive", alive, err)
		_, err = s.Execute(ctx, "SELEC 1", nil)
		fail("syntax", err)
		_, err = s.Execute(ctx, "SELECT * FROM nosuch", nil)
		fail("table", err)
		op, err := s.Execute(ctx, "SELECT 1 AS a", nil)
		fail("execute", err)
		st, err := op.Wait(ctx, nil)
		fail("wait", err)
		began, known := st.MoveBegan()
		require.NotNil(t, st.ModifiedRows)
		say("status", st.State, st.SQLState, st.Code, st.Message, st.Tasks, st.TasksKnown, *st.ModifiedRows, st.HasResult, st.Started.IsZero(), st.Completed.IsZero(), began, known)
		rows, err := op.Rows(ctx)
		fail("rows", err)
		say("columns", rows.Columns())
		for row, err := range rows.All() {
			say("row", row, err)
		}
		fail("close", op.Close(ctx))
		fail("close", op.Close(ctx))
		_, err = op.Status(ctx)
		fail("status", err)
		_, err = op.QueryID(ctx)
		fail("query id", err)
		_, err = op.Rows(ctx)
		fail("rows", err)
		_, err = op.Logs(ctx)
		fail("logs", err)
		fail("cancel", op.Cancel(ctx))
		fail("close session", s.Close(ctx))
		fail("close session", s.Close(ctx))
		alive, err = s.Alive(ctx)
		say("alive", alive, err)
		_, err = s.Execute(ctx, "SELECT 1", nil)
		fail("execute", err)
		return b.String()
	}
	require.Equal(t, talk(h.client), talk(connect(t, srv.Addr(), hs2.Config{})))
}

// realLogin: SASL PLAIN wants a password, whatever it is.
func realLogin(t *testing.T, h hive) {
	c := connect(t, h.server.Address(), hs2.Config{User: "ann", Password: "anything"})
	_, err := c.OpenSession(h.ctx(t), nil)
	require.NoError(t, err)
	wrong := connect(t, h.server.Address(), hs2.Config{Auth: hs2.AuthNoSASL})
	_, err = wrong.OpenSession(h.ctx(t), nil)
	var te *hs2.TransportError
	require.ErrorAs(t, err, &te)
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
