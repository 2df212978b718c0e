package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

type resolveOptions struct {
	decision
	job           string
	as            string
	step          int
	expect        uint64
	hasExpect     bool
	again         bool
	acceptPartial bool
	forceFence    bool
	serverGone    bool
	carryOn       bool
	dryRun        bool
	policy        policyFlags
}

func (in *invocation) resolveCommand() *cobra.Command {
	var o resolveOptions
	c := &cobra.Command{
		Use:   "resolve DATASET --job J | SEQUENCE --as DECISION --reason TEXT",
		Short: "Decide what is to become of a parked sequence",
		Long: `Resolve decides about a parked sequence and writes who decided what, and why,
into the audit together with it. It runs nothing unless --continue is given: the
next recover does. --budget, --unknown-budget and --max-attempts are those of
recover, for --continue.
` + targetHelp + `

  parked as            possible decisions
  PUBLISH_UNKNOWN      published      the step took effect; the rest goes on
                       not-published  it did not; the sequence is abandoned, or
                                      with --again an irreversible one runs anew
                       retry          look at it once more
  ATTEMPTS_EXHAUSTED,  retry          counters are reset, it goes on
  CONFLICT, ADOPTED    abandon        the sequence ends, its staging is kept
                                      (CONFLICT of an irreversible step:
                                      also published)
  UNREADABLE           see ` + "`commitstep quarantine`" + `

Abandoning needs --accept-partial when some steps took effect already. On a
terminal the command shows what it will do and asks for the dataset's name;
without one it needs --yes. The decision is refused if the sequence changed
since it was shown: --expect-version is the version that ` + "`pending show`" + ` printed.

--force-fence takes a live lease away first, from a driver that hangs. That
driver's effects in flight are not undone. It is refused while a step has passed
its point of no return.

Before not-published and abandon are stored, the server of a step is asked. While a
Hive statement still runs, or the server does not answer, the decision is refused and
nothing is cut off; what is open otherwise is closed first. --server-gone is your
word that this server is gone for good; it is kept in the audit. Nothing is then
waited for or closed. A server that answers and still has the statement, or its
session, is not gone, and the decision is refused. A sequence that waits for that
server is pending and never parks by itself; with --server-gone it can be decided as
published or not-published all the same, unless the server answers after all.` + exitStatus(ExitDecision, ExitLocked, ExitNotFound, ExitStale, ExitPending, ExitStore),
		Example: "  commitstep resolve MyTopic --job kafka-hdfs --as retry --reason 'name node is back'\n  commitstep resolve 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d --as published --step 3 --expect-version 7 --reason 'counted rows by hand' --yes",
		Args:    oneArg("a dataset or a sequence id"),
	}
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "the dataset's job")
	f.StringVar(&o.as, "as", "", "the `DECISION`: published, not-published, retry or abandon (required)")
	f.IntVar(&o.step, "step", 0, "the step that the decision speaks of, as shown, from 1")
	f.Uint64Var(&o.expect, "expect-version", 0, "the version that you saw")
	f.BoolVar(&o.again, "again", false, "with not-published: execute the step anew")
	f.BoolVar(&o.acceptPartial, "accept-partial", false, "abandon although some steps took effect")
	f.BoolVar(&o.forceFence, "force-fence", false, "take a live lease away first")
	f.BoolVar(&o.serverGone, "server-gone", false, "with published, not-published or abandon: the step's server is gone for good, so nothing of it can land any more")
	f.BoolVar(&o.carryOn, "continue", false, "recover the dataset right afterwards")
	f.BoolVar(&o.dryRun, "dry-run", false, "check everything and decide nothing")
	o.addFlags(f, true)
	o.policy.addFlags(f)
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		if err := o.policy.check(f); err != nil {
			return err
		}
		if !o.carryOn && (f.Changed("budget") || f.Changed("unknown-budget") || f.Changed("max-attempts")) {
			return usagef("--budget, --unknown-budget and --max-attempts go with --continue")
		}
		o.hasExpect = f.Changed("expect-version")
		if err := o.check(in, f.Changed("step")); err != nil {
			return err
		}
		p, err := in.person(o.decision)
		if err != nil {
			return err
		}
		return in.withStore(ctx, func(s *session) error { return in.resolve(ctx, s, args[0], o, p) })
	})
	return c
}

func (o resolveOptions) check(in *invocation, hasStep bool) error {
	kinds := []string{string(store.DecidePublished), string(store.DecideNotPublished), string(store.DecideRetry), string(store.DecideAbandon)}
	switch {
	case o.as == "":
		return usagef("say what you decide with --as: published, not-published, retry or abandon")
	case !slices.Contains(kinds, o.as):
		return usagef("--as is %q, not published, not-published, retry or abandon", o.as)
	case hasStep && o.step < 1:
		return usagef("--step counts from 1, as steps are shown")
	case o.again && o.as != string(store.DecideNotPublished):
		return usagef("--again goes with --as not-published")
	case o.serverGone && o.as == string(store.DecideRetry):
		return usagef("--server-gone goes with --as published, not-published or abandon")
	case o.carryOn && o.dryRun:
		return usagef("--continue and --dry-run exclude each other")
	case !o.dryRun && !o.yes && !in.asks():
		return usagef("there is no terminal to ask on; add --yes, and --expect-version with the version you saw")
	}
	return nil
}

