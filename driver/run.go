package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// foldLimit is how many trailing store steps are applied together with the
// completion; more are recorded stage by stage.
const foldLimit = 4096

// run takes one claimed sequence to its end, or as far as it gets.
type run struct {
	e          *Engine
	lease      *lease
	live       commitstep.Live
	fence      store.Fence
	recovering bool
	// waitUntil bounds waiting for what cannot be reached.
	waitUntil time.Time
	// budget is how long the whole waiting may take.
	budget time.Duration
	// effects is the context of calls that change something: it outlives the
	// caller's by Config.Grace.
	effects context.Context
	// caller is the context of who called.
	caller   context.Context
	patience patience
	// last is the last batch of the sequence: its marks are written only if the
	// completion is not.
	last []*item
	// folded are the store steps that the completion applies.
	folded []*item
	// only is the one page of a sequence that this process has just stored.
	only *store.Page

	hangs   hangs
	reaches reaches

	mu     sync.Mutex
	res    Result
	guards []guardStep
}

type guardStep struct {
	guard   commitstep.Guard
	attempt *commitstep.Attempt
}

// ending is why a run stopped before its completion. The zero value is to go
// on.
type ending struct {
	status  Status
	reason  commitstep.ParkReason
	step    int
	message string
	// gone: the store may not have any more what this driver claimed, or only for
	// somebody else.
	gone bool
	// events are written together with the park.
	events []store.Event
}

func (x ending) ends() bool { return x.status != "" }

// pends reports an ending that the sequence's message tells to those who look
// at what is pending.
func (x ending) pends() bool {
	return x.status == StatusWaiting || x.status == StatusUnsupported && x.reason == ""
}

// weight orders endings of parallel steps: the one that must be heard first.
func (x ending) weight() int {
	switch x.status {
	case StatusFenced:
		return 5
	case StatusParked:
		return 4
	case StatusUnsupported:
		return 3
	case StatusStopped:
		return 2
	case StatusWaiting:
		return 1
	}
	return 0
}

// item is one step of the batch at hand.
type item struct {
	step     commitstep.Step
	progress commitstep.Progress
	behave   commitstep.CommitStep
	attempt  *commitstep.Attempt
	move     *commitstep.WatermarkMove // a store step's effect
	verdict  commitstep.Verdict
	looked   bool // verdict is fresh
	recorded bool // the attempt to come is recorded already
	doubt    int  // number of the attempt that is recorded as unknown
	did      string
	ready    bool // done, not settled yet
	end      ending
}

// finish runs the sequence. The claim is given back unless the sequence ended.
func (r *run) finish(ctx context.Context, started time.Time) Result {
	r.res.Key, r.res.ID, r.res.Total = r.live.Key, r.live.ID, r.live.Steps
	effects, cancel := graceful(ctx, r.e.cfg.Grace)
	defer cancel()
	r.effects, r.caller = effects, ctx
	defer r.stopPatience()
	end := r.sequence(ctx)
	if r.e.hasGuards(r) {
		r.e.setGuards(r, nil)
	}
	if end.status == StatusWaiting && r.e.over(r.lease) != nil {
		end.gone = true
	}
	switch end.status {
	case StatusCompleted:
	case StatusParked:
		end.events = append(r.doneEvents(r.last), end.events...)
		end = r.park(ctx, end)
	default:
		events := r.doneEvents(r.last)
		if text := string(end.status) + ": " + end.message; end.pends() && text != r.live.Message {
			events = append(events, store.Event{Type: store.EventMessage, Message: text})
		}
		if len(events) > 0 && end.status != StatusFenced {
			// Written behind; if that fails too, Verify finds out.
			_ = r.e.cfg.Store.Record(r.effects, r.fence, false, events...)
		}
		// Harmless when the lease is gone: then it is somebody else's.
		_ = r.e.cfg.Store.Release(r.effects, r.fence)
	}
	if end.gone {
		if end = r.fate(end); end.status != StatusWaiting {
			r.e.observe(ctx, Event{Type: EventFenced, Key: r.live.Key, Sequence: r.live.ID, Step: end.step, Message: end.message})
		}
	} else if end.status == StatusFenced {
		r.e.observe(ctx, Event{Type: EventFenced, Key: r.live.Key, Sequence: r.live.ID, Step: end.step, Message: end.message})
		end = r.fate(end)
	}
	r.res.Status, r.res.Reason, r.res.Message = end.status, end.reason, end.message
	r.res.Took = r.e.now().Sub(started)
	return r.res
}

// graceful is a context that ends grace after ctx does.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(grace, cancel)
		context.AfterFunc(out, func() { t.Stop() })
	})
	return out, func() { stop(); cancel() }
}

