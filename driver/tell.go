package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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
	l := e.currentLease()
	if live, err = e.cfg.Store.ClaimOne(ctx, l.instance.ID, key); err != nil {
		return err
	}
	fence := l.fence(live)
	defer func() { _ = e.cfg.Store.Release(context.WithoutCancel(ctx), fence) }()
	if live.State != commitstep.Parked {
		return notParked(live)
	}
	return e.tellPark(ctx, live, fence, parkingOf(live), time.Time{})
}

// parkingOf is why a parked sequence was parked.
func parkingOf(live commitstep.Live) store.Parking {
	return store.Parking{Reason: live.Reason, Step: live.ParkStep, Message: live.Message}
}

// tellUntil is how long the steps of a sequence that was just parked have for what
// they gather: until the end of the run's budget, and always for half of it and for
// Config.Grace, since a server forgets what is not gathered now.
func (e *Engine) tellUntil(end time.Time, budget time.Duration) time.Time {
	least := e.now().Add(max(budget/2, e.cfg.Grace))
	if end.After(least) {
		return end
	}
	return least
}

// tellPark tells every step that wants to know why its sequence was parked, first the
// one that parked it: the time is most likely to suffice for that. At until, unless
// that is zero, their patience is over; Config.Grace later their calls are cut off,
// and what was not told is told by the next recover.
func (e *Engine) tellPark(ctx context.Context, live commitstep.Live, f store.Fence, why store.Parking, until time.Time) error {
	var patience <-chan struct{}
	if !until.IsZero() {
		left := max(0, until.Sub(e.now()))
		over, stop := context.WithTimeout(context.WithoutCancel(ctx), left)
		defer stop()
		patience = over.Done()
		cut, stop := context.WithTimeout(ctx, left+e.cfg.Grace)
		defer stop()
		ctx = cut
	}
	t := teller{e: e, live: live, fence: f, why: why, patience: patience}
	if err := t.all(ctx); err != nil {
		return err
	}
	return e.cfg.Store.ParkTold(ctx, f)
}

// teller tells the steps of one sequence.
type teller struct {
	e        *Engine
	live     commitstep.Live
	fence    store.Fence
	why      store.Parking
	patience <-chan struct{}
}

func (t teller) all(ctx context.Context) error {
	size := (&run{live: t.live}).pageSize()
	if t.why.Step >= 0 && t.why.Step < t.live.Steps {
		page, err := t.e.cfg.Store.Steps(ctx, t.live.ID, t.why.Step/size)
		if err != nil {
			return err
		}
		if err := t.page(ctx, page, func(step int) bool { return step == t.why.Step }); err != nil {
			return err
		}
	}
	for n := 0; n*size < t.live.Steps; n++ {
		page, err := t.e.cfg.Store.Steps(ctx, t.live.ID, n)
		if err != nil {
			return err
		}
		if err := t.page(ctx, page, func(step int) bool { return step != t.why.Step }); err != nil {
			return err
		}
	}
	return nil
}

func (t teller) page(ctx context.Context, page store.Page, match func(step int) bool) error {
	for i, s := range page.Steps {
		if k, _ := t.e.cfg.Kinds.Kind(s.Kind); !k.WantsPark || !match(s.Index) {
			continue
		}
		b, err := t.e.cfg.Kinds.Build(s)
		if err != nil {
			return err
		}
		p, ok := b.(commitstep.OnPark)
		if !ok {
			continue
		}
		a := commitstep.NewAttempt(t.live.ID, t.live.Key, s.Index, page.Progress[i], parkJournal{t.e, t.fence})
		a.Epoch, a.Patience = t.fence.Epoch, t.patience
		if err := guardPanic("OnPark", func() error { return p.OnPark(ctx, a, t.why.Reason, t.why.Message) }); err != nil {
			return fmt.Errorf("%s: on park: %w", where(s), err)
		}
	}
	return nil
}

// parkJournal lets OnPark note what it gathered.
type parkJournal struct {
	e     *Engine
	fence store.Fence
}

func (j parkJournal) Note(ctx context.Context, step int, note json.RawMessage) error {
	return j.e.cfg.Store.Record(ctx, j.fence, true, store.Event{Type: store.EventNote, Step: step, Data: note})
}

// PointOfNoReturn: a parked sequence has no more effects.
func (j parkJournal) PointOfNoReturn(context.Context, int, json.RawMessage) error {
	return commitstep.ErrReadOnly
}
