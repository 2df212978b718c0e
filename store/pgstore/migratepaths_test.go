package pgstore_test

import (
	"encoding/json"
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

	m := migrator(t, s.direct, nil)
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

// A live sequence that may use paths and does not say which stands in the way:
// forth, when an older program stored it, and back, where it would be found so.
func TestMigratingRefusesWhatSaysNoPaths(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	ctx := t.Context()
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	l, err := st.Put(ctx, newPlan("old").draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Leave(ctx, me.ID))
	m := migrator(t, s.direct, nil)
	done, err := m.Down(ctx, 1)
	require.ErrorIs(t, err, commitstep.ErrPending)
	require.ErrorContains(t, err, l.ID.String())
	require.ErrorContains(t, err, "finish it first")
	require.Empty(t, done)
	all, err := m.Status(ctx)
	require.NoError(t, err)
	for _, g := range all {
		require.False(t, g.Applied.IsZero(), "nothing was changed: version %d", g.Version)
	}
	_, err = m.Down(ctx, 2)
	require.NoError(t, err, "version 2 has all paths")
	s.sql(t, `UPDATE sequences SET state = 'completed'`)
	_, err = m.Down(ctx, 1)
	require.NoError(t, err)
	s.sql(t, `UPDATE sequences SET state = 'pending'`) // as that of an older program
	_, err = m.Up(ctx, 0)
	require.ErrorIs(t, err, commitstep.ErrPending)
	require.ErrorContains(t, err, l.ID.String())
	require.ErrorContains(t, err, "finish it with the program that stored it")
	s.sql(t, `DELETE FROM sequences`)
	_, err = m.Up(ctx, 0)
	require.NoError(t, err)
}

// A live sequence of watermarks and of a ledger has no paths to say, and goes on
// after the way back and forth. One data step anywhere, or a cleanup, may have.
func TestMigratingPlansThatHaveNoPaths(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	ctx := t.Context()
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	put := func(name string, steps int, data bool, cleanup ...commitstep.Step) commitstep.Live {
		d := newPlan(name).draft()
		header := d.Header
		d.Header = func() (commitstep.Header, error) {
			h, err := header()
			h.Steps, h.Stages, h.Moves, h.Locks, h.Cleanup = steps, 1, nil, nil, cleanup
			return h, err
		}
		d.Pages = func(yield func([]commitstep.Step, error) bool) {
			for from := 0; from < steps; from += store.PageSize {
				var page []commitstep.Step
				for i := from; i < min(from+store.PageSize, steps); i++ {
					step := commitstep.Step{Index: i, Kind: "test.says", Version: 1, Params: json.RawMessage(`{}`), Class: commitstep.WatermarkStep}
					switch {
					case data && i == steps-1:
						step.Class = commitstep.DataStep
					case i%2 == 0:
						step.Class = commitstep.LedgerStep
					}
					page = append(page, step)
				}
				if !yield(page, nil) {
					return
				}
			}
		}
		l, err := st.Put(ctx, d, me.ID)
		require.NoError(t, err)
		return l
	}
	m := migrator(t, s.direct, nil)
	for _, without := range []commitstep.Live{
		put("a data step", 2, true), put("a data step at the end", 2*store.PageSize+1, true),
		put("a cleanup", 1, false, commitstep.Step{Index: 1, Kind: "fs.remove", Version: 1, Params: json.RawMessage(`{}`)}),
	} {
		require.NoError(t, st.Leave(ctx, me.ID))
		_, err := m.Down(ctx, 1)
		require.ErrorIs(t, err, commitstep.ErrPending)
		me = join(t, st, "me")
		l, err := st.ClaimOne(ctx, me.ID, without.Key)
		require.NoError(t, err)
		require.NoError(t, st.Complete(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, false, store.HistoryNotes{}))
	}
	live := []commitstep.Live{put("short", 2, false), put("long", 2*store.PageSize+1, false)}
	require.NoError(t, st.Leave(ctx, me.ID))
	_, err := m.Down(ctx, 1)
	require.NoError(t, err)
	_, err = m.Up(ctx, 0)
	require.NoError(t, err)
	st = open(t, s.dsn, nil)
	me = join(t, st, "me again")
	for _, l := range live {
		l, err := st.ClaimOne(ctx, me.ID, l.Key)
		require.NoError(t, err)
		require.NoError(t, st.Complete(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, false, store.HistoryNotes{}))
	}
	require.NoError(t, st.Leave(ctx, me.ID))
}

// All of it is taken back whatever is live.
func TestMigratingBackToNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	_, err := st.Put(t.Context(), newPlan("d").draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Leave(t.Context(), me.ID))
	done, err := migrator(t, s.direct, nil).Down(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, done, pgstore.SchemaVersion)
}
