package cli

import (
	"context"
	"errors"

	"github.com/commitstep/engine/commitstep"
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
			v := planReportView{Job: r.Key.Job, Dataset: r.Key.Dataset, PlanID: r.PlanID, Hash: r.Hash, Steps: r.Steps, Stages: r.Stages, Locks: r.Locks, Moves: viewMoves(r.Moves)}
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
			}})
		})
	})
}
