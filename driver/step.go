package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// step brings one step of a batch to Done, or to an ending. Its first look may
// have been taken, and its first attempt recorded, together with the others.
func (r *run) step(ctx context.Context, it *item) ending {
	t := tries{}
	for {
		// What is known to be done is kept, also after a stop.
		if ctx.Err() != nil && !(it.looked && it.verdict.Outcome == commitstep.Done) {
			return r.stop(it, stopped(ctx, it.step.Index))
		}
		if r.spent() && !(it.looked && it.verdict.Outcome == commitstep.Done) {
			return r.stop(it, r.untried(it.step))
		}
		if !it.looked {
			v, err := r.verify(ctx, it)
			if err != nil {
				if end := r.wait(ctx, it, &t, "look", err); end.ends() {
					return end
				}
				continue
			}
			it.verdict, it.looked = v, true
		}
		switch it.verdict.Outcome {
		case commitstep.Done:
			it.ready = true
			if it.did == "" {
				it.did = DidAlready
				switch {
				case t.called:
					it.did = DidExecuted
				case it.progress.Count > 0 || t.executed:
					it.did = DidRecovered
				}
			}
			return ending{}
		case commitstep.Conflict:
			return r.failedConflict(it)
		case commitstep.Unknown:
			if end := r.doubts(it, &t); end.ends() {
				return end
			}
			if end := r.unknown(ctx, it, &t); end.ends() {
				return end
			}
			it.looked = false
			continue
		}
		if end := r.certain(it, &t); end.ends() {
			return end
		}
		if !t.executed && r.crowded() {
			return r.stop(it, r.untried(it.step))
		}
		if end := r.execute(ctx, it, &t); end.ends() {
			return end
		}
		if it.move != nil {
			return ending{}
		}
	}
}

// tries is what this run remembers of one step's trouble.
type tries struct {
	executed     bool // Execute was called
	called       bool // and the last call did not fail
	pauses       int
	firstFailure time.Time // of this driver
	waited       time.Duration
	unknownSince time.Time
}

func stopped(ctx context.Context, step int) ending {
	return ending{status: StatusStopped, step: step, message: context.Cause(ctx).Error()}
}

// stop ends an open attempt as stopped, which does not count. One of which nobody
// can tell stays that.
func (r *run) stop(it *item, end ending) ending {
	if it.recorded && it.doubt == 0 {
		stopped := r.outcomeEvent(it, commitstep.AttemptStopped, nil)
		it.recorded = false
		if err := r.e.cfg.Store.Record(r.effects, r.fence, false, stopped); err != nil {
			return r.storeEnding(err)
		}
	}
	return end
}

// verify looks, with panics turned into an unknown outcome.
func (r *run) verify(ctx context.Context, it *item) (commitstep.Verdict, error) {
	r.hangs.enter()
	defer r.hangs.leave()
	if r.e.cfg.Observer == nil {
		v, err := reattachVerify(ctx, it)
		r.reaches.note(err)
		return v, err
	}
	started := r.e.now()
	v, err := reattachVerify(ctx, it)
	r.reaches.note(err)
	r.e.observe(ctx, r.event(it, Event{Type: EventVerified, Verdict: v, Err: err, Took: r.e.now().Sub(started)}))
	return v, err
}

// reattachVerify looks, after the step has taken up what an earlier call left
// open. Looks without a claim only look.
func reattachVerify(ctx context.Context, it *item) (commitstep.Verdict, error) {
	if b, ok := it.behave.(commitstep.Reattacher); ok && !it.attempt.ReadOnly() {
		if err := guardPanic("Reattach", func() error { return b.Reattach(ctx, it.attempt) }); err != nil {
			return commitstep.Verdict{}, err
		}
	}
	return safeVerify(ctx, it)
}

func safeVerify(ctx context.Context, it *item) (v commitstep.Verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = commitstep.IsUnknown("%s", panicked("Verify", p)), nil
		}
	}()
	return it.behave.Verify(ctx, it.attempt)
}

func safeExecute(ctx context.Context, it *item) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked("Execute", p)
		}
	}()
	return it.behave.Execute(ctx, it.attempt)
}

