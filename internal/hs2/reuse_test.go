package hs2_test

import (
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

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
