package driver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

var (
	ctx = context.Background()
	key = commitstep.Key{Job: "j", Dataset: "d"}
)

func plan(specs ...commitstep.StepSpec) *commitstep.Plan {
	return commitstep.NewPlan(key.Job, key.Dataset).Step(specs...)
}

func move(source string, from, to commitstep.Watermark) commitstep.StepSpec {
	return watermark.Set(source, from, to)
}

func TestPublishRunsStagesInOrderAndMovesWatermarkLast(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	p := plan(put("a"), put("b")).Then(put("c")).Then(move("s", commitstep.None(), commitstep.Int(100)))
	res, err := b.e.Publish(ctx, p)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, 4, res.Executed)
	require.Equal(t, "c", b.w.order[2])
	for _, n := range []string{"a", "b", "c"} {
		require.Equal(t, 1, b.w.count(n))
		require.Equal(t, 1, b.w.settles[n])
	}
	wm, err := b.e.Watermark(ctx, "j", "s")
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(100), wm)
	require.Len(t, b.history(key), 1)
	rep := b.recover("j")
	require.True(t, rep.MayIngest("d"))
	require.Empty(t, rep.Results)
}

func TestZeroReportLetsNothingIn(t *testing.T) {
	t.Parallel()
	require.False(t, driver.Report{}.MayIngest("d"))
}

// A call that answers "fine" without an effect is not done (C01), and is tried
// again.
func TestSuccessWithoutEffectIsNotDone(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["a"] = func(n int, _ *commitstep.Attempt, do func()) error {
		if n > 1 {
			do()
		}
		return nil
	}
	res, err := b.e.Publish(ctx, plan(put("a")).Then(move("s", commitstep.None(), commitstep.Int(1))))
	require.NoError(t, err)
	require.Equal(t, 2, b.w.called("a"))
	require.Equal(t, 1, b.w.count("a"))
	require.Equal(t, driver.StatusCompleted, res.Status)
}

// The effect took place and the answer was lost (C07, C32).
func TestLostAnswerIsRecovered(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("connection reset") },
		"panic": func() error { panic("out of memory while reading the answer") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, nil)
			b.w.execute["a"] = func(_ int, _ *commitstep.Attempt, do func()) error { do(); return fail() }
			res, err := b.e.Publish(ctx, plan(put("a")))
			require.NoError(t, err)
			require.Equal(t, 1, res.Recovered)
			require.Zero(t, res.Executed)
			require.Equal(t, 1, b.w.count("a"))
		})
	}
}

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

// One bad dataset never blocks the rest, whatever its trouble.
func TestRecoverIsolatesDatasets(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	for i := range 30 {
		name := fmt.Sprint("n", i)
		b.w.execute[name] = func(int, *commitstep.Attempt, func()) error { return commitstep.NotSent(errors.New("down")) }
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	for i := range 30 {
		_, err := b.e.Publish(short, commitstep.NewPlan("j", fmt.Sprint("d", i)).Step(put(fmt.Sprint("n", i))))
		require.Error(t, err)
	}
	for i := range 30 {
		_, err := b.e.Publish(ctx, commitstep.NewPlan("j", fmt.Sprint("d", i)).Step(put(fmt.Sprint("n", i))))
		require.Error(t, err, "waiting or pending")
	}
	b.w.mu.Lock()
	for i := range 30 {
		name := fmt.Sprint("n", i)
		switch i % 3 {
		case 0:
			delete(b.w.execute, name)
		case 1:
			b.w.execute[name] = func(int, *commitstep.Attempt, func()) error { panic("boom") }
		case 2:
			b.w.owner[name] = "foreign"
		}
	}
	b.w.mu.Unlock()
	rep := b.recover("j")
	require.True(t, rep.Complete)
	for i := range 30 {
		require.Equal(t, i%3 == 0, rep.MayIngest(fmt.Sprint("d", i)), "d%d", i)
	}
}

func TestPlanIDs(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	p := func(name string) *commitstep.Plan { return plan(put(name)).WithID("run-1") }
	res, err := b.e.Publish(ctx, p("a"))
	require.NoError(t, err)
	require.False(t, res.Already)
	res, err = b.e.Publish(ctx, p("a"))
	require.NoError(t, err)
	require.True(t, res.Already)
	require.Equal(t, 1, b.w.count("a"))
	_, err = b.e.Publish(ctx, p("b"))
	require.ErrorIs(t, err, commitstep.ErrPlanConflict)
	require.Zero(t, b.w.count("b"))

	// Abandoned: the id is used up.
	b.w.owner["c"] = "foreign"
	p2 := func() *commitstep.Plan { return plan(put("c")).WithID("run-2") }
	_, err = b.e.Publish(ctx, p2())
	require.Error(t, err)
	res, err = b.e.Publish(ctx, p2())
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, driver.StatusParked, res.Status)
	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "not needed"}})
	require.NoError(t, err)
	_, err = b.e.Publish(ctx, p2())
	require.ErrorIs(t, err, commitstep.ErrAbandoned)
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

