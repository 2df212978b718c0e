package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (in *invocation) pendingCommand() *cobra.Command {
	return group("pending", "What is pending or parked: list, show, verify",
		"What is live: pending, parked, or completed with its cleanup still to run.",
		in.pendingListCommand(), in.pendingShowCommand(), in.pendingVerifyCommand())
}

type pendingListOptions struct {
	job        string
	dataset    string
	state      string
	reason     string
	olderThan  time.Duration
	limit      int
	exitStatus bool
}

func (in *invocation) pendingListCommand() *cobra.Command {
	var o pendingListOptions
	c := &cobra.Command{
		Use:   "list",
		Short: "List what is pending, parked or cleaning",
		Long: `List shows every live sequence of the store, also those that cannot be read.
With --exit-status the exit code tells what is there: 4 when something waits for
a decision, 5 when a driver is running something, else 8 when something is
pending.
` + globHelp + exitStatus(ExitDecision, ExitLocked, ExitPending, ExitStore),
		Example: "  commitstep pending list --job kafka-hdfs --dataset 'My*'\n  commitstep pending list --state parked -o json",
		Args:    noArgs,
	}
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "only this job")
	f.StringVar(&o.dataset, "dataset", "", "only the datasets that match this `GLOB`")
	f.StringVar(&o.state, "state", "", "only pending, parked or cleaning")
	f.StringVar(&o.reason, "reason", "", "only what is parked for this reason, as PUBLISH_UNKNOWN")
	f.DurationVar(&o.olderThan, "older-than", 0, "only what was stored longer ago than this")
	f.IntVar(&o.limit, "limit", 0, "show at most so many (default all)")
	f.BoolVar(&o.exitStatus, "exit-status", false, "let the exit code tell what is there")
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		match, err := matcher(o.dataset, f.Changed("dataset"))
		if err != nil {
			return err
		}
		if o.limit < 0 {
			return usagef("--limit must not be negative")
		}
		if o.state != "" && !slices.Contains([]string{"pending", "parked", "cleaning"}, o.state) {
			return usagef("--state is %q, not pending, parked or cleaning", o.state)
		}
		o.reason = strings.ToUpper(o.reason)
		if o.reason != "" && !slices.Contains(parkReasons(), commitstep.ParkReason(o.reason)) {
			return usagef("--reason is %q, not one of %v", o.reason, parkReasons())
		}
		return in.withStore(ctx, func(s *session) error { return in.listPending(ctx, s, o, match) })
	})
	return c
}

func parkReasons() []commitstep.ParkReason {
	return []commitstep.ParkReason{commitstep.PublishUnknown, commitstep.AttemptsExhausted, commitstep.ConflictFound, commitstep.Unreadable, commitstep.Adopted}
}

func (o pendingListOptions) wants(v sequenceView, now time.Time) bool {
	state := string(v.State)
	if v.Cleaning {
		state = "cleaning"
	}
	return (o.state == "" || o.state == state) && (o.reason == "" || o.reason == string(v.Reason)) &&
		(o.olderThan <= 0 || v.Created == nil || now.Sub(*v.Created) > o.olderThan)
}

