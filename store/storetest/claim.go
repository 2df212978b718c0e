package storetest

import (
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func (w *world) claim(owner uuid.UUID, f store.ClaimFilter) []commitstep.Live {
	w.Helper()
	out, err := w.st.Claim(w.ctx, owner, f)
	require.NoError(w, err)
	return out
}

func datasets(ls []commitstep.Live) []string {
	var out []string
	for _, l := range ls {
		out = append(out, l.Dataset)
	}
	return out
}

var claimTests = []test{
	{"gives what no live lease holds, with a higher epoch each time, also to the same owner", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		other := w.join("other")
		require.Empty(w, w.claim(other.ID, store.ClaimFilter{}), "held by its putter")
		require.Empty(w, w.claim(w.me.ID, store.ClaimFilter{}), "its putter runs it already")
		epoch := l.Epoch
		for _, owner := range []commitstep.Instance{other, w.me, w.me, other} {
			require.NoError(w, w.st.Release(w.ctx, store.Fence{ID: l.ID, Epoch: epoch}))
			got := w.claim(owner.ID, store.ClaimFilter{})
			require.Len(w, got, 1)
			require.Greater(w, got[0].Epoch, epoch)
			require.Equal(w, owner.ID, got[0].Owner.ID)
			require.Equal(w, commitstep.Pending, got[0].State)
			require.Equal(w, got[0].Epoch, w.get(l.Key).Epoch)
			epoch = got[0].Epoch
		}
		w.record(commitstep.Live{Header: l.Header, Condition: commitstep.Condition{Epoch: epoch}}, done(0))
		w.reopen()
		got := w.claim(w.me.ID, store.ClaimFilter{})
		require.Len(w, got, 1)
		require.Greater(w, got[0].Epoch, epoch, "an epoch that a write carried is never given again")
	}},
	{"in key order, after a key, up to a limit", func(w *world) {
		var want []string
		for i := range 7 {
			d := fmt.Sprintf("d%d", i)
			want = append(want, d)
			w.put(seqSpec{key: key("j", d)})
		}
		w.put(seqSpec{key: key("a", "first")})
		w.put(seqSpec{key: key("jj", "other job")})
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		w.me = w.join("next")
		f := store.ClaimFilter{Job: "j", Limit: 3}
		var got []string
		for {
			part := w.claim(w.me.ID, f)
			if len(part) == 0 {
				break
			}
			require.LessOrEqual(w, len(part), 3)
			got = append(got, datasets(part)...)
			f.After = &part[len(part)-1].Key
		}
		require.Equal(w, want, got)
		rest := w.claim(w.me.ID, store.ClaimFilter{})
		require.Equal(w, []string{"first", "other job"}, datasets(rest))
	}},
	{"only what the filter matches", func(w *world) {
		for i := range 6 {
			w.put(seqSpec{key: key("j", fmt.Sprintf("d%d", i))})
		}
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		w.me = w.join("next")
		even := w.claim(w.me.ID, store.ClaimFilter{Match: func(d string) bool { return d[1]%2 == 0 }})
		require.Equal(w, []string{"d0", "d2", "d4"}, datasets(even))
	}},
	{"by name: busy says who holds it and until when", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		other := w.join("other")
		for _, owner := range []uuid.UUID{other.ID, w.me.ID} {
			_, err := w.st.ClaimOne(w.ctx, owner, l.Key)
			var busy *store.BusyError
			require.ErrorAs(w, err, &busy)
			require.ErrorIs(w, err, commitstep.ErrBusy)
			require.Equal(w, w.me, busy.Holder)
			require.Equal(w, l.ID, busy.ID)
			require.False(w, busy.Until.IsZero())
		}
		in, until, ok, err := w.st.Holder(w.ctx, l)
		require.NoError(w, err)
		require.True(w, ok)
		require.Equal(w, w.me, in)
		require.False(w, until.IsZero())
		require.NoError(w, w.st.Release(w.ctx, fence(l)))
		_, _, ok, err = w.st.Holder(w.ctx, l)
		require.NoError(w, err)
		require.False(w, ok)
		got, err := w.st.ClaimOne(w.ctx, other.ID, l.Key)
		require.NoError(w, err)
		require.Equal(w, l.ID, got.ID)
		require.Greater(w, got.Epoch, l.Epoch)
		_, err = w.st.ClaimOne(w.ctx, w.me.ID, key("j", "nothing"))
		require.ErrorIs(w, err, commitstep.ErrNotFound)
	}},
	{"fences every write of an earlier holder", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		require.NoError(w, w.st.Release(w.ctx, fence(l)))
		other := w.join("other")
		now := w.claim(other.ID, store.ClaimFilter{})[0]
		old := fence(l)
		require.ErrorIs(w, w.st.Record(w.ctx, old, true, done(0)), commitstep.ErrFenced)
		require.ErrorIs(w, w.st.Record(w.ctx, old, false, done(0)), commitstep.ErrFenced)
		require.ErrorIs(w, w.st.Park(w.ctx, old, store.Parking{Reason: commitstep.ConflictFound, Step: -1}), commitstep.ErrFenced)
		require.ErrorIs(w, w.st.Complete(w.ctx, old, false, store.HistoryNotes{}), commitstep.ErrFenced)
		require.ErrorIs(w, w.st.Complete(w.ctx, store.Fence{ID: l.ID, Epoch: now.Epoch + 1}, false, store.HistoryNotes{}), commitstep.ErrFenced)
		require.NoError(w, w.st.Release(w.ctx, old), "releasing what one no longer holds does nothing")
		in, _, ok, err := w.st.Holder(w.ctx, now)
		require.NoError(w, err)
		require.True(w, ok)
		require.Equal(w, other.ID, in.ID)
		require.False(w, w.progress(l.ID, 0).Done)
		w.record(now, done(0))
		require.True(w, w.progress(l.ID, 0).Done)
	}},
	{"a lease ends when it is not renewed", func(w *world) {
		ttl := w.st.Info().LeaseTTL
		require.Positive(w, ttl)
		l := w.put(seqSpec{key: key("j", "d")})
		other := w.join("other")
		w.h.Advance(w, w.st, ttl*3/4)
		until, err := w.st.Renew(w.ctx, w.me.ID)
		require.NoError(w, err)
		require.False(w, until.IsZero())
		_, err = w.st.Renew(w.ctx, other.ID)
		require.NoError(w, err)
		w.h.Advance(w, w.st, ttl/2)
		require.Empty(w, w.claim(other.ID, store.ClaimFilter{}), "renewed, so still held")
		_, err = w.st.Renew(w.ctx, other.ID)
		require.NoError(w, err)
		w.h.Advance(w, w.st, ttl*3/4)
		got := w.claim(other.ID, store.ClaimFilter{})
		require.Len(w, got, 1)
		require.Greater(w, got[0].Epoch, l.Epoch)
		require.ErrorIs(w, w.st.Record(w.ctx, fence(l), true, done(0)), commitstep.ErrFenced)
		_, err = w.st.Renew(w.ctx, w.me.ID)
		require.ErrorIs(w, err, commitstep.ErrFenced)
		_, err = w.st.Claim(w.ctx, w.me.ID, store.ClaimFilter{})
		require.ErrorIs(w, err, commitstep.ErrFenced)
	}},
	{"leaving frees what was held", func(w *world) {
		w.put(seqSpec{key: key("j", "d")})
		other := w.join("other")
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		require.Len(w, w.claim(other.ID, store.ClaimFilter{}), 1)
		_, err := w.st.Renew(w.ctx, w.me.ID)
		require.ErrorIs(w, err, commitstep.ErrFenced)
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID), "leaving again does nothing")
	}},
	{"parked ones only when asked for, until OnPark was told", func(w *world) {
		a, b := w.put(seqSpec{key: key("j", "a")}), w.put(seqSpec{key: key("j", "b")})
		require.NoError(w, w.st.Park(w.ctx, fence(a), store.Parking{Reason: commitstep.ConflictFound, Step: 0, Message: "m"}))
		require.NoError(w, w.st.Release(w.ctx, fence(b)))
		require.Equal(w, []string{"b"}, datasets(w.claim(w.me.ID, store.ClaimFilter{})))
		parked := w.claim(w.me.ID, store.ClaimFilter{Parked: true})
		require.Equal(w, []string{"a"}, datasets(parked))
		version := w.get(a.Key).Version
		require.NoError(w, w.st.ParkTold(w.ctx, fence(parked[0])))
		require.NoError(w, w.st.Release(w.ctx, fence(parked[0])))
		require.True(w, w.get(a.Key).ParkTold)
		require.Equal(w, version, w.get(a.Key).Version, "a person's decision stays possible")
		require.Empty(w, w.claim(w.me.ID, store.ClaimFilter{Parked: true}))
	}},
	{"two instances share the work without overlap", func(w *world) {
		for i := range 50 {
			w.put(seqSpec{key: key("j", fmt.Sprintf("d%02d", i))})
		}
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		a, b := w.join("a"), w.join("b")
		var got []string
		for i := 0; ; i++ {
			owner := []uuid.UUID{a.ID, b.ID}[i%2]
			part := w.claim(owner, store.ClaimFilter{Limit: 3})
			if len(part) == 0 {
				break
			}
			got = append(got, datasets(part)...)
		}
		require.Len(w, got, 50)
		slices.Sort(got)
		require.Len(w, slices.Compact(got), 50)
		w.me = a
	}},
	{"a new term of an instance does not hold what the old one held", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		_, err := w.st.Join(w.ctx, w.me)
		require.NoError(w, err)
		got := w.claim(w.me.ID, store.ClaimFilter{})
		require.Len(w, got, 1)
		require.Greater(w, got[0].Epoch, l.Epoch)
	}},
	{"opening again keeps the sequences and the order of epochs", func(w *world) {
		l := w.put(seqSpec{key: key("j", "d")})
		w.record(l, done(1))
		w.reopen()
		_, _, ok, err := w.st.Holder(w.ctx, l)
		require.NoError(w, err)
		require.False(w, ok)
		got := w.claim(w.me.ID, store.ClaimFilter{})
		require.Len(w, got, 1)
		require.Greater(w, got[0].Epoch, l.Epoch)
		require.True(w, w.progress(l.ID, 1).Done)
	}},
}
