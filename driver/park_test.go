package driver_test

import (
	"errors"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

func TestConflictParksBeforeAnythingMoved(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.owner["b"] = "somebody"
	_, err := b.e.Publish(ctx, plan(put("a"), put("b")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, commitstep.ConflictFound, nf.Result.Reason)
	require.Zero(t, b.w.called("a"))
	require.Zero(t, b.w.called("b"))
}

func TestUnknownParksAfterItsBudgetAndIsNeverExecuted(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.verify["a"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) {
		return commitstep.IsUnknown("neither here nor there"), nil
	}
	started := b.clock.Now()
	_, err := b.e.Publish(ctx, plan(put("a")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, commitstep.PublishUnknown, nf.Result.Reason)
	require.Zero(t, b.w.called("a"))
	require.Equal(t, 2*time.Minute, b.clock.Now().Sub(started))

	// Abandoning while unknown is refused (C31).
	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	person := store.Person{Name: "ann", Reason: "looked at the target"}
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: person})
	require.ErrorIs(t, err, commitstep.ErrDecision)
	// A stale version is refused.
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecidePublished, Step: -1, Version: live.Version + 7, Person: person})
	require.ErrorIs(t, err, commitstep.ErrVersion)
	// So is a decision without a reason.
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecidePublished, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "  ok "}})
	require.ErrorIs(t, err, commitstep.ErrDecision)
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecidePublished, Step: -1, Version: live.Version, Person: person})
	require.NoError(t, err)
	rep := b.recover("j")
	require.True(t, rep.MayIngest("d"))
	require.Zero(t, b.w.called("a"))
	audits := 0
	for a, err := range b.st.ListAudit(ctx) {
		require.NoError(t, err)
		require.Equal(t, "ann", a.Name)
		audits++
	}
	require.Equal(t, 1, audits)
}

func TestAbandonOfPartialEffectsNeedsConsent(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["b"] = func(int, *commitstep.Attempt, func()) error { return errors.New("no") }
	_, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
	require.Error(t, err)
	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	q := driver.Resolution{Key: key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "give it up"}}
	_, err = b.e.Resolve(ctx, q)
	var pe *driver.PartialError
	require.ErrorAs(t, err, &pe)
	require.Len(t, pe.Visible, 1)
	q.AcceptPartial = true
	_, err = b.e.Resolve(ctx, q)
	require.NoError(t, err)
	h := b.history(key)
	require.Equal(t, commitstep.Abandoned, h[0].State)
	require.Len(t, h[0].Notes.PartialVisible, 1)
	require.True(t, b.recover("j").MayIngest("d"))
}

// A watermark that moved on between put and run is a conflict before any data
// moved.
func TestWatermarkAlreadyPastParksFirst(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.killAt("put.after", func(e *driver.Engine) {
		_, _ = e.Publish(ctx, plan(put("a")).Then(move("s", commitstep.None(), commitstep.Int(100))))
	})
	// The store refuses this by hand while a live sequence names it.
	err := b.st.SetWatermark(ctx, commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: "s"}, To: commitstep.Int(150)}, store.Person{Name: "ann", Reason: "by hand"})
	require.ErrorIs(t, err, commitstep.ErrPending)
}

func TestOnParkIsToldUntilItSucceeds(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.parkFail = 2
	b.w.owner["a"] = "foreign"
	_, err := b.e.Publish(ctx, plan(claim("c")).Then(put("a")))
	require.Error(t, err)
	require.Empty(t, b.w.parked)
	b.recover("j")
	require.Empty(t, b.w.parked)
	b.recover("j")
	require.Equal(t, []string{"CONFLICT"}, b.w.parked)
	b.recover("j")
	require.Len(t, b.w.parked, 1)
}

func TestIrreversibleIsNeverExecutedAcrossAnOpenMark(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["f"] = func(_ int, a *commitstep.Attempt, do func()) error {
		if err := a.PointOfNoReturn(ctx, map[string]string{"handle": "h1"}); err != nil {
			return err
		}
		do()
		return nil
	}
	b.w.verify["f"] = func(_ int, a *commitstep.Attempt) (commitstep.Verdict, error) {
		var v map[string]string
		if ok, err := a.NoReturn(&v); ok {
			require.NoError(t, err)
			require.Equal(t, "h1", v["handle"])
			return commitstep.IsUnknown("mark without an outcome"), nil
		}
		return commitstep.Verdict{}, nil
	}
	b.killAt("noreturn.after#0", func(e *driver.Engine) { _, _ = e.Publish(ctx, plan(final("f")).Then(put("after"))) })
	rep := b.recover("j")
	require.Equal(t, commitstep.PublishUnknown, rep.Results[0].Reason)
	require.Equal(t, 1, b.w.called("f"))
	require.Zero(t, b.w.called("after"))
	// not-published --again executes it anew.
	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecideNotPublished, Step: -1, Version: live.Version, Again: true, Person: store.Person{Name: "ann", Reason: "nothing there"}})
	require.NoError(t, err)
	b.w.mu.Lock()
	delete(b.w.verify, "f")
	b.w.mu.Unlock()
	require.True(t, b.recover("j").MayIngest("d"))
	require.Equal(t, 1, b.w.count("f"))
	require.Equal(t, 1, b.w.count("after"))
}
