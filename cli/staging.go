package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// stagingAge is how long the staging of an abandoned sequence is kept before
// it is offered for removal.
const stagingAge = 14 * 24 * time.Hour

func (in *invocation) stagingCommand() *cobra.Command {
	return group("staging", "What abandoned sequences left staged: list, remove",
		`An abandoned sequence keeps its staged files, in case somebody wants them after
all. After 14 days they are offered for removal.`,
		in.stagingListCommand(), in.stagingRemoveCommand())
}

// stagingView is what one abandoned sequence left staged.
type stagingView struct {
	Job      string     `json:"job"`
	Dataset  string     `json:"dataset"`
	Sequence uuid.UUID  `json:"sequence"`
	Ended    *time.Time `json:"ended"`
	Steps    int        `json:"steps"`
	// Staged counts steps whose source is still exactly what was recorded;
	// Gone those that took effect or whose source is gone; Unclear those about
	// which that cannot be said, they are left alone.
	Staged  int `json:"staged"`
	Gone    int `json:"gone"`
	Unclear int `json:"unclear"`
	// Kept counts steps that a person declared published: their sources stay.
	Kept int `json:"kept,omitempty"`
	// What are the first of the staged steps, in words.
	What []string `json:"what,omitempty"`
	// Clears are the staging directories of the plan's cleanup: what was recorded
	// as left over there is removed too, and directories that are empty.
	Clears []string `json:"clears,omitempty"`
	// Problem says why the steps cannot be looked at.
	Problem string `json:"problem,omitempty"`
}

const shownStaged = 20

func (in *invocation) stagingListCommand() *cobra.Command {
	var job string
	var older time.Duration
	c := &cobra.Command{
		Use:   "list",
		Short: "List what abandoned sequences left staged",
		Long: `List shows abandoned sequences that still have staged files, and looks whether
each file is still exactly what was recorded. It only looks.` + exitStatus(ExitLocked, ExitStore, ExitInterrupted),
		Example: "  commitstep staging list --older-than 0s",
		Args:    noArgs,
	}
	c.Flags().StringVar(&job, "job", "", "only this job")
	c.Flags().DurationVar(&older, "older-than", stagingAge, "only what was abandoned longer ago than this")
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		if older < 0 {
			return usagef("--older-than must not be negative")
		}
		return in.withStore(ctx, func(s *session) error {
			var items []stagingView
			entries, err := s.abandoned(ctx, job, in.Now().Add(-older), nil)
			if err != nil {
				return err
			}
			for _, h := range entries {
				v, err := s.look(ctx, h)
				if err != nil {
					return err
				}
				items = append(items, v)
			}
			return in.print(document{kind: "StagingList", body: listOf(items), table: func(t *table) { in.stagingTable(t, items) }})
		})
	})
	return c
}

func (in *invocation) stagingTable(t *table, items []stagingView) {
	if len(items) == 0 {
		t.line("no abandoned sequence has staging to remove")
		return
	}
	t.row("JOB", "DATASET", "SEQUENCE", "ABANDONED", "STAGED", "GONE", "UNCLEAR", "KEPT")
	for _, v := range items {
		ended := "-"
		if v.Ended != nil {
			ended = since(in.Now(), *v.Ended)
		}
		t.row(name(v.Job), name(v.Dataset), v.Sequence.String(), ended, fmt.Sprint(v.Staged), fmt.Sprint(v.Gone), fmt.Sprint(v.Unclear), fmt.Sprint(v.Kept))
	}
	for _, v := range items {
		if v.Problem != "" {
			t.line("%s: %s", v.Sequence, oneLine(v.Problem))
		}
	}
}

