package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// Resolution is what a person decides about a parked sequence, or one that waits for
// a server that is gone (ServerGone).
type Resolution struct {
	Key      commitstep.Key
	Decision store.DecisionKind
	// Step is the index that published and not-published speak of; -1 is the
	// step that parked the sequence.
	Step int
	// Version is what the person saw.
	Version uint64
	Person  store.Person
	// Again, with not-published: execute the step anew instead of abandoning.
	Again bool
	// AcceptPartial confirms that an abandoned sequence leaves effects behind.
	AcceptPartial bool
	// ForceFence takes a live lease away first.
	ForceFence bool
	// ServerGone is the person's word that a step's server is gone for good, so
	// that its effect cannot land any more although nobody can ask
	// (commitstep.Withdrawer). It is added to the audited reason. With it published
	// and not-published are also possible for a sequence that is pending, not parked,
	// because a step behind its point of no return waits for a server that nobody can
	// ask.
	ServerGone bool
	// DryRun checks everything and decides nothing. What a step would have to
	// withdraw is not tried.
	DryRun bool
}

// Resolved is what a resolution did, or with DryRun would do.
type Resolved struct {
	Key         commitstep.Key        `json:"key"`
	Before      commitstep.Condition  `json:"before"`
	After       commitstep.Condition  `json:"after"`
	Consequence string                `json:"consequence"`
	Visible     []string              `json:"visible,omitempty"`
	DryRun      bool                  `json:"dryRun,omitempty"`
	Reason      commitstep.ParkReason `json:"reason"`
}

// PartialError refuses to abandon a sequence some of whose steps took effect.
// It matches ErrDecision.
type PartialError struct {
	Key     commitstep.Key
	Visible []string
}

func (e *PartialError) Error() string {
	list := e.Visible
	more := ""
	if len(list) > 10 {
		more = fmt.Sprintf(" and %d more", len(list)-10)
		list = list[:10]
	}
	return fmt.Sprintf("dataset %s: already visible: %s%s; --accept-partial abandons it all the same and leaves them in place", e.Key, strings.Join(list, ", "), more)
}

// Is makes errors.Is(err, commitstep.ErrDecision) true.
func (e *PartialError) Is(target error) bool { return target == commitstep.ErrDecision }

// decisionsFor is the table of what may be decided.
func decisionsFor(live commitstep.Live, irreversible bool) []store.DecisionKind {
	switch live.Reason {
	case commitstep.PublishUnknown:
		return []store.DecisionKind{store.DecidePublished, store.DecideNotPublished, store.DecideRetry}
	case commitstep.ConflictFound:
		d := []store.DecisionKind{store.DecideRetry, store.DecideAbandon}
		if irreversible {
			d = append(d, store.DecidePublished)
		}
		return d
	case commitstep.AttemptsExhausted, commitstep.Adopted:
		return []store.DecisionKind{store.DecideRetry, store.DecideAbandon}
	}
	return nil
}

