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
	"sync/atomic"
	"time"

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

// twice is a column that is named for two purposes.
func (c Columns) twice() (string, bool) {
	seen := map[string]bool{}
	for _, name := range []string{c.Job, c.Source, c.Value, c.Token, c.Epoch, c.UpdatedAt, c.Sequence} {
		if name != "" && seen[name] {
			return name, true
		}
		seen[name] = true
	}
	return "", false
}

// Config of a Target.
type Config struct {
	// Name is the resource name that plans use.
	Name string `json:"-"`
	// DSN is a postgres URL or a libpq keyword string; empty is the libpq
	// environment. It may hold a password, plans never do.
	DSN string `json:"dsn"`
	// Table is schema.name. Which table a name alone means would be up to the
	// session, which others may leave with their own search_path behind a pooler.
	Table   string  `json:"table"`
	Columns Columns `json:"columns"`
}

// Target is a table of watermarks. Safe for concurrent use, also by several
// processes.
type Target struct {
	name  string
	c     Columns
	pool  *pgxpool.Pool
	table pgx.Identifier
	shape atomic.Pointer[shape] // of the last look

	connecting time.Duration // to one server, at most
	acquiring  time.Duration // a connection, to whichever server
}

var _ watermark.Planner = (*Target)(nil)

// Open connects and looks whether the table is as cfg says. Close it.
func Open(ctx context.Context, cfg Config) (*Target, error) {
	t := &Target{name: cfg.Name, c: cfg.Columns, table: strings.Split(cfg.Table, ".")}
	bad := func(text string) (*Target, error) { return nil, t.fault(text) }
	switch {
	case cfg.Name == "":
		return bad("the target has no name")
	case len(t.table) != 2 || slices.Contains(t.table, ""):
		return bad("write the table with its schema, as public.positions: which table a name alone means depends on the search_path of the session")
	case t.c.Source == "" || t.c.Value == "":
		return bad("name its columns source and value")
	case t.c.Token == "":
		return bad("it needs a token column: without one a move whose answer was lost could not be told from another's")
	}
	if column, twice := t.c.twice(); twice {
		return bad(fmt.Sprintf("its column %q is named for two purposes; name a column of its own for each", column))
	}
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return bad("its address is no postgres URL and no list of libpq keywords")
	}
	pc.MaxConns = min(pc.MaxConns, 4)
	if !strings.Contains(cfg.DSN, "default_query_exec_mode") {
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // right behind poolers too
	}
	if pc.ConnConfig.ConnectTimeout <= 0 {
		pc.ConnConfig.ConnectTimeout = connectLimit
	}
	t.connecting = pc.ConnConfig.ConnectTimeout
	t.acquiring = readLimit + t.connecting*time.Duration(1+len(pc.ConnConfig.Fallbacks))
	pc.PingTimeout = connectLimit
	if t.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return bad(err.Error())
	}
	if err := t.look(ctx); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// Close ends the connections. It does not wait for a server that is silent.
func (t *Target) Close() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.pool.Close()
	}()
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
	return nil
}

// Name is the resource name that plans use.
func (t *Target) Name() string { return t.name }

// look refuses a table from which nothing can be read that could be trusted.
func (t *Target) look(ctx context.Context) error {
	var s shape
	if err := t.read(ctx, func(b *pgx.Batch) { s = shape{}; t.askShape(b, &s) }); err != nil {
		return err
	}
	if bad := t.readable(&s); bad != "" {
		return t.fault(bad)
	}
	t.shape.Store(&s)
	return nil
}

func q(name string) string { return pgx.Identifier{name}.Sanitize() }

// Watermark reads one; ErrNotFound when there is no row, or no value in it.
func (t *Target) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	if strings.ContainsRune(k.Job+k.Source, 0) {
		return commitstep.WatermarkValue{WatermarkKey: k}, fmt.Errorf("watermark %q: PostgreSQL cannot hold a NUL in a name", k.Source)
	}
	var rows []row
	if err := t.read(ctx, func(b *pgx.Batch) { rows = nil; t.askRow(b, k, &rows) }); err != nil {
		return commitstep.WatermarkValue{WatermarkKey: k}, err
	}
	return t.one(k, rows)
}

// Plan implements [watermark.Planner]: the catalog and the row in one look.
func (t *Target) Plan(ctx context.Context, m commitstep.WatermarkMove) (commitstep.WatermarkValue, error) {
	v := commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey}
	refuse := func(problem string) (commitstep.WatermarkValue, error) {
		return v, &commitstep.PlanError{Problem: fmt.Sprintf("cannot keep its watermark in table %q of target %q: %s", strings.Join(t.table, "."), t.name, problem)}
	}
	if strings.ContainsRune(m.Job+m.Source, 0) {
		return refuse("PostgreSQL cannot hold a NUL in a name")
	}
	var s shape
	var rows []row
	err := t.read(ctx, func(b *pgx.Batch) {
		s, rows = shape{}, nil
		t.askShape(b, &s)
		t.askRow(b, m.WatermarkKey, &rows)
	})
	if se := new(sessionError); errors.As(err, &se) {
		return refuse(se.problem)
	}
	if isUndefined(err) {
		// The row was asked for in vain, and the catalog knows why.
		if lerr := t.look(ctx); lerr != nil {
			return v, lerr
		}
	}
	if s.Kind != "" { // it was told, whatever became of the row
		for _, bad := range []func() string{
			func() string { return t.readable(&s) },
			func() string { return t.writable(&s, m.From.IsNone()) },
			func() string { return t.fits(&s, m) },
		} {
			if text := bad(); text != "" {
				return refuse(text)
			}
		}
		t.shape.Store(&s)
	}
	if err != nil {
		return v, err
	}
	return t.one(m.WatermarkKey, rows)
}

