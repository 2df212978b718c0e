package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/spf13/cobra"
)

type migrateOptions struct {
	print bool
	down  bool
	to    int64
	yes   bool
}

type migrationView struct {
	Version int64      `json:"version"`
	Name    string     `json:"name"`
	Applied *time.Time `json:"appliedAt,omitempty"`
	SQL     string     `json:"sql,omitempty"`
	// Lost is what is gone because it was taken back.
	Lost string `json:"lost,omitempty"`
}

func (in *invocation) storeMigrateCommand() *cobra.Command {
	var o migrateOptions
	c := &cobra.Command{
		Use:   "migrate [--to N] [--down] [--print]",
		Short: "Make or change the tables of a store in PostgreSQL",
		Long: `Migrate brings the tables of a store in PostgreSQL to the version that this
program needs, or to version N. It needs a user that may create tables, and a
direct connection: a pooler cannot hold the lock that keeps two of them apart.
With --down the newest migrations are taken back, down to version N, with what they
keep: below version 2 it is forgotten which paths were used, below version 1 nothing
of the store is left. It refuses while a driver is at work, and to go below version
2 while a sequence is live that would keep it from going up again. --print shows
the statements and changes nothing.

The runtime role that the migrations create, SCHEMA_runtime, is what drivers and
operators need: grant it to the users that they connect as.` + exitStatus(ExitLocked, ExitStore),
		Example: `  commitstep store migrate --store postgres://owner@db/ingest
  commitstep store migrate --print --store postgres://owner@db/ingest | less`,
		Args: noArgs,
	}
	f := c.Flags()
	f.BoolVar(&o.print, "print", false, "print the SQL, change nothing")
	f.BoolVar(&o.down, "down", false, "take migrations back; needs --to")
	f.Int64Var(&o.to, "to", -1, "the version to reach; default: the newest")
	f.BoolVar(&o.yes, "yes", false, "take back without asking")
	c.RunE = in.run(func(ctx context.Context, _ []string) error { return in.migrate(ctx, o) })
	return c
}

func (in *invocation) migrate(ctx context.Context, o migrateOptions) error {
	switch {
	case o.down && o.to < 0:
		return usagef("--down needs --to, the version to go back to")
	case o.to > pgstore.SchemaVersion:
		return usagef("--to %d: this program knows versions up to %d", o.to, pgstore.SchemaVersion)
	case !o.down && o.to == 0:
		return usagef("--to 0 is for --down")
	}
	scheme, rest, location, err := in.locate()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(scheme.name, "postgres") {
		return usagef("only stores in PostgreSQL are migrated; %s is brought up to date when it is opened", location)
	}
	m, err := pgstore.NewMigrator(ctx, postgresAddress(rest), nil)
	if err != nil {
		return storeErr(location, err)
	}
	err = in.migrateWith(ctx, m, o, location)
	return errors.Join(err, m.Close())
}

func (in *invocation) migrateWith(ctx context.Context, m *pgstore.Migrator, o migrateOptions, location string) error {
	all, err := m.Status(ctx)
	if err != nil {
		return storeErr(location, err)
	}
	if o.print {
		return in.printMigrations(all, o)
	}
	at := versionOf(all)
	var done []pgstore.Migration
	if o.down {
		d := decision{yes: o.yes}
		what, word := "remove everything that "+location+" holds", "remove"
		if o.to >= 1 {
			var losses []string
			for _, g := range all {
				if g.Version > o.to && !g.Applied.IsZero() {
					losses = append(losses, g.Loses)
				}
			}
			what, word = fmt.Sprintf("take %s back to version %d (%s)", location, o.to, strings.Join(losses, "; ")), "back"
		}
		switch {
		case at > o.to:
			if err := in.confirm(ctx, d, what, word); err != nil {
				return err
			}
		case !o.yes && !in.asks():
			return usagef("there is no terminal to ask on; add --yes")
		}
		done, err = m.Down(ctx, o.to)
	} else {
		done, err = m.Up(ctx, max(o.to, 0))
	}
	if err == nil && len(done) == 0 {
		// Another one may have done it while this one waited for its turn.
		if all, err = m.Status(ctx); err == nil {
			at = versionOf(all)
		}
	}
	views := []migrationView{}
	for _, g := range done {
		v := migrationView{Version: g.Version, Name: g.Name}
		if o.down {
			v.Lost = g.Loses
		}
		views = append(views, v)
	}
	body := struct {
		Store string `json:"store"`
		Down  bool   `json:"down,omitempty"`
		list[migrationView]
	}{location, o.down, listOf(views)}
	perr := in.print(document{kind: "StoreMigrate", body: body, table: func(t *table) {
		what := "applied"
		if o.down {
			what = "took back"
		}
		for _, v := range views {
			t.line("%s %04d_%s", what, v.Version, v.Name)
			if v.Lost != "" {
				t.line("  %s", v.Lost)
			}
		}
		if len(views) == 0 && err == nil {
			t.line("nothing to do: %s is at version %d", location, at)
		}
	}})
	if err != nil && !errors.Is(err, commitstep.ErrBusy) {
		err = storeErr(location, err)
	}
	return errors.Join(err, perr)
}

// versionOf is the version that the applied ones make.
func versionOf(all []pgstore.Migration) (v int64) {
	for _, g := range all {
		if !g.Applied.IsZero() {
			v = max(v, g.Version)
		}
	}
	return v
}

// printMigrations shows the statements that would run.
func (in *invocation) printMigrations(all []pgstore.Migration, o migrateOptions) error {
	views := []migrationView{}
	for _, g := range all {
		switch {
		case o.down && (g.Applied.IsZero() || g.Version <= o.to), !o.down && (!g.Applied.IsZero() || o.to > 0 && g.Version > o.to):
			continue
		}
		v := migrationView{Version: g.Version, Name: g.Name, SQL: g.Up}
		if o.down {
			v.SQL = g.Down
		}
		if !g.Applied.IsZero() {
			v.Applied = &g.Applied
		}
		views = append(views, v)
	}
	return in.print(document{kind: "StoreMigrations", body: listOf(views), table: func(t *table) {
		for _, v := range views {
			t.line("-- %04d_%s", v.Version, v.Name)
			for l := range strings.Lines(v.SQL) {
				t.line("%s", strings.TrimRight(l, "\n"))
			}
		}
		if len(views) == 0 {
			t.line("%s", fmt.Sprintf("-- nothing to do at version %d", pgstore.SchemaVersion))
		}
	}})
}
