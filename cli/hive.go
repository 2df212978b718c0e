package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (in *invocation) hiveCommand() *cobra.Command {
	return group("hive", "Publishes into Hive: probe, rollback, sweep",
		"What is special about steps that publish into Hive; see docs/hive.md.\nServers are configured as `commitstep help resources` says.",
		in.hiveProbeCommand(), in.hiveRollbackCommand(), in.hiveSweepCommand())
}

type hiveProbeOptions struct {
	job  string
	plan planSource
	step int
}

func (in *invocation) hiveProbeCommand() *cobra.Command {
	var o hiveProbeOptions
	c := &cobra.Command{
		Use:   "probe DATASET --job J | SEQUENCE | -f PLAN",
		Short: "Gather again what can be known of a Hive step",
		Long: `Probe looks at everything that may tell whether a Hive step took effect: the
statement's state and log, the server's list of statements, the partition with
its parameters, files and metrics, and what lies staged beside it. It prints that
with what it speaks for and why; it decides nothing.

Of a sequence that is parked as PUBLISH_UNKNOWN or CONFLICT the evidence is also
stored with its step, beside what was gathered first, so that ` + "`pending show`" + ` prints it;
not while somebody else holds the sequence. Otherwise it is only printed.

With -f the sequence is the live one of the plan's dataset. Of one that has
ended there is nothing to gather: nobody doubts it, and the handles to ask by ended
with it. Without --step all Hive steps are looked at that are not done, of a parked
sequence the one that parked it.
` + targetHelp + exitStatus(ExitPartial, ExitDecision, ExitLocked, ExitNotFound, ExitStale, ExitStore, ExitInterrupted),
		Example: "  commitstep hive probe sales --job nightly\n  commitstep hive probe 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d -o yaml\n  commitstep hive probe -f plan.yaml",
		Args:    maybeArg,
	}
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "the dataset's job")
	f.IntVar(&o.step, "step", 0, "only this step, as shown, from 1")
	o.plan.addFlags(f)
	f.Lookup("file").Usage = "probe the live sequence of this plan, `FILE` or - for stdin"
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		switch {
		case f.Changed("step") && o.step < 1:
			return usagef("--step counts from 1, as steps are shown")
		case (o.plan.file != "") == (len(args) > 0):
			return usagef("name one dataset or sequence, or a plan with -f; see `%s --help`", c.CommandPath())
		case o.plan.file != "" && o.job != "":
			return usagef("--job goes with a dataset; the plan names its own")
		case len(args) > 0:
			return in.withStore(ctx, func(s *session) error {
				live, err := s.target(ctx, args[0], o.job)
				if err != nil {
					return s.whatEnded(ctx, commitstep.Key{Job: o.job, Dataset: args[0]}, "", err)
				}
				return in.hiveProbe(ctx, s, live, o)
			})
		}
		return o.plan.with(ctx, in, func(p *commitstep.Plan) error {
			return in.withStore(ctx, func(s *session) error {
				live, err := s.target(ctx, p.Dataset, p.Job)
				if err != nil {
					return s.whatEnded(ctx, p.Key, p.ID, err)
				}
				if p.ID != "" && live.PlanID != p.ID {
					return &cliError{out: outcome{stale: true}, msg: fmt.Sprintf("the live sequence %s of dataset %s is of plan %s, not of %s", live.ID, live.Key, name(live.PlanID), name(p.ID)),
						hint: fmt.Sprintf("`%s hive probe %s` looks at that one; `%s history list` shows what became of others", in.Program, live.ID, in.Program)}
				}
				return in.hiveProbe(ctx, s, live, o)
			})
		})
	})
	return c
}

// whatEnded says of a dataset without a live sequence which one has ended: the
// newest, or the one of a plan.
func (s *session) whatEnded(ctx context.Context, key commitstep.Key, planID string, notLive error) error {
	var e *cliError
	if key.Job == "" || !errors.As(notLive, &e) || !e.out.notFound {
		return notLive
	}
	for h, err := range s.store.ListHistory(ctx, store.HistoryFilter{Job: key.Job, Match: func(d string) bool { return d == key.Dataset }}) {
		if err != nil {
			break
		}
		if planID != "" && h.PlanID != planID {
			continue
		}
		return &cliError{out: outcome{notFound: true}, err: commitstep.ErrNotFound, msg: fmt.Sprintf("dataset %s has no live sequence; sequence %s of it is %s", key, h.ID, h.State),
			hint: fmt.Sprintf("a probe looks at what is pending or parked; `%s history show %s` shows this one", s.in.Program, h.ID)}
	}
	return notLive
}

// hiveEvidenceView is the body of a HiveEvidence.
type hiveEvidenceView struct {
	Job      string                `json:"job"`
	Dataset  string                `json:"dataset"`
	Sequence uuid.UUID             `json:"sequence"`
	State    commitstep.State      `json:"state"`
	Reason   commitstep.ParkReason `json:"reason,omitempty"`
	// Stored: the packs are stored with their steps now; else NotStored says why
	// not.
	Stored    bool            `json:"stored"`
	NotStored string          `json:"notStored,omitempty"`
	Steps     []hiveProbeStep `json:"steps"`
}

type hiveProbeStep struct {
	Step int               `json:"step"`
	Kind string            `json:"kind"`
	Pack *hivepublish.Pack `json:"evidencePack,omitempty"`
	// Problem says why nothing could be gathered.
	Problem string `json:"problem,omitempty"`
}

