package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/commitstep/engine/internal/shell"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (in *invocation) storeCommand() *cobra.Command {
	return group("store", "The commit store itself: init, migrate, check, backup, stamp, adopt, copy, prune",
		"The commit store keeps sequences, watermarks, history and audit.",
		in.storeInitCommand(), in.storeMigrateCommand(), in.storeCheckCommand(), in.storeBackupCommand(), in.storeStampCommand(), in.storeAdoptCommand(),
		in.storeCopyCommand(), in.storePruneCommand())
}

type storeView struct {
	Store  string    `json:"store"`
	ID     uuid.UUID `json:"storeId"`
	Format int       `json:"format"`
}

func viewStore(location string, i store.Info) storeView { return storeView{location, i.ID, i.Format} }

func (in *invocation) storeInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Make a new, empty commit store",
		Long: `Init makes a new store, together with the directory that it lies in. It is the
only command, besides quickstart, that does: a store that has gone missing must
be noticed, since an empty one would let every job read its source again. In
PostgreSQL it is what ` + "`commitstep store migrate`" + ` does to an empty schema.` + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep store init --store bolt:/var/lib/ingest/commit.db",
		Args:    noArgs,
		RunE: in.run(func(ctx context.Context, _ []string) error {
			scheme, rest, location, err := in.locate()
			if err != nil {
				return err
			}
			if scheme.name == "bolt" {
				if err := os.MkdirAll(filepath.Dir(rest), 0o755); err != nil {
					return storeErr(location, err)
				}
			}
			st, err := scheme.init(ctx, rest)
			if err != nil {
				return storeErr(location, err)
			}
			v := viewStore(location, st.Info())
			perr := in.print(document{kind: "Store", body: v, table: func(t *table) {
				t.line("made store %s (%s), format %d", oneLine(v.Store), v.ID, v.Format)
			}})
			return errors.Join(perr, st.Close())
		}),
	}
}

func (in *invocation) storeCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Read the whole store and list every problem",
		Long: `Check reads every record, history and audit included, and lists what is wrong.
It changes nothing. Of a server with standbys it notes when a failover could lose
what was acknowledged.` + exitStatus(ExitLocked, ExitStore, ExitInterrupted),
		Example: "  commitstep store check && echo fine",
		Args:    noArgs,
		RunE: in.run(func(ctx context.Context, _ []string) error {
			return in.withStore(ctx, func(s *session) error {
				problems := []string{}
				var fail error
				for p, err := range s.store.Check(ctx) {
					if err != nil {
						fail = err
						break
					}
					problems = append(problems, p)
				}
				var notes []string
				if n, ok := s.store.(store.Noter); ok && fail == nil {
					notes, fail = n.Notes(ctx)
				}
				body := struct {
					storeView
					OK bool `json:"ok"`
					list[string]
					Notes []string `json:"notes,omitempty"`
				}{viewStore(s.location, s.store.Info()), fail == nil && len(problems) == 0, listOf(problems), notes}
				perr := in.print(document{kind: "StoreCheck", body: body, table: func(t *table) {
					for _, p := range problems {
						t.line("%s", oneLine(p))
					}
					if body.OK {
						t.line("no problems")
					}
					for _, n := range notes {
						t.line("note: %s", oneLine(n))
					}
				}})
				if fail == nil && len(problems) > 0 {
					fail = &cliError{out: outcome{unreachable: true}, msg: plural(len(problems), "problem", "problems") + " in " + s.location,
						hint: "copy the file aside before any repair; `commitstep quarantine list` shows which datasets are affected"}
				}
				return errors.Join(fail, perr)
			})
		}),
	}
}

func (in *invocation) storeBackupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a copy of the store while it is not in use",
		Long: `Backup writes a copy of the store to a new file. The copy is stamped: it runs
nothing until ` + "`commitstep store adopt`" + `, since two stores that both go on would
publish the same data twice. One that was made before ` + "`commitstep store copy`" + `
moved the store elsewhere does not know of that; one made later is sealed too.` + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep store backup /backup/commit-$(date +%F).db",
		Args:    oneArg("the file to write"),
		RunE: in.run(func(ctx context.Context, args []string) error {
			abs, err := filepath.Abs(args[0])
			if err != nil {
				return failf("give an absolute path", "%q: %v", args[0], err)
			}
			return in.withStore(ctx, func(s *session) error {
				if err := s.store.Backup(ctx, abs); err != nil {
					hint := "name a new file in a directory with room for it"
					if errors.Is(err, errors.ErrUnsupported) {
						hint = ""
					}
					return &cliError{err: err, msg: "backup to " + name(abs), hint: hint}
				}
				body := struct {
					storeView
					Backup string `json:"backup"`
				}{viewStore(s.location, s.store.Info()), abs}
				return in.print(document{kind: "StoreBackup", body: body, table: func(t *table) {
					if s.store.Info().SealedFor != "" {
						t.line("wrote %s; it is sealed as this store is, and runs nothing", name(abs))
						return
					}
					t.line("wrote %s; it runs nothing until `commitstep store adopt --store %s --reason TEXT`", name(abs), shell.Quote("bolt:"+abs))
				}})
			})
		}),
	}
}

