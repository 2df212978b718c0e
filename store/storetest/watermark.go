package storetest

import (
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func (w *world) watermarks(job string) []commitstep.WatermarkValue {
	w.Helper()
	var out []commitstep.WatermarkValue
	for v, err := range w.st.ListWatermarks(w.ctx, job) {
		require.NoError(w, err)
		out = append(out, v)
	}
	return out
}

var watermarkTests = []test{
	{"none until set, then as set, listed by job and source", func(w *world) {
		m := move("b", "s", commitstep.None(), commitstep.Int(-5))
		_, err := w.st.Watermark(w.ctx, m.WatermarkKey)
		require.ErrorIs(w, err, commitstep.ErrNotFound)
		require.NoError(w, w.st.SetWatermark(w.ctx, m, someone))
		for i := range 30 {
			require.NoError(w, w.st.SetWatermark(w.ctx, move("a", fmt.Sprintf("s%02d", i), commitstep.None(), commitstep.Text("t").InEpoch(3)), someone))
		}
		for range 2 {
			require.Equal(w, commitstep.Int(-5), w.watermark(m))
			all := w.watermarks("")
			require.Len(w, all, 31)
			for i := range 30 {
				require.Equal(w, commitstep.WatermarkKey{Job: "a", Source: fmt.Sprintf("s%02d", i)}, all[i].WatermarkKey)
				require.Equal(w, commitstep.Text("t").InEpoch(3), all[i].Watermark)
				require.Equal(w, uuid.Nil, all[i].Sequence, "a person set it")
				require.False(w, all[i].Unaccepted)
			}
			require.Len(w, w.watermarks("b"), 1)
			require.Empty(w, w.watermarks("c"))
			w.reopen()
		}
	}},
	{"set by hand is compare-and-set, and may go back", func(w *world) {
		require.NoError(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(100)), someone))
		err := w.st.SetWatermark(w.ctx, move("j", "s", commitstep.Int(90), commitstep.Int(95)), someone)
		var stale *store.StaleError
		require.ErrorAs(w, err, &stale)
		require.Equal(w, commitstep.Int(100), stale.Stored)
		require.Error(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(1)), someone))
		m := move("j", "s", commitstep.Int(100), commitstep.Int(50))
		require.NoError(w, w.st.SetWatermark(w.ctx, m, someone))
		require.Equal(w, commitstep.Int(50), w.watermark(m))
		rows := w.audit()
		require.Len(w, rows, 2)
		require.Equal(w, "watermark.set", rows[1].Action)
		require.Equal(w, "100", rows[1].Before)
		require.Equal(w, "50", rows[1].After)
		require.Equal(w, "j", rows[1].Key.Job)
		require.Error(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.Int(50), commitstep.None()), someone))
		require.ErrorIs(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.Int(50), commitstep.Int(51)), store.Person{Name: "x", Reason: "no"}), commitstep.ErrDecision)
		require.Equal(w, commitstep.Int(50), w.watermark(m))
	}},
	{"set by hand is refused while a live sequence names the key", func(w *world) {
		m := move("j", "s", commitstep.None(), commitstep.Int(7))
		l := w.put(seqSpec{key: key("j", "d"), locks: []string{m.Lock()}, moves: []commitstep.WatermarkMove{m}})
		err := w.st.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(1)), someone)
		var pending *commitstep.PendingError
		require.ErrorAs(w, err, &pending)
		require.Equal(w, l.ID, pending.ID)
		require.Empty(w, w.audit())
		require.NoError(w, w.st.SetWatermark(w.ctx, move("j", "s2", commitstep.None(), commitstep.Int(1)), someone))
		w.complete(l, store.Event{Type: store.EventMove, Step: 0, Move: m})
		require.NoError(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.Int(7), commitstep.Int(8)), someone))
	}},
	{"in a store that was never adopted every job is accepted", func(w *world) {
		un, err := w.st.Unaccepted(w.ctx, "j")
		require.NoError(w, err)
		require.False(w, un)
		_, err = w.st.AcceptWatermarks(w.ctx, "j", someone)
		require.NoError(w, err)
		require.Len(w, w.audit(), 1)
	}},
}

