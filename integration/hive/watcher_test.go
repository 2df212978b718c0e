package hive_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watcher reads all partitions of a table in one statement, again and again, as a
// report does that somebody looks at while it is published. A
// statement takes a partition's location when it is compiled, so each partition
// that it reads must be one version whole.
type watcher struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	bear   func(error) bool // errors that are no fault of a publish

	mu    sync.Mutex
	seen  map[string][]int // by partition: the versions, each time that it changed
	wrong []string
	count int
	more  chan struct{} // closed and replaced at every read
}

// readerPause is the least between two reads of a watcher.
const readerPause = 200 * time.Millisecond

// watch starts one. bear may be nil.
func (w *world) watch(t testing.TB, bear func(error) bool) *watcher {
	return w.watchBy(t, "SELECT dt, id, version FROM "+w.table(), bear)
}

// watchBy reads by a query of its own.
func (w *world) watchBy(t testing.TB, sql string, bear func(error) bool) *watcher {
	ctx, cancel := context.WithCancel(t.Context())
	r := &watcher{cancel: cancel, bear: bear, seen: map[string][]int{}, more: make(chan struct{})}
	r.done.Go(func() {
		for ctx.Err() == nil {
			from := time.Now()
			rows, err := w.sql.TryRows(ctx, sql)
			if ctx.Err() != nil {
				return
			}
			r.note(rows, err)
			select { // it is not alone on the machine, and two hundred partitions take it a while
			case <-time.After(max(readerPause, time.Since(from))):
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { cancel(); r.done.Wait() })
	return r
}

func (r *watcher) note(rows []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if r.bear == nil || !r.bear(err) {
			r.wrong = append(r.wrong, "a read failed: "+err.Error())
		}
		return
	}
	parts := map[string][]string{}
	for _, row := range rows {
		day, rest, _ := strings.Cut(row, "|")
		parts[day] = append(parts[day], rest)
	}
	for day := range r.seen {
		if parts[day] == nil {
			r.wrong = append(r.wrong, day+" was empty")
		}
	}
	for day, got := range parts {
		v := versionOf(got)
		if v < 0 {
			r.wrong = append(r.wrong, fmt.Sprintf("%s read as %v", day, got))
			continue
		}
		if s := r.seen[day]; len(s) == 0 || s[len(s)-1] != v {
			r.seen[day] = append(s, v)
		}
	}
	r.count++
	close(r.more)
	r.more = make(chan struct{})
}

// await waits until n whole reads more have ended.
func (r *watcher) await(t testing.TB, n int) {
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

// history is which versions a partition showed, one after another.
func (r *watcher) history(day string) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen[day])
}

// stop ends it and holds that every read saw every partition whole, that none
// failed, and that no partition went back to a version that it had left, but those
// that were rolled back.
func (r *watcher) stop(t testing.TB, back ...string) {
	t.Helper()
	r.cancel()
	r.done.Wait()
	require.Empty(t, r.wrong, "of %d reads", r.count)
	require.NotZero(t, r.count)
	for day, versions := range r.seen {
		if !slices.Contains(back, day) {
			require.True(t, slices.IsSorted(versions), "%s showed the versions %v", day, versions)
		}
	}
}
