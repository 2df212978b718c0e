package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/spf13/cobra"
)

type recoverOptions struct {
	job         string
	dataset     string
	hasDataset  bool
	dryRun      bool
	concurrency int
	policy      policyFlags
}

func (in *invocation) recoverCommand() *cobra.Command {
	var o recoverOptions
	c := &cobra.Command{
		Use:   "recover",
		Short: "Finish or park everything that is pending: the first thing a job does",
		Long: `Recover finds every sequence that a crash or a server left unfinished, asks of
each step whether it is done, does again only what is not, and parks what only
a person can decide. One dataset's trouble never stops another's.

Exit code 0 with --job means that nothing of the job is left, so it may ingest. With any
other code ask ` + "`-o json`" + `: a job may ingest a dataset only if "complete" is true,
"blocked" and "unaccepted" are absent, and "notFree" does not name the dataset.
A recover with --dataset or --dry-run, or without --job, never sets "complete":
by its answer no dataset may be ingested.
` + globHelp + exitStatus(ExitPartial, ExitDecision, ExitLocked, ExitPending, ExitStore, ExitInterrupted),
		Example: "  commitstep recover --job kafka-hdfs\n  commitstep recover --job kafka-hdfs --dataset 'My*' --dry-run",
		Args:    noArgs,
	}
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "only this job; default: every job of the store; then no dataset may be ingested by the answer")
	f.StringVar(&o.dataset, "dataset", "", "only the datasets that match this `GLOB`")
	f.BoolVar(&o.dryRun, "dry-run", false, "only look: say what a recover would find and do")
	f.IntVar(&o.concurrency, "concurrency", 0, "how many sequences run at once (default 64)")
	o.policy.addFlags(f)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		o.hasDataset = f.Changed("dataset")
		if f.Changed("concurrency") && o.concurrency < 1 {
			return usagef("--concurrency must be at least 1")
		}
		if err := o.policy.check(f); err != nil {
			return err
		}
		if f.Changed("job") {
			if err := commitstep.CheckName("job", o.job); err != nil {
				return usagef("--job: %v", err)
			}
		}
		match, err := matcher(o.dataset, o.hasDataset)
		if err != nil {
			return err
		}
		return in.withStore(ctx, func(s *session) error { return in.recover(ctx, s, o, match) })
	})
	return c
}

// recoverView is the body of a RecoverReport.
type recoverView struct {
	Job string `json:"job,omitempty"`
	// Complete: everything of the job was read to the end. Never with a
	// dataset filter or a dry run, and never without a job.
	Complete    bool                  `json:"complete"`
	DryRun      bool                  `json:"dryRun,omitempty"`
	Started     *time.Time            `json:"started"`
	TookMillis  int64                 `json:"tookMillis"`
	Counts      map[driver.Status]int `json:"counts"`
	Items       []resultView          `json:"items"`
	Quarantined []quarantineView      `json:"quarantined,omitempty"`
	Blocked     string                `json:"blocked,omitempty"`
	Unaccepted  bool                  `json:"unaccepted,omitempty"`
	// NotFree: datasets of the job that may not be ingested, with their status.
	NotFree map[string]driver.Status `json:"notFree,omitempty"`
	// NotFreeDatasets are the same with their job, of every job that was read.
	NotFreeDatasets []notFreeView `json:"notFreeDatasets,omitempty"`

	bare     bool // the job has no watermark to accept
	cutShort bool // not read to its end: what is not listed may still be pending
}

type notFreeView struct {
	Job     string        `json:"job"`
	Dataset string        `json:"dataset"`
	Status  driver.Status `json:"status"`
}

func (in *invocation) recover(ctx context.Context, s *session, o recoverOptions, match func(string) bool) error {
	if err := s.start(o.policy.apply); err != nil {
		return err
	}
	var opts []driver.RecoverOption
	if match != nil {
		opts = append(opts, driver.Datasets(match))
	}
	if o.dryRun {
		opts = append(opts, driver.DryRun())
	}
	if o.concurrency > 0 {
		opts = append(opts, driver.Concurrency(o.concurrency))
	}
	rep, rerr := s.engine.Recover(ctx, o.job, opts...)
	v := recoverView{Job: rep.Job, Complete: rep.Complete && o.job != "" && match == nil && rerr == nil, DryRun: o.dryRun, Started: utc(rep.Started), TookMillis: rep.Took.Milliseconds(),
		Counts: rep.Counts, Items: []resultView{}, Blocked: rep.Blocked, Unaccepted: rep.Unaccepted, NotFree: rep.NotFree()}
	for _, r := range rep.Results {
		v.Items = append(v.Items, viewResult(r))
		if r.Status != driver.StatusCompleted && r.Status != driver.StatusAbandoned {
			v.NotFreeDatasets = append(v.NotFreeDatasets, notFreeView{r.Key.Job, r.Key.Dataset, r.Status})
		}
	}
	for _, q := range rep.Quarantined {
		v.Quarantined = append(v.Quarantined, viewQuarantined(q))
		if q.NameKnown {
			v.NotFreeDatasets = append(v.NotFreeDatasets, notFreeView{q.Key.Job, q.Key.Dataset, driver.StatusParked})
		}
	}
	v.cutShort = rerr != nil
	perr := in.print(document{kind: "RecoverReport", body: v, table: v.table})
	if rerr != nil {
		return errors.Join(s.leftAfter(ctx, o, match, rep, rerr), perr)
	}
	if rep.Unaccepted && o.job != "" {
		v.bare = s.bare(ctx, o.job)
	}
	return errors.Join(v.verdict(func(words ...string) string { return in.onStore(s.location, words...) }), perr)
}