// abandoned are the sequences abandoned before a time whose staging nobody has
// removed yet, newest first. done, if given, gets those where somebody has.
func (s *session) abandoned(ctx context.Context, job string, before time.Time, done func(store.HistoryEntry) error) ([]store.HistoryEntry, error) {
	removed := map[uuid.UUID]bool{}
	for e, err := range s.store.ListAudit(ctx) {
		if err != nil {
			return nil, err
		}
		if e.Action == actionRemoved {
			removed[e.Sequence] = true
		}
	}
	var out []store.HistoryEntry
	for h, err := range s.store.ListHistory(ctx, store.HistoryFilter{Job: job}) {
		if err != nil {
			return nil, err
		}
		switch {
		case h.State != commitstep.Abandoned:
		case !removed[h.ID]:
			if !h.Ended.After(before) {
				out = append(out, h)
			}
		case done != nil:
			if err := done(h); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// errStepsGone: the store does not keep the steps of a long sequence.
var errStepsGone = errors.New("its steps are no longer kept, so nobody can tell its files from others; look at its directories by hand")

// steps calls fn for every step of an abandoned sequence, in order.
func (s *session) steps(ctx context.Context, h store.HistoryEntry, fn func(commitstep.Step) error) error {
	if len(h.Detail) == h.Steps {
		for i, st := range h.Detail {
			st.Index = i
			if err := errors.Join(ctx.Err(), fn(st)); err != nil {
				return err
			}
		}
		return nil
	}
	for n := 0; n*store.PageSize < h.Steps; n++ {
		page, err := s.store.Steps(ctx, h.ID, n)
		if errors.Is(err, commitstep.ErrNotFound) {
			return errStepsGone
		}
		if err != nil {
			return err
		}
		for _, st := range page.Steps {
			if err := fn(st); err != nil {
				return err
			}
		}
	}
	return nil
}

// look counts what of an abandoned sequence is still staged.
func (s *session) look(ctx context.Context, h store.HistoryEntry) (stagingView, error) {
	v := stagingView{Job: h.Job, Dataset: h.Dataset, Sequence: h.ID, Ended: utc(h.Ended), Steps: h.Steps}
	keep := declared(h)
	err := s.steps(ctx, h, func(st commitstep.Step) error {
		b, err := s.kinds.Build(st)
		if errors.Is(err, commitstep.ErrUnsupported) {
			v.Unclear++
			return nil
		}
		if err != nil {
			return err
		}
		if _, ok := b.(commitstep.Discarder); !ok {
			return nil // stages nothing
		}
		if keep[st.Index] {
			v.Kept++
			return nil
		}
		found, err := lookStaged(ctx, b, commitstep.NewAttempt(h.ID, h.Key, st.Index, commitstep.Progress{}, nil))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil || len(found.stays) > 0:
			v.Unclear++
		case found.staged:
			v.Staged++
			if len(v.What) < shownStaged {
				v.What = append(v.What, fmt.Sprintf("step %d: %s", st.Index+1, s.summary(st)))
			}
		default:
			v.Gone++
		}
		return nil
	})
	for _, st := range h.Cleanup {
		v.Clears = append(v.Clears, s.summary(st))
	}
	if err != nil && ctx.Err() == nil {
		v.Problem = err.Error()
		return v, nil
	}
	return v, err
}

// Stager is implemented by kinds that can look, without changing anything, at
// what their Discard would remove. Verify cannot tell: with something foreign at
// the destination the answer is a conflict, whatever is staged.
type Stager interface {
	// Staged reports that the source is there exactly as recorded, so that
	// Discard removes it; else what is there instead, and stays.
	Staged(ctx context.Context, a *commitstep.Attempt) (staged bool, stays []string, err error)
}

// foundStaged is what a look at the source of one step found. The zero value
// means that there is nothing.
type foundStaged struct {
	staged bool
	stays  []string
}

// lookStaged is the one answer that list, dry run and removal go by.
func lookStaged(ctx context.Context, b commitstep.CommitStep, a *commitstep.Attempt) (f foundStaged, err error) {
	verdict, err := b.Verify(ctx, a)
	if err != nil || verdict.Outcome == commitstep.Done {
		return f, err
	}
	if l, ok := b.(Stager); ok {
		f.staged, f.stays, err = l.Staged(ctx, a)
		return f, err
	}
	if verdict.Outcome == commitstep.NotDone {
		f.staged = true
	} else {
		f.stays = []string{verdict.String()}
	}
	return f, nil
}

// declared are the steps that a person declared published.
func declared(h store.HistoryEntry) map[int]bool {
	m := map[int]bool{}
	for _, i := range h.Notes.DeclaredPublished {
		m[i] = true
	}
	return m
}
