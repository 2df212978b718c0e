package pgstore_test

import (
	"context"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Tables that were taken back to before they knew paths, and forth again, know
// those of what is live and of what is past.
func TestMigratingRemembersPaths(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	used := func(name, path string) store.Draft {
		d := newPlan(name).draft()
		source, dir := commitstep.DigestPath(commitstep.Address{Path: path}), commitstep.DigestPath(commitstep.Address{Path: "/staging"})
		header := d.Header
		d.Header = func() (commitstep.Header, error) {
			h, err := header()
			h.Used = &commitstep.UsedPaths{Sources: commitstep.PathDigests{source}, Above: commitstep.PathDigests{dir}}
			return h, err
		}
		d.Roots = func() []commitstep.StagingRoot {
			return []commitstep.StagingRoot{{Address: commitstep.Address{Path: path}, Digest: source, Above: []commitstep.PathDigest{dir}}}
		}
		return d
	}
	ctx := t.Context()
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	live, err := st.Put(ctx, used("live", "/staging/a"), me.ID)
	require.NoError(t, err)
	past, err := st.Put(ctx, used("past", "/staging/b"), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Complete(ctx, store.Fence{ID: past.ID, Epoch: past.Epoch}, false, store.HistoryNotes{}))

	m, err := pgstore.NewMigrator(ctx, s.direct, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	_, err = m.Down(ctx, 1)
	require.ErrorIs(t, err, commitstep.ErrBusy, "a driver has a lease")
	require.NoError(t, st.Leave(ctx, me.ID))
	_, err = m.Down(ctx, 1)
	require.NoError(t, err)
	// A driver of version 1 at work would go on without noting its paths.
	s.sql(t, `UPDATE instances SET dead = false, until = now() + interval '1 hour'`)
	_, err = m.Up(ctx, 0)
	require.ErrorIs(t, err, commitstep.ErrBusy)
	s.sql(t, `UPDATE instances SET dead = true`)
	_, err = m.Up(ctx, 0)
	require.NoError(t, err)

	st = open(t, s.dsn, nil)
	me = join(t, st, "me again")
	for path, sequence := range map[string]uuid.UUID{"/staging/a": live.ID, "/staging/b": past.ID, "/staging/a/inside": uuid.Nil, "/staging/free": uuid.Nil} {
		_, err = st.Put(ctx, used("other "+path, path), me.ID)
		if sequence == uuid.Nil {
			require.NoError(t, err, path)
			continue
		}
		var taken *store.UsedPathError
		require.ErrorAs(t, err, &taken, path)
		require.Equal(t, sequence, taken.Sequence)
		require.Equal(t, sequence == live.ID, taken.Live)
	}
	require.NoError(t, st.Leave(ctx, me.ID))
}

// A live sequence that does not say what it uses stands in the way.
func TestMigratingRefusesWhatSaysNoPaths(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	l, err := st.Put(t.Context(), newPlan("old").draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Leave(t.Context(), me.ID))
	m, err := pgstore.NewMigrator(context.Background(), s.direct, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	_, err = m.Down(t.Context(), 1)
	require.NoError(t, err)
	_, err = m.Up(t.Context(), 0)
	require.ErrorIs(t, err, commitstep.ErrPending)
	require.ErrorContains(t, err, l.ID.String())
	require.ErrorContains(t, err, "finish it with the program that stored it")
	s.sql(t, `DELETE FROM sequences`)
	_, err = m.Up(t.Context(), 0)
	require.NoError(t, err)
}