// leftAfter says what is still pending after a recover that was cut short.
func (s *session) leftAfter(ctx context.Context, o recoverOptions, match func(string) bool, rep driver.Report, err error) error {
	pending, parked := 0, 0
	f := store.Filter{Job: o.job, Match: match, States: []commitstep.State{commitstep.Pending, commitstep.Parked}}
	for live, serr := range s.store.Scan(context.WithoutCancel(ctx), f) {
		if serr != nil {
			return err // the store cannot even be read: say only that
		}
		if live.State == commitstep.Parked {
			parked++
		} else {
			pending++
		}
	}
	out := outcome{partial: rep.Counts[driver.StatusCompleted] > 0, pending: pending > 0, decision: parked > 0}
	hint := hintOf(err)
	if hint == "" && !errors.Is(err, pgstore.ErrForbidden) && !errors.Is(err, pgstore.ErrSchema) { // those say what to do first
		hint = "run recover again, it goes on where this one stopped"
	}
	return &cliError{out: out, err: err, msg: fmt.Sprintf("recover did not come to its end, %d pending and %d parked are left", pending, parked), hint: hint}
}

// bare reports that the job certainly has no watermark in the store.
func (s *session) bare(ctx context.Context, job string) bool {
	for range s.store.ListWatermarks(ctx, job) {
		return false // there is one, even if it cannot be read
	}
	return true
}

// verdict turns what is left into an error, nil when nothing is. command is a
// command on this store, to be copied.
func (v recoverView) verdict(command func(words ...string) string) error {
	var out outcome
	var what []string
	n := map[driver.Status]int{}
	for _, r := range v.Items {
		out.status(r.Status)
		n[r.Status]++
	}
	for _, st := range []driver.Status{driver.StatusParked, driver.StatusBusy, driver.StatusFenced, driver.StatusWaiting, driver.StatusStopped, driver.StatusUnsupported, driver.StatusAbandoned} {
		if n[st] > 0 {
			what = append(what, fmt.Sprintf("%d %s", n[st], st))
		}
	}
	if len(v.Quarantined) > 0 {
		out.decision = true
		what = append(what, fmt.Sprintf("%d unreadable", len(v.Quarantined)))
	}
	if v.Unaccepted {
		out.decision = true
		if v.Job == "" {
			what = append(what, "the watermarks of some jobs are not accepted yet")
		} else {
			what = append(what, fmt.Sprintf("the watermarks of job %s are not accepted yet", name(v.Job)))
		}
	}
	if v.Blocked != "" {
		out.decision = true
		what = append(what, v.Blocked)
	}
	if len(what) == 0 {
		return nil
	}
	hint := fmt.Sprintf("`%s` shows what is left", command("pending", "list"))
	switch {
	case v.Unaccepted && v.Job == "":
		hint = fmt.Sprintf("look at `%s`, then accept those of each job with `%s`", command("watermark", "list"), command("watermark", "accept", "--job", "J", "--reason", "TEXT"))
	case v.Unaccepted && v.bare:
		hint = fmt.Sprintf("if the job may read its sources from the start: `%s`", command("watermark", "accept", "--job", v.Job, "--without-watermarks", "--reason", "TEXT"))
	case v.Unaccepted:
		hint = fmt.Sprintf("look at `%s`, then `%s`", command("watermark", "list", "--job", v.Job), command("watermark", "accept", "--job", v.Job, "--reason", "TEXT"))
	case v.Blocked != "" && len(v.Items)+len(v.Quarantined) == 0:
		hint = "" // the block says what to do
	}
	when := "after recover: "
	if v.DryRun {
		when = "a recover would leave, or find: "
	}
	return &cliError{out: out, msg: when + strings.Join(what, ", "), hint: hint}
}

// maxDetailed is up to how many sequences a table shows step by step.
const maxDetailed = 20

func (v recoverView) table(t *table) {
	for _, r := range v.Items {
		r.table(t, len(v.Items) <= maxDetailed)
	}
	for _, q := range v.Quarantined {
		t.line("%s", q.headline())
	}
	if len(v.Items)+len(v.Quarantined) == 0 {
		switch {
		case v.Blocked != "":
			t.line("nothing was recovered: no plan of this store may run")
		case v.cutShort:
			t.line("nothing was recovered: recover did not come to its end")
		default:
			t.line("nothing was pending")
		}
		return
	}
	if v.DryRun {
		t.line("dry run: nothing was changed")
		return
	}
	now, before := 0, 0
	for _, r := range v.Items {
		now += r.Counts.Executed
		before += r.Counts.Recorded + r.Counts.AlreadyInPlace + r.Counts.Recovered
	}
	t.line("recovered %s of %d: %s done before, %s done now", plural(v.Counts[driver.StatusCompleted], "sequence", "sequences"), len(v.Items)+max(0, v.Counts[driver.StatusCompleted]-driver.MaxResults),
		plural(before, "step was", "steps were"), plural(now, "step was", "steps were"))
}
