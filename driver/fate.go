package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// fate asks the store what became of a sequence that this driver may no longer
// touch, so that its caller hears how the sequence stands and not only that
// somebody else may have it. It only reads. When the store cannot tell in time,
// the driver knows no more than that it was fenced.
func (r *run) fate(end ending) ending {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.effects), r.e.cfg.Grace)
	defer cancel()
	st := r.e.cfg.Store
	now, err := st.Find(ctx, r.live.ID)
	if errors.Is(err, commitstep.ErrNotFound) || err == nil && now.State == commitstep.Completed {
		return r.outcome(ctx, end, err == nil)
	}
	if err != nil {
		return unread(end, err)
	}
	if now.State == commitstep.Parked {
		// A person decides, whoever parked it.
		return ending{status: StatusParked, reason: now.Reason, step: now.ParkStep, message: now.Message}
	}
	in, until, held, err := st.Holder(ctx, now)
	switch {
	case err != nil:
		return unread(end, err)
	case end.gone && now.Epoch == r.fence.Epoch && (!held || in.ID == r.fence.Owner):
		return end // nobody claimed it after us: it is here, and a part of it is missing
	}
	end.status = StatusFenced
	switch {
	case held:
		r.res.Holder, r.res.HeldUntil = holderText(in), until
	default:
		end.message += "; nobody holds it now"
	}
	return end
}

// outcome is how a sequence ended that this driver lost. Sequence ids, and the
// tokens of steps, which are made of them, are never used twice: what history
// says of the id is said of the plan that was published here.
func (r *run) outcome(ctx context.Context, end ending, cleaning bool) ending {
	h, ok := r.e.cfg.Store.(store.History)
	if !ok {
		end.message += "; it has ended, and the store keeps no history that says how"
		return end
	}
	past, err := h.LookupHistory(ctx, r.live.ID)
	if err != nil {
		return unread(end, err)
	}
	by := past.Notes.Driver
	if past.State == commitstep.Completed && past.Epoch == r.fence.Epoch && by == r.lease.holder {
		return ending{status: StatusCompleted, step: -1} // by this driver, after all
	}
	if past.State == commitstep.Abandoned {
		end.status, end.reason = StatusAbandoned, ""
		end.message = "a person gave it up at " + past.Ended.UTC().Format(time.RFC3339) + " while this driver had lost it"
		if past.Message != "" {
			end.message += ": " + past.Message
		}
		return end
	}
	if by == "" {
		by = "another driver"
	}
	r.res.EndedBy, r.res.EndedAt = by, past.Ended
	switch {
	case cleaning:
		r.res.Cleanup = "left to the driver that completed it"
	case len(r.live.Cleanup) > 0 && past.CleanupReport != "":
		r.res.Cleanup = "done, stays: " + past.CleanupReport
	case len(r.live.Cleanup) > 0:
		r.res.Cleanup = "done"
	}
	return ending{status: StatusCompleted, step: -1, message: fmt.Sprintf("completed by %s at %s, after this driver had lost its lease", by, past.Ended.UTC().Format(time.RFC3339))}
}

// unread keeps what is known for certain.
func unread(end ending, err error) ending {
	end.message += fmt.Sprintf("; what became of it could not be read: %v", err)
	return end
}
