package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// Audit actions: the first says who began and why, before anything is removed;
// the second that it came to its end.
const (
	actionRemove  = "staging.remove"
	actionRemoved = "staging.removed"
)

type stagingRemoveOptions struct {
	decision
	job    string
	all    bool
	older  time.Duration
	dryRun bool
}

func (in *invocation) stagingRemoveCommand() *cobra.Command {
	var o stagingRemoveOptions
	c := &cobra.Command{
		Use:   "remove SEQUENCE | --all --reason TEXT",
		Short: "Remove what abandoned sequences left staged",
		Long: `Remove deletes the staged files of an abandoned sequence: only a recorded file
whose path, id, size and mtime all still match, then directories that are empty.
Everything else stays and is reported. The source of a step that was declared
published is never touched, and nothing is removed while a live sequence names
one of the paths.` + exitStatus(ExitPartial, ExitDecision, ExitLocked, ExitNotFound, ExitPending, ExitStore, ExitInterrupted),
		Example: "  commitstep staging remove 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d --reason 'data was sent again' --yes\n  commitstep staging remove --all --job kafka-hdfs --reason 'monthly clean-up' --yes",
		Args:    maybeArg,
	}
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "with --all: only this job")
	f.BoolVar(&o.all, "all", false, "every abandoned sequence that `staging list` shows")
	f.DurationVar(&o.older, "older-than", stagingAge, "refuse what was abandoned less long ago")
	f.BoolVar(&o.dryRun, "dry-run", false, "only look, as `staging list` does")
	o.addFlags(f, true)
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		switch {
		case o.all == (len(args) > 0):
			return usagef("name one sequence, or give --all; see `%s --help`", c.CommandPath())
		case o.job != "" && !o.all:
			return usagef("--job goes with --all")
		case o.older < 0:
			return usagef("--older-than must not be negative")
		}
		var id uuid.UUID
		if !o.all {
			var err error
			if id, err = parseSequence(args[0]); err != nil {
				return usagef("%q is no sequence id; `%s staging list` shows them", args[0], in.Program)
			}
		}
		p, err := in.person(o.decision)
		if err != nil {
			return err
		}
		if !o.yes && !o.dryRun && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.withStore(ctx, func(s *session) error { return in.removeStaging(ctx, s, id, o, p) })
	})
	return c
}

// removedView is what became of the staging of one sequence.
type removedView struct {
	stagingView
	Removed int      `json:"removed"`
	Stays   []string `json:"stays,omitempty"`
	Error   string   `json:"error,omitempty"`
	DryRun  bool     `json:"dryRun"`
}

func (in *invocation) removeStaging(ctx context.Context, s *session, id uuid.UUID, o stagingRemoveOptions, p store.Person) error {
	entries, err := s.removable(ctx, id, o, in.Now())
	if err != nil {
		return err
	}
	var items []removedView
	for _, h := range entries {
		v, err := s.look(ctx, h)
		if err != nil {
			return err
		}
		items = append(items, removedView{stagingView: v, DryRun: o.dryRun})
	}
	if !o.dryRun && len(items) > 0 {
		word := "remove"
		if !o.all {
			word = entries[0].Dataset
		}
		t := &table{}
		var views []stagingView
		for _, v := range items {
			views = append(views, v.stagingView)
		}
		if !o.yes {
			in.stagingTable(t, views)
			if err := t.flush(in.Stderr); err != nil {
				return err
			}
		}
		if err := in.confirm(ctx, o.decision, "remove what is staged", word); err != nil {
			return err
		}
	}
	var errs []error
	for i, h := range entries {
		if o.dryRun {
			continue
		}
		if err := s.removeOne(ctx, h, &items[i], p); err != nil {
			items[i].Error = err.Error()
			out := outcome{partial: len(entries) > 1 || items[i].Removed > 0}
			errs = append(errs, &cliError{out: out, err: err, msg: fmt.Sprintf("staging of sequence %s", h.ID), hint: "what is left can be removed by the same command again"})
		}
		if ctx.Err() != nil {
			break
		}
	}
	perr := in.print(document{kind: "StagingRemove", body: listOf(items), table: func(t *table) {
		if len(items) == 0 {
			t.line("nothing to remove")
		}
		for _, v := range items {
			did := fmt.Sprintf("removed %s", plural(v.Removed, "staged source", "staged sources"))
			if o.dryRun {
				did = fmt.Sprintf("would remove %s", plural(v.Staged, "staged source", "staged sources"))
			}
			t.line("dataset %s of job %s (sequence %s): %s", name(v.Dataset), name(v.Job), v.Sequence, did)
			for _, c := range v.Clears {
				if o.dryRun {
					t.line("  and would clear what is recorded as left over: %s", oneLine(c))
				}
			}
			for _, st := range v.Stays {
				t.line("  stays: %s", oneLine(st))
			}
			if v.Error != "" {
				t.line("  not finished: %s", oneLine(v.Error))
			}
		}
	}})
	return errors.Join(append(errs, perr)...)
}

