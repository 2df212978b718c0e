package hive_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/stretchr/testify/require"
)

// TestTwoPublishersOfOnePartition: in one store the second is told who is at it,
// and may go on afterwards.
func TestTwoPublishersOfOnePartition(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	l := g.lane(t, settings{})
	w := l.part(t)
	r := g.watch(t, nil)
	hook := l.proxy.On(onTrail("stage/ExecuteStatement", faultproxy.Hold))
	var first sync.WaitGroup
	t.Cleanup(first.Wait)
	t.Cleanup(hook.Release)
	first.Go(func() {
		if _, err := l.e.Publish(t.Context(), w.publishing(w.stageAndSwap())); err != nil {
			t.Error(err)
		}
	})
	fired(t, hook)
	other := commitstep.NewPlan("another job", "by hand").Step(w.stageAndSwapAgain())
	_, err := l.e.Publish(t.Context(), other)
	var pending *commitstep.PendingError
	require.ErrorAs(t, err, &pending)
	require.Equal(t, commitstep.Key{Job: job, Dataset: w.dataset()}, pending.Key)
	hook.Release()
	first.Wait()
	l.swapped(t, w)
	r.await(t, 2)
	_, err = l.e.Publish(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, want(2, thirdRows), w.holds(t))
	r.await(t, 2)
	r.stop(t)
	require.Equal(t, []int{0, 1, 2}, r.history(w.Day))
}

// TestTwoStoresOfOnePartition: publishers that know nothing of each other. Who
// finds the partition elsewhere than it was planned leaves it alone, and a person
// is asked; that is a conflict, which is known, and no publish whose outcome is
// unknown.
func TestTwoStoresOfOnePartition(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]string{
		"while the rows are counted":            "count/ExecuteStatement",
		"while the ALTER's session is not open": "alter session/OpenSession",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			twoStores(t, place)
		})
	}
}

// twoStores has a publisher stopped at place until another one has published.
func twoStores(t *testing.T, place string) {
	g := newStaging(t, hivekit.Shared(t))
	slowly, quickly := g.lane(t, settings{}), g.lane(t, settings{})
	w := slowly.part(t)
	r := g.watch(t, nil)
	hook := slowly.proxy.On(onTrail(place, faultproxy.Hold))
	var res driver.Result
	var err error
	var first sync.WaitGroup
	t.Cleanup(first.Wait)
	t.Cleanup(hook.Release)
	first.Go(func() { res, err = slowly.publish(t, w.publishing(w.stageAndSwap())) })
	fired(t, hook)
	_, qerr := quickly.e.Publish(t.Context(), commitstep.NewPlan(job, "another").Step(w.stageAndSwapAgain()))
	require.NoError(t, qerr)
	hook.Release()
	first.Wait()
	var unfinished *driver.NotFinishedError
	require.True(t, errors.As(err, &unfinished), "%v", err)
	require.Equal(t, driver.StatusParked, res.Status, res.Message)
	require.Equal(t, commitstep.ConflictFound, res.Reason, res.Message)
	require.Equal(t, want(2, thirdRows), w.holds(t))
	require.Len(t, w.dirsOf(t), 2, "nothing is removed while something is not decided")
	require.True(t, slowly.moved(t, w).IsNone())
	r.await(t, 2)
	r.stop(t)
	require.Equal(t, []int{0, 2}, r.history(w.Day))
}

// TestManyPartitionsInOnePlan publishes two hundred partitions by one plan, their
// steps side by side, while somebody reads them all.
func TestManyPartitionsInOnePlan(t *testing.T) {
	t.Parallel()
	const n = 200
	g := newStaging(t, hivekit.Shared(t))
	l := g.lane(t, settings{conf: enduring.conf})
	parts := l.parts(t, n)
	r := g.watch(t, nil)
	var steps []commitstep.StepSpec
	for _, w := range parts {
		steps = append(steps, w.stageAndSwap())
	}
	plan := commitstep.NewPlan(job, "all partitions").Step(steps...).Then(watermark.Set("all", commitstep.None(), commitstep.Int(1)))
	res, err := l.publish(t, plan)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, n+1, res.Total)
	alters := g.altersByDay(t)
	for _, w := range parts {
		w.stagedHere(t)
		require.Len(t, alters[w.Day], 1)
	}
	r.await(t, 2)
	r.stop(t)
	for _, w := range parts {
		require.Equal(t, []int{0, 1}, r.history(w.Day), w.Day)
	}
}
