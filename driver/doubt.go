package driver

import (
	"errors"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// open is the number of the attempt that has no definite outcome yet, 0 if there
// is none.
func (it *item) open() int {
	if it.recorded {
		return it.attempt.Number
	}
	return it.doubt
}

// doubts keeps with the step's newest attempt since when no look can tell what
// became of it. What has been unknown for the budget is parked then, also when no
// run lasts as long as that. It is written once, and later runs find it. A step
// without an attempt has a first one then: a publish makes that unrecorded.
func (r *run) doubts(it *item, t *tries) ending {
	if it.doubt > 0 || it.move != nil {
		return ending{}
	}
	now := r.e.now()
	t.unknownSince = now
	var newest commitstep.AttemptRecord
	if n := len(it.progress.Attempts); n > 0 {
		newest = it.progress.Attempts[n-1]
	}
	switch {
	case it.recorded:
		it.doubt = it.attempt.Number
	case it.progress.Count == 0:
		it.progress.Count, it.progress.Failed, it.doubt = 1, it.progress.Failed+1, 1
	case newest.Outcome == commitstep.AttemptUnknown && newest.Number == it.progress.Count:
		it.doubt = newest.Number
		if newest.Ended.Before(now) { // else clocks differ
			t.unknownSince = newest.Ended
		}
		return ending{}
	default:
		it.doubt = it.progress.Count
		switch newest.Outcome {
		case commitstep.AttemptStopped, commitstep.AttemptWaiting, commitstep.AttemptDone:
			it.progress.Failed++
		}
	}
	err := r.e.cfg.Store.Record(r.effects, r.fence, false, store.Event{Type: store.EventOutcome, Step: it.step.Index, Attempt: commitstep.AttemptRecord{
		Number: it.doubt, Ended: now, Outcome: commitstep.AttemptUnknown, Error: it.verdict.String()}})
	if err != nil {
		return r.storeEnding(err)
	}
	return ending{}
}

// certain ends the doubt, since a look can tell: that attempt has failed, and a
// later doubt has a time of its own.
func (r *run) certain(it *item, t *tries) ending {
	t.unknownSince = time.Time{}
	if it.doubt == 0 {
		return ending{}
	}
	if err := r.e.cfg.Store.Record(r.effects, r.fence, false, r.closeFailed(it, errors.New(it.verdict.String()))...); err != nil {
		return r.storeEnding(err)
	}
	return ending{}
}
