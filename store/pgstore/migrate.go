package pgstore

import (
	"context"
	"database/sql"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// SchemaVersion is the version of the tables that this program needs; it works
// with no other.
const SchemaVersion = 3

// versionTable holds which migrations were applied.
const versionTable = "migrations"

// Migration is one numbered change of the tables.
type Migration struct {
	Version int64  `json:"version"`
	Name    string `json:"name"`
	// Applied is when it was; zero if it is not.
	Applied time.Time `json:"applied,omitzero"`
	// Up and Down are the statements, with the schema's name filled in.
	Up   string `json:"-"`
	Down string `json:"-"`
	// Loses says what of the store is gone when it is taken back.
	Loses string `json:"-"`
}

// Migrations are all there are, oldest first, for the schema in o.
func Migrations(o *Options) ([]Migration, error) {
	schema := DefaultSchema
	if o != nil && o.Schema != "" {
		schema = o.Schema
	}
	if err := checkSchema(schema); err != nil {
		return nil, err
	}
	names, err := fs.Glob(migrationFiles, "migrations/*.up.sql")
	if err != nil {
		return nil, err
	}
	fill := strings.NewReplacer("{{schema}}", quoted(schema), "{{runtime}}", quoted(RuntimeRole(schema)), "{{runtime_text}}", "'"+RuntimeRole(schema)+"'")
	var out []Migration
	for _, n := range names {
		base := strings.TrimSuffix(strings.TrimPrefix(n, "migrations/"), ".up.sql")
		number, name, _ := strings.Cut(base, "_")
		v, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("pgstore: migration %s has no number", n)
		}
		up, err := migrationFiles.ReadFile(n)
		if err != nil {
			return nil, err
		}
		down, err := migrationFiles.ReadFile("migrations/" + base + ".down.sql")
		if err != nil {
			return nil, err
		}
		// The first line of a way back is for whoever is asked whether to go it.
		first, _, _ := strings.Cut(string(down), "\n")
		loses := strings.TrimSuffix(strings.TrimPrefix(first, "-- "), ".")
		if loses == first {
			return nil, fmt.Errorf("pgstore: migration %s does not say what is lost when it is taken back", n)
		}
		out = append(out, Migration{Version: v, Name: name, Up: fill.Replace(string(up)), Down: fill.Replace(string(down)), Loses: loses})
	}
	return out, nil
}

// RuntimeRole is the role that the migrations grant what drivers and operators
// need, and no more. Grant it to the users that they connect as.
func RuntimeRole(schema string) string { return schema + "_runtime" }

// Migrator changes the tables of a store. It needs a user that may create
// tables, and for the first migration a schema and a role; and a connection of
// its own: a pooler in transaction mode cannot hold its lock. Not safe for
// concurrent use; several processes may migrate at once.
type Migrator struct {
	db       *sql.DB
	schema   string
	location string
	all      []Migration
}

// NewMigrator connects to the database at the given address, see [Open]. Close
// it.
func NewMigrator(ctx context.Context, dsn string, o *Options) (*Migrator, error) {
	opts := o.withDefaults()
	cfg, err := config(dsn, &opts)
	if err != nil {
		return nil, err
	}
	all, err := Migrations(&opts)
	if err != nil {
		return nil, err
	}
	c := cfg.ConnConfig.Copy()
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	m := &Migrator{db: stdlib.OpenDB(*c), schema: opts.Schema, location: location(cfg, opts.Schema), all: all}
	if err := m.db.PingContext(ctx); err != nil {
		_ = m.db.Close()
		if refused := refusedParameter(err, c.RuntimeParams); refused != nil {
			return nil, refused
		}
		return nil, fmt.Errorf("store %s: %w: %w", m.location, ErrUnreachable, err)
	}
	if err := m.direct(ctx); err != nil {
		_ = m.db.Close()
		return nil, err
	}
	return m, nil
}

