package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// historyView is a sequence that has ended.
type historyView struct {
	Job            string           `json:"job"`
	Dataset        string           `json:"dataset"`
	Sequence       uuid.UUID        `json:"sequence"`
	State          commitstep.State `json:"state"`
	PlanID         string           `json:"planId,omitempty"`
	PlanHash       string           `json:"planHash"`
	Created        *time.Time       `json:"created"`
	Ended          *time.Time       `json:"ended"`
	Steps          int              `json:"steps"`
	Stages         int              `json:"stages"`
	Epoch          uint64           `json:"epoch"`
	Moves          []moveView       `json:"moves,omitempty"`
	Locks          []string         `json:"locks,omitempty"`
	Executed       int              `json:"executed,omitempty"`
	AlreadyInPlace int              `json:"alreadyInPlace,omitempty"`
	Recovers       int              `json:"recovers,omitempty"`
	Driver         string           `json:"driver,omitempty"`
	PartialVisible []string         `json:"partialVisible,omitempty"`
	// DeclaredPublished are steps, from 1, that a person declared published.
	DeclaredPublished []int `json:"declaredPublished,omitempty"`
	// AcceptReusedPaths is the plan's reason for using earlier paths.
	AcceptReusedPaths string `json:"acceptReusedPaths,omitempty"`
	CleanupReport     string `json:"cleanupReport,omitempty"`
	Message           string `json:"message,omitempty"`
	// Detail are the steps, kept for sequences of up to 64.
	Detail []historyStep `json:"detail,omitempty"`
}

type historyStep struct {
	Step    int    `json:"step"`
	Stage   int    `json:"stage"`
	Kind    string `json:"kind"`
	Summary string `json:"summary,omitempty"`
	Params  any    `json:"params,omitempty"`
}

func viewHistory(h store.HistoryEntry) historyView {
	v := historyView{Job: h.Job, Dataset: h.Dataset, Sequence: h.ID, State: h.State, PlanID: h.PlanID, PlanHash: h.PlanHash,
		Created: utc(h.Created), Ended: utc(h.Ended), Steps: h.Steps, Stages: h.Stages, Epoch: h.Epoch, Moves: viewMoves(h.Moves), Locks: h.Locks,
		Executed: h.Notes.Executed, AlreadyInPlace: h.Notes.Already, Recovers: h.Notes.Recovers, Driver: h.Notes.Driver,
		PartialVisible: h.Notes.PartialVisible, CleanupReport: h.CleanupReport, Message: h.Message, AcceptReusedPaths: h.AcceptReusedPaths}
	for _, i := range h.Notes.DeclaredPublished {
		v.DeclaredPublished = append(v.DeclaredPublished, i+1)
	}
	return v
}

func (in *invocation) historyCommand() *cobra.Command {
	return group("history", "What has been completed or abandoned: list, show",
		"History keeps every sequence that has ended. It is only ever added to.",
		in.historyListCommand(), in.historyShowCommand())
}

func (in *invocation) historyListCommand() *cobra.Command {
	var job, dataset string
	limit := 50
	c := &cobra.Command{
		Use:     "list",
		Short:   "List ended sequences, newest first",
		Long:    "List what was completed or abandoned, newest first.\n" + globHelp + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep history list --job kafka-hdfs --limit 10",
		Args:    noArgs,
	}
	f := c.Flags()
	f.StringVar(&job, "job", "", "only this job")
	f.StringVar(&dataset, "dataset", "", "only the datasets that match this `GLOB`")
	f.IntVar(&limit, "limit", limit, "show at most so many; 0 is all")
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		match, err := matcher(dataset, f.Changed("dataset"))
		if err != nil {
			return err
		}
		if limit < 0 {
			return usagef("--limit must not be negative")
		}
		return in.withStore(ctx, func(s *session) error {
			var list reading[historyView]
			for h, err := range s.store.ListHistory(ctx, store.HistoryFilter{Job: job, Match: match, Limit: limit}) {
				if err != nil {
					list.fault(err)
					continue
				}
				list.items = append(list.items, viewHistory(h))
			}
			perr := in.print(document{kind: "HistoryList", body: list.body(), table: list.table("no history yet", in.historyTable)})
			return errors.Join(list.err(), perr)
		})
	})
	return c
}

