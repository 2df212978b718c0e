package pgstore_test

import (
	"encoding/json"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/stretchr/testify/require"
)

// The database goes on as it was before a claim, as a standby does that lacked
// it, and gives the epoch of that claim again. Whoever made the first one writes
// nothing any more, whatever it tries, and the other one goes on.
func TestAClaimThatTheDatabaseLost(t *testing.T) {
	t.Parallel()
	parking := store.Parking{Reason: commitstep.PublishUnknown, Step: 1, Message: "who knows"}
	note := store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`"of the lost claim"`)}
	move := func(p plan) store.Event { return store.Event{Type: store.EventMove, Step: 2, Move: p.move} }
	cases := map[string]struct {
		before func(st *pgstore.Store, f store.Fence, p plan) error // what the sequence is brought to
		parked bool
		write  func(st *pgstore.Store, f store.Fence, p plan) error
		silent bool // what nobody holds is given back without a word
	}{
		"record": {write: func(st *pgstore.Store, f store.Fence, p plan) error { return st.Record(t.Context(), f, true, note) }},
		"record behind": {write: func(st *pgstore.Store, f store.Fence, p plan) error {
			for i := range 2 {
				if err := st.Record(t.Context(), f, false, note, store.Event{Type: store.EventDone, Step: i}); err != nil {
					return err
				}
			}
			return st.Close()
		}, silent: true},
		"move":    {write: func(st *pgstore.Store, f store.Fence, p plan) error { return st.Record(t.Context(), f, true, move(p)) }},
		"park":    {write: func(st *pgstore.Store, f store.Fence, p plan) error { return st.Park(t.Context(), f, parking, note) }},
		"release": {write: func(st *pgstore.Store, f store.Fence, p plan) error { return st.Release(t.Context(), f) }, silent: true},
		"complete": {write: func(st *pgstore.Store, f store.Fence, p plan) error {
			return st.Complete(t.Context(), f, false, store.HistoryNotes{}, move(p))
		}},
		"complete, cleaning": {write: func(st *pgstore.Store, f store.Fence, p plan) error {
			return st.Complete(t.Context(), f, true, store.HistoryNotes{}, move(p))
		}},
		"cleaned": {
			before: func(st *pgstore.Store, f store.Fence, p plan) error {
				return st.Complete(t.Context(), f, true, store.HistoryNotes{}, move(p))
			},
			write: func(st *pgstore.Store, f store.Fence, p plan) error {
				return st.Cleaned(t.Context(), f, "of the lost claim")
			},
		},
		"park told": {
			before: func(st *pgstore.Store, f store.Fence, p plan) error { return st.Park(t.Context(), f, parking) },
			parked: true,
			write:  func(st *pgstore.Store, f store.Fence, p plan) error { return st.ParkTold(t.Context(), f) },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			a, b := open(t, s.dsn, nil), open(t, s.dsn, nil)
			first, second := join(t, a, "first"), join(t, b, "second")
			ctx := t.Context()
			p := newPlan("d")
			l, err := a.Put(ctx, p.draft(), first.ID)
			require.NoError(t, err)
			put := store.Fence{ID: l.ID, Epoch: l.Epoch, Owner: first.ID}
			if c.before != nil {
				require.NoError(t, c.before(a, put, p))
			}
			require.NoError(t, a.Release(ctx, put))
			claim := func(st *pgstore.Store, by commitstep.Instance) store.Fence {
				got, err := st.Claim(ctx, by.ID, store.ClaimFilter{Parked: c.parked})
				require.NoError(t, err)
				require.Len(t, got, 1)
				return store.Fence{ID: got[0].ID, Epoch: got[0].Epoch, Owner: by.ID}
			}
			s.sql(t, `CREATE TABLE standby AS SELECT * FROM sequences`)
			lost := claim(a, first)
			s.sql(t, `DELETE FROM sequences`)
			s.sql(t, `INSERT INTO sequences SELECT * FROM standby`)
			got := claim(b, second)
			require.Equal(t, lost.Epoch, got.Epoch)

			all := func() string {
				return value[string](t, s, `SELECT concat_ws(E'\n', (SELECT string_agg(s::text, ',') FROM sequences s), (SELECT string_agg(n::text, ',') FROM step_notes n),
					(SELECT string_agg(p::text, ',') FROM progress p), (SELECT string_agg(w::text, ',') FROM watermarks w), (SELECT string_agg(c::text, ',') FROM cleanups c),
					(SELECT string_agg(h::text, ',') FROM history h))`)
			}
			before := all()
			if err := c.write(a, lost, p); c.silent {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, commitstep.ErrFenced)
				require.ErrorContains(t, err, "the claim of this one was lost")
			}
			require.Equal(t, before, all(), "the lost claim writes nothing")
			if c.before != nil {
				require.NoError(t, c.write(b, got, p), "the other one does")
				require.NotEqual(t, before, all())
				return
			}
			require.NoError(t, b.Record(ctx, got, true, store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`"second"`)}))
			require.NoError(t, b.Complete(ctx, got, false, store.HistoryNotes{}, move(p)))
		})
	}
}

// A claim that was lost has the epoch of a person's decision: it is no right to
// write either.
func TestADecisionHasTheEpochOfALostClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	ctx := t.Context()
	p := newPlan("d")
	l, err := st.Put(ctx, p.draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Release(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch, Owner: me.ID}))
	s.sql(t, `CREATE TABLE standby AS SELECT * FROM sequences`)
	got, err := st.Claim(ctx, me.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Len(t, got, 1)
	s.sql(t, `DELETE FROM sequences`)
	s.sql(t, `INSERT INTO sequences SELECT * FROM standby`)
	other := open(t, s.dsn, nil)
	c, err := other.Decide(ctx, store.Decision{Key: p.key, ID: p.id, Kind: store.DecideRetry, Version: got[0].Version, State: commitstep.Pending, Person: store.Person{Name: "op", Reason: "look again"}})
	require.NoError(t, err)
	require.Equal(t, got[0].Epoch, c.Epoch)
	f := store.Fence{ID: p.id, Epoch: c.Epoch, Owner: me.ID}
	require.ErrorIs(t, st.Complete(ctx, f, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}), commitstep.ErrFenced)
}
