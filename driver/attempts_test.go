package driver_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// A step that always fails is parked after the cap, and the others go on (C65,
// C66), now and at every later start.
func TestAttemptsAreCappedAcrossRestarts(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["bad"] = func(int, *commitstep.Attempt, func()) error { return errors.New("no") }
	_, err := b.e.Publish(ctx, plan(put("bad")).Then(move("s", commitstep.None(), commitstep.Int(1))))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, commitstep.AttemptsExhausted, nf.Result.Reason)
	require.Equal(t, 4, b.w.called("bad"))

	for range 3 {
		b.restart()
		_, err = b.e.Publish(ctx, commitstep.NewPlan("j", "good").Step(put(fmt.Sprint("good", b.w.called("bad"), time.Now().UnixNano()))))
		require.NoError(t, err)
		rep := b.recover("j")
		require.False(t, rep.MayIngest("d"))
		require.True(t, rep.MayIngest("good"))
	}
	require.Equal(t, 4, b.w.called("bad"), "a parked dataset is skipped")
	_, err = b.e.Publish(ctx, plan(put("other")))
	require.ErrorIs(t, err, commitstep.ErrPending)

	// retry resets the counters; the cause is repaired.
	b.w.mu.Lock()
	delete(b.w.execute, "bad")
	b.w.mu.Unlock()
	insp, err := b.e.Inspect(ctx, key, true)
	require.NoError(t, err)
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecideRetry, Step: -1, Version: insp.Version, Person: store.Person{Name: "ann", Reason: "disk replaced"}})
	require.NoError(t, err)
	rep := b.recover("j")
	require.True(t, rep.MayIngest("d"))
	require.Equal(t, 1, b.w.count("bad"))
}

// A step that kills its process is capped too: its attempts have no outcome.
func TestKillingStepIsCapped(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.killAt("execute.before#0", func(e *driver.Engine) { _, _ = e.Publish(ctx, plan(put("a"))) })
	for range 4 {
		b.killAt("execute.before#0", func(e *driver.Engine) {
			live, err := b.st.Get(ctx, key)
			require.NoError(t, err)
			require.Equal(t, commitstep.Pending, live.State)
			runOne(e)
		})
	}
	rep := b.recover("j")
	require.Equal(t, driver.StatusParked, rep.Results[0].Status)
	require.Equal(t, commitstep.AttemptsExhausted, rep.Results[0].Reason)
	require.Contains(t, rep.Results[0].Message, "process died")
	require.Zero(t, b.w.called("a"))
}

// runOne recovers on the caller's goroutine, so that a kill point's panic
// reaches it.
func runOne(e *driver.Engine) { driver.RecoverInline(e, "j") }

// What cannot be reached waits, counts no attempt, and ends with the budget.
func TestNotSentWaitsAndIsNotCounted(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["a"] = func(int, *commitstep.Attempt, func()) error {
		return commitstep.NotSent(errors.New("connection refused"))
	}
	started := b.clock.Now()
	res, err := b.e.Publish(ctx, plan(put("a")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, driver.StatusWaiting, res.Status)
	require.Equal(t, 2*time.Minute, b.clock.Now().Sub(started))
	require.Greater(t, b.w.called("a"), 4)

	rep := b.recover("j")
	require.Equal(t, 1, rep.Counts[driver.StatusWaiting])
	require.False(t, rep.MayIngest("d"))
	insp, err := b.e.Inspect(ctx, key, false)
	require.NoError(t, err)
	require.Zero(t, insp.StepViews[0].Progress.Failed)
	// Whoever looks at what is pending reads why.
	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	require.Equal(t, commitstep.Pending, live.State)
	require.Contains(t, live.Message, "waiting: stage 1 step 1")
	require.Contains(t, live.Message, "connection refused")

	b.w.mu.Lock()
	delete(b.w.execute, "a")
	b.w.mu.Unlock()
	require.True(t, b.recover("j").MayIngest("d"))
	require.Equal(t, 1, b.w.count("a"))
}

func TestVerifyThatCannotLookWaits(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.verify["a"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) {
		return commitstep.Verdict{}, errors.New("safe mode")
	}
	res, err := b.e.Publish(ctx, plan(put("a")))
	require.Error(t, err)
	require.Equal(t, driver.StatusWaiting, res.Status)
	require.Contains(t, res.Message, "safe mode")
	require.Zero(t, b.w.called("a"))
}

func TestPermanentFailureBurnsNoAttempts(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["a"] = func(int, *commitstep.Attempt, func()) error {
		return commitstep.Permanent(errors.New("encryption zones differ"))
	}
	res, err := b.e.Publish(ctx, plan(put("a")))
	require.Error(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
	require.Equal(t, 1, b.w.called("a"))
}
