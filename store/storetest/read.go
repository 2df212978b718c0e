package storetest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// oddNames are different texts that careless stores fold, cut, join, decode,
// hide or lose.
var oddNames = []string{
	"a b", "a  b", "a_b", "a:b", "a/b", "a", "b", "a%2Fb", "%2F", "%", "..", ".", "/abs", "../../etc", "_x", ".x", ":x", " x", "x ",
	"default", "A", "\u00c9", "E\u0301", "e", "日本", strings.Repeat("가", 100), strings.Repeat("x", commitstep.MaxNameBytes),
	"a\x00b", "a\x00", "\x00", "\x00\x01", "a\x01", "\u00ff", "a\nb", "a\tb", `a"b`, `a\b`, "a'b", "'; drop table x; --", "{}", "null", "0", "𝔘", "\u200d",
}

var readTests = []test{
	{"names come back byte for byte, none hidden, none folded", func(w *world) {
		want := map[commitstep.Key]uuid.UUID{}
		var keys []commitstep.Key
		for _, d := range oddNames {
			for _, k := range []commitstep.Key{key("j", d), key(d, "d")} {
				if want[k] != uuid.Nil {
					continue
				}
				want[k] = w.put(seqSpec{key: k, plan: d, locks: []string{"lock of " + k.String()[:min(900, len(k.String()))]}}).ID
				keys = append(keys, k)
			}
		}
		slices.SortFunc(keys, commitstep.Key.Compare)
		for range 2 {
			var got []commitstep.Key
			for _, l := range w.scan(store.Filter{}) {
				require.Equal(w, want[l.Key], l.ID)
				got = append(got, l.Key)
			}
			require.Equal(w, keys, got, "in key order")
			for k, id := range want {
				require.Equal(w, id, w.get(k).ID)
			}
			for _, job := range oddNames {
				for _, l := range w.scan(store.Filter{Job: job}) {
					require.Equal(w, job, l.Job)
				}
				require.NotEmpty(w, w.scan(store.Filter{Job: job}))
			}
			w.reopen()
		}
		for _, l := range w.claim(w.me.ID, store.ClaimFilter{Limit: len(keys)}) {
			w.complete(l)
			rec, err := w.st.LookupPlan(w.ctx, l.Key, l.PlanID)
			require.NoError(w, err)
			require.Equal(w, l.Key, rec.Key)
			require.Equal(w, l.ID, rec.Sequence)
			delete(want, l.Key)
		}
		require.Empty(w, want)
		require.Len(w, w.history(store.HistoryFilter{}), len(keys))
	}},
	{"watermark sources and locks come back byte for byte", func(w *world) {
		for i, s := range oddNames {
			require.NoError(w, w.st.SetWatermark(w.ctx, move("j", s, commitstep.None(), commitstep.Int(int64(i))), someone))
			require.NoError(w, w.st.SetWatermark(w.ctx, move(s, "s", commitstep.None(), commitstep.Text(s)), someone))
		}
		for i, s := range oddNames {
			v, err := w.st.Watermark(w.ctx, commitstep.WatermarkKey{Job: "j", Source: s})
			require.NoError(w, err)
			require.Equal(w, commitstep.Int(int64(i)), v.Watermark)
			v, err = w.st.Watermark(w.ctx, commitstep.WatermarkKey{Job: s, Source: "s"})
			require.NoError(w, err)
			require.Equal(w, commitstep.Text(s), v.Watermark)
			l := w.put(seqSpec{key: key("locker", s), locks: []string{s}})
			_, err = w.tryPut(seqSpec{key: key("another", s), locks: []string{s}})
			require.ErrorIs(w, err, commitstep.ErrPending)
			_ = l
		}
	}},
	{"nothing there is ErrNotFound", func(w *world) {
		_, err := w.st.Get(w.ctx, key("j", "d"))
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		_, err = w.st.Find(w.ctx, uuid.New())
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		_, err = w.st.Steps(w.ctx, uuid.New(), 0)
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		_, err = w.st.LookupHistory(w.ctx, uuid.New())
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		l := w.put(seqSpec{key: key("j", "d")})
		_, err = w.st.Steps(w.ctx, l.ID, 1)
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		_, err = w.st.Steps(w.ctx, l.ID, -1)
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		require.NoError(w, w.st.Release(w.ctx, store.Fence{ID: uuid.New(), Epoch: 1}))
	}},
	{"a scan is narrowed by job, dataset and state", func(w *world) {
		for i := range 150 {
			l := w.put(seqSpec{key: key(fmt.Sprintf("j%d", i%3), fmt.Sprintf("d%03d", i))})
			if i%5 == 0 {
				require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.ConflictFound, Step: -1}))
			}
		}
		require.Len(w, w.scan(store.Filter{}), 150)
		require.Len(w, w.scan(store.Filter{Job: "j1"}), 50)
		require.Empty(w, w.scan(store.Filter{Job: "j"}))
		require.Len(w, w.scan(store.Filter{States: []commitstep.State{commitstep.Parked}}), 30)
		require.Len(w, w.scan(store.Filter{States: []commitstep.State{commitstep.Pending}}), 120)
		require.Len(w, w.scan(store.Filter{States: []commitstep.State{commitstep.Pending, commitstep.Parked}}), 150)
		require.Empty(w, w.scan(store.Filter{States: []commitstep.State{commitstep.Completed}}))
		got := w.scan(store.Filter{Job: "j0", Match: func(d string) bool { return d < "d010" }})
		require.Equal(w, []string{"d000", "d003", "d006", "d009"}, datasets(got))
		n := 0
		for range w.st.Scan(w.ctx, store.Filter{}) {
			if n++; n == 3 {
				break
			}
		}
		require.Equal(w, 3, n)
	}},
	{"a scan goes on while its reader writes", func(w *world) {
		for i := range 200 {
			w.put(seqSpec{key: key("j", fmt.Sprintf("d%03d", i))})
		}
		n := 0
		for l, err := range w.st.Scan(w.ctx, store.Filter{}) {
			require.NoError(w, err)
			w.complete(l)
			n++
		}
		require.Equal(w, 200, n)
		require.Empty(w, w.scan(store.Filter{}))
	}},
	{"history is listed newest first, narrowed and limited", func(w *world) {
		for i := range 40 {
			w.complete(w.put(seqSpec{key: key(fmt.Sprintf("j%d", i%2), fmt.Sprintf("d%02d", i))}))
		}
		all := w.history(store.HistoryFilter{})
		require.Len(w, all, 40)
		for i, e := range all {
			require.Equal(w, fmt.Sprintf("d%02d", 39-i), e.Dataset)
		}
		require.Len(w, w.history(store.HistoryFilter{Limit: 7}), 7)
		odd := w.history(store.HistoryFilter{Job: "j1", Limit: 2})
		require.Equal(w, []string{"d39", "d37"}, []string{odd[0].Dataset, odd[1].Dataset})
		require.Len(w, w.history(store.HistoryFilter{Match: func(d string) bool { return d == "d05" }}), 1)
	}},
	{"info says what the store is", func(w *world) {
		i := w.st.Info()
		require.NotEqual(w, uuid.Nil, i.ID)
		require.NotEmpty(w, i.Location)
		require.Positive(w, i.Format)
		require.Empty(w, i.SealedFor)
		require.Empty(w, i.Stamped)
		w.reopen()
		require.Equal(w, i.ID, w.st.Info().ID)
		require.True(w, i.Created.Equal(w.st.Info().Created))
	}},
}
