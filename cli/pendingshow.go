package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/shell"
	"github.com/commitstep/engine/store"
	"github.com/spf13/cobra"
)

// pendingView is the body of a Pending.
type pendingView struct {
	sequenceView
	StepViews    []inspectedStep      `json:"stepViews"`
	StepsOmitted int                  `json:"stepsOmitted,omitempty"`
	Decisions    []store.DecisionKind `json:"decisions,omitempty"`
	// Next are commands that are safe to run now.
	Next []string `json:"next,omitempty"`
}

func (in *invocation) pendingShowCommand() *cobra.Command {
	var job string
	c := &cobra.Command{
		Use:   "show DATASET --job J | SEQUENCE",
		Short: "Show one live sequence with everything known of it",
		Long: `Show prints the steps of one live sequence, what is recorded of each, its
attempts, who runs it, and what may be decided. Of a Hive step of which nobody
knows whether it took effect it prints the evidence gathered when it was parked,
with what that speaks for and why; ` + "`commitstep hive probe`" + ` gathers it anew.
` + targetHelp + exitStatus(ExitDecision, ExitLocked, ExitNotFound, ExitStore),
		Example: "  commitstep pending show MyTopic --job kafka-hdfs\n  commitstep pending show 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d -o yaml",
		Args:    oneArg("a dataset or a sequence id"),
		RunE: in.run(func(ctx context.Context, args []string) error {
			return in.withStore(ctx, func(s *session) error {
				live, err := s.target(ctx, args[0], job)
				if err != nil {
					return err
				}
				v, err := in.inspect(ctx, s, live.Key, false)
				if err != nil {
					return err
				}
				return in.print(document{kind: "Pending", body: v, table: func(t *table) { in.showTable(t, v) }})
			})
		}),
	}
	c.Flags().StringVar(&job, "job", "", "the dataset's job")
	return c
}

func (in *invocation) pendingVerifyCommand() *cobra.Command {
	var job, dataset string
	var all bool
	c := &cobra.Command{
		Use:   "verify DATASET --job J | SEQUENCE | --all",
		Short: "Ask every step whether it is done, without changing anything",
		Long: `Verify asks each step that is not recorded done whether its effect is in place:
done, not done, unknown or conflict, with the evidence. It only looks.
` + targetHelp + `
With --all it looks at all of --job or of the store, narrowed by --dataset.
` + globHelp + exitStatus(ExitPartial, ExitDecision, ExitLocked, ExitNotFound, ExitStore, ExitInterrupted),
		Example: "  commitstep pending verify MyTopic --job kafka-hdfs\n  commitstep pending verify --all --job kafka-hdfs -o json",
		Args:    maybeArg,
	}
	f := c.Flags()
	f.StringVar(&job, "job", "", "the dataset's job")
	f.StringVar(&dataset, "dataset", "", "with --all: only the datasets that match this `GLOB`")
	f.BoolVar(&all, "all", false, "everything that is live")
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		match, err := matcher(dataset, f.Changed("dataset"))
		switch {
		case err != nil:
			return err
		case all == (len(args) > 0):
			return usagef("name one dataset or sequence, or give --all; see `%s --help`", c.CommandPath())
		case match != nil && !all:
			return usagef("--dataset goes with --all")
		}
		return in.withStore(ctx, func(s *session) error {
			if all {
				return in.verifyAll(ctx, s, store.Filter{Job: job, Match: match})
			}
			live, err := s.target(ctx, args[0], job)
			if err != nil {
				return err
			}
			v, err := in.inspect(ctx, s, live.Key, true)
			if err != nil {
				return err
			}
			perr := in.print(document{kind: "Pending", body: v, table: func(t *table) { in.showTable(t, v) }})
			return errors.Join(lookErrors(v), perr)
		})
	})
	return c
}

func (in *invocation) verifyAll(ctx context.Context, s *session, f store.Filter) error {
	var keys []commitstep.Key
	var list reading[pendingView]
	for live, err := range s.store.Scan(ctx, f) {
		if err != nil {
			list.fault(err)
			continue
		}
		keys = append(keys, live.Key)
	}
	var errs []error
	for _, k := range keys {
		v, err := in.inspect(ctx, s, k, true)
		if errors.Is(err, commitstep.ErrNotFound) {
			continue // it ended since the scan
		}
		if err != nil {
			errs = append(errs, &cliError{out: outcome{partial: true}, err: err, msg: fmt.Sprintf("dataset %s", k)})
			if ctx.Err() != nil {
				break
			}
			continue
		}
		list.items = append(list.items, v)
		if err := lookErrors(v); err != nil {
			errs = append(errs, err)
		}
	}
	perr := in.print(document{kind: "PendingList", body: list.body(), table: list.table("nothing is pending", func(t *table, items []pendingView) {
		for i, v := range items {
			if i > 0 {
				t.line("")
			}
			in.showTable(t, v)
		}
	})})
	return errors.Join(append(errs, list.err(), perr)...)
}

