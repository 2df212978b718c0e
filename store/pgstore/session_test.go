package pgstore_test

import (
	"context"
	"strings"
	"testing"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/stretchr/testify/require"
)

// What is decided after a wait must be decided on what is there now: another
// isolation level is refused, when the store is opened and ever after.
func TestOtherIsolationLevelsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, level := range []string{"repeatable read", "serializable"} {
		_, err := pgstore.Open(t.Context(), s.dsn+"&default_transaction_isolation="+strings.ReplaceAll(level, " ", "%20"), nil)
		require.ErrorContains(t, err, `run at "`+level+`"`)
		require.ErrorContains(t, err, "take default_transaction_isolation out of the address")
	}
	dsn := runtimeUser(t, s)
	user := strings.TrimPrefix(strings.Split(dsn, "@")[0], "postgres://")
	st := open(t, dsn, &pgstore.Options{MaxConns: 2})
	me := join(t, st, "me")
	_, err := st.Put(t.Context(), newPlan("before").draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "ALTER ROLE "+user+" SET default_transaction_isolation = 'repeatable read'"))
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+user+"'"))
	_, err = st.Put(t.Context(), newPlan("after").draft(), me.ID)
	require.ErrorContains(t, err, `run at "repeatable read"`)
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM sequences`))
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "ALTER ROLE "+user+" RESET default_transaction_isolation"))
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+user+"'"))
	_, err = st.Put(t.Context(), newPlan("after").draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Leave(t.Context(), me.ID))
}

// One name must be one text, or one dataset has two live sequences.
func TestOtherEncodingsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	_, err := pgstore.Open(t.Context(), s.dsn+"&client_encoding=latin1", nil)
	require.ErrorContains(t, err, "client_encoding, of the address or the role, is LATIN1, and the store needs UTF8")
	name := kit.Name()
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "CREATE DATABASE "+name+" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"))
	t.Cleanup(func() { _ = kit.Cluster(t).Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	m, err := pgstore.NewMigrator(t.Context(), kit.Cluster(t).URL(name), nil)
	require.NoError(t, err)
	_, err = m.Up(t.Context(), 0)
	require.ErrorContains(t, err, "the encoding of the database is LATIN1")
	require.NoError(t, m.Close())
}

// The answer to the end of a cleaning is lost.
func TestALostAnswerOfTheEndOfACleaning(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{MaxConns: 3})
	me := join(t, st, "me")
	life := func(name string, hook func() *faultproxy.Hook) {
		p := newPlan(name)
		l, err := st.Put(t.Context(), p.draft(), me.ID)
		require.NoError(t, err)
		f := store.Fence{ID: l.ID, Epoch: l.Epoch}
		require.NoError(t, st.Complete(t.Context(), f, true, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}))
		h := hook()
		require.NoError(t, st.Cleaned(t.Context(), f, "one left"))
		if h != nil {
			require.Equal(t, 1, h.Count())
		}
		proxy.Clear()
		require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM cleanups WHERE sequence = $1`, l.ID))
	}
	life("warm", func() *faultproxy.Hook { return nil })
	for _, do := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropAfter, faultproxy.DropReply} {
		life("cut "+string(rune('a'+do)), func() *faultproxy.Hook {
			return proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Type == 'S' }, Nth: 1, Do: do})
		})
	}
}
