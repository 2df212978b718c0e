package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/spf13/cobra"
)

type hiveRollbackOptions struct {
	job  string
	to   string
	id   string
	step int
}

func (in *invocation) hiveRollbackCommand() *cobra.Command {
	var o hiveRollbackOptions
	c := &cobra.Command{
		Use:   "rollback DATASET --job J | SEQUENCE",
		Short: "Write a plan that swaps a completed publish back",
		Long: `Rollback writes a new plan that points every partition which a completed sequence
swapped back to where it lay before. It touches nothing: publish the plan as any
other. That is refused when a partition does not lie any more where the sequence had
put it, or when the old directory is gone (see ` + "`commitstep hive sweep`" + `), and it is
stored, locked and kept in the history like every publish.

A dataset stands for its newest completed sequence. Only hive.stage_and_swap and
hive.swap_location can be swapped back. Nothing else of the sequence is undone: a
watermark stays where it is, and what it says is not in the table any more. Where
partitions lay before is kept in the history of sequences of up to 64 steps.

The plan is YAML on stdout, or a new file with --to. Its id says which sequence it
undoes, so that publishing it twice does nothing new.` + exitStatus(ExitLocked, ExitNotFound, ExitStale, ExitStore),
		Example: "  commitstep hive rollback sales --job nightly --to back.yaml && commitstep publish -f back.yaml\n  commitstep hive rollback 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d --step 2",
		Args:    oneArg("a dataset or a sequence id"),
	}
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "the dataset's job")
	f.StringVar(&o.to, "to", "", "write the plan to this new `FILE`, .json or .yaml")
	f.StringVar(&o.id, "id", "", "the plan's id (default: rollback of the sequence)")
	f.IntVar(&o.step, "step", 0, "swap only this step back, as shown, from 1")
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		if f.Changed("step") && o.step < 1 {
			return usagef("--step counts from 1, as steps are shown")
		}
		if f.Changed("to") {
			if _, err := planFormat(o.to); err != nil {
				return err
			}
		}
		if f.Changed("id") {
			if err := commitstep.CheckName("plan id", o.id); err != nil {
				return usagef("--id: %v", err)
			}
		}
		return in.withStore(ctx, func(s *session) error {
			h, err := s.ended(ctx, args[0], o.job)
			if err != nil {
				return err
			}
			return in.hiveRollback(h, o)
		})
	})
	return c
}

// ended finds the completed sequence that a person names: by its id, or as the
// newest completed one of a dataset.
func (s *session) ended(ctx context.Context, arg, job string) (store.HistoryEntry, error) {
	var h store.HistoryEntry
	if job != "" {
		key := commitstep.Key{Job: job, Dataset: arg}
		if err := key.Validate(); err != nil {
			return h, usagef("%v", err)
		}
		// A live one may be about to swap the same partition again.
		if live, err := s.store.Get(ctx, key); err == nil && !live.Cleaning {
			return h, &cliError{out: outcome{stale: true}, msg: fmt.Sprintf("dataset %s has the live sequence %s, which is %s", key, live.ID, live.State),
				hint: fmt.Sprintf("let it end, or name the sequence that is to be undone; `%s history list --job %s` shows them", s.in.Program, shell.Quote(job))}
		}
		for e, err := range s.store.ListHistory(ctx, store.HistoryFilter{Job: job, Match: func(d string) bool { return d == arg }}) {
			if err != nil {
				return h, err
			}
			if e.State == commitstep.Completed {
				return e, nil
			}
		}
		return h, &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("dataset %s has no completed sequence in the history", key), hint: fmt.Sprintf("`%s history list --job %s` shows what there is", s.in.Program, shell.Quote(job))}
	}
	id, err := parseSequence(arg)
	if err != nil {
		return h, usagef("%q is no sequence id; a dataset is named together with its --job", arg)
	}
	h, err = s.store.LookupHistory(ctx, id)
	if errors.Is(err, commitstep.ErrNotFound) {
		return h, &cliError{err: err, msg: fmt.Sprintf("sequence %s has no history", id), hint: fmt.Sprintf("only what is completed can be swapped back; `%s pending show %s` shows it if it is live", s.in.Program, id)}
	}
	return h, err
}

// planView is a plan as it is written.
type planView struct {
	ID      string      `json:"id,omitempty"`
	Job     string      `json:"job"`
	Dataset string      `json:"dataset"`
	Stages  []stageView `json:"stages"`
}

type stageView struct {
	Steps []planStepView `json:"steps"`
}

type planStepView struct {
	Kind   string          `json:"kind"`
	Params json.RawMessage `json:"params"`
}