func (in *invocation) hiveProbe(ctx context.Context, s *session, live commitstep.Live, o hiveProbeOptions) error {
	if err := s.start(nil); err != nil {
		return err
	}
	if o.step > live.Steps {
		return &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("sequence %s has %s, there is no step %d", live.ID, plural(live.Steps, "step", "steps"), o.step)}
	}
	v := hiveEvidenceView{Job: live.Job, Dataset: live.Dataset, Sequence: live.ID, State: live.State, Reason: live.Reason, Steps: []hiveProbeStep{}}
	begun := time.Now()
	terr := s.storeEvidence(ctx, live)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	size := live.PageSize
	if size == 0 {
		size = store.PageSize
	}
	for n := 0; n*size < live.Steps; n++ {
		page, err := s.store.Steps(ctx, live.ID, n)
		if errors.Is(err, commitstep.ErrNotFound) {
			return &cliError{out: outcome{notFound: true}, err: err, msg: fmt.Sprintf("sequence %s has ended meanwhile", live.ID), hint: fmt.Sprintf("`%s history show %s` shows it", in.Program, live.ID)}
		}
		if err != nil {
			return err
		}
		for i, st := range page.Steps {
			if !o.wants(live, st, page.Progress[i]) {
				continue
			}
			p, is, stored := s.probeStep(ctx, live, st, page.Progress[i], begun)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if is {
				v.Steps = append(v.Steps, p)
				v.Stored = v.Stored || stored
			}
		}
	}
	switch {
	case v.Stored:
	case terr != nil:
		v.NotStored = terr.Error()
	default:
		v.NotStored = "its kind keeps none of a step in this state"
	}
	if len(v.Steps) == 0 {
		return &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("dataset %s has no Hive step to look at", live.Key), hint: fmt.Sprintf("`%s pending show %s` shows its steps", in.Program, live.ID)}
	}
	perr := in.print(document{kind: "HiveEvidence", body: v, table: func(t *table) { in.probeTable(t, v) }})
	for _, p := range v.Steps {
		if p.Problem != "" {
			perr = errors.Join(perr, &cliError{out: outcome{partial: true}, msg: fmt.Sprintf("step %d (%s): %s", p.Step, p.Kind, p.Problem), hint: "look again when its server can be reached"})
		}
	}
	return perr
}

// storeEvidence lets a parked sequence gather its evidence anew and keep it. The
// error is why that was not done.
func (s *session) storeEvidence(ctx context.Context, live commitstep.Live) error {
	if live.State != commitstep.Parked {
		return fmt.Errorf("the sequence is %s, not parked", live.State)
	}
	if live.Reason != commitstep.PublishUnknown && live.Reason != commitstep.ConflictFound {
		return fmt.Errorf("evidence is kept of %s and %s, this is parked as %s", commitstep.PublishUnknown, commitstep.ConflictFound, live.Reason)
	}
	return s.engine.TellParked(ctx, live.Key)
}

// wants picks the steps to look at.
func (o hiveProbeOptions) wants(live commitstep.Live, st commitstep.Step, p commitstep.Progress) bool {
	switch {
	case o.step > 0:
		return st.Index == o.step-1
	case live.State == commitstep.Parked && live.ParkStep >= 0:
		return st.Index == live.ParkStep
	}
	return !p.Done
}

// probeStep looks at one step; is tells that it is one of Hive's. What was stored
// since begun is not gathered twice.
func (s *session) probeStep(ctx context.Context, live commitstep.Live, st commitstep.Step, p commitstep.Progress, begun time.Time) (v hiveProbeStep, is, stored bool) {
	v = hiveProbeStep{Step: st.Index + 1, Kind: st.Kind}
	b, err := s.kinds.Build(st)
	if err != nil {
		v.Problem = err.Error()
		return v, isHive(st.Kind), false
	}
	prober, is := b.(hivepublish.Prober)
	if !is {
		return v, false, false
	}
	if v.Pack, _ = liftPack(p.Note); v.Pack != nil && !v.Pack.Gathered.Before(begun) {
		return v, true, true
	}
	a := commitstep.NewAttempt(live.ID, live.Key, st.Index, p, nil)
	a.Epoch = live.Epoch
	pack, err := prober.Probe(ctx, a)
	if err != nil {
		v.Pack, v.Problem = nil, err.Error()
		return v, true, false
	}
	v.Pack = &pack
	return v, true, false
}

// isHive reports a kind of package hivepublish by its name, for steps that cannot
// be built here.
func isHive(kind string) bool {
	switch kind {
	case hivepublish.InsertOverwriteName, hivepublish.SwapLocationName, hivepublish.AddPartitionName, hivepublish.StageAndSwapName:
		return true
	}
	return false
}

func (in *invocation) probeTable(t *table, v hiveEvidenceView) {
	state := string(v.State)
	if v.Reason != "" {
		state += " " + string(v.Reason)
	}
	t.line("dataset %s of job %s (sequence %s): %s", name(v.Dataset), name(v.Job), v.Sequence, state)
	if v.Stored {
		t.line("the evidence is stored with the sequence")
	} else {
		t.line("the evidence is not stored: %s", oneLine(v.NotStored))
	}
	for _, p := range v.Steps {
		if p.Pack == nil {
			t.line("")
			t.line("step %d (%s): %s", p.Step, p.Kind, oneLine(p.Problem))
			continue
		}
		packTable(t, in.Now(), p.Step, p.Pack)
	}
}