// removable are the entries that the options name; one that may not be removed
// is an error when it was named.
func (s *session) removable(ctx context.Context, id uuid.UUID, o stagingRemoveOptions, now time.Time) ([]store.HistoryEntry, error) {
	if o.all {
		// A process that died right after its last audit entry left steps behind.
		var done func(store.HistoryEntry) error
		if !o.dryRun {
			done = func(h store.HistoryEntry) error { return s.dropSteps(ctx, h) }
		}
		return s.abandoned(ctx, o.job, now.Add(-o.older), done)
	}
	h, err := s.store.LookupHistory(ctx, id)
	switch {
	case errors.Is(err, commitstep.ErrNotFound):
		if live, lerr := s.store.Find(ctx, id); lerr == nil {
			return nil, &cliError{out: outcome{pending: live.State != commitstep.Parked, decision: live.State == commitstep.Parked},
				msg: fmt.Sprintf("sequence %s is %s: the staging of a live sequence is untouchable", id, live.State), hint: "only what was abandoned can be removed"}
		}
		return nil, &cliError{err: err, msg: fmt.Sprintf("sequence %s", id), hint: fmt.Sprintf("`%s staging list` shows what can be removed", s.in.Program)}
	case err != nil:
		return nil, err
	case h.State != commitstep.Abandoned:
		return nil, failf("its cleanup is a part of its plan", "sequence %s is %s, not abandoned", id, h.State)
	case now.Sub(h.Ended) < o.older:
		return nil, failf("give --older-than 0s to remove it now", "sequence %s was abandoned only %s", id, since(now, h.Ended))
	}
	return []store.HistoryEntry{h}, nil
}

// removeOne removes the staging of one abandoned sequence. A crash in between
// leaves an audit entry of its begin, and the command can be given again: what
// is removed already is not there, which is fine.
func (s *session) removeOne(ctx context.Context, h store.HistoryEntry, v *removedView, p store.Person) error {
	if v.Problem != "" {
		return errors.New(v.Problem)
	}
	if err := s.untouched(ctx, h); err != nil {
		return err
	}
	entry := store.AuditEntry{Person: p, Action: actionRemove, Key: h.Key, Sequence: h.ID, Before: fmt.Sprintf("%d staged", v.Staged)}
	if err := s.store.RecordAudit(ctx, entry); err != nil {
		return err
	}
	keep := declared(h)
	var kept []commitstep.Step
	var fails []error
	err := s.steps(ctx, h, func(st commitstep.Step) error {
		if keep[st.Index] {
			kept = append(kept, st)
			return nil
		}
		b, err := s.kinds.Build(st)
		if errors.Is(err, commitstep.ErrUnsupported) {
			v.Stays = append(v.Stays, fmt.Sprintf("step %d: %v", st.Index+1, err))
			return nil
		}
		if err != nil {
			return err
		}
		d, ok := b.(commitstep.Discarder)
		if !ok {
			return nil
		}
		return s.discard(ctx, h, st, b, d, v, &fails)
	})
	if err == nil {
		err = errors.Join(fails...)
	}
	if err == nil {
		err = s.cleanUp(ctx, h, kept, v)
	}
	if err != nil {
		return err
	}
	entry.Action, entry.After = actionRemoved, fmt.Sprintf("%d removed, %d stay", v.Removed, len(v.Stays))
	if err := s.store.RecordAudit(context.WithoutCancel(ctx), entry); err != nil {
		return err
	}
	return s.dropSteps(ctx, h)
}

// dropSteps gives up the steps that a store keeps of a long sequence.
func (s *session) dropSteps(ctx context.Context, h store.HistoryEntry) error {
	k, ok := s.store.(store.StepKeeper)
	if !ok || len(h.Detail) == h.Steps {
		return nil
	}
	return k.DropSteps(ctx, h.ID)
}

