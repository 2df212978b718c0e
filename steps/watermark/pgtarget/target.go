// Package pgtarget keeps watermarks in a PostgreSQL table of the user's own, so
// that the system which reads them needs not know the commit store. The step
// watermark.set moves them there by compare-and-set.
//
// The table needs a unique key of source (and job), a value column and a token
// column; the token tells a move that was made from a look-alike. Without it no
// lost answer could be told from a refusal, so a table that lacks one is not
// accepted. The package knows no driver and no commit store.
package pgtarget

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Columns of the table. Source, Value and Token are required.
type Columns struct {
	// Job is left out by a table that serves one job.
	Job    string `json:"job,omitempty"`
	Source string `json:"source"`
	// Value is an integer column, which holds numbers, or a text column, which
	// holds texts. NULL is a source that was never read.
	Value string `json:"value"`
	// Token is a uuid or text column.
	Token string `json:"token"`
	// Epoch is an integer column for the source epoch. Without it only epoch 0
	// can be kept.
	Epoch string `json:"epoch,omitempty"`
	// UpdatedAt is set to the time of the move, and Sequence to its id, where
	// they are named.
	UpdatedAt string `json:"updated_at,omitempty"`
	Sequence  string `json:"sequence,omitempty"`
}

// Config of a Target.
type Config struct {
	// Name is the resource name that plans use.
	Name string `json:"-"`
	// DSN is a postgres URL or a libpq keyword string; empty is the libpq
	// environment. It may hold a password, plans never do.
	DSN string `json:"dsn"`
	// Table is name or schema.name.
	Table   string  `json:"table"`
	Columns Columns `json:"columns"`
}

// Target is a table of watermarks. Safe for concurrent use, also by several
// processes.
type Target struct {
	name    string
	c       Columns
	pool    *pgxpool.Pool
	table   pgx.Identifier
	numeric bool
	uuid    bool // the token column
}

var _ watermark.Target = (*Target)(nil)

// Open connects and looks whether the table is as cfg says. Close it.
func Open(ctx context.Context, cfg Config) (*Target, error) {
	t := &Target{name: cfg.Name, c: cfg.Columns, table: strings.Split(cfg.Table, ".")}
	bad := func(format string, a ...any) (*Target, error) {
		return nil, fmt.Errorf("watermark table %q of target %q: %s", cfg.Table, cfg.Name, fmt.Sprintf(format, a...))
	}
	switch {
	case cfg.Name == "":
		return bad("the target has no name")
	case cfg.Table == "" || len(t.table) > 2 || slices.Contains(t.table, ""):
		return bad("write the table as name or schema.name")
	case t.c.Source == "" || t.c.Value == "":
		return bad("name its columns source and value")
	case t.c.Token == "":
		return bad("it needs a token column: without one a move whose answer was lost could not be told from another's")
	}
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return bad("its address is no postgres URL and no list of libpq keywords")
	}
	pc.MaxConns = min(pc.MaxConns, 4)
	if !strings.Contains(cfg.DSN, "default_query_exec_mode") {
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // right behind poolers too
	}
	if t.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return bad("%v", err)
	}
	if err := t.look(ctx); err != nil {
		t.pool.Close()
		return bad("%v", err)
	}
	return t, nil
}

// Close ends the connections.
func (t *Target) Close() error {
	t.pool.Close()
	return nil
}

// Name is the resource name that plans use.
func (t *Target) Name() string { return t.name }

var integers = []string{"int2", "int4", "int8"}
var texts = []string{"text", "varchar"}

