package pgtarget_test

import (
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// The UPDATE of a move waits in the server for a lock on the row, whatever becomes of
// the program that sent it. Until it has ended nobody is told that nothing was done.
func TestAMoveThatIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"an update": false, "the first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, small, smallColumns)
			m := move(commitstep.Int(1), commitstep.Int(2))
			hold := "SELECT FROM " + tb.name + " FOR UPDATE"
			if first {
				m = move(commitstep.None(), commitstep.Int(2))
				hold = "INSERT INTO " + tb.name + " VALUES ('MyTopic:0')" // and takes it back
			} else {
				require.NoError(t, tb.sql(`INSERT INTO %s VALUES ('MyTopic:0', 1)`))
			}
			sender, other := tb.open(), tb.open()
			conn, err := pgx.Connect(t.Context(), tb.cfg.DSN)
			require.NoError(t, err)
			defer conn.Close(t.Context())
			tx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), hold)
			require.NoError(t, err)
			sent := make(chan error, 1)
			go func() { sent <- sender.CompareAndSet(t.Context(), m, uuid.New()) }()
			require.Eventually(t, func() bool {
				var waits bool
				require.NoError(t, tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))").Scan(&waits))
				return waits
			}, time.Minute, 10*time.Millisecond)

			for what, look := range map[string]func() error{
				"read": func() error { _, err := other.Watermark(t.Context(), topic); return err },
				"plan": func() error { return plan(other, m) },
			} {
				err := look()
				require.ErrorIs(t, err, commitstep.ErrUnavailable, what)
				require.ErrorContains(t, err, "a move of it is under way", what)
			}
			elsewhere := move(commitstep.None(), commitstep.Int(7))
			elsewhere.Source = "another"
			require.NoError(t, plan(other, elsewhere), "no other source is in its way")

			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-sent)
			v, err := other.Watermark(t.Context(), topic)
			require.NoError(t, err)
			require.Equal(t, commitstep.Int(2), v.Watermark)
		})
	}
}
