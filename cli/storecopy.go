package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/store"
	"github.com/spf13/cobra"
)

// copyable is a store that can be copied.
type copyable interface {
	store.Full
	store.Copier
}

func (in *invocation) storeCopyCommand() *cobra.Command {
	var d decision
	var from, to string
	c := &cobra.Command{
		Use:   "copy --from STORE --to STORE --reason TEXT",
		Short: "Move everything of a store into another, empty one",
		Long: `Copy moves sequences, watermarks, history and audit from one store into
another, of the same kind or not. It refuses while a driver is at work, when
anything of the first cannot be read, and when the other store, which must be there,
is not empty; nothing is changed then. It seals the first for ever: from then on every
put, claim and watermark write there is refused and names the new one, so that the
two never both go on. The new one runs nothing until the copy has ended; a copy that
broke off is repeated with the same two stores.` + exitStatus(ExitDecision, ExitLocked, ExitStore),
		Example: `  commitstep store migrate --store postgres://owner@db/ingest
  commitstep store copy --from bolt:/var/lib/ingest/commit.db --to postgres://owner@db/ingest --reason 'second machine'`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "the store to copy (required)")
	f.StringVar(&to, "to", "", "the new, empty store (required)")
	d.addFlags(f, true)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		if from == "" || to == "" {
			return usagef("name both stores: --from and --to")
		}
		p, err := in.person(d)
		if err != nil {
			return err
		}
		if !d.yes && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.copyStore(ctx, from, to, d, p)
	})
	return c
}

// openCopyable opens one of the two stores.
func (in *invocation) openCopyable(ctx context.Context, flag, where string) (copyable, string, error) {
	scheme, rest, location, err := in.locateAs(flag, where)
	if err != nil {
		return nil, "", err
	}
	st, err := scheme.open(ctx, rest)
	if err != nil {
		return nil, "", storeErr(location, err)
	}
	c, ok := st.(copyable)
	if !ok {
		return nil, "", errors.Join(failf("", "%s cannot be copied", location), st.Close())
	}
	return c, location, nil
}

func (in *invocation) copyStore(ctx context.Context, from, to string, d decision, p store.Person) (err error) {
	a, fromName, err := in.openCopyable(ctx, "--from", from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	b, toName, err := in.openCopyable(ctx, "--to", to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := in.confirm(ctx, d, "seal "+fromName+" for ever and go on with "+toName, "copy"); err != nil {
		return err
	}
	target := toName
	if n, ok := b.(interface{ Name() string }); ok {
		target = n.Name() // so that another user, or other settings, may repeat it
	}
	rep, err := store.Copy(ctx, a, b, target, p)
	if errors.Is(err, store.ErrNotEmpty) {
		return &cliError{err: err, msg: "copy to " + toName, hint: "name a new store"}
	}
	if err != nil {
		return err
	}
	body := struct {
		From string `json:"from"`
		To   string `json:"to"`
		store.CopyReport
	}{fromName, toName, rep}
	return in.print(document{kind: "StoreCopy", body: body, table: func(t *table) {
		if rep.Already {
			t.line("nothing to do: %s was copied to %s before", oneLine(fromName), oneLine(toName))
			return
		}
		t.line("copied %s, %s, %s and %s", plural(rep.Sequences, "sequence", "sequences"), plural(rep.Watermarks, "watermark", "watermarks"),
			plural(rep.History, "outcome", "outcomes"), plural(rep.Audit, "audit entry", "audit entries"))
		t.line("%s is sealed; use %s from now on", oneLine(fromName), oneLine(toName))
	}})
}

func (in *invocation) storePruneCommand() *cobra.Command {
	var older string
	var yes bool
	c := &cobra.Command{
		Use:   "prune --history-older-than AGE",
		Short: "Remove the history of sequences that ended long ago",
		Long: `Prune removes what is known of sequences that ended longer ago than AGE: 90d,
36h. Live and parked sequences are never touched, nor are those whose cleanup
still has to run. Plan ids are kept, so that a plan that was published is never
published again, and so is the audit. In PostgreSQL this needs the user that owns
the tables.` + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep store prune --history-older-than 90d --yes",
		Args:    noArgs,
	}
	c.Flags().StringVar(&older, "history-older-than", "", "`age` of the outcomes to remove: 90d, 36h (required)")
	c.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		if older == "" {
			return usagef("say how old: --history-older-than 90d")
		}
		limit, err := parseAge(older)
		if err != nil {
			return usagef("--history-older-than: %v", err)
		}
		if !yes && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.withStore(ctx, func(s *session) error {
			pr, ok := s.store.(store.Pruner)
			if !ok {
				return failf("", "%s keeps its history for ever", s.location)
			}
			if err := in.confirm(ctx, decision{yes: yes}, "remove the history before "+in.Now().Add(-limit).UTC().Format(time.RFC3339), "prune"); err != nil {
				return err
			}
			n, err := pr.PruneHistory(ctx, limit)
			if err != nil && n == 0 {
				return err
			}
			body := struct {
				Store   string `json:"store"`
				Removed int    `json:"removed"`
			}{s.location, n}
			perr := in.print(document{kind: "StorePrune", body: body, table: func(t *table) {
				t.line("removed the history of %s", plural(n, "sequence", "sequences"))
			}})
			return errors.Join(err, perr)
		})
	})
	return c
}

// parseAge reads a duration in which days may be written too: 90d, 1d12h.
func parseAge(text string) (time.Duration, error) {
	bad := func() (time.Duration, error) {
		return 0, fmt.Errorf("%q is no age; write 90d or 36h", text)
	}
	days, rest, found := strings.Cut(text, "d")
	var out time.Duration
	if found {
		n, err := strconv.ParseUint(days, 10, 31)
		if err != nil || n > 36500 {
			return bad()
		}
		out = time.Duration(n) * 24 * time.Hour
		if rest == "" {
			return out, nil
		}
		text = rest
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return bad()
	}
	return out + d, nil
}
