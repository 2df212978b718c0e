package driver

import (
	"context"
	"errors"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// complete ends the sequence and starts its cleanup.
func (r *run) complete(ctx context.Context, events []store.Event) ending {
	if err := r.e.ours(r.lease); err != nil {
		return ending{status: StatusFenced, step: -1, message: err.Error()}
	}
	r.e.kill("complete.before")
	cleaning := len(r.live.Cleanup) > 0
	notes := store.HistoryNotes{Already: r.res.InPlace + r.res.Recovered, Executed: r.res.Executed, Driver: r.lease.holder, DeclaredPublished: r.live.DeclaredPublished}
	for _, it := range r.folded {
		if it.did == DidExecuted {
			notes.Executed++
		} else {
			notes.Already++
		}
	}
	if r.recovering {
		notes.Recovers = 1
	}
	// The completion says that the last steps are done, but not which attempt
	// did it.
	for _, it := range r.last {
		if it.open() > 0 {
			events = append(events, r.outcomeEvent(it, commitstep.AttemptDone, nil))
		}
	}
	err := r.e.cfg.Store.Complete(r.effects, r.fence, cleaning, notes, events...)
	var stale *store.StaleError
	if errors.As(err, &stale) {
		return ending{status: StatusParked, reason: commitstep.ConflictFound, step: r.stepOfMove(events, stale.Move), message: stale.Error()}
	}
	if err != nil {
		return r.storeEnding(err)
	}
	for _, it := range r.folded {
		r.count(it.step, it.did, 0, it.behave)
	}
	r.e.kill("complete.after")
	r.e.observe(ctx, Event{Type: EventCompleted, Key: r.live.Key, Sequence: r.live.ID, Step: -1, Count: r.live.Steps})
	if cleaning {
		if r.recovering {
			r.res.Cleanup = r.e.clean(r.effects, r.lease, r.live, r.fence)
		} else {
			r.e.cleanBehind(ctx, r.lease, r.live, r.fence)
		}
	}
	return ending{status: StatusCompleted, step: -1}
}

func (r *run) stepOfMove(events []store.Event, m commitstep.WatermarkMove) int {
	for _, ev := range events {
		if ev.Type == store.EventMove && ev.Move.WatermarkKey == m.WatermarkKey {
			return ev.Step
		}
	}
	return -1
}

// park stores why the sequence stops, and tells the steps that want to know.
func (r *run) park(ctx context.Context, end ending) ending {
	why := store.Parking{Reason: end.reason, Step: end.step, Message: end.message}
	err := r.e.cfg.Store.Park(r.effects, r.fence, why, end.events...)
	if err != nil {
		x := r.storeEnding(err)
		x.message += " (while parking it as " + string(end.reason) + ": " + end.message + ")"
		_ = r.e.cfg.Store.Release(r.effects, r.fence)
		return x
	}
	r.e.kill("park.after")
	r.e.observe(ctx, Event{Type: EventParked, Key: r.live.Key, Sequence: r.live.ID, Step: end.step, Reason: end.reason, Message: end.message})
	if r.e.wantsPark() {
		// A failure is told again by the next recover.
		_ = r.e.tellPark(r.effects, r.live, r.fence, why, r.e.tellUntil(r.waitUntil, r.budget))
	}
	return end
}

// storeEnding sorts an error of the store.
func (r *run) storeEnding(err error) ending {
	x := ending{step: -1, message: err.Error()}
	switch {
	case errors.Is(err, commitstep.ErrFenced):
		x.status = StatusFenced
	case errors.Is(err, commitstep.ErrNotFound):
		// As a rule somebody else ended it, and it was tidied away.
		x.status, x.gone = StatusWaiting, true
	case errors.Is(err, commitstep.ErrDamaged), errors.Is(err, commitstep.ErrNewerFormat):
		// The store quarantined it; it stays live and is not touched.
		x.status, x.reason = StatusUnsupported, commitstep.Unreadable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		x.status = StatusStopped
	default:
		x.status = StatusWaiting
	}
	return x
}
