package driver_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// written counts the writes of a store.
type written struct {
	store.Store
	records atomic.Int64
}

func (w *written) Record(ctx context.Context, f store.Fence, durable bool, events ...store.Event) error {
	w.records.Add(1)
	return w.Store.Record(ctx, f, durable, events...)
}

// shortly recovers for about a minute of the test's clock, in a process of its own.
func (b *bed) shortly(looks int) driver.Report {
	b.t.Helper()
	b.restart()
	some, stop := context.WithCancel(context.Background())
	defer stop()
	b.w.mu.Lock()
	from, script := b.w.looks["a"], b.w.verify["a"]
	b.w.verify["a"] = func(n int, a *commitstep.Attempt) (commitstep.Verdict, error) {
		if n >= from+looks {
			stop()
		}
		return script(n, a)
	}
	b.w.mu.Unlock()
	rep, err := b.e.Recover(some, "j")
	if err != nil {
		require.ErrorIs(b.t, err, context.Canceled)
	}
	b.w.mu.Lock()
	b.w.verify["a"] = script
	b.w.mu.Unlock()
	require.Len(b.t, rep.Results, 1)
	return rep
}

func (b *bed) attempts() commitstep.Progress {
	b.t.Helper()
	live, err := b.st.Get(ctx, key)
	require.NoError(b.t, err)
	p, err := b.st.Steps(ctx, live.ID, 0)
	require.NoError(b.t, err)
	return p.Progress[0]
}

// What nobody can tell is parked after its budget, also when each recover is ended
// sooner; a look that can tell, and a person who says retry, give it a new one.
func TestTheTimeOfUnknownGoesOnAcrossRuns(t *testing.T) {
	t.Parallel()
	const looks = 6 // some seconds
	b := newBed(t, nil)
	verdict := commitstep.IsUnknown("neither here nor there")
	b.w.verify["a"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) { return verdict, nil }
	b.killAt("put.after", func(e *driver.Engine) { _, _ = e.Publish(ctx, plan(put("a"))) })
	first := b.clock.Now()
	for runs := 1; ; runs++ {
		res := b.shortly(looks).Results[0]
		if res.Status == driver.StatusParked {
			require.Equal(t, commitstep.PublishUnknown, res.Reason)
			require.Greater(t, runs, 5)
			break
		}
		require.Equal(t, driver.StatusStopped, res.Status)
		require.LessOrEqual(t, b.clock.Now().Sub(first), 2*time.Minute)
		p := b.attempts()
		require.Equal(t, 1, p.Count, "the one that a publish does not record")
		require.Equal(t, 1, p.Failed)
		require.Equal(t, commitstep.AttemptUnknown, p.Attempts[0].Outcome)
		require.Contains(t, p.Attempts[0].Error, "neither here nor there")
		require.WithinDuration(t, first, p.Attempts[0].Ended, 0)
	}
	require.GreaterOrEqual(t, b.clock.Now().Sub(first), 2*time.Minute)
	require.Zero(t, b.w.called("a"))
	require.Equal(t, commitstep.AttemptFailed, b.attempts().Attempts[0].Outcome)

	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	_, err = b.e.Resolve(ctx, driver.Resolution{Key: key, Decision: store.DecideRetry, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "look again"}})
	require.NoError(t, err)
	require.Equal(t, driver.StatusStopped, b.shortly(looks).Results[0].Status, "a budget of its own")

	// A look can tell, and the step is tried; then it is unknown again, a minute after.
	b.clock.mu.Lock()
	b.clock.now = b.clock.now.Add(time.Minute)
	b.clock.mu.Unlock()
	verdict = commitstep.IsNotDone("nothing there")
	b.w.execute["a"] = func(int, *commitstep.Attempt, func()) error {
		verdict = commitstep.IsUnknown("neither here nor there")
		return nil
	}
	again := b.clock.Now()
	require.Equal(t, driver.StatusStopped, b.shortly(looks).Results[0].Status)
	require.Equal(t, 1, b.w.called("a"))
	require.Equal(t, 2, b.attempts().Count)
	b.restart()
	require.Equal(t, commitstep.PublishUnknown, b.recover("j").Results[0].Reason)
	require.GreaterOrEqual(t, b.clock.Now().Sub(again), 2*time.Minute, "a budget of its own")
	require.Less(t, b.clock.Now().Sub(again), 2*time.Minute+time.Second, "of all runs together")
}

// What was unknown and then is not done has failed, and counts.
func TestWhatWasUnknownAndIsNotDoneCounts(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	unsure := false
	b.w.execute["a"] = func(int, *commitstep.Attempt, func()) error { unsure = true; return errors.New("connection lost") }
	b.w.verify["a"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) {
		if unsure {
			unsure = false
			return commitstep.IsUnknown("neither here nor there"), nil
		}
		return commitstep.Verdict{}, nil // as it is: not done
	}
	_, err := b.e.Publish(ctx, plan(put("a")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, commitstep.AttemptsExhausted, nf.Result.Reason, nf.Result.Message)
	require.Equal(t, 4, b.w.called("a"))
	p := b.attempts()
	require.Equal(t, 4, p.Count)
	require.Equal(t, 4, p.Failed)
}

// Looks at what stays unknown cost one write in all.
func TestLooksAtTheUnknownWriteOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	w := &written{Store: b.st}
	e, err := driver.New(driver.Config{Clock: b.clock, Store: w, Kinds: b.registry()})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(ctx)) }()
	b.w.verify["a"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) {
		return commitstep.IsUnknown("neither here nor there"), nil
	}
	_, err = e.Publish(ctx, plan(put("a")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, commitstep.PublishUnknown, nf.Result.Reason)
	require.Greater(t, b.w.looks["a"], 5)
	require.EqualValues(t, 1, w.records.Load())
}