func TestRulesOfPlans(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	for name, p := range map[string]*commitstep.Plan{
		"no steps":             commitstep.NewPlan("j", "d"),
		"no dataset":           commitstep.NewPlan("j", "").Step(put("a")),
		"unknown kind":         plan(commitstep.NewSpec("nobody.knows", nil)),
		"data after watermark": plan(move("s", commitstep.None(), commitstep.Int(1))).Then(put("a")),
		"same watermark twice": plan(put("a")).Then(move("s", commitstep.None(), commitstep.Int(1)), move("s", commitstep.None(), commitstep.Int(2))),
		"irreversible shares":  plan(put("a"), final("f")),
		"irreversible shares2": plan(final("f"), put("a")),
		"secret":               plan(commitstep.NewSpec("test.put", map[string]string{"name": "a", "password": "x"})),
		"stale watermark":      plan(put("a")).Then(move("s", commitstep.Int(5), commitstep.Int(6))),
	} {
		res, err := b.e.Publish(ctx, p)
		require.Error(t, err, name)
		require.Empty(t, res.Status, name)
		require.NotContains(t, err.Error(), "\n", name)
	}
	require.Empty(t, b.w.calls)
	require.Empty(t, b.history(key))
	require.True(t, b.recover("j").MayIngest("d"))
}

// A unit without files still says how far its source was read (C57).
func TestEmptyUnitMovesItsWatermark(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	_, err := b.e.Publish(ctx, plan(move("s", commitstep.None(), commitstep.Int(7))))
	require.NoError(t, err)
	wm, err := b.e.Watermark(ctx, "j", "s")
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(7), wm)
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

