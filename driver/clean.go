package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// cleanTries is how often one cleanup is tried now; the next recover goes on.
const cleanTries = 3

// cleanBehind runs the cleanup of a completed sequence after its caller has
// the answer. Close waits for it.
func (e *Engine) cleanBehind(ctx context.Context, l *lease, live commitstep.Live, f store.Fence) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return // the next recover does it
	}
	e.cleanups.Add(1)
	e.mu.Unlock()
	// The caller's context ends with its call; the engine's ends with Close.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(e.ctx, cancel)
	go func() {
		defer e.cleanups.Done()
		defer cancel()
		defer stop()
		e.clean(work, l, live, f)
	}()
}

// clean removes the staging of a completed sequence, as far as it is still what
// was recorded. It never fails the sequence; what stays is reported, and what
// could not be tried to the end is left to the next recover.
func (e *Engine) clean(ctx context.Context, l *lease, live commitstep.Live, f store.Fence) string {
	keep, err := e.declared(ctx, live)
	var reports []string
	unstaged, all := e.cfg.Kinds.Unstaged(keep)
	if all {
		reports = append(reports, fmt.Sprintf("all of it, since %s was declared published and nobody can tell where its data was staged", where(unstaged)))
	}
	for i, s := range live.Cleanup {
		if err != nil || all {
			break
		}
		s.Index = live.Steps + i // as when it was prepared; it is not stored
		var report string
		report, err = e.cleanStep(ctx, l, live, f, s, keep)
		if report != "" {
			reports = append(reports, report)
		}
	}
	if err != nil {
		_ = e.cfg.Store.Release(context.WithoutCancel(ctx), f)
		e.observe(ctx, Event{Type: EventWaiting, Key: live.Key, Sequence: live.ID, Step: -1, Err: fmt.Errorf("cleanup: %w", err)})
		return "not finished: " + err.Error()
	}
	report := strings.Join(reports, "; ")
	e.kill("cleaned.before")
	if err := e.cfg.Store.Cleaned(context.WithoutCancel(ctx), f, report); err != nil {
		return "not recorded: " + err.Error()
	}
	e.kill("cleaned.after")
	e.observe(ctx, Event{Type: EventCleaned, Key: live.Key, Sequence: live.ID, Step: -1, Message: report})
	if report == "" {
		return "done"
	}
	return "done, stays: " + report
}

// declared are the steps whose staging must stay because a person, not Verify,
// said that they were published.
func (e *Engine) declared(ctx context.Context, live commitstep.Live) ([]commitstep.Step, error) {
	var out []commitstep.Step
	size := live.PageSize
	if size == 0 {
		size = store.PageSize
	}
	last := -1
	for _, i := range slices.Sorted(slices.Values(live.DeclaredPublished)) {
		if n := i / size; n != last {
			last = n
			page, err := e.cfg.Store.Steps(ctx, live.ID, n)
			if err != nil {
				return nil, err
			}
			for _, s := range page.Steps {
				if slices.Contains(live.DeclaredPublished, s.Index) {
					out = append(out, s)
				}
			}
		}
	}
	return out, nil
}

// declaredOf are the steps of an ended sequence that a person declared published.
func declaredOf(h store.HistoryEntry) (out []commitstep.Step) {
	for _, s := range h.Detail {
		if slices.Contains(h.Notes.DeclaredPublished, s.Index) {
			out = append(out, s)
		}
	}
	return out
}