func (r *run) sequence(ctx context.Context) ending {
	if end := r.lookAhead(ctx); end.ends() {
		return end
	}
	pages := (r.live.Steps + r.pageSize() - 1) / r.pageSize()
	for n := range pages {
		page, err := r.page(ctx, n)
		if err != nil {
			return r.storeEnding(err)
		}
		for from := 0; from < len(page.Steps); {
			to := from + 1
			for to < len(page.Steps) && page.Steps[to].Stage == page.Steps[from].Stage {
				to++
			}
			part := store.Page{Steps: page.Steps[from:to], Progress: page.Progress[from:to]}
			folded, end := r.stage(ctx, part)
			if end.ends() {
				return end
			}
			if folded != nil {
				return r.complete(ctx, folded)
			}
			from = to
		}
	}
	return r.complete(ctx, nil)
}

// page reads page n. Nobody else writes the progress of a sequence that we hold,
// so the page that we stored ourselves is as good as a fresh one until the
// first mark; marks are only asked for once per page.
func (r *run) page(ctx context.Context, n int) (store.Page, error) {
	if r.only != nil && n == 0 {
		return *r.only, ctx.Err()
	}
	return r.e.cfg.Store.Steps(ctx, r.live.ID, n)
}

func (r *run) pageSize() int {
	if r.live.PageSize > 0 {
		return r.live.PageSize
	}
	return store.PageSize
}

// stage runs the steps of one stage that stand in one page. When all that is
// left of the sequence are store steps, it returns their events instead, to be
// applied with the completion.
func (r *run) stage(ctx context.Context, part store.Page) (fold []store.Event, end ending) {
	if err := ctx.Err(); err != nil {
		return nil, stopped(ctx, -1)
	}
	items, end := r.items(part)
	if end.ends() || len(items) == 0 {
		return nil, end
	}
	if items[0].move != nil {
		if rest, end := r.rest(ctx, items, part.Steps[len(part.Steps)-1].Index+1); end.ends() || rest != nil {
			if end.ends() {
				return nil, end
			}
			return r.fold(ctx, rest)
		}
	}
	if end := r.verifyAll(ctx, items); end.ends() {
		return nil, end
	}
	if end := r.openAttempts(ctx, items); end.ends() {
		return nil, end
	}
	r.parallel(len(items), func(i int) {
		it := items[i]
		if !it.ready {
			it.end = r.step(ctx, it)
		}
	})
	return nil, r.settle(ctx, items)
}

// items builds the behaviours of the steps that are not recorded done.
func (r *run) items(part store.Page) ([]*item, ending) {
	all := make([]item, 0, len(part.Steps)) // one allocation; it must not grow
	out := make([]*item, 0, len(part.Steps))
	for i, s := range part.Steps {
		done := part.Progress[i].Done
		kind, _ := r.e.cfg.Kinds.Kind(s.Kind)
		if done {
			r.count(s, r.didBefore(s), part.Progress[i].Count, nil)
			if !kind.Guards {
				continue
			}
		}
		b, err := r.e.cfg.Kinds.Build(s)
		if err != nil {
			return nil, ending{status: StatusUnsupported, step: s.Index, message: err.Error()}
		}
		all = append(all, item{step: s, progress: part.Progress[i], behave: b})
		it := &all[len(all)-1]
		it.attempt = commitstep.NewAttempt(r.live.ID, r.live.Key, s.Index, it.progress, r)
		it.attempt.Epoch = r.fence.Epoch
		if _, ok := b.(commitstep.Reattacher); ok {
			it.attempt.Patience = r.over()
		}
		if done {
			r.addGuard(it)
			continue
		}
		if ss, ok := b.(commitstep.StoreStep); ok {
			if m, ok := ss.Move(); ok {
				m.Token = it.attempt.Token
				m.Job = r.live.Job
				it.move = &m
			}
		}
		out = append(out, it)
	}
	return out, ending{}
}

// didBefore says whose word a done mark is that was found.
func (r *run) didBefore(s commitstep.Step) string {
	if slices.Contains(r.live.DeclaredPublished, s.Index) {
		return DidDeclared
	}
	return DidRecorded
}

