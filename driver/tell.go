package driver

import (
	"context"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// TellParked tells the steps of a parked sequence once more why it was parked, so
// that those which gather evidence then (commitstep.OnPark) gather it anew and
// store it. The sequence is claimed meanwhile, and nothing else about it changes.
//
// ErrNotFound: nothing live. ErrDecision: it is not parked. ErrBusy: somebody
// holds it. The error of a step that could not be told is returned as it is; what
// others noted is kept.
func (e *Engine) TellParked(ctx context.Context, key commitstep.Key) error {
	if err := e.enter(); err != nil {
		return err
	}
	// Looked at before it is claimed, so that nobody who is about to run it is kept
	// from it for nothing.
	live, err := e.cfg.Store.Get(ctx, key)
	if err != nil {
		return err
	}
	notParked := func(l commitstep.Live) error {
		return fmt.Errorf("dataset %s: %w: it is %s, not parked", key, commitstep.ErrDecision, l.State)
	}
	if live.State != commitstep.Parked {
		return notParked(live)
	}
	if live, err = e.cfg.Store.ClaimOne(ctx, e.currentLease().instance.ID, key); err != nil {
		return err
	}
	fence := store.Fence{ID: live.ID, Epoch: live.Epoch}
	defer func() { _ = e.cfg.Store.Release(context.WithoutCancel(ctx), fence) }()
	if live.State != commitstep.Parked {
		return notParked(live)
	}
	return e.tellPark(ctx, live, fence, live.Reason, live.Message)
}