// noPuts takes the staging lock when no plan is being stored. It does not queue
// for it, since that would hold up every publish behind a long one; the next
// recover, which comes before new plans, finds a quiet moment.
func (e *Engine) noPuts(ctx context.Context) error {
	const tries, pause = 100, 20 * time.Millisecond
	for range tries {
		if e.staging.TryLock() {
			return nil
		}
		if err := e.cfg.Clock.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	return errors.New("plans are being stored all the time, and one may name what is to be removed")
}

// keepOthers protects what every other unfinished or abandoned sequence has
// staged. Reading the whole history for that is worth it: it is done only for a
// plan that has leftovers to delete.
func (e *Engine) keepOthers(ctx context.Context, live commitstep.Live, c commitstep.Cleaner) error {
	st := e.cfg.Store
	q, err := st.Quarantine(ctx)
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	if len(q) > 0 {
		return fmt.Errorf("%w: %s cannot be read, and what it staged may be among the leftovers; see `commitstep quarantine list`", commitstep.ErrDamaged, q[0].Where)
	}
	// The staging of an abandoned sequence is kept until a person removes it.
	if h, ok := st.(store.History); ok {
		for entry, err := range h.ListHistory(ctx, store.HistoryFilter{}) {
			if err != nil {
				return fmt.Errorf("history: %w", err)
			}
			if entry.State != commitstep.Abandoned {
				// Nor is what a person declared published, as far as it is known.
				c.KeepSteps(declaredOf(entry))
				continue
			}
			kept := commitstep.Live{Header: commitstep.Header{ID: entry.ID, Key: entry.Key, Steps: entry.Steps}}
			if len(entry.Detail) > 0 || entry.Steps == 0 {
				c.KeepSteps(entry.Detail)
			} else if err := e.keepSteps(ctx, kept, c); err != nil {
				return err
			}
		}
	}
	unfinished := store.Filter{States: []commitstep.State{commitstep.Pending, commitstep.Parked}}
	for other, err := range st.Scan(ctx, unfinished) {
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		if other.ID == live.ID {
			continue
		}
		if err := e.keepSteps(ctx, other, c); err != nil {
			return err
		}
	}
	return nil
}

// keepSteps protects what the steps of one sequence staged. Their pages are
// gone once it ended, or once the staging was removed.
func (e *Engine) keepSteps(ctx context.Context, other commitstep.Live, c commitstep.Cleaner) error {
	size := (&run{live: other}).pageSize()
	for n := 0; n*size < other.Steps; n++ {
		page, err := e.cfg.Store.Steps(ctx, other.ID, n)
		if errors.Is(err, commitstep.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("steps of %s: %w", other.Key, err)
		}
		c.KeepSteps(page.Steps)
	}
	return nil
}

func (e *Engine) cleanStep(ctx context.Context, l *lease, live commitstep.Live, f store.Fence, s commitstep.Step, keep []commitstep.Step) (string, error) {
	b, err := e.cfg.Kinds.Build(s)
	if err != nil {
		return "", err
	}
	cleaner, _ := b.(commitstep.Cleaner)
	if cleaner != nil {
		cleaner.KeepSteps(keep)
	}
	if shared, ok := b.(commitstep.SharedCleaner); ok && shared.Shared() {
		// Until the removal is over, no plan may be stored that names what is
		// removed: it would be too late for keepOthers to see it.
		if err := e.noPuts(ctx); err != nil {
			return "", err
		}
		defer e.staging.Unlock()
		if err := e.keepOthers(ctx, live, shared); err != nil {
			return "", err
		}
	}
	a := commitstep.NewAttempt(live.ID, live.Key, s.Index, commitstep.Progress{}, nil)
	a.Epoch = f.Epoch
	for n := 1; ; n++ {
		if err := e.ours(l); err != nil {
			return "", err
		}
		a.Number = n
		e.kill("cleanup.before")
		err := guardPanic("cleanup", func() error { return b.Execute(ctx, a) })
		if settler, ok := b.(commitstep.Settler); ok && err == nil {
			// Once the sequence counts as cleaned nobody looks again, so a power
			// cut must not bring the staging back after that.
			err = guardPanic("Settle", func() error { return settler.Settle(ctx, &commitstep.Settling{}) })
		}
		e.kill("cleanup.after")
		if err == nil {
			if cleaner != nil {
				return cleaner.Report(), nil
			}
			return "", nil
		}
		var p *panicError
		if n == cleanTries || errors.As(err, &p) || ctx.Err() != nil {
			return "", err
		}
		if err := e.cfg.Clock.Sleep(ctx, e.cfg.Policy.Pause(n)); err != nil {
			return "", err
		}
	}
}

// wantsPark reports whether any registered kind wants to be told.
func (e *Engine) wantsPark() bool {
	for _, n := range e.cfg.Kinds.Names() {
		if k, _ := e.cfg.Kinds.Kind(n); k.WantsPark {
			return true
		}
	}
	return false
}
