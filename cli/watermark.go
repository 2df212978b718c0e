package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// watermarkView says how far one source was read. Sequence is absent when a
// person set it, SetAt when it was never set.
type watermarkView struct {
	Job        string               `json:"job"`
	Source     string               `json:"source"`
	Watermark  commitstep.Watermark `json:"watermark"`
	Sequence   *uuid.UUID           `json:"sequence,omitempty"`
	SetAt      *time.Time           `json:"setAt,omitempty"`
	Unaccepted bool                 `json:"unaccepted"`
}

func viewWatermark(v commitstep.WatermarkValue) watermarkView {
	w := watermarkView{Job: v.Job, Source: v.Source, Watermark: v.Watermark, SetAt: utc(v.SetAt), Unaccepted: v.Unaccepted}
	if v.Sequence != uuid.Nil {
		w.Sequence = &v.Sequence
	}
	return w
}

func (in *invocation) watermarkCommand() *cobra.Command {
	return group("watermark", "How far each source was read: get, list, set, accept",
		"A watermark says how far a job has read and published a source.",
		in.watermarkInitCommand(), in.watermarkGetCommand(), in.watermarkListCommand(), in.watermarkSetCommand(), in.watermarkAcceptCommand())
}

// sourceFlags name one watermark.
type sourceFlags struct{ job, source, target string }

func (k *sourceFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&k.job, "job", "", "the job (required)")
	c.Flags().StringVar(&k.source, "source", "", "the source, as MyTopic:0 (required)")
	c.Flags().StringVar(&k.target, "target", "", targetUsage)
}

const targetUsage = "of the bound target `NAME` instead of the commit store, see --watermark-target"

func (k sourceFlags) key() (commitstep.WatermarkKey, error) {
	if err := errors.Join(commitstep.CheckName("job", k.job), commitstep.CheckName("source", k.source)); err != nil {
		return commitstep.WatermarkKey{}, usagef("name the watermark with --job and --source: %v", err)
	}
	return commitstep.WatermarkKey{Job: k.job, Source: k.source}, nil
}

func (in *invocation) watermarkInitCommand() *cobra.Command {
	var target string
	c := &cobra.Command{
		Use:   "init --target NAME --watermark-target NAME=DIR",
		Short: "Make the directory of a watermark target",
		Long: `Init makes the directory that a bound target keeps its watermarks in, once, at
deployment. No other command does: a directory that is missing is not mounted,
and is never taken for sources that were never read.` + exitStatus(),
		Example: "  commitstep watermark init --target files --watermark-target files=/srv/watermarks",
		Args:    noArgs,
	}
	c.Flags().StringVar(&target, "target", "", "the bound target `NAME` (required)")
	c.RunE = in.run(func(context.Context, []string) error {
		all, err := in.boundTargets()
		if err != nil {
			return err
		}
		t, err := (&session{in: in, targets: all}).watermarkTarget(target)
		if err != nil {
			return err
		}
		f, err := watermark.Files(t.name, t.dir, watermark.Create())
		if err != nil {
			return err
		}
		body := struct {
			Target    string `json:"target"`
			Directory string `json:"directory"`
		}{f.Name(), f.Dir()}
		return in.print(document{kind: "WatermarkTarget", body: body, table: func(t *table) {
			t.line("watermark target %s keeps its watermarks in %s", name(body.Target), name(body.Directory))
		}})
	})
	return c
}

func (in *invocation) watermarkGetCommand() *cobra.Command {
	var k sourceFlags
	c := &cobra.Command{
		Use:   "get --job J --source S",
		Short: "Print one watermark: where a job begins to read",
		Long: `Get prints one watermark. One that was never set is "none" with exit code 0, as
that is where a job begins; one that cannot be read is an error, never none.` + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep watermark get --job kafka-hdfs --source MyTopic:0",
		Args:    noArgs,
		RunE: in.run(func(ctx context.Context, _ []string) error {
			key, err := k.key()
			if err != nil {
				return err
			}
			return in.withStore(ctx, func(s *session) error {
				v, err := s.readWatermark(ctx, k.target, key)
				if err != nil {
					return err
				}
				w := viewWatermark(v)
				return in.print(document{kind: "Watermark", body: w, table: func(t *table) { t.line("%s", oneLine(w.Watermark.String())) }})
			})
		}),
	}
	k.add(c)
	return c
}