// Resolve applies a person's decision to a parked sequence, with its audit row
// in the same transaction. It runs nothing: the next Recover does.
//
// ErrNotFound: nothing live. ErrDecision: not possible in this state, reason
// too short, or *PartialError. ErrVersion: it changed since it was shown.
// ErrBusy: a live lease holds it (see ForceFence).
func (e *Engine) Resolve(ctx context.Context, q Resolution) (Resolved, error) {
	out := Resolved{Key: q.Key, DryRun: q.DryRun}
	if err := e.enter(); err != nil {
		return out, err
	}
	decider, ok := e.cfg.Store.(store.Decider)
	if !ok {
		return out, fmt.Errorf("store %s takes no decisions: %w", e.cfg.Store.Info().Location, errors.ErrUnsupported)
	}
	refuse := func(format string, a ...any) (Resolved, error) {
		return out, fmt.Errorf("dataset %s: %w: %s", q.Key, commitstep.ErrDecision, fmt.Sprintf(format, a...))
	}
	if utf8.RuneCountInString(strings.TrimSpace(q.Person.Reason)) < store.MinReason {
		return refuse("a decision needs a reason of at least %d characters", store.MinReason)
	}
	if strings.TrimSpace(q.Person.Name) == "" {
		return refuse("a decision needs the name of who decides")
	}
	live, err := e.cfg.Store.Get(ctx, q.Key)
	if err != nil {
		return out, err
	}
	out.Before, out.Reason = live.Condition, live.Reason
	if live.Version != q.Version {
		return out, fmt.Errorf("dataset %s: %w: you saw version %d, it is %d now; look again with `commitstep pending show`", q.Key, commitstep.ErrVersion, q.Version, live.Version)
	}
	in, until, held, err := e.cfg.Store.Holder(ctx, live)
	if err != nil {
		return out, err
	}
	if held && !q.ForceFence {
		return out, &store.BusyError{Key: q.Key, ID: live.ID, Holder: in, Until: until}
	}
	if live.State != commitstep.Parked {
		if held {
			return refuse("it is %s and held by %s; wait until it parks or its lease ends", live.State, holderText(in))
		}
		step, why, err := e.unasked(ctx, live, q)
		if err != nil {
			return out, err
		}
		if why != "" {
			return refuse("%s", why)
		}
		// It is decided like one that was parked over this step.
		live.Reason, live.ParkStep = commitstep.PublishUnknown, step
	} else if held {
		if open, err := e.openNoReturn(ctx, live); err != nil {
			return out, err
		} else if open >= 0 {
			return refuse("step %d has passed its point of no return under a live lease; it cannot be fenced, wait until %s", open+1, until.UTC())
		}
	}
	irreversible := e.irreversible(ctx, live)
	if allowed := decisionsFor(live, irreversible); !slices.Contains(allowed, q.Decision) {
		return refuse("%s cannot be decided as %q; possible: %v", live.Reason, q.Decision, allowed)
	}
	if q.ServerGone {
		// It is their word that the decision rests on.
		q.Person.Reason = strings.TrimSpace(q.Person.Reason) + " (said that the server is gone for good)"
	}
	d := store.Decision{Key: q.Key, ID: live.ID, Kind: q.Decision, Step: q.Step, Version: q.Version, Person: q.Person, Force: q.ForceFence, State: commitstep.Pending}
	if d.Step < 0 {
		d.Step = live.ParkStep
	}
	switch q.Decision {
	case store.DecideRetry:
		d.ResetAttempts = true
		out.Consequence = "the next recover verifies it again and goes on"
	case store.DecidePublished:
		if d.Step < 0 {
			return refuse("no step parked it; name one with --step")
		}
		if d.Step != live.ParkStep {
			return refuse("step %d is the one that nobody can know, not step %d", live.ParkStep+1, d.Step+1)
		}
		d.MarkDone = true
		out.Consequence = fmt.Sprintf("step %d counts as published; the next recover runs the remaining steps; what it staged is kept", d.Step+1)
	case store.DecideNotPublished:
		if d.Step != live.ParkStep {
			return refuse("step %d is the one that nobody can know, not step %d", live.ParkStep+1, d.Step+1)
		}
		if q.Again {
			if !irreversible {
				return refuse("step %d can be repeated, but only once its Verify says that it is not done; retry looks again, not-published without again abandons", d.Step+1)
			}
			if ledger, err := e.hasLedger(ctx, live); err != nil {
				return out, err
			} else if ledger {
				return refuse("a sequence bound to a ledger can only be abandoned")
			}
			d.ClearNoReturn, d.ResetAttempts = true, true
			out.Consequence = fmt.Sprintf("the next recover executes step %d anew", d.Step+1)
			break
		}
		d.State = commitstep.Abandoned
	case store.DecideAbandon:
		d.State = commitstep.Abandoned
	}
	if d.State == commitstep.Abandoned {
		if out.Visible, err = e.visible(ctx, live, q.ServerGone); err != nil {
			return out, err
		}
		if len(out.Visible) > 0 && !q.AcceptPartial {
			return out, &PartialError{Key: q.Key, Visible: out.Visible}
		}
		d.Notes.PartialVisible, d.Notes.DeclaredPublished = out.Visible, live.DeclaredPublished
		out.Consequence = "the sequence ends as abandoned; its staging is kept until `commitstep staging remove`"
	}
	if q.DryRun {
		out.After = live.Condition
		out.After.State = d.State
		return out, nil
	}
	if q.Decision == store.DecideNotPublished || q.Decision == store.DecideAbandon {
		refused, err := e.withdraw(ctx, live, q)
		if err != nil {
			return out, err
		}
		if refused != nil {
			return refuse("%v", refused)
		}
	}
	out.After, err = decider.Decide(ctx, d)
	return out, err
}