// lookAgain repeats the look at a step that was not looked at, or was unknown.
func (r *run) lookAgain(ctx context.Context, it *item) ending {
	t := tries{}
	for {
		if it.looked && it.verdict.Outcome == commitstep.Unknown {
			if end := r.unknown(ctx, it, &t); end.ends() {
				return end
			}
		}
		v, err := r.verify(ctx, it)
		if err != nil {
			if end := r.wait(ctx, it, &t, "look", err); end.ends() {
				return end
			}
			continue
		}
		it.verdict, it.looked = v, true
		switch v.Outcome {
		case commitstep.Conflict:
			return r.conflict(it)
		case commitstep.Done:
			it.ready, it.did = true, DidAlready
			return ending{}
		case commitstep.NotDone:
			return ending{}
		}
	}
}

// progressPause is the longest pause between two looks at an effect that is still
// in progress.
const progressPause = time.Second

// wait pauses after something could not be reached. It counts no attempt, and
// ends as waiting when the budget is over.
func (r *run) wait(ctx context.Context, it *item, t *tries, what string, err error) ending {
	if errors.Is(err, commitstep.ErrFenced) {
		return r.stop(it, ending{status: StatusFenced, step: it.step.Index, message: err.Error()})
	}
	if ctx.Err() != nil {
		return r.stop(it, stopped(ctx, it.step.Index))
	}
	if over := r.e.over(r.lease); over != nil {
		// Somebody else may wait for it by now, or have seen it through.
		return r.stop(it, ending{status: StatusWaiting, step: it.step.Index, message: fmt.Sprintf("%s cannot %s yet: %v; and %v", where(it.step), what, err, over)})
	}
	t.pauses++
	pause := r.e.cfg.Policy.Pause(t.pauses)
	if errors.Is(err, commitstep.ErrInProgress) {
		// Nothing has failed, and long pauses would only make a long effect longer.
		pause = min(pause, progressPause)
	}
	r.e.observe(ctx, r.event(it, Event{Type: EventWaiting, Err: err, Pause: pause}))
	left := r.waitUntil.Sub(r.e.now())
	if left <= 0 {
		why := "cannot " + what + " yet"
		if errors.Is(err, commitstep.ErrInProgress) {
			r.reaches.leave()
			why = "is still in progress"
		}
		return r.stop(it, ending{status: StatusWaiting, step: it.step.Index, message: fmt.Sprintf("%s %s: %v", where(it.step), why, err)})
	}
	pause = min(pause, left)
	t.waited += pause
	if r.e.cfg.Clock.Sleep(ctx, pause) != nil {
		return r.stop(it, stopped(ctx, it.step.Index))
	}
	return ending{}
}

// unknown pauses before another look, and parks when the budget is over.
func (r *run) unknown(ctx context.Context, it *item, t *tries) ending {
	if over := r.e.over(r.lease); over != nil {
		return r.stop(it, ending{status: StatusWaiting, step: it.step.Index,
			message: fmt.Sprintf("%s: nobody can tell yet whether it took effect: %s; and %v", where(it.step), it.verdict.Evidence, over)})
	}
	now := r.e.now()
	if t.unknownSince.IsZero() {
		t.unknownSince = now
	}
	left := r.e.cfg.Policy.UnknownBudget - now.Sub(t.unknownSince)
	if left <= 0 {
		return ending{status: StatusParked, reason: commitstep.PublishUnknown, step: it.step.Index, events: r.closeFailed(it, errors.New(it.verdict.String())),
			message: fmt.Sprintf("%s: nobody can tell whether it took effect: %s", where(it.step), it.verdict.Evidence)}
	}
	t.pauses++
	pause := min(r.e.cfg.Policy.Pause(t.pauses), left)
	r.e.observe(ctx, r.event(it, Event{Type: EventRetry, Verdict: it.verdict, Pause: pause}))
	t.waited += pause
	if r.e.cfg.Clock.Sleep(ctx, pause) != nil {
		return r.stop(it, stopped(ctx, it.step.Index))
	}
	return ending{}
}

func (r *run) failedConflict(it *item) ending {
	end := r.conflict(it)
	end.events = r.closeFailed(it, errors.New(it.verdict.String()))
	return end
}