func (in *invocation) watermarkListCommand() *cobra.Command {
	var job, target string
	c := &cobra.Command{
		Use:     "list",
		Short:   "List watermarks with their age and who set them",
		Long:    "List watermarks by job and source, with their age and the sequence that set them." + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep watermark list --job kafka-hdfs",
		Args:    noArgs,
	}
	c.Flags().StringVar(&job, "job", "", "only this job")
	c.Flags().StringVar(&target, "target", "", targetUsage)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		return in.withStore(ctx, func(s *session) error {
			var list reading[watermarkView]
			all := s.store.ListWatermarks(ctx, job)
			stranger := "a person, see the audit"
			if t := s.tableTarget(target); t != nil {
				all = t.list(ctx, job)
				stranger = "-" // the table need not keep that
			} else if target != "" {
				t, err := s.watermarkTarget(target)
				if err != nil {
					return err
				}
				f, err := t.files()
				if err != nil {
					return err
				}
				all = f.List(ctx)
			}
			for v, err := range all {
				if err != nil {
					list.fault(err)
					continue
				}
				if job != "" && v.Job != job {
					continue
				}
				list.items = append(list.items, viewWatermark(v))
			}
			rows := func(t *table, items []watermarkView) { in.watermarkTable(t, items, stranger) }
			perr := in.print(document{kind: "WatermarkList", body: list.body(), table: list.table("no watermark was ever set", rows)})
			return errors.Join(list.err(), perr)
		})
	})
	return c
}

// watermarkTable shows watermarks; stranger is who set those without a sequence.
func (in *invocation) watermarkTable(t *table, items []watermarkView, stranger string) {
	t.row("JOB", "SOURCE", "VALUE", "AGE", "SET BY")
	for _, w := range items {
		by := stranger
		if w.Sequence != nil {
			by = "sequence " + w.Sequence.String()
		}
		if w.Unaccepted {
			by += " (not accepted since the store was adopted)"
		}
		ageText := "-"
		if w.SetAt != nil {
			ageText = age(in.Now().Sub(*w.SetAt))
		}
		job := "-" // a table that serves one job does not name it
		if w.Job != "" {
			job = name(w.Job)
		}
		t.row(job, name(w.Source), oneLine(w.Watermark.String()), ageText, by)
	}
}

const valueHelp = `A value is a whole number, a text, none, or {"value": 100, "epoch": 2}. A text that
looks like a number is written in double quotes.`

// parseWatermark reads a value as a person types it.
func parseWatermark(flag, s string) (commitstep.Watermark, error) {
	if s == "none" {
		return commitstep.None(), nil
	}
	var w commitstep.Watermark
	if json.Valid([]byte(s)) {
		if err := w.UnmarshalJSON([]byte(s)); err != nil {
			return w, usagef("--%s: %v", flag, err)
		}
		return w, nil
	}
	if strings.HasPrefix(s, "{") || strings.HasPrefix(s, `"`) || strings.TrimSpace(s) == "" {
		return w, usagef("--%s: %q is no value; %s", flag, s, oneLine(valueHelp))
	}
	return commitstep.Text(s), nil
}

func (in *invocation) watermarkSetCommand() *cobra.Command {
	var k sourceFlags
	var d decision
	var from, to string
	var dryRun bool
	c := &cobra.Command{
		Use:   "set --job J --source S --from VALUE --to VALUE --reason TEXT",
		Short: "Set a watermark by hand",
		Long: `Set changes a watermark by hand, from what you saw to another value, and writes
it into the audit. It is refused while a live sequence moves the watermark, and
when it is not at --from any more.
` + valueHelp + `

A value that is too high loses data, one that is too low publishes it twice:
the engine cannot know better than you here.` + exitStatus(ExitDecision, ExitLocked, ExitStale, ExitPending, ExitStore),
		Example: "  commitstep watermark set --job kafka-hdfs --source MyTopic:0 --from 100 --to '{\"value\": 0, \"epoch\": 1}' --reason 'topic was recreated'",
		Args:    noArgs,
	}
	k.add(c)
	f := c.Flags()
	f.StringVar(&from, "from", "", "the `VALUE` that you saw, or none (required)")
	f.StringVar(&to, "to", "", "the new `VALUE` (required)")
	f.BoolVar(&dryRun, "dry-run", false, "check and say what would be set")
	d.addFlags(f, true)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		key, err := k.key()
		if err != nil {
			return err
		}
		if !f.Changed("from") || !f.Changed("to") {
			return usagef("give --from with the value you saw (`%s watermark get`), and --to", in.Program)
		}
		// A token of its own tells this decision from another with the same values.
		m := commitstep.WatermarkMove{WatermarkKey: key, Token: uuid.New()}
		if m.From, err = parseWatermark("from", from); err != nil {
			return err
		}
		if m.To, err = parseWatermark("to", to); err != nil {
			return err
		}
		if m.To.IsNone() {
			return usagef("--to none: a watermark that was set stays set; give the position that the source is to be read from, as %s", firstPosition(m.From))
		}
		p, err := in.person(d)
		if err != nil {
			return err
		}
		if !dryRun && !d.yes && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.withStore(ctx, func(s *session) error { return in.setWatermark(ctx, s, k.target, m, p, d, dryRun) })
	})
	return c
}