// lookErrors is the error of steps that could not be looked at.
func lookErrors(v pendingView) error {
	i := slices.IndexFunc(v.StepViews, func(s inspectedStep) bool { return s.LookError != "" || s.Unsupported != "" })
	if i < 0 {
		return nil
	}
	return &cliError{out: outcome{partial: true}, msg: fmt.Sprintf("dataset %s: step %d (%s) could not be looked at", name(v.Dataset), v.StepViews[i].Step, v.StepViews[i].Kind),
		hint: "look again when its server can be reached, with a program that knows its kind"}
}

// inspect looks at one live sequence.
func (in *invocation) inspect(ctx context.Context, s *session, key commitstep.Key, verify bool) (pendingView, error) {
	if s.engine == nil {
		if err := s.start(nil); err != nil {
			return pendingView{}, err
		}
	}
	insp, err := s.engine.Inspect(ctx, key, verify)
	if err != nil {
		return pendingView{}, err
	}
	v := pendingView{sequenceView: viewLive(insp.Live), StepViews: []inspectedStep{}, Decisions: insp.Decisions}
	if insp.Holder != nil {
		v.Holder, v.HeldUntil = instanceText(*insp.Holder), utc(insp.HolderUntil)
	}
	done := 0
	for _, sv := range insp.StepViews {
		v.StepViews = append(v.StepViews, viewStep(sv))
		if sv.Progress.Done {
			done++
		}
	}
	if v.StepsOmitted = insp.Live.Steps - len(v.StepViews); v.StepsOmitted == 0 {
		v.StepsDone = &done
	}
	v.Next = in.next(v, s.location)
	return v, nil
}

// onStore is a command of this program on the store at location, to be copied.
func (in *invocation) onStore(location string, words ...string) string {
	out := in.program()
	for _, w := range words {
		out += " " + shell.Quote(w)
	}
	return out + " --store " + shell.Quote(location)
}

// next are the commands that fit the sequence's state.
func (in *invocation) next(v pendingView, location string) []string {
	line := func(words ...string) string { return in.onStore(location, words...) }
	if v.Holder != "" {
		return nil // it is being run: the only thing to do is to wait
	}
	if v.State != commitstep.Parked {
		return []string{line("recover", "--job", v.Job)}
	}
	out := []string{line("pending", "verify", v.Sequence.String())}
	if slices.ContainsFunc(v.StepViews, func(s inspectedStep) bool { return s.Pack != nil }) {
		out = append(out, line("hive", "probe", v.Sequence.String()))
	}
	for _, d := range v.Decisions {
		words := []string{"resolve", v.Sequence.String(), "--as", string(d)}
		if v.ParkedStep > 0 && (d == store.DecidePublished || d == store.DecideNotPublished) {
			words = append(words, "--step", fmt.Sprint(v.ParkedStep))
		}
		out = append(out, line(append(words, "--expect-version", fmt.Sprint(v.Version), "--reason", "...")...))
	}
	return out
}

func (in *invocation) showTable(t *table, v pendingView) {
	now := in.Now()
	t.row("dataset", name(v.Dataset))
	t.row("job", name(v.Job))
	t.row("sequence", v.Sequence.String())
	t.row("state", v.stateText())
	if m := v.messageText(); m != "" {
		t.row("message", oneLine(m))
	}
	if v.PlanID != "" {
		t.row("plan id", name(v.PlanID))
	}
	if v.Created != nil {
		t.row("stored", since(now, *v.Created))
	}
	if v.Updated != nil {
		t.row("changed", since(now, *v.Updated))
	}
	t.row("version", fmt.Sprint(v.Version))
	if v.Holder != "" {
		t.row("run by", holderUntil(v.Holder, v.HeldUntil))
	}
	for _, l := range v.Locks {
		t.row("lock", name(l))
	}
	if v.AcceptReusedPaths != "" {
		t.row("used paths", "accepted: "+oneLine(v.AcceptReusedPaths))
	}
	t.line("")
	t.row("STEP", "KIND", "STATE", "WHAT")
	for i, s := range v.StepViews {
		if i == shownSteps {
			break
		}
		t.row(fmt.Sprintf("%d", s.Step), s.Kind, s.text(), s.Summary)
	}
	if n := v.Steps - min(len(v.StepViews), shownSteps); n > 0 {
		t.line("and %d more steps; -o json shows up to %d", n, driver.MaxStepReports)
	}
	for _, s := range v.StepViews {
		if s.AttemptCount > len(s.Attempts) {
			t.line("step %d: %d attempts, the newest %d:", s.Step, s.AttemptCount, len(s.Attempts))
		}
		for _, a := range s.Attempts {
			when := "-"
			if a.Started != nil {
				when = since(now, *a.Started)
			}
			t.row(fmt.Sprintf("  step %d attempt %d", s.Step, a.Number), when, a.text(), a.Driver)
		}
	}
	for _, s := range v.StepViews {
		if s.Pack != nil {
			packTable(t, now, s.Step, s.Pack)
		}
	}
	if len(v.Next) > 0 {
		t.line("")
		t.line("next:")
		for _, l := range v.Next {
			t.line("  %s", l)
		}
	}
}