func (in *invocation) historyTable(t *table, items []historyView) {
	t.row("JOB", "DATASET", "SEQUENCE", "STATE", "STEPS", "ENDED", "PLAN ID")
	for _, v := range items {
		ended := "-"
		if v.Ended != nil {
			ended = since(in.Now(), *v.Ended)
		}
		id := "-"
		if v.PlanID != "" {
			id = name(v.PlanID)
		}
		t.row(name(v.Job), name(v.Dataset), v.Sequence.String(), string(v.State), fmt.Sprint(v.Steps), ended, id)
	}
}

func (in *invocation) historyShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show SEQUENCE",
		Short:   "Show one ended sequence",
		Long:    "Show one sequence that has ended, with its steps if it had at most 64." + exitStatus(ExitLocked, ExitNotFound, ExitStore),
		Example: "  commitstep history show 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d",
		Args:    oneArg("a sequence id"),
		RunE: in.run(func(ctx context.Context, args []string) error {
			id, err := parseSequence(args[0])
			if err != nil {
				return usagef("%q is no sequence id; `%s history list` shows them", args[0], in.Program)
			}
			return in.withStore(ctx, func(s *session) error {
				h, err := s.store.LookupHistory(ctx, id)
				if errors.Is(err, commitstep.ErrNotFound) {
					return &cliError{err: err, msg: fmt.Sprintf("sequence %s has no history", id), hint: fmt.Sprintf("`%s pending show %s` shows it if it is live", in.Program, id)}
				}
				if err != nil {
					return err
				}
				v := viewHistory(h)
				for _, st := range h.Detail {
					v.Detail = append(v.Detail, historyStep{st.Index + 1, st.Stage + 1, st.Kind, s.summary(st), st.Params})
				}
				return in.print(document{kind: "History", body: v, table: func(t *table) { in.historyShowTable(t, v) }})
			})
		}),
	}
}

func (in *invocation) historyShowTable(t *table, v historyView) {
	now := in.Now()
	t.row("dataset", name(v.Dataset))
	t.row("job", name(v.Job))
	t.row("sequence", v.Sequence.String())
	t.row("state", string(v.State))
	if v.PlanID != "" {
		t.row("plan id", name(v.PlanID))
	}
	if v.Created != nil {
		t.row("stored", since(now, *v.Created))
	}
	if v.Ended != nil {
		t.row("ended", since(now, *v.Ended))
	}
	t.row("steps", fmt.Sprintf("%d in %s; %d executed and %d found in place by the last driver", v.Steps, plural(v.Stages, "stage", "stages"), v.Executed, v.AlreadyInPlace))
	t.row("driver", cmp.Or(oneLine(v.Driver), "-"))
	if v.Message != "" {
		t.row("message", oneLine(v.Message))
	}
	if v.CleanupReport != "" {
		t.row("cleanup", "stays: "+oneLine(v.CleanupReport))
	}
	for _, m := range v.Moves {
		t.row("watermark", name(m.Source)+" "+m.From.String()+" -> "+m.To.String())
	}
	if v.AcceptReusedPaths != "" {
		t.row("used paths", "accepted: "+oneLine(v.AcceptReusedPaths))
	}
	for _, n := range v.DeclaredPublished {
		t.row("declared", fmt.Sprintf("step %d was published by the word of a person; `%s audit list` has who and why", n, in.Program))
	}
	for _, p := range v.PartialVisible {
		t.row("visible", oneLine(p))
	}
	if len(v.Detail) > 0 {
		t.line("")
		t.row("STEP", "KIND", "WHAT")
		for _, s := range v.Detail {
			t.row(fmt.Sprint(s.Step), s.Kind, s.Summary)
		}
	}
}

// summary is a step in one line, "" when its kind is not known here.
func (s *session) summary(st commitstep.Step) string {
	b, err := s.kinds.Build(st)
	if err != nil {
		return ""
	}
	if t, ok := b.(interface{ Summary() string }); ok {
		return t.Summary()
	}
	return ""
}