// closeFailed gives an open attempt its failed outcome.
func (r *run) closeFailed(it *item, err error) []store.Event {
	if it.open() == 0 {
		return nil
	}
	failed := r.outcomeEvent(it, commitstep.AttemptFailed, err)
	it.recorded, it.doubt = false, 0
	return []store.Event{failed}
}

// execute makes one attempt on a fresh NotDone, looks at what became of it,
// and leaves the verdict in it for the loop. It ends when the attempts are
// used up or the failure is permanent.
func (r *run) execute(ctx context.Context, it *item, t *tries) ending {
	if !it.recorded && it.progress.Failed >= r.e.cfg.Policy.MaxAttempts {
		return r.exhausted(it, fmt.Sprintf("%s: failed %d times: %s", where(it.step), it.progress.Failed, lastError(it.progress)))
	}
	if _, irreversible := it.behave.(commitstep.Irreversible); irreversible {
		if end := r.lookBehind(ctx, it); end.ends() {
			return r.stop(it, end)
		}
	}
	if err := r.mayAct(ctx); err != nil {
		if errors.Is(err, commitstep.ErrFenced) {
			return ending{status: StatusFenced, step: it.step.Index, message: err.Error()}
		}
		it.looked = false
		return r.wait(ctx, it, t, "check the claim", err)
	}
	if it.move != nil {
		return r.apply(ctx, it)
	}
	if !it.recorded && r.durable(it) {
		if err := r.e.cfg.Store.Record(r.effects, r.fence, true, r.attemptEvent(it)); err != nil {
			return r.storeEnding(err)
		}
		it.recorded = true
	} else if !it.recorded {
		it.attempt.Number = 1
	}
	r.killStep("execute.before", it.step)
	var started time.Time
	if r.e.cfg.Observer != nil {
		started = r.e.now()
	}
	r.hangs.enter()
	err := safeExecute(r.effects, it)
	r.hangs.leave()
	t.executed, t.called = true, err == nil || errors.Is(err, commitstep.ErrInProgress)
	r.killStep("execute.after", it.step)
	if r.e.cfg.Observer != nil {
		r.e.observe(ctx, r.event(it, Event{Type: EventExecuted, Err: err, Took: r.e.now().Sub(started)}))
	}
	if errors.Is(err, commitstep.ErrFenced) {
		return ending{status: StatusFenced, step: it.step.Index, message: err.Error()}
	}
	// The lease may have ended meanwhile; then the next driver finds out what
	// this call did.
	if err := r.e.ours(r.lease); err != nil {
		return ending{status: StatusFenced, step: it.step.Index, message: err.Error()}
	}
	it.looked = false
	if err != nil && commitstep.ClassOf(err) == commitstep.ClassNotSent {
		r.reaches.note(err)
		if end := r.notSent(it, err); end.ends() {
			return end
		}
		return r.wait(ctx, it, t, "reach its target", err)
	}
	if errors.Is(err, commitstep.ErrInProgress) {
		// Nothing has failed, and nothing is there yet: what the next look finds
		// says nothing about this call. The attempt stays open, so that a process
		// that dies over it is counted.
		return r.wait(ctx, it, t, "see its end", err)
	}
	v, verr := r.verify(r.effects, it)
	if verr == nil {
		it.verdict, it.looked = v, true
		if v.Outcome == commitstep.Done {
			it.did = DidExecuted
			if err != nil {
				it.did = DidRecovered
			}
			return ending{}
		}
	}
	if errors.Is(verr, commitstep.ErrInProgress) {
		return r.wait(ctx, it, t, "look", verr)
	}
	if verr != nil || v.Outcome != commitstep.NotDone {
		return ending{} // the loop looks again, parks a conflict or an unknown
	}
	if err == nil {
		err = fmt.Errorf("the call succeeded, but %s", v.Evidence)
	}
	return r.failed(ctx, it, t, where(it.step), err)
}

