package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// quarantineView is a record that cannot be read.
type quarantineView struct {
	Job      string     `json:"job,omitempty"`
	Dataset  string     `json:"dataset,omitempty"`
	Sequence *uuid.UUID `json:"sequence,omitempty"`
	Where    string     `json:"where"`
	Problem  string     `json:"problem"`
	Newer    bool       `json:"newer"`
}

func viewQuarantined(q commitstep.Quarantined) quarantineView {
	v := quarantineView{Where: q.Where, Problem: q.Problem, Newer: q.Newer}
	if q.NameKnown {
		v.Job, v.Dataset = q.Key.Job, q.Key.Dataset
	}
	if q.ID != uuid.Nil {
		v.Sequence = &q.ID
	}
	return v
}

func (v quarantineView) headline() string {
	what := "a record without a readable name"
	if v.Dataset != "" {
		what = fmt.Sprintf("dataset %s of job %s", name(v.Dataset), name(v.Job))
	}
	return fmt.Sprintf("%s: UNREADABLE, %s: %s", what, oneLine(v.Where), oneLine(v.Problem))
}

func (in *invocation) quarantineCommand() *cobra.Command {
	return group("quarantine", "Records that cannot be read: list, release, abandon",
		`A damaged or newer record is quarantined: its dataset is parked UNREADABLE and
the others go on. If not even the name can be read, no job of the store may
ingest before it is dealt with.`,
		in.quarantineListCommand(), in.quarantineDecideCommand("release"), in.quarantineDecideCommand("abandon"))
}

func (in *invocation) quarantineListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List records that cannot be read",
		Long:    "List records that cannot be read, with what is wrong and where they are." + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep quarantine list -o json",
		Args:    noArgs,
		RunE: in.run(func(ctx context.Context, _ []string) error {
			return in.withStore(ctx, func(s *session) error {
				q, err := s.store.Quarantine(ctx)
				if err != nil {
					return err
				}
				items := []quarantineView{}
				for _, d := range q {
					items = append(items, viewQuarantined(d))
				}
				return in.print(document{kind: "QuarantineList", body: listOf(items), table: func(t *table) {
					if len(items) == 0 {
						t.line("nothing is quarantined")
						return
					}
					t.row("JOB", "DATASET", "SEQUENCE", "NEWER", "WHERE", "PROBLEM")
					for _, v := range items {
						job, dataset := "?", "?"
						if v.Dataset != "" {
							job, dataset = name(v.Job), name(v.Dataset)
						}
						t.row(job, dataset, idText(v.Sequence), yesNo(v.Newer), v.Where, v.Problem)
					}
				}})
			})
		}),
	}
}

func idText(id *uuid.UUID) string {
	if id == nil {
		return "-"
	}
	return id.String()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// quarantineDecideCommand makes release and abandon, which differ in what they
// put at risk: abandon asks first.
func (in *invocation) quarantineDecideCommand(verb string) *cobra.Command {
	var d decision
	var job string
	var unnamed bool
	abandon := verb == "abandon"
	c := &cobra.Command{
		Use:     verb + " DATASET --job J --reason TEXT",
		Short:   "Read a quarantined record again; it counts again if it can be read now",
		Long:    "Release reads a quarantined record again, after its repair or with a newer\nprogram. If it can be read it counts again, else nothing changes." + exitStatus(ExitLocked, ExitNotFound, ExitStore),
		Example: "  commitstep quarantine release MyTopic --job kafka-hdfs --reason 'file system repaired'",
		Args:    maybeArg,
	}
	if abandon {
		c.Short = "Give a quarantined sequence up; its damaged bytes are kept aside"
		c.Long = "Abandon gives a quarantined sequence up, so that its dataset is free. Nobody can\nsay which of its steps took effect: look at the data first. The damaged bytes\nare kept aside in the store. A damaged watermark is named by its source instead\nof a dataset, and counts as never set afterwards. --unnamed gives up the records\nthat block every job since not even their dataset can be read." + exitStatus(ExitLocked, ExitNotFound, ExitStore)
		c.Example = "  commitstep quarantine abandon MyTopic --job kafka-hdfs --reason 'checked by hand, INC-17'"
	}
	c.Flags().StringVar(&job, "job", "", "the dataset's job (required)")
	if abandon {
		c.Flags().BoolVar(&unnamed, "unnamed", false, "the records whose dataset cannot be read")
	}
	d.addFlags(c.Flags(), abandon)
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		key := commitstep.Key{Job: job}
		switch {
		case unnamed && (len(args) > 0 || job != ""):
			return usagef("--unnamed goes without a dataset and without --job")
		case unnamed:
		case len(args) == 0:
			return usagef("`%s` needs a dataset; see `%s --help`", c.CommandPath(), c.CommandPath())
		case job == "":
			return usagef("name the dataset's job with --job")
		default:
			key.Dataset = args[0]
			if err := key.Validate(); err != nil {
				return usagef("%v", err)
			}
		}
		p, err := in.person(d)
		if err != nil {
			return err
		}
		return in.withStore(ctx, func(s *session) error {
			decide, done := s.store.ReleaseQuarantine, "released: it can be read again and counts"
			if abandon {
				decide, done = s.store.AbandonQuarantine, "abandoned: the dataset is free, the damaged bytes are kept aside"
				word := key.Dataset
				if unnamed {
					word = "unnamed"
				}
				if err := in.confirm(ctx, d, "give up what cannot be read", word); err != nil {
					return err
				}
			}
			return in.decideQuarantine(ctx, key, p, decide, verb, done)
		})
	})
	return c
}

func (in *invocation) decideQuarantine(ctx context.Context, key commitstep.Key, p store.Person,
	decide func(context.Context, commitstep.Key, store.Person) error, verb, done string) error {
	err := decide(ctx, key, p)
	if errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat) {
		// As before: it waits for a person, and the rest of the store is fine.
		return &cliError{out: outcome{decision: true}, msg: fmt.Sprintf("%s still cannot be read: %v", quarantineName(key), err), hint: "repair it, use a newer program, or `commitstep quarantine abandon` it"}
	}
	if err != nil {
		return &cliError{err: err, msg: verb + " " + quarantineName(key), hint: "`commitstep quarantine list` shows what is quarantined"}
	}
	body := struct {
		Job     string `json:"job,omitempty"`
		Dataset string `json:"dataset,omitempty"`
		Action  string `json:"action"`
	}{key.Job, key.Dataset, verb}
	return in.print(document{kind: "QuarantineDecision", body: body, table: func(t *table) {
		t.line("%s: %s", quarantineName(key), done)
	}})
}

func quarantineName(key commitstep.Key) string {
	if key == (commitstep.Key{}) {
		return "what has no readable dataset"
	}
	return fmt.Sprintf("dataset %s of job %s", name(key.Dataset), name(key.Job))
}