func (in *invocation) listPending(ctx context.Context, s *session, o pendingListOptions, match func(string) bool) error {
	var list reading[sequenceView]
	var broken []brokenSequence
	var out outcome
	total := map[string]int{}
	n := 0
	add := func(v sequenceView) {
		if !o.wants(v, in.Now()) {
			return
		}
		n++
		total[cmp.Or(string(v.Reason), v.stateText())]++
		out.decision = out.decision || v.State == commitstep.Parked
		out.locked = out.locked || v.Holder != ""
		out.pending = out.pending || v.State == commitstep.Pending
		if o.limit == 0 || len(list.items) < o.limit {
			list.items = append(list.items, v)
		}
	}
	for live, err := range s.store.Scan(ctx, store.Filter{Job: o.job, Match: match}) {
		if err != nil {
			list.fault(err)
			continue
		}
		v := viewLive(live)
		if err := v.addHolder(ctx, s.store, live); err != nil {
			return err
		}
		switch err := s.countDone(ctx, live, &v); {
		case isUnreadable(err):
			broken = append(broken, brokenSequence{v, err})
			continue
		case err != nil:
			return err
		}
		add(v)
	}
	q, err := s.store.Quarantine(ctx)
	if err != nil {
		return err
	}
	for _, b := range broken {
		// What the quarantine lists by now is shown as that.
		if !slices.ContainsFunc(q, func(d commitstep.Quarantined) bool { return d.ID == *b.view.Sequence }) {
			add(b.view)
			list.fault(b.err)
		}
	}
	for _, d := range q {
		if d.NameKnown && (o.job != "" && d.Key.Job != o.job || match != nil && !match(d.Key.Dataset)) {
			continue
		}
		add(unreadable(d))
	}
	perr := in.print(document{kind: "PendingList", body: list.body(), table: list.table("nothing is pending", in.pendingTable)})
	err = errors.Join(list.err(), perr)
	if len(list.items) < n {
		in.say("showing %d of %d", len(list.items), n)
	}
	if n > 0 && perr == nil {
		in.say("%s", totals(total))
	}
	if total[string(commitstep.Unreadable)] > 0 {
		in.say("%s", in.onUsedStore("`"+in.program()+" quarantine list` shows what cannot be read and may be decided"))
	}
	if err == nil && o.exitStatus && out.code() != ExitOK {
		return &cliError{out: out, msg: totals(total), hint: "`commitstep recover` goes on with what is pending, `commitstep resolve` decides what is parked"}
	}
	return err
}

// brokenSequence is one whose header can be read, and its steps cannot.
type brokenSequence struct {
	view sequenceView
	err  error
}

func isUnreadable(err error) bool {
	return errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat)
}

func totals(m map[string]int) string {
	var parts []string
	for k, n := range m {
		parts = append(parts, fmt.Sprintf("%d %s", n, k))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// unreadable shows a quarantined record as the parked dataset that it is.
func unreadable(d commitstep.Quarantined) sequenceView {
	v := sequenceView{State: commitstep.Parked, Reason: commitstep.Unreadable, Unreadable: d.Where + ": " + d.Problem}
	if d.NameKnown {
		v.Job, v.Dataset = d.Key.Job, d.Key.Dataset
	}
	if d.ID != uuid.Nil {
		v.Sequence = &d.ID
	}
	return v
}

// countDone counts recorded steps of sequences that fit one page; counting a
// million would make the list slow.
func (s *session) countDone(ctx context.Context, live commitstep.Live, v *sequenceView) error {
	if live.Steps > store.PageSize || live.Cleaning {
		return nil
	}
	page, err := s.store.Steps(ctx, live.ID, 0)
	if errors.Is(err, commitstep.ErrNotFound) {
		return nil // it ended since the scan
	}
	if err != nil {
		return err
	}
	done := 0
	for _, p := range page.Progress {
		if p.Done {
			done++
		}
	}
	v.StepsDone, v.LastError = &done, lastError(page)
	return nil
}

func (in *invocation) pendingTable(t *table, items []sequenceView) {
	now := in.Now()
	t.row("JOB", "DATASET", "SEQUENCE", "STATE", "STEPS", "AGE", "HOLDER", "MESSAGE")
	for _, v := range items {
		steps, ageText, message := fmt.Sprint(v.Steps), "-", v.messageText()
		if v.StepsDone != nil {
			steps = fmt.Sprintf("%d/%d", *v.StepsDone, v.Steps)
		}
		if v.Created != nil {
			ageText = age(now.Sub(*v.Created))
		}
		job, dataset := name(v.Job), name(v.Dataset)
		if v.Unreadable != "" {
			steps, message = "-", v.Unreadable
			if v.Dataset == "" {
				job, dataset = "?", "?"
			}
		}
		t.row(job, dataset, idText(v.Sequence), v.stateText(), steps, ageText, cmp.Or(holderUntil(v.Holder, v.HeldUntil), "-"), cmp.Or(oneLine(message), "-"))
	}
}