// resolvedView is the body of a Resolution.
type resolvedView struct {
	Job         string        `json:"job"`
	Dataset     string        `json:"dataset"`
	Sequence    uuid.UUID     `json:"sequence"`
	Decision    string        `json:"decision"`
	Before      conditionView `json:"before"`
	After       conditionView `json:"after"`
	Consequence string        `json:"consequence"`
	// Visible are the steps that took effect and stay.
	Visible []string    `json:"visible,omitempty"`
	DryRun  bool        `json:"dryRun"`
	Then    *resultView `json:"then,omitempty"`
}

type conditionView struct {
	State   commitstep.State      `json:"state"`
	Reason  commitstep.ParkReason `json:"reason,omitempty"`
	Version uint64                `json:"version"`
}

func (c conditionView) text() string {
	s := string(c.State)
	if c.Reason != "" {
		s += " " + string(c.Reason)
	}
	return s
}

func (in *invocation) resolve(ctx context.Context, s *session, arg string, o resolveOptions, p store.Person) error {
	live, err := s.target(ctx, arg, o.job)
	if err != nil {
		return err
	}
	if err := s.start(o.policy.apply); err != nil {
		return err
	}
	q := driver.Resolution{Key: live.Key, Decision: store.DecisionKind(o.as), Step: o.step - 1, Version: o.expect, Person: p,
		Again: o.again, AcceptPartial: o.acceptPartial, ForceFence: o.forceFence, ServerGone: o.serverGone, DryRun: true}
	if !o.hasExpect {
		// What is shown below, or what --yes speaks of, is what was just read.
		q.Version = live.Version
	}
	r, err := s.engine.Resolve(ctx, q)
	if err != nil {
		return in.refused(err, live, s.location)
	}
	v := viewResolved(r, o, live)
	if !o.dryRun {
		if !o.yes {
			// The table goes to stderr, since it is part of the question.
			t := &table{}
			v.table(t)
			if err := t.flush(in.Stderr); err != nil {
				return err
			}
			if err := in.confirm(ctx, o.decision, "decide so", live.Dataset); err != nil {
				return err
			}
		}
		q.DryRun = false
		if r, err = s.engine.Resolve(ctx, q); err != nil {
			return in.refused(err, live, s.location)
		}
		v = viewResolved(r, o, live)
	}
	var then error
	if o.carryOn && r.After.State == commitstep.Pending {
		then = in.carryOn(ctx, s, live.Key, &v)
	}
	perr := in.print(document{kind: "Resolution", body: v, table: v.table})
	return errors.Join(then, perr)
}

func viewResolved(r driver.Resolved, o resolveOptions, live commitstep.Live) resolvedView {
	v := resolvedView{Job: live.Job, Dataset: live.Dataset, Sequence: live.ID, Decision: o.as,
		Before: conditionView{r.Before.State, r.Before.Reason, r.Before.Version}, After: conditionView{r.After.State, r.After.Reason, r.After.Version},
		Consequence: r.Consequence, Visible: r.Visible, DryRun: r.DryRun}
	if v.After.State != commitstep.Parked {
		v.After.Reason = ""
	}
	return v
}

// refused adds what to do about a decision that was not taken.
func (in *invocation) refused(err error, live commitstep.Live, location string) error {
	hint := "`" + in.onStore(location, "pending", "show", live.ID.String()) + "` shows the sequence and what may be decided"
	var partial *driver.PartialError
	if errors.As(err, &partial) || errors.Is(err, commitstep.ErrVersion) || errors.Is(err, commitstep.ErrBusy) {
		hint = "" // they say so themselves
	}
	return &cliError{err: err, hint: hint}
}

// carryOn recovers just the dataset that was decided about.
func (in *invocation) carryOn(ctx context.Context, s *session, key commitstep.Key, v *resolvedView) error {
	in.say("decided; going on with dataset %s of job %s, and waiting for what cannot be reached", name(key.Dataset), name(key.Job))
	rep, err := s.engine.Recover(ctx, key.Job, driver.Datasets(func(d string) bool { return d == key.Dataset }))
	for _, r := range rep.Results {
		if r.Key == key {
			then := viewResult(r)
			v.Then = &then
		}
	}
	if err != nil {
		return &cliError{err: err, msg: "the decision stands, but going on failed", hint: "`" + in.onStore(s.location, "recover", "--job", key.Job) + "` goes on"}
	}
	if v.Then != nil && v.Then.Status != driver.StatusCompleted {
		var out outcome
		out.status(v.Then.Status)
		return &cliError{out: out, msg: "the decision stands, but the sequence is not completed: " + v.Then.headline(), hint: "`" + in.onStore(s.location, "pending", "show", v.Sequence.String()) + "` shows it"}
	}
	return nil
}

func (v resolvedView) table(t *table) {
	t.line("dataset %s of job %s (sequence %s)", name(v.Dataset), name(v.Job), v.Sequence)
	t.row("  decision", v.Decision)
	t.row("  before", fmt.Sprintf("%s, version %d", v.Before.text(), v.Before.Version))
	t.row("  after", v.After.text())
	t.row("  so", v.Consequence)
	for _, s := range v.Visible {
		t.row("  stays visible", oneLine(s))
	}
	if v.DryRun {
		t.line("nothing was decided yet")
	}
	if v.Then != nil {
		v.Then.table(t, true)
	}
}
