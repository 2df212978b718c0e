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
)

// row is what the table says of one watermark; nil where it has no such column,
// or NULL in it.
type row struct {
	value, token *string
	epoch        *int64
	at           *time.Time
	sequence     *string
}

func (r *row) fields() []any { return []any{&r.value, &r.token, &r.epoch, &r.at, &r.sequence} }

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

// read turns a row with a value into a watermark.
func (t *Target) read(k commitstep.WatermarkKey, r row) (commitstep.WatermarkValue, error) {
	v := commitstep.WatermarkValue{WatermarkKey: k}
	w := commitstep.Text(*r.value)
	if t.numeric {
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
		sql := "SELECT " + jobColumn + ", " + source + ", " + t.columns() + " FROM " + t.table.Sanitize() + " WHERE " + q(t.c.Value) + " IS NOT NULL" +
			" AND ($1 = '' OR " + jobColumn + " IN ('', $1)) AND (" + jobColumn + ` COLLATE "C", ` + source + ` COLLATE "C") > ($2, $3)` +
			" ORDER BY " + jobColumn + ` COLLATE "C", ` + source + ` COLLATE "C" LIMIT ` + strconv.Itoa(listed)
		var after commitstep.WatermarkKey
		for {
			keys, rows, err := t.page(ctx, sql, job, after)
			if err != nil {
				yield(commitstep.WatermarkValue{}, fmt.Errorf("watermark target %q: %w", t.name, err))
				return
			}
			for i, k := range keys {
				after = k
				if k.Job == "" {
					k.Job = job
				}
				v, err := t.read(k, rows[i])
				if !yield(v, err) {
					return
				}
			}
			if len(keys) < listed {
				return
			}
		}
	}
}

func (t *Target) page(ctx context.Context, sql, job string, after commitstep.WatermarkKey) (keys []commitstep.WatermarkKey, out []row, err error) {
	rows, err := t.pool.Query(ctx, sql, job, after.Job, after.Source)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var k commitstep.WatermarkKey
		var r row
		if err := rows.Scan(append([]any{&k.Job, &k.Source}, r.fields()...)...); err != nil {
			return nil, nil, err
		}
		keys, out = append(keys, k), append(out, r)
	}
	return keys, out, rows.Err()
}