// look checks the columns and the unique key.
func (t *Target) look(ctx context.Context) error {
	var oid *uint32
	if err := t.pool.QueryRow(ctx, `SELECT to_regclass($1)::oid`, t.table.Sanitize()).Scan(&oid); err != nil {
		return err
	}
	if oid == nil {
		return errors.New("there is no such table")
	}
	rows, err := t.pool.Query(ctx, `SELECT attname::text, typname::text FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped`, *oid)
	if err != nil {
		return err
	}
	types := map[string]string{}
	var name, typ string
	if _, err := pgx.ForEachRow(rows, []any{&name, &typ}, func() error { types[name] = typ; return nil }); err != nil {
		return err
	}
	for _, col := range []struct {
		name  string
		types []string
	}{{t.c.Job, texts}, {t.c.Source, texts}, {t.c.Value, append(slices.Clone(texts), integers...)}, {t.c.Token, append(slices.Clone(texts), "uuid")}, {t.c.Epoch, integers},
		{t.c.UpdatedAt, []string{"timestamptz", "timestamp"}}, {t.c.Sequence, append(slices.Clone(texts), "uuid")}} {
		if col.name == "" {
			continue
		}
		have, ok := types[col.name]
		if !ok {
			return fmt.Errorf("it has no column %q", col.name)
		}
		if !slices.Contains(col.types, have) {
			return fmt.Errorf("its column %q is of type %s; possible are %s", col.name, have, strings.Join(col.types, ", "))
		}
	}
	t.numeric, t.uuid = slices.Contains(integers, types[t.c.Value]), types[t.c.Token] == "uuid"
	key := []string{t.c.Source}
	if t.c.Job != "" {
		key = append(key, t.c.Job)
	}
	slices.Sort(key)
	var unique bool
	err = t.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_index i WHERE indrelid = $1 AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
		AND (SELECT array_agg(attname::text ORDER BY attname::text COLLATE "C") FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)) = $2::text[])`, *oid, key).Scan(&unique)
	if err == nil && !unique {
		err = fmt.Errorf("it needs a unique key of exactly %s", strings.Join(key, " and "))
	}
	return err
}

func q(name string) string { return pgx.Identifier{name}.Sanitize() }

// Watermark reads one; ErrNotFound when there is no row, or no value in it.
func (t *Target) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	v := commitstep.WatermarkValue{WatermarkKey: k}
	if strings.ContainsRune(k.Job+k.Source, 0) {
		return v, fmt.Errorf("watermark %q: PostgreSQL cannot hold a NUL in a name", k.Source)
	}
	where, args := t.key(k, 1)
	var r row
	err := t.pool.QueryRow(ctx, "SELECT "+t.columns()+" FROM "+t.table.Sanitize()+" WHERE "+where, args...).Scan(r.fields()...)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && r.value == nil {
		return v, fmt.Errorf("watermark %q of job %q in target %q: %w", k.Source, k.Job, t.name, commitstep.ErrNotFound)
	}
	if err != nil {
		return v, fmt.Errorf("watermark target %q: %w", t.name, err)
	}
	return t.read(k, r)
}

// key is the condition for a row, with parameters from n on.
func (t *Target) key(k commitstep.WatermarkKey, n int) (string, []any) {
	cond, args := fmt.Sprintf("%s = $%d", q(t.c.Source), n), []any{k.Source}
	if t.c.Job != "" {
		cond += fmt.Sprintf(" AND %s = $%d", q(t.c.Job), n+1)
		args = append(args, k.Job)
	}
	return cond, args
}

// fits refuses what the columns cannot hold.
func (t *Target) fits(m commitstep.WatermarkMove) error {
	for _, w := range []commitstep.Watermark{m.From, m.To} {
		if w.IsNone() {
			continue
		}
		_, number := w.Int64()
		text, _ := w.TextValue()
		switch {
		case number != t.numeric:
			return fmt.Errorf("watermark target %q: its value column cannot hold %s", t.name, w)
		case w.Epoch() != 0 && t.c.Epoch == "":
			return fmt.Errorf("watermark target %q: it has no epoch column for %s", t.name, w)
		case w.Epoch() > 1<<62, strings.ContainsRune(text, 0):
			return fmt.Errorf("watermark target %q: PostgreSQL cannot hold %s", t.name, w)
		}
	}
	if strings.ContainsRune(m.Job+m.Source, 0) {
		return fmt.Errorf("watermark target %q: PostgreSQL cannot hold a NUL in a name", t.name)
	}
	return nil
}

// CompareAndSet implements [watermark.Target], in one statement.
func (t *Target) CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	if err := m.Check(); err != nil {
		return commitstep.Permanent(err)
	}
	if m.Token == uuid.Nil {
		return commitstep.Permanent(errors.New("a move needs a token"))
	}
	if err := t.fits(m); err != nil {
		return commitstep.Permanent(err)
	}
	sql, args := t.statement(m, sequence)
	b := &pgx.Batch{}
	// The move is durable when it is answered, whatever the role says.
	b.Queue(`SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END, true),
		set_config('statement_timeout', '60s', true), set_config('lock_timeout', '20s', true)`)
	var changed int64
	b.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error { changed = tag.RowsAffected(); return nil })
	conn, err := t.pool.Acquire(ctx)
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("watermark target %q: %w", t.name, err))
	}
	err = conn.SendBatch(ctx, b).Close()
	// Given back before the look below, which may need the last free one.
	conn.Release()
	if err != nil {
		return t.classify(err)
	}
	if changed == 1 {
		return nil
	}
	v, err := t.Watermark(ctx, m.WatermarkKey)
	if err != nil && !errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.Refused(err)
	}
	verdict := m.Judge(v.Watermark, v.Token)
	switch verdict.Outcome {
	case commitstep.Done:
		return nil
	case commitstep.NotDone: // it came back to where it was in between
		return commitstep.NotSent(fmt.Errorf("watermark target %q: it is being changed by others; try again", t.name))
	}
	return commitstep.Refused(fmt.Errorf("%s: %w", verdict.Evidence, commitstep.ErrStale))
}

// statement changes the row if, and only if, it holds what the move expects.
func (t *Target) statement(m commitstep.WatermarkMove, sequence uuid.UUID) (string, []any) {
	var args []any
	arg := func(v any) string { args = append(args, v); return "$" + strconv.Itoa(len(args)) }
	value := func(w commitstep.Watermark) any {
		if n, ok := w.Int64(); ok {
			return n
		}
		s, _ := w.TextValue()
		return s
	}
	set := []struct{ col, val string }{{t.c.Value, arg(value(m.To))}}
	if t.uuid {
		set = append(set, struct{ col, val string }{t.c.Token, arg(m.Token)})
	} else {
		set = append(set, struct{ col, val string }{t.c.Token, arg(m.Token.String())})
	}
	if t.c.Epoch != "" {
		set = append(set, struct{ col, val string }{t.c.Epoch, arg(int64(m.To.Epoch()))})
	}
	if t.c.UpdatedAt != "" {
		set = append(set, struct{ col, val string }{t.c.UpdatedAt, "now()"})
	}
	if t.c.Sequence != "" {
		set = append(set, struct{ col, val string }{t.c.Sequence, arg(sequence.String())})
	}
	if !m.From.IsNone() {
		var parts []string
		for _, s := range set {
			parts = append(parts, q(s.col)+" = "+s.val)
		}
		cond, more := t.key(m.WatermarkKey, len(args)+1)
		args = append(args, more...)
		cond += " AND " + q(t.c.Value) + " = " + arg(value(m.From))
		if t.c.Epoch != "" {
			cond += " AND coalesce(" + q(t.c.Epoch) + ", 0) = " + arg(int64(m.From.Epoch()))
		}
		return "UPDATE " + t.table.Sanitize() + " SET " + strings.Join(parts, ", ") + " WHERE " + cond, args
	}
	cols, vals := []string{q(t.c.Source)}, []string{arg(m.Source)}
	target := q(t.c.Source)
	if t.c.Job != "" {
		cols, vals = append(cols, q(t.c.Job)), append(vals, arg(m.Job))
		target += ", " + q(t.c.Job)
	}
	var again []string
	for _, s := range set {
		cols, vals = append(cols, q(s.col)), append(vals, s.val)
		again = append(again, q(s.col)+" = EXCLUDED."+q(s.col))
	}
	return "INSERT INTO " + t.table.Sanitize() + " AS w (" + strings.Join(cols, ", ") + ") VALUES (" + strings.Join(vals, ", ") + ") ON CONFLICT (" + target +
		") DO UPDATE SET " + strings.Join(again, ", ") + " WHERE w." + q(t.c.Value) + " IS NULL", args
}

// classify says what an error means for the step.
func (t *Target) classify(err error) error {
	err = fmt.Errorf("watermark target %q: %w", t.name, err)
	var pe *pgconn.PgError
	var ce *pgconn.ConnectError
	switch {
	case errors.As(err, &pe):
		switch {
		case strings.HasPrefix(pe.Code, "08"), pe.Code == "57P01", pe.Code == "57P02":
			return err // perhaps within the commit
		case strings.HasPrefix(pe.Code, "53"), strings.HasPrefix(pe.Code, "40"), pe.Code == "57P03", pe.Code == "55P03", pe.Code == "57014", pe.Code == "25006":
			return commitstep.NotSent(err)
		}
		return commitstep.Refused(err)
	case errors.As(err, &ce), pgconn.SafeToRetry(err):
		return commitstep.NotSent(err)
	}
	return err
}

// Settle has nothing to do: a committed row is durable.
func (t *Target) Settle(context.Context, commitstep.WatermarkKey, *commitstep.Settling) error {
	return nil
}