// unasked finds the step over which a sequence that is not parked may be decided
// about: it has passed its point of no return, and nobody can ask what became of
// it. It waits, and would for ever if its server never came back, since that a
// server does not answer is no reason to park. why says why there is none.
func (e *Engine) unasked(ctx context.Context, live commitstep.Live, q Resolution) (step int, why string, err error) {
	step, err = e.openNoReturn(ctx, live)
	switch {
	case err != nil:
		return -1, "", err
	case step < 0:
		return -1, fmt.Sprintf("it is %s, not parked; recover runs it", live.State), nil
	case !q.ServerGone:
		return -1, fmt.Sprintf("it is %s, not parked; recover goes on with it. If it waits for the server of step %d, and that is gone for good, say so (--server-gone)", live.State, step+1), nil
	case q.Decision != store.DecidePublished && q.Decision != store.DecideNotPublished:
		return -1, fmt.Sprintf("it is %s; of a step whose server is gone only %s and %s can be said", live.State, store.DecidePublished, store.DecideNotPublished), nil
	}
	s, p, ok := e.stepAt(ctx, live, step)
	if !ok {
		return -1, "", fmt.Errorf("dataset %s: step %d cannot be read", live.Key, step+1)
	}
	b, err := e.cfg.Kinds.Build(s)
	if err != nil {
		return step, "", nil // what serves it here is gone too
	}
	a := commitstep.NewAttempt(live.ID, live.Key, s.Index, p, nil)
	a.Epoch = live.Epoch
	v, err := safeVerify(ctx, &item{step: s, progress: p, behave: b, attempt: a})
	switch {
	case ctx.Err() != nil:
		return -1, "", ctx.Err()
	case err == nil:
		return -1, fmt.Sprintf("it is %s, and step %d can be asked: %s; recover goes on with it", live.State, step+1, v), nil
	case errors.Is(err, commitstep.ErrInProgress):
		return -1, fmt.Sprintf("it is %s, and the server of step %d answers: %v; recover waits for its end", live.State, step+1, err), nil
	}
	return step, "", nil
}

// withdraw makes certain that what a person calls not published does not land
// after their decision. Nobody runs the sequence: it is parked, and whoever
// claims it only to tell OnPark executes nothing. It is claimed meanwhile, so that
// the steps can note what they saw, which a refused decision leaves behind; its
// version stays. Not where the person overrides a holder, or nothing can be asked:
// then the steps only look. refused is a step's error, err the store's.
func (e *Engine) withdraw(ctx context.Context, live commitstep.Live, q Resolution) (refused, err error) {
	if live.State != commitstep.Parked || q.ServerGone {
		return e.withdrawSteps(ctx, live, q.ServerGone, nil), nil
	}
	l := e.currentLease()
	claimed, err := e.cfg.Store.ClaimOne(ctx, l.instance.ID, live.Key)
	switch {
	case errors.Is(err, commitstep.ErrBusy) && q.ForceFence:
		return e.withdrawSteps(ctx, live, q.ServerGone, nil), nil
	case err != nil:
		return nil, err
	}
	fence := l.fence(claimed)
	if claimed.ID != live.ID || claimed.Version != live.Version {
		err = fmt.Errorf("dataset %s: %w: it changed meanwhile; look again with `commitstep pending show`", live.Key, commitstep.ErrVersion)
	} else {
		refused = e.withdrawSteps(ctx, claimed, q.ServerGone, parkJournal{e, fence})
	}
	// The decision is taken on what nobody holds.
	if rerr := e.cfg.Store.Release(context.WithoutCancel(ctx), fence); err == nil && refused == nil {
		err = rerr
	}
	return refused, err
}

