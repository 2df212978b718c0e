package driver_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/stretchr/testify/require"
)

// frozen is a stage of many steps on a server that answers nothing from some
// moment on: every call takes its whole time limit, which the clock shows.
func frozen(b *bed, steps int, reached func(step int) bool) *commitstep.Plan {
	timeout := func() error {
		_ = b.clock.Sleep(ctx, 3*time.Second)
		return errors.New("no answer within 3s")
	}
	p := commitstep.NewPlan("j", "d")
	for i := range steps {
		name := fmt.Sprint(i)
		p.Step(put(name))
		b.w.verify[name] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) {
			if !reached(i) {
				return commitstep.Verdict{}, timeout()
			}
			return commitstep.Verdict{}, nil
		}
		b.w.execute[name] = func(_ int, _ *commitstep.Attempt, do func()) error {
			if !reached(i) {
				return commitstep.NotSent(timeout())
			}
			do()
			return nil
		}
	}
	return p
}

// The budget holds for a whole stage: when it is over and nothing is reached,
// what is left of the stage is not tried, each with a time limit of its own.
func TestBudgetHoldsWhileAServerIsFrozen(t *testing.T) {
	t.Parallel()
	const steps = 300
	for name, looksFail := range map[string]bool{"looks": true, "calls": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, func(c *driver.Config) { c.Policy.WaitBudget = 12 * time.Second })
			p := frozen(b, steps, func(int) bool { return false })
			if !looksFail {
				for i := range steps {
					b.w.verify[fmt.Sprint(i)] = nil
				}
			}
			started := b.clock.Now()
			res, err := b.e.Publish(ctx, p)
			require.Equal(t, driver.StatusWaiting, res.Status, "%v", err)
			require.Contains(t, res.Message, "no answer within 3s")
			tried := 0
			for i := range steps {
				b.w.mu.Lock()
				if n := b.w.looks[fmt.Sprint(i)]; looksFail {
					tried += n
				}
				b.w.mu.Unlock()
				tried += b.w.called(fmt.Sprint(i))
			}
			require.Less(t, tried, 50, "calls of %d steps", steps)
			// All workers move the one clock: 8 calls at once take 24 seconds of it.
			require.Less(t, b.clock.Now().Sub(started), 3*time.Minute)

			// The next one goes on where it can.
			for i := range steps {
				b.w.verify[fmt.Sprint(i)], b.w.execute[fmt.Sprint(i)] = nil, nil
			}
			require.True(t, b.recover("j").MayIngest("d"))
			for i := range steps {
				require.Equal(t, 1, b.w.count(fmt.Sprint(i)))
			}
		})
	}
}

// One step that is out of reach keeps no other from being done, also when the
// budget is long over.
func TestOneStepOutOfReachStopsNoOther(t *testing.T) {
	t.Parallel()
	const steps = 100
	b := newBed(t, func(c *driver.Config) { c.Policy.WaitBudget = time.Nanosecond })
	res, err := b.e.Publish(ctx, frozen(b, steps, func(i int) bool { return i != 3 }))
	require.Equal(t, driver.StatusWaiting, res.Status, "%v", err)
	for i := range steps {
		require.Equal(t, i != 3, b.w.count(fmt.Sprint(i)) == 1, "step %d", i)
	}
}

// Effects that go on at a server when the time for waiting is over are left to it,
// and no more are begun beside them.
func TestNothingIsBegunBesideWhatIsLeftRunning(t *testing.T) {
	t.Parallel()
	const steps, atOnce = 100, 4
	b := newBed(t, func(c *driver.Config) { c.StepConcurrency, c.Policy.WaitBudget = atOnce, time.Nanosecond })
	running := fmt.Errorf("the query runs: %w", commitstep.ErrInProgress)
	p := commitstep.NewPlan("j", "d")
	for i := range steps {
		name := fmt.Sprint(i)
		p.Step(put(name))
		b.w.execute[name] = func(int, *commitstep.Attempt, func()) error { return running }
	}
	res, err := b.e.Publish(ctx, p)
	require.Equal(t, driver.StatusWaiting, res.Status, "%v", err)
	begun := 0
	for i := range steps {
		begun += b.w.called(fmt.Sprint(i))
	}
	require.GreaterOrEqual(t, begun, atOnce)
	require.Less(t, begun, 2*atOnce, "of %d steps", steps)

	for i := range steps {
		b.w.execute[fmt.Sprint(i)] = nil
	}
	require.True(t, b.recover("j").MayIngest("d"))
	for i := range steps {
		require.Equal(t, 1, b.w.count(fmt.Sprint(i)))
	}
}