// rollbackPlan undoes the swaps of a sequence, the last stage first. stays are
// steps that it leaves alone.
func rollbackPlan(h store.HistoryEntry, o hiveRollbackOptions) (p planView, stays []string, err error) {
	p = planView{ID: cmp.Or(o.id, "rollback of "+h.ID.String()), Job: h.Job, Dataset: h.Dataset}
	fail := func(hint, format string, a ...any) (planView, []string, error) {
		return p, nil, failf(hint, format, a...)
	}
	switch {
	case h.State != commitstep.Completed:
		return fail("look which of its steps took effect, and swap those by hand with hive.swap_location", "sequence %s is %s; only a completed one can be swapped back", h.ID, h.State)
	case len(h.Detail) < h.Steps:
		return fail("swap its partitions back with a plan of hive.swap_location that you write; what is to be swapped back later is published in plans of up to "+fmt.Sprint(store.HistoryDetailSteps)+" steps", "sequence %s has %d steps, and of a completed one the history keeps where its partitions lay before only up to %d", h.ID, h.Steps, store.HistoryDetailSteps)
	case o.step > h.Steps:
		return p, nil, &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("sequence %s has %s, there is no step %d", h.ID, plural(h.Steps, "step", "steps"), o.step)}
	}
	stage := -1
	for _, s := range slices.Backward(h.Detail) {
		if o.step > 0 && s.Index != o.step-1 {
			continue
		}
		if !isHive(s.Kind) {
			if o.step > 0 {
				return fail("", "step %d is a %s, and only a swapped location can be swapped back", o.step, s.Kind)
			}
			stays = append(stays, commitstep.Where(s.Stage, s.Index, s.Kind))
			continue
		}
		spec, err := hivepublish.RollbackSpec(s)
		if err == nil {
			err = spec.Err
		}
		if err != nil {
			return p, nil, &cliError{out: outcome{failed: true}, err: err, hint: "--step N swaps back a single step that can be"}
		}
		if s.Stage != stage {
			p.Stages = append(p.Stages, stageView{})
			stage = s.Stage
		}
		last := &p.Stages[len(p.Stages)-1]
		last.Steps = append(last.Steps, planStepView{spec.Kind, spec.Params})
	}
	if len(p.Stages) == 0 {
		return fail("only hive.stage_and_swap and hive.swap_location can be swapped back", "sequence %s has no Hive step", h.ID)
	}
	slices.Reverse(stays)
	return p, stays, nil
}

func (in *invocation) hiveRollback(h store.HistoryEntry, o hiveRollbackOptions) error {
	p, stays, err := rollbackPlan(h, o)
	if err != nil {
		return err
	}
	for _, s := range stays {
		in.say("not undone: %s", s)
	}
	d := document{kind: "Plan", body: p}
	if o.to == "" {
		// A plan is a document for programs, in every format.
		format := in.format
		if format == "table" {
			format = "yaml"
		}
		if err := printers()[format].print(in.Stdout, d); err != nil {
			return failf("give the command again", "writing the plan: %v", err)
		}
		return nil
	}
	if err := writePlan(o.to, d); err != nil {
		return err
	}
	in.say("wrote %s; publish it with `%s publish -f %s`", name(o.to), in.Program, shell.Quote(o.to))
	return in.print(document{kind: "RollbackPlan", body: struct {
		File     string `json:"file"`
		PlanID   string `json:"planId"`
		Sequence string `json:"sequence"`
		Steps    int    `json:"steps"`
	}{o.to, p.ID, h.ID.String(), p.steps()}, table: func(t *table) {
		t.line("%s swaps %s of sequence %s back", name(o.to), plural(p.steps(), "step", "steps"), h.ID)
	}})
}

func (p planView) steps() int {
	n := 0
	for _, s := range p.Stages {
		n += len(s.Steps)
	}
	return n
}

// planFormat is how a plan is written under a name that `publish -f` reads.
func planFormat(path string) (string, error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		return "json", nil
	case ".yaml", ".yml":
		return "yaml", nil
	}
	return "", usagef("--to %s: name a file that ends in .yaml or .json", name(path))
}

// writePlan makes a new file, and never half of one under that name.
func writePlan(path string, d document) error {
	format, err := planFormat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return &cliError{out: outcome{stale: true}, msg: fmt.Sprintf("%s is there already, and is not overwritten", name(path)), hint: "name another file"}
	}
	if err != nil {
		return failf("name a file that can be written", "write the plan: %v", err)
	}
	err = printers()[format].print(f, d)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path) // ours, and not whole
		return failf("name a file that can be written", "write the plan: %v", err)
	}
	return nil
}
