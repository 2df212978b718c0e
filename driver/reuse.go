package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// Paths that another sequence uses, or used. The store refuses them within its
// put; here is what a person is told, and what becomes of a plan that accepts
// earlier ones.

// ReusedPath says that a plan uses a path that an earlier sequence used.
type ReusedPath struct {
	// Path is the plan's own, Taken the earlier sequence's: the same, or a
	// directory that holds Path. With Below it is Path, which holds what the
	// earlier sequence used.
	Path  commitstep.Address `json:"path"`
	Taken commitstep.Address `json:"taken"`
	Below bool               `json:"below,omitempty"`
	// Sequence used it, on behalf of Key, which is zero when the history of it
	// was pruned. When is the time of its end, or that of its plan.
	Sequence uuid.UUID        `json:"sequence"`
	Key      commitstep.Key   `json:"key"`
	State    commitstep.State `json:"state,omitempty"`
	When     time.Time        `json:"when"`
	// Accepted is the plan's reason.
	Accepted string `json:"accepted,omitempty"`
}

func (r ReusedPath) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sequence %s ", r.Sequence)
	switch {
	case r.Key == (commitstep.Key{}):
		fmt.Fprintf(&b, "of %s, whose history is gone, ", r.When.UTC().Format(time.RFC3339))
	case r.State.Live():
		fmt.Fprintf(&b, "of dataset %s, planned %s and still %s, ", r.Key, r.When.UTC().Format(time.RFC3339), r.State)
	default:
		fmt.Fprintf(&b, "of dataset %s, %s %s, ", r.Key, r.State, r.When.UTC().Format(time.RFC3339))
	}
	switch {
	case r.Below:
		b.WriteString("used something below it")
	case r.Taken == r.Path:
		b.WriteString("used it")
	default:
		fmt.Fprintf(&b, "used %s, in which it lies", r.Taken)
	}
	return b.String()
}

// reused describes what the store found.
func (e *Engine) reused(ctx context.Context, p *preparation, used *store.UsedPathError) (ReusedPath, error) {
	r := ReusedPath{Sequence: used.Sequence, Below: used.Below, Accepted: p.plan.AcceptReusedPaths}
	var ok bool
	if r.Taken, r.Path, ok = p.planning.PathOf(used.Path); !ok {
		return r, fmt.Errorf("driver: the store refuses a path that the plan does not name: %w", used)
	}
	if used.Below {
		r.Path = r.Taken
	}
	live, err := e.cfg.Store.Find(ctx, used.Sequence)
	if err == nil {
		r.Key, r.State, r.When = live.Key, live.State, live.Created
		return r, nil
	}
	if !errors.Is(err, commitstep.ErrNotFound) {
		return r, err
	}
	if h, is := e.cfg.Store.(store.History); is {
		entry, err := h.LookupHistory(ctx, used.Sequence)
		if err == nil {
			r.Key, r.State, r.When = entry.Key, entry.State, entry.Ended
			return r, nil
		}
		if !errors.Is(err, commitstep.ErrNotFound) {
			return r, err
		}
	}
	r.When = time.Unix(used.Sequence.Time().UnixTime()) // ids say when they were made
	return r, nil
}

// pathRefusal is the error for a path that another sequence uses or used.
func (e *Engine) pathRefusal(ctx context.Context, p *preparation, used *store.UsedPathError) error {
	r, err := e.reused(ctx, p, used)
	if err != nil {
		return err
	}
	if used.Live {
		pending := &commitstep.PendingError{Key: r.Key, ID: r.Sequence, State: r.State, Path: r.Taken.String()}
		if live, err := e.cfg.Store.Find(ctx, r.Sequence); err == nil {
			pending.Reason = live.Reason
		}
		if !r.State.Live() {
			return fmt.Errorf("plan: %s was in use and is not any more: %w; publish again", r.Path, used)
		}
		return pending
	}
	hint := "a rename that was sent for that sequence may still arrive, and would move the new file: stage every run in a directory of its own, as in .../run-17/"
	if p.plan.AcceptReusedPaths == "" {
		hint += "; or say in acceptReusedPaths why nothing of it can still be on its way"
	}
	return &commitstep.PlanError{Where: r.Path.String(), Problem: "cannot be a source or cleanup path of this plan", Err: fmt.Errorf("%w: %s", commitstep.ErrPathReused, r), Hint: hint}
}

// accepted tells which earlier path a plan uses that accepts them; nil when it
// uses none, or accepts none.
func (e *Engine) accepted(ctx context.Context, p *preparation) (*ReusedPath, error) {
	keeper, ok := e.cfg.Store.(store.PathKeeper)
	if !ok || p.plan.AcceptReusedPaths == "" || len(p.roots) == 0 {
		return nil, nil
	}
	used, err := keeper.FindUsed(ctx, nil, p.roots, false)
	if used == nil || err != nil {
		return nil, err
	}
	r, err := e.reused(ctx, p, used)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// auditReuse writes down that a plan accepts an earlier path, before anything
// of it is stored: a sequence that is not there in the end does no harm there,
// a reuse that nobody was told of does.
func (e *Engine) auditReuse(ctx context.Context, p *preparation, owner commitstep.Instance) error {
	r, err := e.accepted(ctx, p)
	if r == nil || err != nil {
		return err
	}
	auditor, ok := e.cfg.Store.(interface {
		RecordAudit(ctx context.Context, entry store.AuditEntry) error
	})
	if !ok {
		return nil
	}
	return auditor.RecordAudit(ctx, store.AuditEntry{Person: store.Person{Name: owner.Name, Host: owner.Host, Tool: "publish", Reason: p.plan.AcceptReusedPaths},
		Action: "paths.accept", Key: p.plan.Key, Sequence: p.id, Before: r.String(), After: r.Path.String()})
}

// checkPaths is what Validate says of paths.
func (e *Engine) checkPaths(ctx context.Context, p *preparation, h commitstep.Header) (*ReusedPath, error) {
	keeper, ok := e.cfg.Store.(store.PathKeeper)
	if !ok || h.Used == nil {
		return nil, nil
	}
	used, err := keeper.FindUsed(ctx, h.Used, p.roots, h.AcceptReusedPaths != "")
	if err != nil {
		return nil, err
	}
	if used != nil {
		return nil, e.pathRefusal(ctx, p, used)
	}
	return e.accepted(ctx, p)
}
