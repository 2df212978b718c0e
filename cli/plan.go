package cli

import (
	"context"
	"errors"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (in *invocation) planCommand() *cobra.Command {
	var src planSource
	c := &cobra.Command{
		Use:   "validate -f PLAN",
		Short: "Check a plan as publish would, and store nothing",
		Long: `Validate makes every check that publish makes before it stores a plan: names,
order of steps, sources, destinations, watermarks, locks. It changes nothing.
` + planHelp + exitStatus(ExitDecision, ExitLocked, ExitStale, ExitStore, ExitInterrupted),
		Example: "  commitstep plan validate -f plan.yaml",
		Args:    noArgs,
		RunE:    in.run(func(ctx context.Context, _ []string) error { return in.validate(ctx, src) }),
	}
	src.addFlags(c.Flags())
	return group("plan", "Check plans", "Plans are what publish takes; see docs/formats.md for the document.", c)
}

// planReportView is the body of a PlanReport. With Known the plan's id was used
// before, for the same plan.
type planReportView struct {
	Job     string       `json:"job"`
	Dataset string       `json:"dataset"`
	PlanID  string       `json:"planId,omitempty"`
	Hash    string       `json:"hash"`
	Steps   int          `json:"steps,omitempty"`
	Stages  int          `json:"stages,omitempty"`
	Locks   []string     `json:"locks,omitempty"`
	Moves   []moveView   `json:"moves,omitempty"`
	Known   *knownRecord `json:"known,omitempty"`
	// Reused is an earlier path that the plan accepts.
	Reused *reusedView `json:"reused,omitempty"`
}

type reusedView struct {
	Path     string           `json:"path"`
	Taken    string           `json:"taken"`
	Below    bool             `json:"below,omitempty"`
	Sequence uuid.UUID        `json:"sequence"`
	Job      string           `json:"job,omitempty"`
	Dataset  string           `json:"dataset,omitempty"`
	State    commitstep.State `json:"state,omitempty"`
	When     *time.Time       `json:"when"`
	Reason   string           `json:"reason"`
}

func viewReused(r *driver.ReusedPath) *reusedView {
	if r == nil {
		return nil
	}
	return &reusedView{Path: r.Path.String(), Taken: r.Taken.String(), Below: r.Below, Sequence: r.Sequence, Job: r.Key.Job, Dataset: r.Key.Dataset,
		State: r.State, When: utc(r.When), Reason: r.Accepted}
}

type knownRecord struct {
	Sequence uuid.UUID        `json:"sequence"`
	State    commitstep.State `json:"state"`
}

// moveView is a watermark that a plan moves.
type moveView struct {
	Source string               `json:"source"`
	From   commitstep.Watermark `json:"from"`
	To     commitstep.Watermark `json:"to"`
}

func viewMoves(moves []commitstep.WatermarkMove) []moveView {
	var out []moveView
	for _, m := range moves {
		out = append(out, moveView{m.Source, m.From, m.To})
	}
	return out
}

func (in *invocation) validate(ctx context.Context, src planSource) error {
	return src.with(ctx, in, func(p *commitstep.Plan) error {
		return in.withStore(ctx, func(s *session) error {
			if err := s.start(nil); err != nil {
				return err
			}
			r, err := s.engine.Validate(ctx, p)
			if err != nil {
				return errors.Join(err, s.stopEngine())
			}
			v := planReportView{Job: r.Key.Job, Dataset: r.Key.Dataset, PlanID: r.PlanID, Hash: r.Hash, Steps: r.Steps, Stages: r.Stages, Locks: r.Locks, Moves: viewMoves(r.Moves), Reused: viewReused(r.Reused)}
			if r.Known != nil {
				v.Known = &knownRecord{r.Known.Sequence, r.Known.State}
			}
			return in.print(document{kind: "PlanReport", body: v, table: func(t *table) {
				if v.Known != nil {
					t.line("plan %s for dataset %s of job %s is known: sequence %s is %s; publishing it again does nothing new", name(v.PlanID), name(v.Dataset), name(v.Job), v.Known.Sequence, v.Known.State)
					return
				}
				t.line("plan for dataset %s of job %s is fine: %s in %s", name(v.Dataset), name(v.Job), plural(v.Steps, "step", "steps"), plural(v.Stages, "stage", "stages"))
				for _, m := range v.Moves {
					t.row("  watermark", name(m.Source), m.From.String()+" -> "+m.To.String())
				}
				if r.Reused != nil {
					t.line("  it accepts the earlier path %s: %s", name(v.Reused.Path), r.Reused)
					t.line("  because: %s", oneLine(v.Reused.Reason))
				}
			}})
		})
	})
}
