package driver

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// lookAhead verifies every watermark step before the first data step runs: a
// watermark that is already past, or of a higher source epoch, is a conflict
// before anything has moved.
func (r *run) lookAhead(ctx context.Context) ending {
	if r.live.FirstWatermark <= 0 { // none, or no data step before it
		return ending{}
	}
	return r.later(ctx, r.live.FirstWatermark, func(s commitstep.Step) bool { return s.Class == commitstep.WatermarkStep }, true)
}

// lookBehind looks, before an effect that cannot be taken back, at everything
// that comes after it, for the same reason.
func (r *run) lookBehind(ctx context.Context, it *item) ending {
	return r.later(ctx, it.step.Index+1, func(commitstep.Step) bool { return true }, false)
}

// later verifies the not yet done steps from index on that match. Only a
// conflict parks; with must, a step that cannot be looked at is waited for.
func (r *run) later(ctx context.Context, index int, match func(commitstep.Step) bool, must bool) ending {
	for n := index / r.pageSize(); n*r.pageSize() < r.live.Steps; n++ {
		page, err := r.page(ctx, n)
		if err != nil {
			return r.storeEnding(err)
		}
		var items []*item
		for i, s := range page.Steps {
			if s.Index < index || page.Progress[i].Done || !match(s) {
				continue
			}
			b, err := r.e.cfg.Kinds.Build(s)
			if err != nil {
				return ending{status: StatusUnsupported, step: s.Index, message: err.Error()}
			}
			it := &item{step: s, progress: page.Progress[i], behave: b}
			it.attempt = commitstep.NewAttempt(r.live.ID, r.live.Key, s.Index, it.progress, nil)
			items = append(items, it)
		}
		r.parallel(len(items), func(i int) {
			it := items[i]
			if r.spent() {
				return
			}
			v, err := r.verify(ctx, it)
			if err == nil {
				it.verdict, it.looked = v, true
			}
		})
		for _, it := range items {
			if !it.looked && must {
				if end := r.lookAgain(ctx, it); end.ends() {
					return end
				}
			}
			if it.looked && it.verdict.Outcome == commitstep.Conflict {
				return r.conflict(it)
			}
		}
	}
	return ending{}
}

// Note implements commitstep.Journal.
func (r *run) Note(ctx context.Context, step int, note json.RawMessage) error {
	return r.journal(ctx, store.Event{Type: store.EventNote, Step: step, Data: note})
}

// PointOfNoReturn implements commitstep.Journal: it checks lease and guards
// once more, and stores the mark.
func (r *run) PointOfNoReturn(ctx context.Context, step int, note json.RawMessage) error {
	if err := r.mayAct(ctx); err != nil {
		return err
	}
	if err := r.journal(ctx, store.Event{Type: store.EventNoReturn, Step: step, Data: note}); err != nil {
		return err
	}
	r.e.kill(fmt.Sprintf("noreturn.after#%d", step))
	// The write may have taken long; the call follows right now.
	return r.e.ours(r.lease)
}

func (r *run) journal(ctx context.Context, ev store.Event) error {
	if err := r.e.cfg.Store.Record(ctx, r.fence, true, ev); err != nil {
		// Without the note the effect must not happen, so it has not.
		return commitstep.NotSent(fmt.Errorf("note of step %d: %w", ev.Step, err))
	}
	return nil
}

// addGuard remembers a done step that guards the later ones.
func (r *run) addGuard(it *item) {
	g, ok := it.behave.(commitstep.Guard)
	if !ok {
		return
	}
	r.mu.Lock()
	r.guards = append(r.guards, guardStep{g, it.attempt})
	all := append([]guardStep(nil), r.guards...)
	r.mu.Unlock()
	r.e.setGuards(r, func(ctx context.Context) error {
		var first error
		for _, g := range all {
			if err := guardPanic("Renew", func() error { return g.guard.Renew(ctx, g.attempt) }); err != nil && first == nil {
				first = err
			}
		}
		return first
	})
}

func (e *Engine) setGuards(r *run, renew func(context.Context) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if renew == nil {
		delete(e.guards, r)
		return
	}
	e.guards[r] = renew
}

func (e *Engine) hasGuards(r *run) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.guards[r]
	return ok
}
