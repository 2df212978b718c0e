package hive_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// reader reads the partition again and again, as a report does that somebody
// looks at while it is published.
type reader struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	seen  map[string]int // whole reads by what they saw
	errs  []error
	count int
	more  chan struct{} // closed and replaced at every read
}

// read starts one. Its reads that fail are kept as well: what they are is for
// the test to say.
func (w *world) read(t testing.TB) *reader {
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{cancel: cancel, seen: map[string]int{}, more: make(chan struct{})}
	r.done.Go(func() {
		for ctx.Err() == nil {
			rows, err := w.sql.TryRows(ctx, w.readRows())
			if ctx.Err() != nil {
				return
			}
			r.mu.Lock()
			if err != nil {
				r.errs = append(r.errs, err)
			} else {
				r.seen[fmt.Sprint(rows)]++
			}
			r.count++
			close(r.more)
			r.more = make(chan struct{})
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() { cancel(); r.done.Wait() })
	return r
}

// await waits until n reads more have ended.
func (r *reader) await(t testing.TB, n int) {
	t.Helper()
	r.mu.Lock()
	until := r.count + n
	for r.count < until {
		more := r.more
		r.mu.Unlock()
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
		r.mu.Lock()
	}
	r.mu.Unlock()
}

// stop ends it; all of its reads must have seen one of the versions whole, and
// the last of them must have been seen.
func (r *reader) stop(t testing.TB, versions ...[]string) {
	t.Helper()
	r.cancel()
	r.done.Wait()
	require.Empty(t, r.errs, "reads that failed, of %d", r.count)
	for seen := range r.seen {
		require.True(t, slices.ContainsFunc(versions, func(v []string) bool { return fmt.Sprint(v) == seen }), "a read saw %s", seen)
	}
	require.NotZero(t, r.seen[fmt.Sprint(versions[len(versions)-1])], "no read saw the last version: %v", r.seen)
}