func (in *invocation) storeStampCommand() *cobra.Command {
	var d decision
	c := &cobra.Command{
		Use:   "stamp --reason TEXT",
		Short: "Mark a store as a copy that runs nothing until it is adopted",
		Long: `Stamp is for a store that was restored from a copy of the disk or of the whole
database server: nothing in it tells that it is one. Run it before anything else
uses the store. What ` + "`commitstep store backup`" + ` wrote is stamped already, and a
pg_dump that was restored is recognised. It refuses while a driver is at work, and
where ` + "`commitstep store copy`" + ` sealed the store, which runs nothing anyway.` + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep store stamp --store postgres://etl@db/ingest --reason 'restored from the backup of 2 May'",
		Args:    noArgs,
	}
	d.addFlags(c.Flags(), true)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		p, err := in.person(d)
		if err != nil {
			return err
		}
		if !d.yes && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.withStore(ctx, func(s *session) error {
			st, ok := s.store.(store.Stamper)
			if !ok {
				return failf("", "%s cannot be stamped", s.location)
			}
			if s.store.Info().SealedFor == "" { // else there is nothing to ask: it is refused
				if err := in.confirm(ctx, d, "stop "+s.location+" until it is adopted", "stamp"); err != nil {
					return err
				}
			}
			if err := st.Stamp(ctx, p); err != nil {
				return err
			}
			body := struct {
				storeView
				Stamped string `json:"stamped"`
			}{viewStore(s.location, s.store.Info()), s.store.Info().Stamped}
			return in.print(document{kind: "StoreStamp", body: body, table: func(t *table) {
				t.line("%s is a copy from now on, and runs nothing", oneLine(s.location))
				t.line("next: `%s store adopt --reason TEXT --store %s`, once the original, and what it was copied to, are gone for good", in.Program, shell.Quote(s.location))
			}})
		})
	})
	return c
}

func (in *invocation) storeAdoptCommand() *cobra.Command {
	var d decision
	c := &cobra.Command{
		Use:   "adopt --reason TEXT",
		Short: "Make a copied store the one that runs",
		Long: `Adopt makes a backup or export usable. Whatever was live in it is parked
ADOPTED, and no job may ingest before ` + "`commitstep watermark accept`" + `, since the
watermarks are as old as the copy. Make sure that the original never runs again, nor
a store that ` + "`commitstep store copy`" + ` made of it after this copy was taken: nothing
here tells of that. A store that is sealed itself is never adopted.` + exitStatus(ExitLocked, ExitStore),
		Example: "  commitstep store adopt --store bolt:/var/lib/ingest/commit.db --reason 'disk lost, INC-17'",
		Args:    noArgs,
	}
	d.addFlags(c.Flags(), true)
	c.RunE = in.run(func(ctx context.Context, _ []string) error {
		p, err := in.person(d)
		if err != nil {
			return err
		}
		if !d.yes && !in.asks() {
			return usagef("there is no terminal to ask on; add --yes")
		}
		return in.withStore(ctx, func(s *session) error {
			if s.store.Info().SealedFor == "" { // else there is nothing to ask: it is refused
				if s.store.Info().Stamped == "" {
					return failf("there is nothing to adopt", "%s is no copy", s.location)
				}
				if err := in.confirm(ctx, d, "adopt this copy; the original, and what it was copied to, must never run again", "adopt"); err != nil {
					return err
				}
			}
			n, err := s.store.Adopt(ctx, p)
			if err != nil {
				return err
			}
			body := struct {
				storeView
				Parked int `json:"parked"`
			}{viewStore(s.location, s.store.Info()), n}
			return in.print(document{kind: "StoreAdopt", body: body, table: func(t *table) {
				t.line("adopted %s; %s parked ADOPTED", oneLine(s.location), plural(n, "sequence is", "sequences are"))
				t.line("the original, and what `store copy` made of it since, must never run again")
				t.line("next: compare the watermarks with the data, then `%s` (with --without-watermarks for a job that has none)", in.onStore(s.location, "watermark", "accept", "--job", "J", "--reason", "TEXT"))
			}})
		})
	})
	return c
}