// direct refuses a pooler that gives every transaction another session: the
// lock that keeps two migrations apart would not hold there.
func (m *Migrator) direct(ctx context.Context) error {
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ok := false
	if err := conn.Raw(func(c any) (err error) { ok, err = isDirect(ctx, c.(*stdlib.Conn).Conn()); return err }); err != nil {
		return fmt.Errorf("store %s: %w", m.location, err)
	}
	if !ok {
		return fmt.Errorf("store %s: migrations need a direct connection, and a pooler answers here; give `store migrate` the address of the database server itself", m.location)
	}
	return nil
}

// Close ends the connections.
func (m *Migrator) Close() error { return m.db.Close() }

// provider runs the migrations. With gone all of them are taken back, and no
// sequence stands in the way.
func (m *Migrator) provider(gone bool) (*goose.Provider, error) {
	var list []*goose.Migration
	for _, g := range m.all {
		run := func(parts ...func(ctx context.Context, tx *sql.Tx) error) *goose.GoFunc {
			return &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
				for _, part := range parts {
					if err := part(ctx, tx); err != nil {
						return err
					}
				}
				return nil
			}}
		}
		text := func(text string) func(ctx context.Context, tx *sql.Tx) error {
			return func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, text); return err }
		}
		up, down := run(text(g.Up)), run(m.idle, text(g.Down))
		if g.Version == pathsVersion {
			// A driver of before would go on without noting any path.
			up = run(m.idle, text(g.Up), m.rememberPaths)
			if !gone {
				down = run(m.idle, m.allTell, text(g.Down))
			}
		}
		list = append(list, goose.NewGoMigration(g.Version, up, down))
	}
	h := hashOf("migration", m.schema)
	locker, err := lock.NewPostgresSessionLocker(
		lock.WithLockID(int64(binary.BigEndian.Uint64(h[:8])>>1)),
		lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, err
	}
	table, err := database.NewStore(database.DialectPostgres, quoted(m.schema)+"."+versionTable)
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectCustom, m.db, nil, goose.WithGoMigrations(list...), goose.WithDisableGlobalRegistry(true),
		goose.WithStore(&versions{table, m.schema}), goose.WithSessionLocker(locker))
}

// versions is the table that counts migrations. The library would look for a
// quoted name with its quotes.
type versions struct {
	database.Store
	schema string
}

