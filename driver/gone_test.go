package driver_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// onClaim calls fn once, right after the first claim of a recover, as if the
// process had been paused there.
type onClaim struct {
	once sync.Once
	fn   func()
}

func (o *onClaim) Observe(_ context.Context, ev driver.Event) {
	if ev.Type == driver.EventClaimed {
		o.once.Do(o.fn)
	}
}

// pending leaves sequences that nobody has begun.
func pending(t *testing.T, b *bed, datasets ...string) {
	t.Helper()
	for _, d := range datasets {
		ctx, cancel := context.WithCancel(ctx)
		b.w.execute["s"+d] = func(int, *commitstep.Attempt, func()) error { cancel(); return commitstep.NotSent(ctx.Err()) }
		_, err := b.e.Publish(ctx, commitstep.NewPlan("j", d).Step(put("s"+d)).Then(put("t"+d)))
		require.Error(t, err)
		delete(b.w.execute, "s"+d)
	}
}

// A recover is paused right after its claim for longer than its lease, and
// another driver finishes everything. When it wakes, the steps that it goes for
// are gone, and its lease too: it says what became of them, and comes to its end.
func TestPausedAfterTheClaimWhileAnotherFinishes(t *testing.T) {
	t.Parallel()
	watch := &onClaim{}
	b := newBed(t, func(c *driver.Config) { c.Observer, c.Concurrency = watch, 1 })
	pending(t, b, "d0", "d1", "d2")
	other, err := driver.New(driver.Config{Store: b.st, Kinds: b.registry(), Clock: b.clock, Owner: "helper"})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(ctx)) }()
	watch.fn = func() {
		// The next one has been claimed too, and waits for its turn: nothing else
		// of this recover runs until this returns.
		var in commitstep.Instance
		require.Eventually(t, func() bool {
			live, err := b.st.Get(ctx, commitstep.Key{Job: "j", Dataset: "d1"})
			require.NoError(t, err)
			var held bool
			in, _, held, err = b.st.Holder(ctx, live)
			return err == nil && held
		}, time.Minute, time.Millisecond)
		require.NoError(t, b.st.Leave(ctx, in.ID))
		rep, err := other.Recover(ctx, "j")
		require.NoError(t, err)
		require.Equal(t, 3, rep.Counts[driver.StatusCompleted])
	}
	rep, err := b.e.Recover(ctx, "j")
	require.NoError(t, err)
	require.True(t, rep.Complete)
	require.Empty(t, rep.NotFree())
	require.Len(t, rep.Results, 2, "those that it had claimed")
	for _, r := range rep.Results {
		require.Equal(t, driver.StatusCompleted, r.Status, r.Message)
		require.Contains(t, r.EndedBy, "helper")
	}
	for _, d := range []string{"d0", "d1", "d2"} {
		require.Equal(t, 1, b.w.count("s"+d), d)
	}
	// The lease that it began anew is as good as the first.
	res, err := b.e.Publish(ctx, plan(put("a")))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
}

// holes is a store that has lost the steps of its sequences.
type holes struct{ *boltstore.Store }

func (holes) Steps(_ context.Context, id uuid.UUID, n int) (store.Page, error) {
	return store.Page{}, fmt.Errorf("page %d of sequence %s: %w", n, id, commitstep.ErrNotFound)
}

// Steps that are missing of a sequence which is there and ours are no reason to
// believe that somebody else has it.
func TestMissingStepsOfOurOwn(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	pending(t, b, "d0")
	e, err := driver.New(driver.Config{Store: holes{b.st}, Kinds: b.registry(), Clock: b.clock})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(ctx)) }()
	rep, err := e.Recover(ctx, "j")
	require.NoError(t, err)
	require.Len(t, rep.Results, 1)
	require.Equal(t, driver.StatusWaiting, rep.Results[0].Status)
	require.Contains(t, rep.Results[0].Message, "page 0")
	require.Equal(t, map[string]driver.Status{"d0": driver.StatusWaiting}, rep.NotFree())
}

// aging is a clock whose machine can be suspended.
type aging struct {
	*clock
	slept atomic.Int64
}

func (c *aging) Boot() time.Duration { return c.clock.Boot() + time.Duration(c.slept.Load()) }

// A driver that waits for something and loses its lease meanwhile waits no longer:
// the sequence is somebody else's.
func TestALeaseThatEndsWhileAStepWaits(t *testing.T) {
	t.Parallel()
	suspended := &aging{clock: &clock{now: time.Now()}}
	b := newBed(t, func(c *driver.Config) { c.Clock = suspended })
	b.w.execute["a"] = func(n int, _ *commitstep.Attempt, do func()) error {
		if n == 1 {
			return commitstep.NotSent(commitstep.ErrUnavailable)
		}
		do()
		return nil
	}
	helped := 0 // the looks of the helper
	b.w.verify["a"] = func(n int, _ *commitstep.Attempt) (commitstep.Verdict, error) {
		switch {
		case n == 1 || helped == 0 && n > 2:
			return commitstep.Verdict{}, nil
		case n == 2:
			in, held, err := b.held()
			require.NoError(t, err)
			require.True(t, held)
			require.NoError(t, b.st.Leave(ctx, in.ID))
			other, err := driver.New(driver.Config{Store: b.st, Kinds: b.registry(), Clock: b.clock, Owner: "helper"})
			require.NoError(t, err)
			rep, err := other.Recover(ctx, "j")
			require.NoError(t, err)
			require.Equal(t, 1, rep.Counts[driver.StatusCompleted])
			require.NoError(t, other.Close(ctx))
			helped = n
			suspended.slept.Store(int64(time.Hour))
			require.NoError(t, suspended.Sleep(ctx, time.Second))
		}
		return commitstep.Verdict{}, fmt.Errorf("%w: the target is away", commitstep.ErrUnavailable)
	}
	res, err := b.e.Publish(ctx, plan(put("a")))
	require.NoError(t, err, "%v", res)
	require.Contains(t, res.EndedBy, "helper")
}

// What is live at the end of a recover and was not run by it is reported with
// why.
func TestWhatIsLeftHasAReason(t *testing.T) {
	t.Parallel()
	watch := &onClaim{}
	b := newBed(t, func(c *driver.Config) { c.Observer, c.Concurrency = watch, 1 })
	pending(t, b, "d1")
	other, err := driver.New(driver.Config{Store: b.st, Kinds: b.registry(), Clock: b.clock, Owner: "helper"})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(ctx)) }()
	p := commitstep.NewPlan("j", "d0").WithID("one").Step(put("s"))
	watch.fn = func() { // a key before that which was claimed
		stopped, cancel := context.WithCancel(ctx)
		b.w.mu.Lock()
		b.w.execute["s"] = func(int, *commitstep.Attempt, func()) error { cancel(); return commitstep.NotSent(stopped.Err()) }
		b.w.mu.Unlock()
		res, err := other.Publish(stopped, p)
		require.Error(t, err)
		require.Equal(t, driver.StatusStopped, res.Status)
	}
	rep, err := b.e.Recover(ctx, "j")
	require.NoError(t, err)
	require.Equal(t, driver.StatusWaiting, rep.Results[0].Status)
	require.Equal(t, "d0", rep.Results[0].Key.Dataset)
	require.Contains(t, rep.Results[0].Message, "the next one goes on with it")
	require.Equal(t, 1, rep.Counts[driver.StatusCompleted])

	res, err := b.e.Publish(ctx, p)
	require.Error(t, err)
	require.Equal(t, driver.StatusWaiting, res.Status)
	require.Contains(t, res.Message, "nobody runs it now")
}