// discard removes the source of one step, unless the step took effect.
func (s *session) discard(ctx context.Context, h store.HistoryEntry, st commitstep.Step, b commitstep.CommitStep, d commitstep.Discarder, v *removedView, fails *[]error) error {
	a := commitstep.NewAttempt(h.ID, h.Key, st.Index, commitstep.Progress{}, nil)
	found, err := lookStaged(ctx, b, a)
	stays := found.stays
	if err == nil && found.staged {
		stays, err = d.Discard(ctx, a)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		// The others can still be removed; the command is given again.
		*fails = append(*fails, fmt.Errorf("%s: %w", commitstep.Where(st.Stage, st.Index, st.Kind), err))
	case len(stays) > 0:
		v.Stays = append(v.Stays, stays...)
	case found.staged:
		v.Removed++
	}
	return nil
}

// cleanUp runs the recorded cleanup: leftovers that were there when the
// sequence was planned, and directories that are empty now.
func (s *session) cleanUp(ctx context.Context, h store.HistoryEntry, kept []commitstep.Step, v *removedView) error {
	if st, all := s.kinds.Unstaged(kept); all && len(h.Cleanup) > 0 {
		v.Stays = append(v.Stays, fmt.Sprintf("the cleanup paths: %s was declared published, and nobody can tell where its data was staged", commitstep.Where(st.Stage, st.Index, st.Kind)))
		return nil
	}
	for i, st := range h.Cleanup {
		st.Index = h.Steps + i
		b, err := s.kinds.Build(st)
		if err != nil {
			return err
		}
		c, ok := b.(commitstep.Cleaner)
		if ok {
			c.KeepSteps(kept)
		}
		a := commitstep.NewAttempt(h.ID, h.Key, st.Index, commitstep.Progress{}, nil)
		a.Number = 1
		if err := b.Execute(ctx, a); err != nil {
			return fmt.Errorf("cleanup %d (%s): %w", i+1, st.Kind, err)
		}
		if ok && c.Report() != "" {
			v.Stays = append(v.Stays, c.Report())
		}
	}
	return nil
}

// untouched makes sure that no live sequence names a path of this one: a new
// plan may publish the very files that an abandoned one had staged.
func (s *session) untouched(ctx context.Context, h store.HistoryEntry) error {
	mine, above := map[commitstep.Address]bool{}, map[commitstep.Address]bool{}
	add := func(st commitstep.Step) error {
		for _, p := range addresses(st.Params) {
			mine[p] = true
			for d := p; d != d.Dir(); {
				d = d.Dir()
				above[d] = true
			}
		}
		return nil
	}
	if err := s.steps(ctx, h, add); err != nil {
		return err
	}
	hit := func(st commitstep.Step) bool {
		for _, p := range addresses(st.Params) {
			if mine[p] || above[p] {
				return true
			}
			for d := p; d != d.Dir(); {
				if d = d.Dir(); mine[d] {
					return true
				}
			}
		}
		return false
	}
	for live, err := range s.store.Scan(ctx, store.Filter{}) {
		if err != nil {
			return err
		}
		found := false
		for _, st := range live.Cleanup {
			found = found || hit(st)
		}
		for n := 0; n*store.PageSize < live.Steps && !found; n++ {
			page, err := s.store.Steps(ctx, live.ID, n)
			if errors.Is(err, commitstep.ErrNotFound) {
				break // it has just ended
			}
			if err != nil {
				return err
			}
			for _, st := range page.Steps {
				found = found || hit(st)
			}
		}
		if found {
			return &cliError{out: outcome{pending: live.State != commitstep.Parked, decision: live.State == commitstep.Parked},
				msg: fmt.Sprintf("sequence %s of dataset %s (%s) names one of its paths, or one around it", live.ID, live.Key, live.State), hint: "wait until that sequence has ended"}
		}
	}
	q, err := s.store.Quarantine(ctx)
	if err != nil {
		return err
	}
	if len(q) > 0 {
		return &cliError{out: outcome{decision: true}, msg: "a quarantined record may name its paths", hint: "deal with `commitstep quarantine list` first"}
	}
	return nil
}

// addresses are the texts in a step's parameters that name a path in a
// resource. Which parameter means what is the kind's affair; being careful with
// one too many is fine.
func addresses(params json.RawMessage) []commitstep.Address {
	var v any
	if json.Unmarshal(params, &v) != nil {
		return nil
	}
	var out []commitstep.Address
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			if a, err := commitstep.ParseAddress(v, ""); err == nil && strings.Contains(v, "://") {
				out = append(out, a)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(v)
	return out
}