// TableExists implements database.StoreExtender.
func (v *versions) TableExists(ctx context.Context, db database.DBTxConn) (have bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = $2)`, v.schema, versionTable).Scan(&have)
	return have, err
}

// Up applies what is missing up to version to, all of it when to is 0, and
// returns what it did. Doing it again does nothing.
func (m *Migrator) Up(ctx context.Context, to int64) ([]Migration, error) {
	if err := m.makeSchema(ctx); err != nil {
		return nil, m.wrap("migrate", err)
	}
	if _, err := m.known(ctx); err != nil {
		return nil, err
	}
	p, err := m.provider(false)
	if err != nil {
		return nil, err
	}
	if to == 0 {
		to = SchemaVersion
	}
	done, err := p.UpTo(ctx, to)
	return m.outcome("migrate", done, err)
}

// idle refuses to change the tables while a driver is at work; nobody can join
// until the transaction has ended.
func (m *Migrator) idle(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, m.fill(`LOCK TABLE {s}.instances IN SHARE ROW EXCLUSIVE MODE`)); err != nil {
		return err
	}
	var in commitstep.Instance
	var name, host string
	var until time.Time
	err := tx.QueryRowContext(ctx, m.fill(liveLeaseSQL)).Scan(&in.ID, &name, &host, &in.PID, &until)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	in.Name, in.Host = fromText(name), fromText(host)
	return store.AtWork("nothing was changed", in, until)
}

// Down takes back what is above version to; Migration.Loses says what is gone
// then. Taking back the first migration removes all that the store holds.
// commitstep.ErrBusy while a driver is at work, whose lease is in the store, and
// commitstep.ErrPending, with nothing changed, while a sequence is live that the
// way back up would refuse.
func (m *Migrator) Down(ctx context.Context, to int64) ([]Migration, error) {
	at, err := m.known(ctx)
	if err != nil {
		return nil, err
	}
	if at >= pathsVersion && to < pathsVersion && to > 0 {
		if err := m.mayGoBack(ctx); err != nil {
			return nil, m.wrap("migrate down", err)
		}
	}
	p, err := m.provider(to == 0)
	if err != nil {
		return nil, err
	}
	done, err := p.DownTo(ctx, to)
	return m.outcome("migrate down", done, err)
}

// Status lists all migrations and when they were applied.
func (m *Migrator) Status(ctx context.Context) ([]Migration, error) {
	out := append([]Migration(nil), m.all...)
	rows, err := m.db.QueryContext(ctx, fmt.Sprintf(`SELECT version_id, tstamp FROM %s.%s WHERE is_applied`, quoted(m.schema), versionTable))
	if isUndefined(err) {
		return out, nil
	}
	if err != nil {
		return nil, m.wrap("status", err)
	}
	defer rows.Close()
	for rows.Next() {
		var v int64
		var at time.Time
		if err := rows.Scan(&v, &at); err != nil {
			return nil, m.wrap("status", err)
		}
		for i := range out {
			if out[i].Version == v {
				out[i].Applied = at
			}
		}
	}
	return out, m.wrap("status", rows.Err())
}

// known is the version of the tables, 0 for none. It refuses to touch those that
// are newer than this program.
func (m *Migrator) known(ctx context.Context) (v int64, err error) {
	err = m.db.QueryRowContext(ctx, fmt.Sprintf(`SELECT coalesce(max(version_id), 0) FROM %s.%s WHERE is_applied`, quoted(m.schema), versionTable)).Scan(&v)
	if isUndefined(err) {
		return 0, nil
	}
	if err != nil {
		return 0, m.wrap("read the version", err)
	}
	if v > SchemaVersion {
		return 0, newerSchema(m.location, v)
	}
	return v, nil
}

func newerSchema(location string, v int64) error {
	return fmt.Errorf("store %s: %w: they have version %d, this program knows up to %d; use a newer program", location, ErrSchema, v, SchemaVersion)
}

// makeSchema creates the schema, which must be there before the table that
// counts migrations. Two processes may try at once.
func (m *Migrator) makeSchema(ctx context.Context) error {
	var encoding string
	if err := m.db.QueryRowContext(ctx, `SELECT current_setting('server_encoding')`).Scan(&encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return encodingErr(m.location, "the encoding of the database", encoding)
	}
	var have bool
	if err := m.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, m.schema).Scan(&have); err != nil || have {
		return err
	}
	_, err := m.db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS `+quoted(m.schema))
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "23505" {
		return nil
	}
	return err
}

// outcome is what was done, also before one failed; each is a transaction of its
// own. The library's text around the cause says nothing to people.
func (m *Migrator) outcome(what string, done []*goose.MigrationResult, err error) ([]Migration, error) {
	var part *goose.PartialError
	if errors.As(err, &part) {
		done, err = part.Applied, part.Err
		if !errors.Is(err, commitstep.ErrBusy) {
			err = fmt.Errorf("version %d: %w", part.Failed.Source.Version, err)
		}
	}
	return m.results(done), m.wrap(what, err)
}

func (m *Migrator) results(done []*goose.MigrationResult) []Migration {
	var out []Migration
	for _, r := range done {
		if r.Error != nil {
			continue
		}
		for _, g := range m.all {
			if g.Version == r.Source.Version {
				out = append(out, g)
			}
		}
	}
	return out
}

func (m *Migrator) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Hint != "" {
		return fmt.Errorf("store %s: %s: %w; %s", m.location, what, err, pe.Hint)
	}
	return fmt.Errorf("store %s: %s: %w", m.location, what, err)
}