var adminTests = []test{
	{"a sealed store refuses puts and watermark writes, and names the new one", func(w *world) {
		if w.h.Seal == nil {
			return
		}
		m := move("j", "s", commitstep.None(), commitstep.Int(7))
		l := w.put(seqSpec{key: key("j", "d"), locks: []string{m.Lock()}, moves: []commitstep.WatermarkMove{m}})
		w.h.Seal(w, w.st, "pg://new")
		for range 2 {
			require.Equal(w, "pg://new", w.st.Info().SealedFor)
			_, err := w.tryPut(seqSpec{key: key("j", "e")})
			require.ErrorIs(w, err, commitstep.ErrSealed)
			require.ErrorContains(w, err, "pg://new")
			require.ErrorIs(w, w.st.SetWatermark(w.ctx, move("j", "x", commitstep.None(), commitstep.Int(1)), someone), commitstep.ErrSealed)
			err = w.st.Complete(w.ctx, fence(l), false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 0, Move: m})
			require.Error(w, err)
			require.Equal(w, commitstep.None(), w.watermark(m))
			require.Len(w, w.scan(store.Filter{}), 1)
			w.reopen()
		}
	}},
	{"a seal outlives the stamp, the copy of the store and the adoption", func(w *world) {
		if w.h.Seal == nil {
			return
		}
		a := w.put(seqSpec{key: key("j", "a")})
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		w.h.Seal(w, w.st, "pg://new")
		runsNothing := func() {
			rows := len(w.audit())
			require.Equal(w, "pg://new", w.st.Info().SealedFor)
			if st, ok := w.st.(store.Stamper); ok {
				err := st.Stamp(w.ctx, someone)
				require.ErrorIs(w, err, commitstep.ErrSealed, "who adopts it would think that it runs again")
				require.ErrorContains(w, err, "pg://new")
			}
			_, err := w.st.Adopt(w.ctx, someone)
			require.ErrorIs(w, err, commitstep.ErrSealed)
			require.ErrorContains(w, err, "pg://new")
			require.Len(w, w.audit(), rows, "nothing was changed")
			require.Equal(w, "pg://new", w.st.Info().SealedFor)
			require.Equal(w, commitstep.Pending, w.get(a.Key).State)
			w.me = w.join("comes later")
			_, err = w.tryPut(seqSpec{key: key("j", "b")})
			require.ErrorIs(w, err, commitstep.ErrSealed)
			_, err = w.st.Claim(w.ctx, w.me.ID, store.ClaimFilter{})
			require.ErrorIs(w, err, commitstep.ErrSealed)
			_, err = w.st.ClaimOne(w.ctx, w.me.ID, a.Key)
			require.ErrorIs(w, err, commitstep.ErrSealed)
			require.ErrorIs(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(1)), someone), commitstep.ErrSealed)
			require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		}
		for range 2 {
			runsNothing()
			w.reopen()
			require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		}
		if w.h.Copy == nil {
			return
		}
		cp := w.h.Copy(w, w.st)
		require.NotEmpty(w, cp.Info().Stamped)
		w.st, w.joined = cp, nil
		for range 2 {
			runsNothing()
			w.reopen()
			require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		}
		// A copy that broke off may be ended from it: since the seal nothing changed.
		from, ok := w.st.(Copyable)
		if !ok {
			return
		}
		to := w.h.Open(w).(Copyable)
		require.ErrorIs(w, second(store.Copy(w.ctx, from, to, "another", someone)), commitstep.ErrSealed)
		rep, err := store.Copy(w.ctx, from, to, "pg://new", someone)
		require.NoError(w, err)
		require.Equal(w, 1, rep.Sequences)
		require.Empty(w, to.Info().SealedFor)
	}},
	{"what is stamped is neither sealed nor copied before it is adopted", func(w *world) {
		from, ok := w.st.(Copyable)
		if !ok {
			return
		}
		w.put(seqSpec{key: key("j", "a")})
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		var stamped []Copyable
		if w.h.Copy != nil {
			stamped = append(stamped, w.h.Copy(w, w.st).(Copyable))
		}
		if st, ok := w.st.(store.Stamper); ok {
			require.NoError(w, st.Stamp(w.ctx, someone))
			stamped = append(stamped, from)
		}
		for _, st := range stamped {
			to := w.h.Open(w).(Copyable)
			require.ErrorIs(w, second(store.Copy(w.ctx, st, to, "pg://new", someone)), commitstep.ErrStamped)
			require.ErrorIs(w, st.Seal(w.ctx, "pg://new", someone), commitstep.ErrStamped)
			require.Empty(w, st.Info().SealedFor)
			_, err := st.Adopt(w.ctx, someone)
			require.NoError(w, err)
			require.NoError(w, second(store.Copy(w.ctx, st, to, "pg://new", someone)))
			require.Equal(w, "pg://new", st.Info().SealedFor)
		}
	}},
	{"a stamped copy runs nothing until it is adopted, and no job ingests until accepted", func(w *world) {
		if w.h.Copy == nil {
			return
		}
		require.NoError(w, w.st.SetWatermark(w.ctx, move("j1", "s", commitstep.None(), commitstep.Int(7)), someone))
		a := w.put(seqSpec{key: key("j1", "a")})
		b := w.parked(seqSpec{key: key("j2", "b")}, commitstep.ConflictFound)
		c := w.put(seqSpec{key: key("j1", "c"), clean: cleanupStep()})
		require.NoError(w, w.st.Complete(w.ctx, fence(c), true, store.HistoryNotes{}))
		original := w.st
		_, err := w.st.Adopt(w.ctx, someone)
		require.ErrorIs(w, err, commitstep.ErrDecision, "there is nothing to adopt")

		cp := w.h.Copy(w, w.st)
		require.NotEmpty(w, cp.Info().Stamped)
		require.Empty(w, original.Info().Stamped)
		w.st, w.joined = cp, nil
		w.me = w.join("on the copy")
		_, err = w.tryPut(seqSpec{key: key("j1", "x")})
		require.ErrorIs(w, err, commitstep.ErrStamped)
		_, err = w.st.Claim(w.ctx, w.me.ID, store.ClaimFilter{})
		require.ErrorIs(w, err, commitstep.ErrStamped)
		_, err = w.st.ClaimOne(w.ctx, w.me.ID, a.Key)
		require.ErrorIs(w, err, commitstep.ErrStamped)
		_, err = w.st.Decide(w.ctx, decision(b, store.DecideRetry))
		require.ErrorIs(w, err, commitstep.ErrStamped)
		require.ErrorIs(w, w.st.SetWatermark(w.ctx, move("j1", "s", commitstep.Int(7), commitstep.Int(8)), someone), commitstep.ErrStamped)
		require.Equal(w, commitstep.Pending, w.get(a.Key).State)
		require.Len(w, w.audit(), 1)

		n, err := w.st.Adopt(w.ctx, someone)
		require.NoError(w, err)
		require.Equal(w, 2, n)
		w.reopen()
		require.Empty(w, w.st.Info().Stamped)
		require.NotEqual(w, original.Info().ID, w.st.Info().ID)
		for _, k := range []commitstep.Key{a.Key, b.Key} {
			require.Equal(w, commitstep.Parked, w.get(k).State)
			require.Equal(w, commitstep.Adopted, w.get(k).Reason)
		}
		rows := w.audit()
		require.Equal(w, "store.adopt", rows[len(rows)-1].Action)
		for _, job := range []string{"j1", "j2", "never seen"} {
			un, err := w.st.Unaccepted(w.ctx, job)
			require.NoError(w, err)
			require.True(w, un, job)
		}
		require.True(w, w.watermarks("j1")[0].Unaccepted)
		// One that the copy lacks may have been set since.
		lacks := func(job string) bool {
			v, err := w.st.Watermark(w.ctx, commitstep.WatermarkKey{Job: job, Source: "never set"})
			require.ErrorIs(w, err, commitstep.ErrNotFound)
			require.True(w, v.Watermark.IsNone())
			return v.Unaccepted
		}
		require.True(w, lacks("j1"))
		count, err := w.st.AcceptWatermarks(w.ctx, "j1", someone)
		require.NoError(w, err)
		require.Equal(w, 1, count)
		count, err = w.st.AcceptWatermarks(w.ctx, "never seen", someone)
		require.NoError(w, err)
		require.Zero(w, count)
		w.reopen()
		for job, want := range map[string]bool{"j1": false, "j2": true, "never seen": false} {
			un, err := w.st.Unaccepted(w.ctx, job)
			require.NoError(w, err)
			require.Equal(w, want, un, job)
		}
		require.False(w, w.watermarks("j1")[0].Unaccepted)
		require.False(w, lacks("j1"))
		require.True(w, lacks("j2"))
		_, err = w.st.Adopt(w.ctx, someone)
		require.ErrorIs(w, err, commitstep.ErrDecision)
		_, err = w.st.Decide(w.ctx, decision(w.get(a.Key), store.DecideRetry))
		require.NoError(w, err)
	}},
	{"a store that was stamped by hand runs nothing until it is adopted", func(w *world) {
		st, ok := w.st.(store.Stamper)
		if !ok {
			return
		}
		l := w.put(seqSpec{key: key("j", "d"), plan: "p"})
		require.ErrorIs(w, st.Stamp(w.ctx, someone), commitstep.ErrBusy, "a driver is at work")
		require.ErrorContains(w, st.Stamp(w.ctx, someone), "me on host")
		require.Empty(w, w.st.Info().Stamped)
		require.ErrorIs(w, st.Stamp(w.ctx, store.Person{Name: "op"}), commitstep.ErrDecision)
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		require.NoError(w, st.Stamp(w.ctx, someone))
		require.Contains(w, w.st.Info().Stamped, someone.Reason)
		rows := w.audit()
		require.Len(w, rows, 1)
		require.Equal(w, "store.stamp", rows[0].Action)
		for range 2 {
			w.me = w.join("comes later")
			_, err := w.tryPut(seqSpec{key: key("j", "x")})
			require.ErrorIs(w, err, commitstep.ErrStamped)
			_, err = w.st.Claim(w.ctx, w.me.ID, store.ClaimFilter{})
			require.ErrorIs(w, err, commitstep.ErrStamped)
			_, err = w.st.ClaimOne(w.ctx, w.me.ID, l.Key)
			require.ErrorIs(w, err, commitstep.ErrStamped)
			require.ErrorIs(w, w.st.SetWatermark(w.ctx, move("j", "s", commitstep.None(), commitstep.Int(8)), someone), commitstep.ErrStamped)
			require.Equal(w, commitstep.Pending, w.get(l.Key).State)
			w.reopen()
			require.NotEmpty(w, w.st.Info().Stamped)
		}
		n, err := w.st.Adopt(w.ctx, someone)
		require.NoError(w, err)
		require.Equal(w, 1, n)
		require.Empty(w, w.st.Info().Stamped)
		require.Equal(w, commitstep.Adopted, w.get(l.Key).Reason)
		un, err := w.st.Unaccepted(w.ctx, "j")
		require.NoError(w, err)
		require.True(w, un)
	}},
	{"audit entries need a person, a reason and an action", func(w *world) {
		require.ErrorIs(w, w.st.RecordAudit(w.ctx, store.AuditEntry{Action: "x"}), commitstep.ErrDecision)
		require.Error(w, w.st.RecordAudit(w.ctx, store.AuditEntry{Person: someone}))
		require.Empty(w, w.audit())
	}},
}
