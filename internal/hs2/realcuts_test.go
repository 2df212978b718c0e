package hs2_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

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
