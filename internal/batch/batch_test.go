package batch_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/batch"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryCallerGetsItsOwnResult(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	var commits atomic.Int64
	q := batch.New(batch.Options{}, func(ops []int, results []error) {
		commits.Add(1)
		for i, op := range ops {
			if op%3 == 0 {
				results[i] = refused
			}
		}
	})
	defer q.Close()
	const n = 3000
	var wg sync.WaitGroup
	var wrong atomic.Int64
	for i := range n {
		wg.Go(func() {
			err := q.Do(context.Background(), i)
			if (i%3 == 0) != errors.Is(err, refused) {
				wrong.Add(1)
			}
		})
	}
	wg.Wait()
	require.Zero(t, wrong.Load())
	require.LessOrEqual(t, commits.Load(), int64(n))
}

// One commit is held open while others queue up: they must share the next one.
func TestWhatQueuesDuringACommitSharesTheNext(t *testing.T) {
	t.Parallel()
	entered, release := make(chan int, 8), make(chan struct{})
	q := batch.New(batch.Options{}, func(ops []int, _ []error) {
		entered <- len(ops)
		<-release
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = q.Do(context.Background(), 0) })
	require.Equal(t, 1, <-entered)
	for i := range 5 {
		require.NoError(t, q.Post(i))
	}
	release <- struct{}{}
	require.Equal(t, 5, <-entered)
	close(release)
	wg.Wait()
	q.Close()
}

func TestContextCountsOnlyInTheQueue(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 8), make(chan struct{})
	var seen []int
	q := batch.New(batch.Options{}, func(ops []int, _ []error) {
		entered <- struct{}{}
		<-release
		seen = append(seen, ops...)
	})
	taken, cancelTaken := context.WithCancel(context.Background())
	waiting, cancelWaiting := context.WithCancel(context.Background())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- q.Do(taken, 1) }()
	<-entered
	go func() { second <- q.Do(waiting, 2) }()
	cancelTaken()
	cancelWaiting()
	require.ErrorIs(t, <-second, context.Canceled)
	close(release)
	require.NoError(t, <-first, "an operation that was taken is finished")
	q.Close()
	require.Equal(t, []int{1}, seen, "a withdrawn operation is not carried out")
}

func TestCloseFinishesWhatIsQueued(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 100), make(chan struct{})
	var n atomic.Int64
	q := batch.New(batch.Options{MaxBatch: 2}, func(ops []int, _ []error) {
		entered <- struct{}{}
		<-release
		require.LessOrEqual(t, len(ops), 2)
		n.Add(int64(len(ops)))
	})
	require.NoError(t, q.Post(0))
	<-entered
	for i := range 20 {
		require.NoError(t, q.Post(i))
	}
	close(release)
	q.Close()
	require.Equal(t, int64(21), n.Load())
	require.ErrorIs(t, q.Post(1), batch.ErrClosed)
	require.ErrorIs(t, q.Do(context.Background(), 1), batch.ErrClosed)
	q.Close()
}

// A full batch must not wait for the linger time, which is set far beyond the
// test's own deadline here.
func TestAFullBatchDoesNotLinger(t *testing.T) {
	t.Parallel()
	q := batch.New(batch.Options{Linger: time.Hour, MaxBatch: 4}, func([]int, []error) {})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { _ = q.Do(context.Background(), i) })
	}
	wg.Wait()
	q.Close()
}

func BenchmarkDo(b *testing.B) {
	q := batch.New(batch.Options{}, func([]int, []error) {})
	defer q.Close()
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_ = q.Do(context.Background(), 1)
		}
	})
}

// After a commit the queue waits for its callers, so that they go on sharing
// commits instead of falling into two halves that take turns.
func TestCallersRejoin(t *testing.T) {
	t.Parallel()
	var commits, total int
	q := batch.New(batch.Options{Rejoin: 50 * time.Millisecond}, func(ops []int, _ []error) {
		commits++
		total += len(ops)
		time.Sleep(time.Millisecond) // a commit takes its time, in which callers gather
	})
	const callers, rounds = 8, 100
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				_ = q.Do(context.Background(), 1)
			}
		})
	}
	wg.Wait()
	q.Close()
	require.Equal(t, callers*rounds, total)
	require.Less(t, commits, callers*rounds/4)
}

// A lone caller is not kept waiting for anybody.
func TestALoneCallerDoesNotWaitToRejoin(t *testing.T) {
	t.Parallel()
	q := batch.New(batch.Options{Rejoin: time.Hour}, func([]int, []error) {})
	defer q.Close()
	for range 100 {
		require.NoError(t, q.Do(context.Background(), 1))
	}
}
