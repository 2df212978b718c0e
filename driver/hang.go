package driver

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// hangs tells whether a run is inside the code of steps that do not come back.
// Such code ignores its context and cannot be stopped from outside; callers
// are not made to wait for it for ever.
type hangs struct {
	watched bool // set before the run begins; nobody waits otherwise
	inside  atomic.Int32
	moved   atomic.Int64 // when a step was last entered or left, nanoseconds
}

func (h *hangs) enter() {
	if !h.watched {
		return
	}
	h.inside.Add(1)
	h.moved.Store(time.Now().UnixNano())
}

func (h *hangs) leave() {
	if !h.watched {
		return
	}
	h.inside.Add(-1)
	h.moved.Store(time.Now().UnixNano())
}

// since reports that the run has been inside steps since before t, without
// any of them returning.
func (h *hangs) since(t time.Time) bool {
	return h.inside.Load() > 0 && h.moved.Load() < t.UnixNano()
}

// hangCheck is how often a caller whose time is over looks again.
const hangCheck = 20 * time.Millisecond

func hungMessage(now time.Time, h *hangs) string {
	return fmt.Sprintf("a step has not returned for %s, although its time is over; this process still runs it", now.Sub(time.Unix(0, h.moved.Load())).Round(time.Millisecond))
}

// finishOrLeave is finish for a caller with a context: when that ended more
// than Config.Grace ago and a step still does not return, the run is left to
// itself, under its claim, and the caller is told.
func (r *run) finishOrLeave(ctx context.Context) Result {
	started := r.e.now()
	if ctx.Done() == nil {
		return r.finish(ctx, started)
	}
	r.hangs.watched = true
	done := make(chan Result, 1)
	go func() { done <- r.finish(ctx, started) }()
	select {
	case res := <-done:
		return res
	case <-ctx.Done():
	}
	over := time.Now()
	tick := time.NewTicker(hangCheck)
	defer tick.Stop()
	for {
		select {
		case res := <-done:
			return res
		case now := <-tick.C:
			if now.Sub(over) > r.e.cfg.Grace && r.hangs.since(over) {
				return Result{Key: r.live.Key, ID: r.live.ID, Total: r.live.Steps, Status: StatusStopped, Message: hungMessage(now, &r.hangs), Took: r.e.now().Sub(started)}
			}
		}
	}
}