// rest returns items and all from index next on, if every one of them is a
// store step and they are few enough to be applied with the completion, else
// nil.
func (r *run) rest(ctx context.Context, items []*item, next int) ([]*item, ending) {
	if r.live.Steps-items[0].step.Index > foldLimit {
		return nil, ending{}
	}
	for _, it := range items {
		if it.move == nil {
			return nil, ending{}
		}
	}
	out := items
	var done []commitstep.Step
	for n := next / r.pageSize(); n*r.pageSize() < r.live.Steps; n++ {
		page, err := r.page(ctx, n)
		if err != nil {
			return nil, r.storeEnding(err)
		}
		for i, s := range page.Steps {
			if s.Index < next {
				continue
			}
			if page.Progress[i].Done {
				done = append(done, s)
				continue
			}
			its, end := r.items(store.Page{Steps: page.Steps[i : i+1], Progress: page.Progress[i : i+1]})
			if end.ends() {
				return nil, end
			}
			if its[0].move == nil {
				return nil, ending{}
			}
			out = append(out, its[0])
		}
	}
	for _, s := range done {
		r.count(s, r.didBefore(s), 0, nil)
	}
	return out, ending{}
}

// fold verifies store steps and turns them into events.
func (r *run) fold(ctx context.Context, items []*item) ([]store.Event, ending) {
	if end := r.verifyAll(ctx, items); end.ends() {
		return nil, end
	}
	events := make([]store.Event, 0, len(items))
	for _, it := range items {
		for !it.ready && it.verdict.Outcome != commitstep.NotDone {
			if end := r.lookAgain(ctx, it); end.ends() {
				return nil, end
			}
		}
		ev := store.Event{Type: store.EventMove, Step: it.step.Index, Move: *it.move}
		if it.ready {
			ev = store.Event{Type: store.EventDone, Step: it.step.Index}
		} else {
			it.did = DidExecuted
			r.killStep("execute.before", it.step)
		}
		events = append(events, ev)
	}
	r.folded = items
	return events, ending{}
}

// verifyAll looks at every item once. Done ones become ready; a conflict ends
// the run before anything is executed.
func (r *run) verifyAll(ctx context.Context, items []*item) ending {
	r.e.survey(ctx, len(items), func(i int) (string, commitstep.CommitStep) { return items[i].step.Kind, items[i].behave })
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
		if !it.looked {
			continue
		}
		switch it.verdict.Outcome {
		case commitstep.Done:
			it.ready, it.did = true, DidAlready
			if it.progress.Count > 0 {
				it.did = DidRecovered
			}
		case commitstep.Conflict:
			return r.conflict(it)
		}
	}
	return ending{}
}

func (r *run) conflict(it *item) ending {
	return ending{status: StatusParked, reason: commitstep.ConflictFound, step: it.step.Index,
		message: fmt.Sprintf("%s: %s", where(it.step), it.verdict.Evidence)}
}

// openAttempts makes the attempts that are about to start durable, in one
// write: see durable. So a step that kills its process is counted too.
func (r *run) openAttempts(ctx context.Context, items []*item) ending {
	var events []store.Event
	for _, it := range items {
		if it.ready || !it.looked || it.verdict.Outcome != commitstep.NotDone || it.move != nil {
			continue
		}
		if it.progress.Failed >= r.e.cfg.Policy.MaxAttempts {
			continue // step parks it
		}
		if r.durable(it) {
			events = append(events, r.attemptEvent(it))
			it.recorded = true
		}
	}
	if len(events) == 0 {
		return ending{}
	}
	if err := r.e.cfg.Store.Record(r.effects, r.fence, true, events...); err != nil {
		return r.storeEnding(err)
	}
	r.e.kill("attempt.recorded")
	return ending{}
}

// durable says which attempts are stored before they start: all those of a
// recovery, every one from the second on, and every one that cannot be taken back. A
// person may let such a one be made anew, and then its number tells the two apart.
func (r *run) durable(it *item) bool {
	_, irreversible := it.behave.(commitstep.Irreversible)
	return r.recovering || it.progress.Count > 0 || irreversible
}

func (r *run) attemptEvent(it *item) store.Event {
	it.progress.Count++
	it.progress.Failed++
	it.attempt.Number = it.progress.Count
	return store.Event{Type: store.EventAttempt, Step: it.step.Index, Attempt: commitstep.AttemptRecord{
		Number: it.attempt.Number, Started: r.e.now(), Driver: r.lease.holder}}
}

// killStep is a named point of one step: "execute.before#2".
func (r *run) killStep(name string, s commitstep.Step) {
	if r.e.cfg.KillPoint != nil {
		r.e.cfg.KillPoint(fmt.Sprintf("%s#%d", name, s.Index))
	}
}

// parallel calls fn for 0..n-1 on up to StepConcurrency goroutines.
func (r *run) parallel(n int, fn func(int)) {
	workers := min(n, r.e.cfg.StepConcurrency)
	if workers <= 1 {
		for i := range n {
			fn(i)
		}
		return
	}
	r.e.crews.do(n, workers, fn)
}