// isUndefined reports that a table or column is missing.
func isUndefined(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "42703" || pe.Code == "3F000")
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

// moveTries is how often a move is made that changes nothing although the row is
// as it expects: others may have changed it, and changed it back.
const moveTries = 3

// CompareAndSet implements [watermark.Target], in one statement.
func (t *Target) CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	if err := m.Check(); err != nil {
		return commitstep.Permanent(err)
	}
	if m.Token == uuid.Nil {
		return commitstep.Permanent(errors.New("a move needs a token"))
	}
	if t.fits(t.shape.Load(), m) != "" {
		// Since the last look somebody may have made room.
		if err := t.look(ctx); err != nil {
			return unread(err)
		}
		if bad := t.fits(t.shape.Load(), m); bad != "" {
			return commitstep.Permanent(t.fault(bad))
		}
	}
	for n := 1; ; n++ {
		changed, err := t.move(ctx, m, sequence)
		if err != nil {
			return t.classify(err)
		}
		if len(changed) > 0 {
			return t.asPlanned(m, changed)
		}
		v, err := t.Watermark(ctx, m.WatermarkKey)
		if err != nil && !errors.Is(err, commitstep.ErrNotFound) {
			return unread(err)
		}
		verdict := watermark.Judge(m, v)
		switch verdict.Outcome {
		case commitstep.Done:
			return nil
		case commitstep.NotDone:
			if n == moveTries {
				return commitstep.Permanent(t.fault(fmt.Sprintf("nothing was written, although %s and nobody else changed it; "+
					"a BEFORE trigger that returns NULL has the server leave the row as it is: see the triggers of the table, then retry", verdict.Evidence)))
			}
		default:
			return commitstep.Refused(fmt.Errorf("%s: %w", verdict.Evidence, commitstep.ErrStale))
		}
	}
}

// unread classifies a look that failed beside a move that changed nothing. A
// server that is away, or has become a standby, is waited for.
func unread(err error) error {
	var se *sessionError
	if errors.Is(err, commitstep.ErrUnavailable) || errors.As(err, &se) && se.standby {
		return commitstep.NotSent(err)
	}
	return commitstep.Refused(err)
}

// asPlanned says whether the row that a move wrote is what it was to be. The
// server has it, whatever it is, so that trying again cannot help.
func (t *Target) asPlanned(m commitstep.WatermarkMove, changed []row) error {
	v, err := t.one(m.WatermarkKey, changed)
	switch verdict := watermark.Judge(m, v); {
	case err != nil && !errors.Is(err, commitstep.ErrNotFound):
		return commitstep.Permanent(err)
	case verdict.Outcome != commitstep.Done:
		return commitstep.Permanent(t.fault(fmt.Sprintf("it did not keep what was written: planned %s with token %s, and the row has %s with token %s; "+
			"a BEFORE trigger may change other columns only: see the triggers of the table, then put right the row", m.To, m.Token, v.Watermark, v.Token)))
	}
	return nil
}

// move runs the statement of a move, and tells the row that it changed, if it
// changed one, as the server has it now.
func (t *Target) move(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) (changed []row, err error) {
	sql, args := t.statement(m, sequence)
	b := &pgx.Batch{}
	b.Queue(moveSettingsSQL)
	t.claimRow(b, m.WatermarkKey)
	b.Queue(sql+" RETURNING "+t.names()+", "+t.columns(), args...).Query(func(r pgx.Rows) (err error) {
		changed, err = scan(r)
		return err
	})
	return changed, t.send(ctx, moveLimit, b)
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
	if t.shape.Load().Columns[t.c.Token].Type == "uuid" {
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
		return "UPDATE " + t.table.Sanitize() + " SET " + strings.Join(parts, ", ") + " WHERE " + cond + " AND " + utf8SQL, args
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
	return "INSERT INTO " + t.table.Sanitize() + " AS w (" + strings.Join(cols, ", ") + ") SELECT " + strings.Join(vals, ", ") + " WHERE " + utf8SQL + " ON CONFLICT (" + target +
		") DO UPDATE SET " + strings.Join(again, ", ") + " WHERE w." + q(t.c.Value) + " IS NULL", args
}

// classify says what an error means for the step.
func (t *Target) classify(err error) error {
	var pe *pgconn.PgError
	var ae *acquireError
	var pre pgx.ErrPreprocessingBatch
	unfit := errors.As(err, &pre) && strings.Contains(pre.Error(), "(build)")
	sent := !errors.As(err, &ae) && !errors.As(err, &pre) && !pgconn.SafeToRetry(err)
	if isFiltered(err) {
		return commitstep.Refused(t.fault(t.filtered(t.user())))
	}
	wrapped := fmt.Errorf("watermark target %q: %w", t.name, err)
	switch {
	case errors.As(err, &pe):
		switch {
		case sent && (strings.HasPrefix(pe.Code, "08") || pe.Code == "57P01" || pe.Code == "57P02" || pe.Code == "57P05"):
			return wrapped // perhaps within the commit
		case isOutage(err), pe.Code == "25006":
			return commitstep.NotSent(wrapped)
		case !sent && errors.As(err, &ae):
			return commitstep.NotSent(wrapped)
		}
		return commitstep.Refused(wrapped)
	case unfit:
		// Of the types that the connections remember, one was changed.
		t.pool.Reset()
		return commitstep.Permanent(wrapped)
	case !sent:
		return commitstep.NotSent(wrapped)
	}
	return wrapped
}

// Settle has nothing to do: a committed row is durable.
func (t *Target) Settle(context.Context, commitstep.WatermarkKey, *commitstep.Settling) error {
	return nil
}