// withdrawSteps asks every step that is not done; without a journal they only look.
func (e *Engine) withdrawSteps(ctx context.Context, live commitstep.Live, gone bool, j commitstep.Journal) error {
	size := (&run{live: live}).pageSize()
	for n := 0; n*size < live.Steps; n++ {
		page, err := e.cfg.Store.Steps(ctx, live.ID, n)
		if err != nil {
			return err
		}
		for i, s := range page.Steps {
			p := page.Progress[i]
			if p.Done || p.Note == nil && p.NoReturn == nil {
				continue // nothing of it was ever sent that needs a handle to be withdrawn
			}
			b, err := e.cfg.Kinds.Build(s)
			if err != nil && gone {
				continue // what serves it here is gone too
			}
			if err != nil {
				return err
			}
			w, ok := b.(commitstep.Withdrawer)
			if !ok {
				continue
			}
			a := commitstep.NewAttempt(live.ID, live.Key, s.Index, p, j)
			a.Epoch = live.Epoch
			if err := guardPanic("Withdraw", func() error { return w.Withdraw(ctx, a, gone) }); err != nil {
				return fmt.Errorf("%s: %w", where(s), err)
			}
		}
	}
	return nil
}

// visible lists the steps that took effect: marked done, found done now, or found
// to be visible although they are not done or in conflict. gone
// is a person's word that nothing can be asked of what a Withdrawer works on.
func (e *Engine) visible(ctx context.Context, live commitstep.Live, gone bool) ([]string, error) {
	var out []string
	var fail error
	_, err := e.inspect(ctx, live, true, func(v StepView) {
		done := v.Progress.Done || v.Verdict != nil && v.Verdict.Outcome == commitstep.Done
		if v.LookError != "" && fail == nil && !done && !(gone && e.withdraws(v.Step)) {
			fail = fmt.Errorf("%s cannot be looked at now: %s; try again when it can be reached", commitstep.Where(v.Stage, v.Index, v.Kind), v.LookError)
		}
		there := v.Verdict != nil && v.Verdict.Visible
		if !done && !there || len(out) >= MaxStepReports {
			return
		}
		line := strings.TrimSpace(commitstep.Where(v.Stage, v.Index, v.Kind) + " " + v.Summary)
		if !done {
			line += " (" + v.Verdict.Evidence + ")"
		}
		out = append(out, line)
	})
	return out, errors.Join(err, fail)
}

func (e *Engine) withdraws(s commitstep.Step) bool {
	b, err := e.cfg.Kinds.Build(s)
	if err != nil {
		return false
	}
	_, ok := b.(commitstep.Withdrawer)
	return ok
}

// openNoReturn finds a step with a point-of-no-return mark that is not done.
func (e *Engine) openNoReturn(ctx context.Context, live commitstep.Live) (int, error) {
	open := -1
	_, err := e.inspect(ctx, live, false, func(v StepView) {
		if v.Progress.NoReturn != nil && !v.Progress.Done && open < 0 {
			open = v.Index
		}
	})
	return open, err
}

func (e *Engine) hasLedger(ctx context.Context, live commitstep.Live) (bool, error) {
	found := false
	_, err := e.inspect(ctx, live, false, func(v StepView) {
		if v.Class == commitstep.LedgerStep {
			found = true
		}
	})
	return found, err
}
