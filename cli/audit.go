package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// auditView is one decision of a person.
type auditView struct {
	Number   uint64     `json:"number"`
	At       *time.Time `json:"at"`
	By       string     `json:"by"`
	Host     string     `json:"host,omitempty"`
	Tool     string     `json:"tool,omitempty"`
	Reason   string     `json:"reason"`
	Action   string     `json:"action"`
	Job      string     `json:"job,omitempty"`
	Dataset  string     `json:"dataset,omitempty"`
	Sequence *uuid.UUID `json:"sequence,omitempty"`
	Decision string     `json:"decision,omitempty"`
	Before   string     `json:"before,omitempty"`
	After    string     `json:"after,omitempty"`
}

func viewAudit(e store.AuditEntry) auditView {
	v := auditView{Number: e.Number, At: utc(e.At), By: e.Name, Host: e.Host, Tool: e.Tool, Reason: e.Reason, Action: e.Action,
		Job: e.Key.Job, Dataset: e.Key.Dataset, Decision: e.Decision, Before: e.Before, After: e.After}
	if e.Sequence != uuid.Nil {
		v.Sequence = &e.Sequence
	}
	return v
}

func (in *invocation) auditCommand() *cobra.Command {
	var job string
	c := &cobra.Command{
		Use:     "list",
		Short:   "List what people decided, oldest first",
		Long:    "List every decision with who made it, when and why, oldest first. Entries are\nnumbered without gaps and never changed." + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep audit list -o json",
		Args:    noArgs,
	}
	c.Flags().StringVar(&job, "job", "", "only decisions about this job")
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		return in.withStore(ctx, func(s *session) error {
			var list reading[auditView]
			for e, err := range s.store.ListAudit(ctx) {
				if err != nil {
					list.fault(err)
					continue
				}
				if job == "" || e.Key.Job == job {
					list.items = append(list.items, viewAudit(e))
				}
			}
			perr := in.print(document{kind: "AuditList", body: list.body(), table: list.table("nobody has decided anything yet", in.auditTable)})
			return errors.Join(list.err(), perr)
		})
	})
	return group("audit", "What people decided, and why", "The audit holds every decision of a person. It is only ever added to.", c)
}

func (in *invocation) auditTable(t *table, items []auditView) {
	t.row("NO", "WHEN", "BY", "ACTION", "JOB", "DATASET", "DECISION", "BEFORE", "AFTER", "REASON")
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return name(s)
	}
	for _, v := range items {
		when := "-"
		if v.At != nil {
			when = since(in.Now(), *v.At)
		}
		t.row(fmt.Sprint(v.Number), when, name(v.By), v.Action, dash(v.Job), dash(v.Dataset), dash(v.Decision), dash(v.Before), dash(v.After), name(v.Reason))
	}
}
