package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A migration whose process goes away in the middle has not happened, and the
// next one does it.
func TestAMigrationThatBreaksOffIsRepeated(t *testing.T) {
	t.Parallel()
	dsn, _ := bare(t)
	m := migrator(t, dsn, nil)
	_, err := m.Up(t.Context(), 1)
	require.NoError(t, err)
	blocker, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer blocker.Close(context.Background())
	tx, err := blocker.Begin(t.Context())
	require.NoError(t, err)
	// Whoever migrates can read what was done, and not say what it has done.
	_, err = tx.Exec(t.Context(), "LOCK TABLE commitstep.migrations IN SHARE MODE")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := m.Up(ctx, 0)
		failed <- err
	}()
	require.Eventually(t, func() bool {
		var waits bool
		require.NoError(t, blocker.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'commitstep.migrations'::regclass)`).Scan(&waits))
		return waits
	}, time.Minute, 10*time.Millisecond)
	cancel()
	require.Error(t, <-failed)
	require.NoError(t, tx.Rollback(t.Context()))
	_, err = pgstore.Open(t.Context(), dsn, nil)
	require.ErrorIs(t, err, pgstore.ErrSchema)
	require.ErrorContains(t, err, "they have version 1")
	next := migrator(t, dsn, nil)
	done, err := next.Up(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, done, pgstore.SchemaVersion-1)
	open(t, dsn, nil)
}

// A table that somebody dropped, or a grant that was taken back, is an error
// with what to do; nothing is believed to be written, and it goes on when the
// cause is gone.
func TestATableOrGrantThatIsTakenAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	l, err := st.Put(t.Context(), newPlan("a").draft(), me.ID)
	require.NoError(t, err)
	f := store.Fence{ID: l.ID, Epoch: l.Epoch}
	s.sql(t, `ALTER TABLE documents RENAME TO elsewhere`)
	_, err = st.Put(t.Context(), newPlan("b").draft(), me.ID)
	require.ErrorIs(t, err, pgstore.ErrSchema)
	require.ErrorContains(t, err, "documents")
	require.ErrorContains(t, err, "backup")
	s.sql(t, `ALTER TABLE elsewhere RENAME TO documents`)
	_, err = st.Put(t.Context(), newPlan("b").draft(), me.ID)
	require.NoError(t, err)

	role := pgstore.RuntimeRole(s.schema)
	user := kit.Name()
	s.sql(t, `CREATE ROLE `+user+` LOGIN; GRANT `+role+` TO `+user)
	t.Cleanup(func() { _ = kit.Cluster(t).Exec(context.Background(), "DROP ROLE "+user) })
	as := open(t, replaceUser(s.dsn, user), nil)
	require.NoError(t, as.Record(t.Context(), f, true, store.Event{Type: store.EventDone, Step: 0}))
	s.sql(t, `REVOKE UPDATE ON sequences FROM `+role)
	err = as.Record(t.Context(), f, true, store.Event{Type: store.EventMessage, Message: "x"})
	require.ErrorContains(t, err, role)
	require.NotErrorIs(t, err, commitstep.ErrOutcomeUnknown)
	s.sql(t, `GRANT UPDATE ON sequences TO `+role)
	require.NoError(t, as.Record(t.Context(), f, true, store.Event{Type: store.EventMessage, Message: "x"}))
	got, err := st.Get(t.Context(), l.Key)
	require.NoError(t, err)
	require.Equal(t, "x", got.Message)
}
