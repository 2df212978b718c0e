package driver

import (
	"context"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// settle makes the effects of a batch durable, then marks them, and returns
// the heaviest ending.
func (r *run) settle(ctx context.Context, items []*item) ending {
	var end ending
	s := &commitstep.Settling{}
	var done []*item
	settled := false
	for _, it := range items {
		if it.end.weight() > end.weight() {
			end = it.end
		}
		if it.end.ends() {
			r.left(it)
		}
		if !it.ready || it.move != nil && it.did == DidExecuted {
			continue
		}
		if b, ok := it.behave.(commitstep.Settler); ok {
			r.hangs.enter()
			err := guardPanic("Settle", func() error { return b.Settle(r.effects, s) })
			r.hangs.leave()
			if err != nil {
				// Not durable, so not done: found again by the next Verify.
				x := ending{status: StatusWaiting, step: it.step.Index, message: fmt.Sprintf("%s: made, but not durable: %v", where(it.step), err)}
				r.e.observe(ctx, r.event(it, Event{Type: EventWaiting, Err: err}))
				if x.weight() > end.weight() {
					end = x
				}
				continue
			}
			settled = true
			r.killStep("settle.after", it.step)
		}
		if done == nil {
			done = make([]*item, 0, len(items))
		}
		done = append(done, it)
		r.count(it.step, it.did, it.progress.Count, it.behave)
		r.addGuard(it)
		r.e.observe(ctx, r.event(it, Event{Type: EventDone, Did: it.did, Verdict: it.verdict}))
	}
	if settled {
		r.e.observe(ctx, Event{Type: EventSettled, Key: r.live.Key, Sequence: r.live.ID, Step: -1, Count: len(done)})
	}
	if items[len(items)-1].step.Index == r.live.Steps-1 && !end.ends() {
		// The completion follows at once and says the same.
		r.last = done
		return end
	}
	events := r.doneEvents(done)
	if len(events) > 0 && end.status != StatusFenced {
		if err := r.e.cfg.Store.Record(r.effects, r.fence, false, events...); err != nil {
			if x := r.storeEnding(err); x.weight() > end.weight() {
				end = x
			}
		}
		r.killStep("record.after", items[len(items)-1].step)
	}
	return end
}

// doneEvents are the marks of finished items, with the outcomes of their open
// attempts.
func (r *run) doneEvents(done []*item) []store.Event {
	events := make([]store.Event, 0, len(done))
	for _, it := range done {
		events = append(events, store.Event{Type: store.EventDone, Step: it.step.Index})
		if it.open() > 0 {
			events = append(events, r.outcomeEvent(it, commitstep.AttemptDone, nil))
		}
	}
	return events
}

func (r *run) outcomeEvent(it *item, outcome string, err error) store.Event {
	a := commitstep.AttemptRecord{Number: it.open(), Ended: r.e.now(), Outcome: outcome}
	if err != nil {
		a.Class, a.Error = commitstep.ClassOf(err).String(), err.Error()
	}
	return store.Event{Type: store.EventOutcome, Step: it.step.Index, Attempt: a}
}
