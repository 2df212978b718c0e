package pgtarget

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// row is what the table says of one watermark; nil where it has no such column,
// or NULL in it.
type row struct {
	job, source  string
	value, token *string
	epoch        *int64
	at           *time.Time
	sequence     *string
}

func (r *row) fields() []any {
	return []any{&r.value, &r.token, &r.epoch, &r.at, &r.sequence}
}

// askRow queues the look at one row. More than one is no key; see one.
func (t *Target) askRow(b *pgx.Batch, k commitstep.WatermarkKey, into *[]row) {
	t.askUnderWay(b, k)
	where, args := t.key(k, 1)
	b.Queue("SELECT "+t.names()+", "+t.columns()+" FROM "+t.table.Sanitize()+" WHERE "+where+" LIMIT 2", args...).Query(func(rows pgx.Rows) (err error) {
		*into, err = scan(rows)
		return err
	})
}

func scan(rows pgx.Rows) (out []row, err error) {
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(append([]any{&r.job, &r.source}, r.fields()...)...); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// one is the watermark of k, given the rows that the server takes for its.
func (t *Target) one(k commitstep.WatermarkKey, rows []row) (commitstep.WatermarkValue, error) {
	v := commitstep.WatermarkValue{WatermarkKey: k}
	if len(rows) > 1 {
		return v, t.fault(fmt.Sprintf("it has several rows for source %q, and which one counts cannot be known", k.Source))
	}
	for _, r := range rows {
		if r.source != k.Source || t.c.Job != "" && r.job != k.Job {
			return v, t.fault(fmt.Sprintf("it takes source %q of job %q for source %q of job %q, and names are compared byte for byte; give its key columns the collation \"C\"", r.source, r.job, k.Source, k.Job))
		}
		if r.value != nil {
			return t.value(k, r)
		}
	}
	return v, fmt.Errorf("watermark %q of job %q in target %q: %w", k.Source, k.Job, t.name, commitstep.ErrNotFound)
}

// names are job and source of a row, in this order.
func (t *Target) names() string {
	job := "''"
	if t.c.Job != "" {
		job = q(t.c.Job) + "::text"
	}
	return job + ", " + q(t.c.Source) + "::text"
}

// columns are those of a row, in the order of its fields.
func (t *Target) columns() string {
	cols := []string{q(t.c.Value) + "::text", q(t.c.Token) + "::text"}
	for _, c := range []struct{ name, typ string }{{t.c.Epoch, "bigint"}, {t.c.UpdatedAt, "timestamptz"}, {t.c.Sequence, "text"}} {
		if c.name == "" {
			cols = append(cols, "NULL::"+c.typ)
		} else {
			cols = append(cols, q(c.name)+"::"+c.typ)
		}
	}
	return strings.Join(cols, ", ")
}

// value turns a row with a value into a watermark.
func (t *Target) value(k commitstep.WatermarkKey, r row) (commitstep.WatermarkValue, error) {
	v := commitstep.WatermarkValue{WatermarkKey: k}
	w := commitstep.Text(*r.value)
	if _, high := rangeOf(t.shape.Load().Columns[t.c.Value].Type); high != 0 {
		n, err := strconv.ParseInt(*r.value, 10, 64)
		if err != nil {
			return v, fmt.Errorf("watermark target %q: %w: %q is no number", t.name, commitstep.ErrDamaged, *r.value)
		}
		w = commitstep.Int(n)
	}
	if r.epoch != nil {
		if *r.epoch < 0 {
			return v, fmt.Errorf("watermark target %q: %w: source epoch %d", t.name, commitstep.ErrDamaged, *r.epoch)
		}
		w = w.InEpoch(uint64(*r.epoch))
	}
	v.Watermark = w
	// A value that something else wrote has no token of ours, or none.
	if r.token != nil {
		v.Token, _ = uuid.Parse(*r.token)
	}
	if r.sequence != nil {
		v.Sequence, _ = uuid.Parse(*r.sequence)
	}
	if r.at != nil {
		v.SetAt = r.at.UTC()
	}
	return v, nil
}

// listed is how many watermarks List reads before it yields them.
const listed = 500

// List yields the watermarks that have a value, by job and source; job "" is
// all. A table without a job column does not know whose they are: they are
// yielded with the job that was asked for. One that cannot be read is yielded
// as an error, and the range goes on.
func (t *Target) List(ctx context.Context, job string) iter.Seq2[commitstep.WatermarkValue, error] {
	return func(yield func(commitstep.WatermarkValue, error) bool) {
		jobColumn := "''"
		if t.c.Job != "" {
			jobColumn = q(t.c.Job) + "::text"
		}
		source := q(t.c.Source) + "::text"
		sql := "SELECT " + t.names() + ", " + t.columns() + " FROM " + t.table.Sanitize() + " WHERE " + q(t.c.Value) + " IS NOT NULL" +
			" AND ($1 = '' OR " + jobColumn + " IN ('', $1)) AND (" + jobColumn + ` COLLATE "C", ` + source + ` COLLATE "C") > ($2, $3)` +
			" ORDER BY " + jobColumn + ` COLLATE "C", ` + source + ` COLLATE "C" LIMIT ` + strconv.Itoa(listed)
		var after commitstep.WatermarkKey
		for {
			var rows []row
			err := t.read(ctx, func(b *pgx.Batch) {
				b.Queue(sql, job, after.Job, after.Source).Query(func(r pgx.Rows) (err error) {
					rows, err = scan(r)
					return err
				})
			})
			if err != nil {
				yield(commitstep.WatermarkValue{}, err)
				return
			}
			for _, r := range rows {
				after = commitstep.WatermarkKey{Job: r.job, Source: r.source}
				k := after
				if k.Job == "" {
					k.Job = job
				}
				if v, err := t.value(k, r); !yield(v, err) {
					return
				}
			}
			if len(rows) < listed {
				return
			}
		}
	}
}
