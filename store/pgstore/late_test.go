package pgstore_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Something between driver and server holds a write back for so long that the
// driver gives the connection up and writes again. What was held back arrives
// after that, and after the next write, and must change nothing.
func TestAWriteThatArrivesLate(t *testing.T) {
	t.Parallel()
	note := func(text string) store.Event {
		return store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`"` + text + `"`)}
	}
	type world struct {
		s    site
		st   *pgstore.Store
		me   uuid.UUID
		hold func()
		late func()
	}
	cases := map[string]func(t *testing.T, w world){
		"note": func(t *testing.T, w world) {
			ctx := t.Context()
			l, err := w.st.Put(ctx, newPlan("note").draft(), w.me)
			require.NoError(t, err)
			f := store.Fence{ID: l.ID, Epoch: l.Epoch}
			require.NoError(t, w.st.Record(ctx, f, true, note("zero")))
			w.hold()
			require.NoError(t, w.st.Record(ctx, f, true, note("one"), store.Event{Type: store.EventNoReturn, Step: 1, Data: json.RawMessage(`1`)}))
			require.NoError(t, w.st.Record(ctx, f, true, note("two")))
			w.late()
			other := open(t, w.s.dsn, nil)
			p, err := other.Steps(ctx, l.ID, 0)
			require.NoError(t, err)
			require.Equal(t, `"two"`, string(p.Progress[0].Note))
			require.Equal(t, `1`, string(p.Progress[1].NoReturn))
		},
		"put of what has ended since": func(t *testing.T, w world) {
			ctx := t.Context()
			_, err := w.st.Put(ctx, newPlan("known").draft(), w.me)
			require.NoError(t, err)
			p := newPlan("put")
			w.hold()
			l, err := w.st.Put(ctx, p.draft(), w.me)
			require.NoError(t, err)
			require.NoError(t, w.st.Complete(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}))
			w.late()
			require.Equal(t, 0, value[int](t, w.s, `SELECT count(*)::int FROM sequences WHERE id = $1`, l.ID))
			require.Equal(t, 1, value[int](t, w.s, `SELECT count(*)::int FROM history WHERE id = $1`, l.ID))
			require.Equal(t, 0, value[int](t, w.s, `SELECT count(*)::int FROM locks WHERE sequence = $1`, l.ID))
		},
		"claim": func(t *testing.T, w world) {
			ctx := t.Context()
			l, err := w.st.Put(ctx, newPlan("claim").draft(), w.me)
			require.NoError(t, err)
			release := func() { require.NoError(t, w.st.Release(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch})) }
			release()
			claim := func() {
				list, err := w.st.Claim(ctx, w.me, store.ClaimFilter{Limit: 2})
				require.NoError(t, err)
				require.Len(t, list, 1)
				l = list[0]
			}
			claim()
			release()
			w.hold()
			claim()
			w.late()
			require.NoError(t, w.st.Record(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, true, note("mine")), "the claim that was answered stands")
		},
		"decision": func(t *testing.T, w world) {
			ctx := t.Context()
			p := newPlan("decision")
			parts := life(ctx, w.st, w.me, p)
			for _, part := range parts[:3] {
				require.NoError(t, part())
			}
			w.hold()
			require.NoError(t, parts[3]())
			require.NoError(t, parts[4]())
			w.late()
			require.NoError(t, parts[5]())
			truth(t, w.s, p)
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			named := s
			named.dsn += "&application_name=" + s.schema
			st, proxy := behindProxy(t, named, &pgstore.Options{MaxConns: 3, LeaseTTL: time.Hour, StatementTimeout: 500 * time.Millisecond, LockTimeout: 500 * time.Millisecond})
			me := join(t, st, "me")
			pids := func() map[int32]bool {
				out := map[int32]bool{}
				for _, pid := range value[[]int32](t, s, `SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity WHERE application_name = $1`, s.schema) {
					out[pid] = true
				}
				return out
			}
			var before map[int32]bool
			var h *faultproxy.Hook
			run(t, world{s: s, st: st, me: me.ID,
				hold: func() {
					before = pids()
					h = proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Type == 'B' }, Nth: 1, Do: faultproxy.Hold})
				},
				late: func() {
					require.Equal(t, 1, h.Count(), "the write was held back")
					h.Release()
					// Its connection ends once the server has carried it out.
					require.Eventually(t, func() bool {
						now := pids()
						for pid := range before {
							if !now[pid] {
								return true
							}
						}
						return false
					}, 30*time.Second, 20*time.Millisecond, fmt.Sprint("connections ", before))
				}})
		})
	}
}

// A request to join whose connection was given up reaches the server when another
// one has been answered and sequences are held: they stay held.
func TestAJoinThatLandsLate(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{StatementTimeout: 100 * time.Millisecond, LockTimeout: 100 * time.Millisecond, GiveUp: 20 * time.Second})
	ctx := t.Context()
	late := proxy.On(faultproxy.Rule{Do: faultproxy.Hold, Nth: 1, Match: func(m faultproxy.Message) bool {
		return m.Type == 'B' && bytes.Contains(m.Data, []byte("latecomer"))
	}})
	me := join(t, st, "latecomer")
	select {
	case <-late.Fired():
	default:
		t.Fatal("nothing was held back")
	}
	p := newPlan("d")
	l, err := st.Put(ctx, p.draft(), me.ID)
	require.NoError(t, err)
	before := value[time.Time](t, s, `SELECT joined FROM instances`)
	late.Release()
	require.Eventually(t, func() bool { return value[time.Time](t, s, `SELECT joined FROM instances`).After(before) }, time.Minute, 10*time.Millisecond, "the late one was carried out")
	_, _, held, err := st.Holder(ctx, l)
	require.NoError(t, err)
	require.True(t, held)
	other := open(t, s.dsn, nil)
	you := join(t, other, "you")
	got, err := other.Claim(ctx, you.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Empty(t, got)
	require.NoError(t, st.Complete(ctx, store.Fence{ID: l.ID, Epoch: 1}, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}))

	// Joining again by hand is another term, also for somebody who knows nothing of
	// the first.
	l, err = st.Put(ctx, newPlan("e").draft(), me.ID)
	require.NoError(t, err)
	_, err = other.Join(ctx, me)
	require.NoError(t, err)
	_, _, held, err = st.Holder(ctx, l)
	require.NoError(t, err)
	require.False(t, held)
}