func (in *invocation) setWatermark(ctx context.Context, s *session, target string, m commitstep.WatermarkMove, p store.Person, d decision, dryRun bool) error {
	stored, err := s.readWatermark(ctx, target, m.WatermarkKey)
	if err != nil {
		return err
	}
	if stored.Watermark != m.From {
		return &cliError{out: outcome{stale: true}, msg: fmt.Sprintf("watermark %q of job %q is %s, not %s", m.Source, m.Job, stored.Watermark, m.From), hint: "look again and decide again"}
	}
	set := s.store.SetWatermark
	if target != "" {
		t, err := s.watermarkTarget(target)
		if err == nil {
			err = s.freeOf(ctx, m.WatermarkKey)
		}
		if err != nil {
			return err
		}
		set = func(ctx context.Context, m commitstep.WatermarkMove, p store.Person) error {
			// Again: the person had all the time in the world to answer.
			if err := s.freeOf(ctx, m.WatermarkKey); err != nil {
				return err
			}
			return s.setTarget(ctx, t, m, p)
		}
	}
	if !dryRun {
		if err := in.confirm(ctx, d, fmt.Sprintf("set watermark %s of job %s from %s to %s", name(m.Source), name(m.Job), m.From, m.To), m.Source); err != nil {
			return err
		}
		if err := set(ctx, m, p); err != nil {
			return s.explain(ctx, commitstep.Key{Job: m.Job}, err)
		}
	}
	body := struct {
		Job string `json:"job"`
		moveView
		Target string `json:"target,omitempty"`
		DryRun bool   `json:"dryRun"`
	}{m.Job, moveView{m.Source, m.From, m.To}, target, dryRun}
	return in.print(document{kind: "WatermarkSet", body: body, table: func(t *table) {
		done := "is set"
		if dryRun {
			done = "would be set"
		}
		t.line("watermark %s of job %s %s from %s to %s", name(m.Source), name(m.Job), done, oneLine(m.From.String()), oneLine(m.To.String()))
	}})
}

func (in *invocation) watermarkAcceptCommand() *cobra.Command {
	var job string
	var bare bool
	var d decision
	c := &cobra.Command{
		Use:   "accept --job J --reason TEXT",
		Short: "Accept a job's watermarks after its store was adopted",
		Long: `Accept lets a job of an adopted store ingest again. The store is a copy, and its
watermarks are as old as the copy: what was published since would be published
twice. Look at ` + "`commitstep watermark list`" + ` and at the data first.

A job without a watermark in the copy needs to be accepted too, before it reads
its sources from the start: --without-watermarks says that this is meant, and
that the job's name is no slip.` + exitStatus(ExitDecision, ExitLocked, ExitNotFound, ExitStore),
		Example: "  commitstep watermark accept --job kafka-hdfs --reason 'compared with the newest files'",
		Args:    noArgs,
	}
	c.Flags().StringVar(&job, "job", "", "the job (required)")
	c.Flags().BoolVar(&bare, "without-watermarks", false, "accept a job that has no watermark in the store")
	d.addFlags(c.Flags(), true)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		if err := commitstep.CheckName("job", job); err != nil {
			return usagef("name the job with --job: %v", err)
		}
		p, err := in.person(d)
		if err != nil {
			return err
		}
		if !d.yes && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.withStore(ctx, func(s *session) error {
			if err := s.acceptable(ctx, job, bare); err != nil {
				return err
			}
			if err := in.confirm(ctx, d, "accept the watermarks of job "+name(job), job); err != nil {
				return err
			}
			n, err := s.store.AcceptWatermarks(ctx, job, p)
			if err != nil {
				return err
			}
			body := struct {
				Job      string `json:"job"`
				Accepted int    `json:"accepted"`
			}{job, n}
			return in.print(document{kind: "WatermarkAccept", body: body, table: func(t *table) {
				t.line("accepted %s of job %s; it may ingest again", plural(n, "watermark", "watermarks"), name(job))
			}})
		})
	})
	return c
}

// firstPosition is an example of a position before all others, of the kind that
// the source has.
func firstPosition(from commitstep.Watermark) string {
	if _, text := from.TextValue(); text {
		return `--to '"0000-00-00"'`
	}
	if e := from.Epoch(); e != 0 {
		return fmt.Sprintf(`--to '{"value": 0, "epoch": %d}'`, e)
	}
	return "--to 0"
}

// acceptable refuses an acceptance that would accept nothing: it would tell
// whoever mistyped the job that it may ingest, and put that into the audit.
func (s *session) acceptable(ctx context.Context, job string, bare bool) error {
	if s.store.Info().Stamped != "" {
		return nil // the store says that it has to be adopted first
	}
	waits, err := s.store.Unaccepted(ctx, job)
	if err != nil {
		return err
	}
	if !waits {
		return &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("job %s has nothing to accept: the store was not adopted, or somebody accepted the job's watermarks since", name(job)),
			hint: fmt.Sprintf("nothing was written; `%s audit list --job %s` shows who accepted what", s.in.Program, shell.Quote(job))}
	}
	if bare {
		return nil
	}
	for _, err := range s.store.ListWatermarks(ctx, job) {
		// There is one, even if it cannot be read.
		return err
	}
	return &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("job %s has no watermark in this store, nothing was written", name(job)),
		hint: fmt.Sprintf("`%s watermark list` shows the jobs that have; give --without-watermarks if the name is right and it may read its sources from the start", s.in.Program)}
}
