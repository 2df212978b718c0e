package driver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// Steps of one stage have no order, so a watermark beside its data could move
// although the data never arrived.
func TestWatermarkSharesNoStageWithData(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	_, err := b.e.Publish(ctx, plan(put("a"), move("s", commitstep.None(), commitstep.Int(1))))
	var pe *commitstep.PlanError
	require.ErrorAs(t, err, &pe)
	require.Contains(t, err.Error(), "shares a stage with data steps")
	require.Zero(t, b.w.called("a"))
}

// A report about all jobs lets none of them ingest.
func TestReportWithoutAJobLetsNothingIn(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.owner["a"] = "foreign"
	_, err := b.e.Publish(ctx, plan(put("a")))
	require.Error(t, err)
	rep, err := b.e.Recover(ctx, "")
	require.NoError(t, err)
	require.False(t, rep.Complete)
	require.False(t, rep.MayIngest("d"))
	require.False(t, rep.MayIngest("another"))
}

// A step that ignores its context holds up neither the recovery of others nor
// its end.
func TestRecoverEndsAlthoughAStepHangs(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	for _, d := range []string{"hangs", "works"} {
		b.killAt("put.after", func(e *driver.Engine) {
			_, _ = e.Publish(ctx, commitstep.NewPlan("j", d).Step(put(d)))
		})
	}
	b.stop()
	b.cfg.Clock, b.cfg.Grace = nil, 50*time.Millisecond
	b.cfg.Policy.RecoverBudget = 50 * time.Millisecond
	b.reopen()
	release := make(chan struct{})
	b.w.execute["hangs"] = func(_ int, _ *commitstep.Attempt, do func()) error {
		<-release
		do()
		return nil
	}
	rep := b.recover("j")
	require.False(t, rep.Complete)
	require.False(t, rep.MayIngest("hangs"))
	require.False(t, rep.MayIngest("works"), "the job was not read to its end")
	require.Equal(t, 1, b.w.count("works"))
	var hung driver.Result
	for _, r := range rep.Results {
		if r.Key.Dataset == "hangs" {
			hung = r
		}
	}
	require.Equal(t, driver.StatusWaiting, hung.Status)
	require.Contains(t, hung.Message, "has not returned")
	close(release)
	require.Eventually(t, func() bool { return b.count("completed") == 2 }, 10*time.Second, time.Millisecond)
}

// So it does not hold up a caller whose context ended.
func TestPublishReturnsAlthoughAStepHangs(t *testing.T) {
	t.Parallel()
	b := newBed(t, func(c *driver.Config) { c.Grace = 20 * time.Millisecond })
	entered, release := make(chan struct{}), make(chan struct{})
	b.w.execute["a"] = func(_ int, _ *commitstep.Attempt, do func()) error {
		close(entered)
		<-release
		do()
		return nil
	}
	stop, cancel := context.WithCancel(ctx)
	go func() { <-entered; cancel() }()
	res, err := b.e.Publish(stop, plan(put("a")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, driver.StatusStopped, res.Status)
	require.Contains(t, res.Message, "has not returned")
	rep := b.recover("j")
	require.Equal(t, driver.StatusBusy, rep.Results[0].Status, "the run still holds its claim")
	close(release)
	require.Eventually(t, func() bool {
		_, err := b.st.Get(ctx, key)
		_, held, _ := b.held()
		return errors.Is(err, commitstep.ErrNotFound) || !held
	}, 10*time.Second, time.Millisecond)
}

// What the completion was to apply is not reported as done when it failed.
func TestFailedCompletionReportsNoWatermark(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.killAt("complete.before", func(e *driver.Engine) {
		_, _ = e.Publish(ctx, plan(put("a")).Then(move("s", commitstep.None(), commitstep.Int(1))))
	})
	failing := &failingComplete{Full: b.st}
	e, err := driver.New(driver.Config{Store: failing, Kinds: b.registry(), Clock: b.clock})
	require.NoError(t, err)
	rep, err := e.Recover(ctx, "j")
	require.NoError(t, err)
	require.Equal(t, driver.StatusWaiting, rep.Results[0].Status)
	require.Zero(t, rep.Results[0].Executed)
	for _, s := range rep.Results[0].Steps {
		require.NotEqual(t, "watermark.set", s.Kind)
	}
	require.NoError(t, e.Close(ctx))
	require.True(t, b.recover("j").MayIngest("d"))
}

type failingComplete struct{ store.Full }

func (s *failingComplete) Complete(context.Context, store.Fence, bool, store.HistoryNotes, ...store.Event) error {
	return errors.New("no space left")
}

// A step that can be repeated is executed on the word of Verify alone.
func TestAgainIsForIrreversibleSteps(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.verify["a"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) { return commitstep.IsUnknown("gone"), nil }
	_, err := b.e.Publish(ctx, plan(put("a")))
	require.Error(t, err)
	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecideNotPublished, Step: -1, Version: live.Version, Again: true, Person: store.Person{Name: "ann", Reason: "not there"}})
	require.ErrorIs(t, err, commitstep.ErrDecision)
}

func TestMisuseIsAnError(t *testing.T) {
	t.Parallel()
	b := newBed(t, func(c *driver.Config) {
		c.Observer = driver.ObserverFunc(func(context.Context, driver.Event) { panic("observer") })
	})
	_, err := b.e.Publish(ctx, nil)
	require.Error(t, err)
	_, err = b.e.Validate(ctx, nil)
	require.Error(t, err)
	_, err = b.e.Publish(ctx, plan(put("a")))
	require.NoError(t, err, "a panic of the observer decides nothing")
	stop, cancel := context.WithCancel(ctx)
	cancel()
	res, err := b.e.Publish(stop, plan(put("b")))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "nothing was stored")
	require.Empty(t, res.Status)
}
