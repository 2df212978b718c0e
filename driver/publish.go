package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

var errNoPlan = errors.New("driver: the plan is nil; make one with commitstep.NewPlan")

// Publish prepares a plan, stores it, and runs it to its end. The plan must not
// be used again afterwards when it streams its steps.
//
// An error with an empty Result.Status promises nothing: nothing was stored,
// and no step ran (*commitstep.PlanError, ErrPending, ErrStale, ErrAbandoned,
// ErrPlanConflict, ErrPathReused, a store that cannot be used). ErrOutcomeUnknown: the put may
// or may not be stored; ask by Result.ID, or run Recover. Once stored, the
// Result has a status, and the error is a *NotFinishedError unless it is
// completed. When the plan's id is known to be completed, the Result says
// Already and the error is nil.
//
// A server that the preparation cannot reach is waited for as long as
// Policy.WaitBudget (a streamed plan, which cannot be read again, fails at once);
// what is left of it then holds for the steps.
//
// When ctx ends, an effect in flight is finished if it is quick, what is known
// is recorded, and the status is stopped.
func (e *Engine) Publish(ctx context.Context, plan *commitstep.Plan) (Result, error) {
	if plan == nil {
		return Result{}, errNoPlan
	}
	res := Result{Key: plan.Key}
	if err := e.enter(); err != nil {
		return res, err
	}
	if err := plan.Validate(); err != nil {
		return res, err
	}
	started := e.now()
	res, err := e.publish(ctx, plan, &preparing{})
	if res.Status == "" {
		return res, err
	}
	// The preparation and the put may have waited for a server, too.
	res.Took = e.now().Sub(started)
	var nf *NotFinishedError
	if errors.As(err, &nf) {
		nf.Result.Took = res.Took
	}
	return res, err
}

// preparing is the patience with servers that a plan's preparation needs.
type preparing struct {
	until  time.Time // zero as long as nothing was waited for
	pauses int
}

// end of the budget, which begins with the first wait.
func (w *preparing) end(e *Engine) time.Time {
	if w.until.IsZero() {
		return e.now().Add(e.cfg.Policy.WaitBudget)
	}
	return w.until
}

// again pauses after a preparation that met a server which cannot be reached,
// and reports whether the plan is to be prepared once more. A streamed plan
// cannot be read again.
func (w *preparing) again(ctx context.Context, e *Engine, plan *commitstep.Plan, err error) bool {
	if plan.Stream != nil || ctx.Err() != nil || !errors.Is(err, commitstep.ErrUnavailable) {
		return false
	}
	w.until = w.end(e)
	left := w.until.Sub(e.now())
	if left <= 0 {
		return false
	}
	w.pauses++
	pause := min(e.cfg.Policy.Pause(w.pauses), left)
	e.observe(ctx, Event{Type: EventWaiting, Key: plan.Key, Step: -1, Err: err, Pause: pause})
	return e.cfg.Clock.Sleep(ctx, pause) == nil
}

// publish is Publish of a valid plan.
func (e *Engine) publish(ctx context.Context, plan *commitstep.Plan, w *preparing) (Result, error) {
	res := Result{Key: plan.Key}
	rec, ok, err := e.known(ctx, plan)
	if err != nil {
		return res, err
	}
	if ok {
		return e.knownResult(ctx, rec)
	}
	p, err := e.newPreparation(plan, true)
	if err != nil {
		return res, err
	}
	res.ID = p.id
	l := e.currentLease()
	// The steps of a short plan need not be read back from where they were just
	// written to.
	var only []commitstep.Step
	pages := func(yield func([]commitstep.Step, error) bool) {
		n := 0
		for page, err := range p.pages(ctx) {
			if only = nil; n == 0 {
				only = page
			}
			n++
			if !yield(page, err) {
				return
			}
		}
	}
	live, err := e.put(ctx, l, store.Draft{ID: p.id, Key: plan.Key, Pages: pages, Header: func() (commitstep.Header, error) {
		h, err := p.finish(ctx)
		if err == nil {
			err = e.auditReuse(ctx, p, l.instance)
		}
		if err == nil {
			e.kill("put.before")
		}
		return h, err
	}, Roots: func() []commitstep.StagingRoot { return p.roots }})
	var already *store.AlreadyError
	var used *store.UsedPathError
	switch {
	case errors.As(err, &already):
		return e.knownResult(ctx, already.Record)
	case errors.As(err, &used):
		if rec, ok := e.knownMeanwhile(ctx, plan, p); ok {
			return e.knownResult(ctx, rec)
		}
		return res, e.pathRefusal(ctx, p, used)
	case errors.Is(err, commitstep.ErrOutcomeUnknown):
		return res, fmt.Errorf("dataset %s: storing sequence %s: %w; run `%s`, it goes on with it if it was stored", plan.Key, p.id, err, recoverCommand(plan.Job, e.cfg.Store.Info().Location))
	case w.again(ctx, e, plan, err):
		return e.publish(ctx, plan, w)
	case err != nil:
		switch {
		case errors.Is(err, commitstep.ErrFenced):
			err = fmt.Errorf("dataset %s: the lease of this driver ended before the plan was stored: %w; nothing was stored: publish it again", plan.Key, err)
		case !errors.Is(err, commitstep.ErrUnavailable):
		case ctx.Err() != nil:
			err = notStored(ctx.Err())
		default:
			err = fmt.Errorf("%w; nothing was stored: publish the plan again once the server can be reached", err)
		}
		if rec, ok := e.knownMeanwhile(ctx, plan, p); ok {
			return e.knownResult(ctx, rec)
		}
		return res, e.tellMeanwhile(ctx, plan, err)
	}
	e.kill("put.after")
	e.observe(ctx, Event{Type: EventStored, Key: live.Key, Sequence: live.ID, Step: -1, Count: live.Steps})
	r := &run{e: e, lease: l, live: live, fence: l.fence(live), waitUntil: w.end(e), budget: e.cfg.Policy.WaitBudget}
	if len(only) == live.Steps {
		r.only = &store.Page{Steps: only, Progress: make([]commitstep.Progress, len(only))}
	}
	res = r.finishOrLeave(ctx)
	return res, e.finished(res)
}

