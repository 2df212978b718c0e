package driver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