func TestGuardStopsLaterEffects(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.w.execute["c"] = func(_ int, _ *commitstep.Attempt, do func()) error {
		do()
		b.w.mu.Lock()
		b.w.guardErr = fmt.Errorf("claim lost: %w", commitstep.ErrFenced)
		b.w.mu.Unlock()
		return nil
	}
	res, err := b.e.Publish(ctx, plan(claim("c")).Then(put("a")))
	require.Error(t, err)
	require.Equal(t, driver.StatusFenced, res.Status)
	require.Zero(t, b.w.called("a"))
	// After a restart the guard is asked again, although its step is recorded.
	b.restart()
	rep := b.recover("j")
	require.Equal(t, driver.StatusFenced, rep.Results[0].Status)
	require.Zero(t, b.w.called("a"))
	b.w.mu.Lock()
	b.w.guardErr = nil
	b.w.mu.Unlock()
	require.True(t, b.recover("j").MayIngest("d"))
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

func TestStopFinishesTheEffectInFlight(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	stop, cancel := context.WithCancel(ctx)
	b.w.execute["a"] = func(_ int, _ *commitstep.Attempt, do func()) error {
		cancel()
		do()
		return nil
	}
	res, err := b.e.Publish(stop, plan(put("a")).Then(put("b")))
	require.Error(t, err)
	require.Equal(t, driver.StatusStopped, res.Status)
	require.Equal(t, 1, b.w.count("a"))
	require.Zero(t, b.w.called("b"))
	b.restart()
	rep := b.recover("j")
	require.True(t, rep.MayIngest("d"))
	require.Equal(t, 1, rep.Results[0].Recorded, "what was known had been recorded")
	require.Equal(t, 1, b.w.count("a"))
}

func TestUnsupportedIsLeftPending(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.killAt("put.after", func(e *driver.Engine) { _, _ = e.Publish(ctx, plan(put("a"))) })
	e, err := driver.New(driver.Config{Store: b.st, Kinds: commitstep.NewRegistry(watermark.Kind(b.st)), Clock: b.clock})
	require.NoError(t, err)
	rep, err := e.Recover(ctx, "j")
	require.NoError(t, err)
	require.Equal(t, driver.StatusUnsupported, rep.Results[0].Status)
	require.False(t, rep.MayIngest("d"))
	require.NoError(t, e.Close(ctx))
	require.True(t, b.recover("j").MayIngest("d"))
}

func TestTwoEnginesRunASequenceOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	started, goOn := make(chan struct{}), make(chan struct{})
	b.w.execute["a"] = func(_ int, _ *commitstep.Attempt, do func()) error {
		close(started)
		<-goOn
		do()
		return nil
	}
	done := make(chan error, 1)
	go func() { _, err := b.e.Publish(ctx, plan(put("a"))); done <- err }()
	<-started
	other, err := driver.New(driver.Config{Store: b.st, Kinds: commitstep.NewRegistry(b.w.kinds()...), Clock: b.clock, Owner: "other"})
	require.NoError(t, err)
	rep, err := other.Recover(ctx, "j")
	require.NoError(t, err)
	require.Equal(t, driver.StatusBusy, rep.Results[0].Status)
	require.NotEmpty(t, rep.Results[0].Holder)
	require.False(t, rep.MayIngest("d"))
	close(goOn)
	require.NoError(t, <-done)
	require.NoError(t, other.Close(ctx))
	require.Equal(t, 1, b.w.count("a"))
}

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	b.killAt("execute.after#0", func(e *driver.Engine) { _, _ = e.Publish(ctx, plan(put("a")).Then(put("b"))) })
	before, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	rep, err := b.e.Recover(ctx, "j", driver.DryRun())
	require.NoError(t, err)
	require.Equal(t, 1, rep.Results[0].InPlace)
	require.False(t, rep.MayIngest("d"))
	after, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	require.Equal(t, before.Condition, after.Condition)
	require.Zero(t, b.w.called("b"))
}

// Every point of a run: kill there, recover, and each effect took place once.
func TestKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	points := []string{"put.before", "put.after", "execute.before#0", "execute.after#0", "settle.after#0", "record.after#1", "execute.before#1", "execute.after#1",
		"execute.before#2", "execute.after#2", "settle.after#2", "record.after#2", "execute.before#3", "complete.before", "complete.after"}
	for _, pt := range points {
		t.Run(pt, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, func(c *driver.Config) { c.StepConcurrency = 1 })
			p := plan(put("a"), put("b")).Then(put("c")).Then(move("s", commitstep.None(), commitstep.Int(9)))
			b.killAt(pt, func(e *driver.Engine) { _, _ = e.Publish(ctx, p) })
			rep := b.recover("j")
			require.True(t, rep.MayIngest("d"))
			want := 1
			if pt == "put.before" {
				want = 0
			}
			for _, n := range []string{"a", "b", "c"} {
				require.Equal(t, want, b.w.count(n), n)
			}
			require.Len(t, b.history(key), want)
		})
	}
}