// knownMeanwhile asks for the plan's id once more after the plan was
// refused: another process may have published it since the first look, and then
// what the plan needs is rightly gone. A streamed plan can only be held against
// the record when it was read to its end.
func (e *Engine) knownMeanwhile(ctx context.Context, plan *commitstep.Plan, p *preparation) (store.PlanRecord, bool) {
	if plan.ID == "" || ctx.Err() != nil {
		return store.PlanRecord{}, false
	}
	if plan.Stream == nil {
		rec, ok, kerr := e.known(ctx, plan)
		return rec, ok && kerr == nil
	}
	if p.header.PlanHash == "" {
		return store.PlanRecord{}, false
	}
	rec, kerr := e.cfg.Store.LookupPlan(ctx, plan.Key, plan.ID)
	return rec, kerr == nil && rec.Hash == p.header.PlanHash
}

// tellMeanwhile adds to a refusal of a streamed plan, which cannot be read
// again, that its id is known by now.
func (e *Engine) tellMeanwhile(ctx context.Context, plan *commitstep.Plan, err error) error {
	if plan.ID == "" || plan.Stream == nil || ctx.Err() != nil {
		return err
	}
	rec, kerr := e.cfg.Store.LookupPlan(ctx, plan.Key, plan.ID)
	if kerr != nil {
		return err
	}
	return fmt.Errorf("%w; but meanwhile sequence %s has the plan's id and is %s: publish the same plan again to hear what became of it", err, rec.Sequence, rec.State)
}

// put stores a draft, which is prepared on the way. No cleanup removes what it
// might name meanwhile.
func (e *Engine) put(ctx context.Context, l *lease, d store.Draft) (commitstep.Live, error) {
	e.staging.RLock()
	defer e.staging.RUnlock()
	return e.cfg.Store.Put(ctx, d, l.instance.ID)
}

// finished is the error that goes with a result.
func (e *Engine) finished(r Result) error {
	if r.Status == StatusCompleted {
		return nil
	}
	return &NotFinishedError{Result: r, Store: e.cfg.Store.Info().Location}
}

// knownResult answers for a plan id that is known with the same content.
func (e *Engine) knownResult(ctx context.Context, rec store.PlanRecord) (Result, error) {
	res := Result{Key: rec.Key, ID: rec.Sequence, Already: true}
	switch rec.State {
	case commitstep.Completed:
		res.Status = StatusCompleted
		return res, nil
	case commitstep.Abandoned:
		res.Status, res.Already = "", false
		return res, fmt.Errorf("plan %q of dataset %s, sequence %s: %w; make a new plan with a new id", rec.PlanID, rec.Key, rec.Sequence, commitstep.ErrAbandoned)
	}
	res.Already = false
	live, err := e.cfg.Store.Find(ctx, rec.Sequence)
	if errors.Is(err, commitstep.ErrNotFound) {
		// It ended between the two reads.
		if again, err := e.cfg.Store.LookupPlan(ctx, rec.Key, rec.PlanID); err == nil && !again.State.Live() {
			return e.knownResult(ctx, again)
		}
	}
	if err != nil {
		return Result{Key: rec.Key, ID: rec.Sequence}, err
	}
	res.Status, res.Reason, res.Message, res.Total = StatusWaiting, live.Reason, live.Message, live.Steps
	if live.State == commitstep.Parked {
		res.Status = StatusParked
	} else if in, until, held, err := e.cfg.Store.Holder(ctx, live); err == nil && held {
		res.Status, res.Holder, res.HeldUntil = StatusBusy, holderText(in), until
	} else if err == nil && res.Message == "" {
		res.Message = "left unfinished, and nobody runs it now"
	}
	return res, e.finished(res)
}

func holderText(in commitstep.Instance) string {
	if in.Host == "" {
		return in.Name
	}
	return fmt.Sprintf("%s on %s (pid %d)", in.Name, in.Host, in.PID)
}
