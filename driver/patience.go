package driver

import "context"

// patience ends steps' waiting for effects that run elsewhere, when the time for
// waiting is over or the caller's context ends. Calls go on: to cut one off would
// lose its answer.
type patience struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// over is made for the first step that may wait; most runs have none.
func (r *run) over() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.patience.ctx == nil {
		r.patience.ctx, r.patience.cancel = context.WithTimeout(r.caller, max(0, r.waitUntil.Sub(r.e.now())))
	}
	return r.patience.ctx.Done()
}

// stopPatience frees what over made.
func (r *run) stopPatience() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.patience.cancel != nil {
		r.patience.cancel()
	}
}