// failed counts a failure that Verify confirmed.
func (r *run) failed(ctx context.Context, it *item, t *tries, where string, err error) ending {
	var events []store.Event
	if !it.recorded {
		events = append(events, r.attemptEvent(it))
		it.recorded = true
	}
	events = append(events, r.closeFailed(it, err)...)
	it.progress.Attempts = append(it.progress.Attempts, commitstep.AttemptRecord{Number: it.attempt.Number, Error: err.Error()})
	now := r.e.now()
	if t.firstFailure.IsZero() {
		t.firstFailure = now
	}
	why := ""
	switch elapsed := now.Sub(t.firstFailure) - t.waited; {
	case commitstep.IsPermanent(err):
		why = fmt.Sprintf("%s: cannot succeed: %v", where, err)
	case it.progress.Failed >= r.e.cfg.Policy.MaxAttempts:
		why = fmt.Sprintf("%s: failed %d times: %v", where, it.progress.Failed, err)
	case elapsed >= r.e.cfg.Policy.MaxElapsed:
		why = fmt.Sprintf("%s: failing for %s: %v", where, elapsed.Round(time.Second), err)
	}
	if why != "" {
		end := r.exhausted(it, why)
		end.events = events
		return end
	}
	if rerr := r.e.cfg.Store.Record(r.effects, r.fence, true, events...); rerr != nil {
		return r.storeEnding(rerr)
	}
	t.pauses++
	pause := r.e.cfg.Policy.Pause(t.pauses)
	r.e.observe(ctx, r.event(it, Event{Type: EventRetry, Err: err, Pause: pause, Verdict: it.verdict}))
	it.looked = false
	if r.e.cfg.Clock.Sleep(ctx, pause) != nil {
		return stopped(ctx, it.step.Index)
	}
	return ending{}
}

func where(s commitstep.Step) string { return commitstep.Where(s.Stage, s.Index, s.Kind) }

func (r *run) exhausted(it *item, why string) ending {
	return ending{status: StatusParked, reason: commitstep.AttemptsExhausted, step: it.step.Index, message: why}
}

func lastError(p commitstep.Progress) string {
	for i := len(p.Attempts) - 1; i >= 0; i-- {
		if a := p.Attempts[i]; a.Error != "" {
			return a.Error
		} else if a.Outcome == "" {
			return fmt.Sprintf("attempt %d ended without an outcome, its process died", a.Number)
		}
	}
	return "no outcome was recorded"
}

// notSent takes an attempt back that certainly had no effect.
func (r *run) notSent(it *item, err error) ending {
	if !it.recorded {
		return ending{}
	}
	waiting := r.outcomeEvent(it, commitstep.AttemptWaiting, err)
	it.recorded = false
	it.progress.Failed--
	if err := r.e.cfg.Store.Record(r.effects, r.fence, false, waiting); err != nil {
		return r.storeEnding(err)
	}
	return ending{}
}

// apply lets the store move a watermark, together with the step's done mark.
func (r *run) apply(ctx context.Context, it *item) ending {
	r.killStep("execute.before", it.step)
	err := r.e.cfg.Store.Record(r.effects, r.fence, true, store.Event{Type: store.EventMove, Step: it.step.Index, Move: *it.move})
	var stale *store.StaleError
	if errors.As(err, &stale) {
		it.verdict = stale.Verdict
		return r.conflict(it)
	}
	if err != nil {
		return r.storeEnding(err)
	}
	r.killStep("execute.after", it.step)
	it.ready, it.did = true, DidExecuted
	r.count(it.step, it.did, 0, it.behave)
	r.e.observe(ctx, r.event(it, Event{Type: EventDone, Did: it.did}))
	return ending{}
}

// mayAct checks the lease and every guard, right before an effect.
func (r *run) mayAct(ctx context.Context) error {
	if err := r.e.ours(r.lease); err != nil {
		return err
	}
	r.mu.Lock()
	guards := r.guards
	r.mu.Unlock()
	for _, g := range guards {
		if err := guardPanic("Check", func() error { return g.guard.Check(ctx, g.attempt) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) event(it *item, ev Event) Event {
	ev.Key, ev.Sequence, ev.Step, ev.Kind = r.live.Key, r.live.ID, it.step.Index, it.step.Kind
	ev.Attempt = it.attempt.Number
	if r.e.cfg.Observer != nil {
		ev.Summary = summary(it.behave)
	}
	return ev
}
