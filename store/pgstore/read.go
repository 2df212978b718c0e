package pgstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// liveColumns of sequences s, documents d and instances i.
const liveColumns = `s.id, s.key_hash, s.slot, s.job, s.dataset, s.steps, s.long, s.state, s.reason, s.park_step, s.park_told, s.message, s.declared, s.version, s.epoch, s.updated,
	s.owner, i.name, i.host, i.pid, d.header`

const liveFrom = ` FROM {s}.sequences s LEFT JOIN {s}.documents d ON d.id = s.id LEFT JOIN {s}.instances i ON i.id = s.owner`

// liveRow is a row of sequences with its header, not yet checked.
type liveRow struct {
	id, hash, slot       uuid.UUID
	job, dataset         string
	steps                int
	long                 bool
	state, reason        string
	parkStep             int
	parkTold             bool
	message              string
	declared             []int32
	version, epoch       int64
	updated              time.Time
	owner                *uuid.UUID
	ownerName, ownerHost *string
	ownerPID             *int
	header               []byte
}

func (r *liveRow) scan(row pgx.Row, extra ...any) error {
	return row.Scan(append([]any{&r.id, &r.hash, &r.slot, &r.job, &r.dataset, &r.steps, &r.long, &r.state, &r.reason, &r.parkStep, &r.parkTold, &r.message, &r.declared,
		&r.version, &r.epoch, &r.updated, &r.owner, &r.ownerName, &r.ownerHost, &r.ownerPID, &r.header}, extra...)...)
}

func (r *liveRow) key() commitstep.Key {
	return commitstep.Key{Job: fromText(r.job), Dataset: fromText(r.dataset)}
}

// live checks the row. Errors match ErrDamaged or ErrNewerFormat.
func (r *liveRow) live() (commitstep.Live, error) {
	key := r.key()
	if r.header == nil {
		return commitstep.Live{}, fmt.Errorf("dataset %s: %w", key, damaged("the header of sequence %s is missing", r.id))
	}
	h, err := openHeader(r.id, key, r.header)
	if err != nil {
		return commitstep.Live{}, fmt.Errorf("dataset %s: %w", key, err)
	}
	if h.Steps != r.steps {
		return commitstep.Live{}, fmt.Errorf("dataset %s: %w", key, damaged("its row counts %d steps, its header %d", r.steps, h.Steps))
	}
	l := commitstep.Live{Header: h, Condition: r.condition()}
	return l, nil
}

func (r *liveRow) condition() commitstep.Condition {
	c := commitstep.Condition{State: commitstep.State(r.state), Reason: commitstep.ParkReason(r.reason), ParkStep: r.parkStep, Message: fromText(r.message),
		Version: uint64(r.version), Epoch: uint64(r.epoch), Updated: r.updated.UTC(), Cleaning: r.state == string(commitstep.Completed), ParkTold: r.parkTold}
	for _, d := range r.declared {
		c.DeclaredPublished = append(c.DeclaredPublished, int(d))
	}
	if r.owner != nil {
		c.Owner.ID = *r.owner
		if r.ownerName != nil {
			c.Owner.Name, c.Owner.Host, c.Owner.PID = fromText(*r.ownerName), fromText(*r.ownerHost), *r.ownerPID
		}
	}
	return c
}

// where names the record for people.
func (r *liveRow) where() string { return "documents/" + r.id.String() }

// nameKnown: the names of the row are what its hash was made of.
func (r *liveRow) nameKnown() bool { return keyHash(r.key()) == r.hash }

// Get returns the live sequence of key, else the newest that is still
// cleaning. ErrNotFound without one, ErrDamaged when it is quarantined.
func (s *Store) Get(ctx context.Context, key commitstep.Key) (commitstep.Live, error) {
	return s.one(ctx, `WHERE `+ofKey+` ORDER BY s.slot <> '00000000-0000-0000-0000-000000000000', s.id DESC LIMIT 1`, "dataset "+key.String(), keyPrefix(key), keyHash(key))
}

// Find is Get by sequence id.
func (s *Store) Find(ctx context.Context, id uuid.UUID) (commitstep.Live, error) {
	return s.one(ctx, `WHERE s.id = $1`, "sequence "+id.String(), id)
}

func (s *Store) one(ctx context.Context, where, name string, args ...any) (commitstep.Live, error) {
	var r liveRow
	var bad *string
	var newer *bool
	found := false
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(`SELECT `+liveColumns+`, q.problem, q.newer`+liveFrom+` LEFT JOIN {s}.quarantine q ON q.sequence = s.id `+where), args...).QueryRow(func(row pgx.Row) error {
			r = liveRow{}
			err := r.scan(row, &bad, &newer)
			found = err == nil
			if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
			return err
		})
	})
	switch {
	case err != nil:
		return commitstep.Live{}, err
	case !found:
		return commitstep.Live{}, fmt.Errorf("%s has no live sequence: %w", name, commitstep.ErrNotFound)
	case bad != nil:
		return commitstep.Live{}, quarantinedErr(r.key(), r.where(), *bad, *newer)
	}
	l, err := r.live()
	if isFormat(err) {
		if err := s.setAside(ctx, r, err); err != nil {
			return commitstep.Live{}, err
		}
	}
	return l, err
}

// LookupPlan answers what is known of a plan id of a dataset. ErrNotFound when
// it was never used.
func (s *Store) LookupPlan(ctx context.Context, key commitstep.Key, planID string) (store.PlanRecord, error) {
	var rec store.PlanRecord
	found := false
	err := s.read(ctx, func(b *pgx.Batch) {
		found = false
		b.Queue(s.sql(`SELECT plan_hash, sequence, state FROM {s}.plan_ids WHERE hash = $1
			UNION ALL SELECT plan_hash, id, state FROM {s}.sequences s WHERE `+orderIndex+` = $2 AND key_hash = $3 AND state <> 'completed' AND plan_ref = $1 LIMIT 1`),
			planHash(key, planID), keyPrefix(key), keyHash(key)).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				rec = store.PlanRecord{Key: key, PlanID: planID}
				if err := rows.Scan(&rec.Hash, &rec.Sequence, &rec.State); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	if err == nil && !found {
		err = fmt.Errorf("plan id %q of dataset %s: %w", planID, key, commitstep.ErrNotFound)
	}
	if err != nil {
		return store.PlanRecord{}, err
	}
	return rec, nil
}

// Scan yields live and cleaning sequences in key order. It reads in portions;
// what changes meanwhile may be seen as it was before or after. A sequence that
// can neither be read nor be set aside is an error, and the next ones follow.
func (s *Store) Scan(ctx context.Context, f store.Filter) iter.Seq2[commitstep.Live, error] {
	const portion = 256
	return func(yield func(commitstep.Live, error) bool) {
		states := []string{}
		for _, st := range f.States {
			states = append(states, string(st))
		}
		var after *commitstep.Key
		slot := uuid.Nil
		for {
			var rows []liveRow
			cond, args := "", []any{states}
			if after != nil {
				t := sortText(*after)
				cond = ` AND ` + orderIndex + ` >= $3 AND (` + orderText + ` > $4 OR ` + orderText + ` = $4 AND s.slot > $5)`
				args = append(args, toText(f.Job), cut(t), t, slot)
			} else {
				args = append(args, toText(f.Job))
			}
			if f.Job != "" && after == nil {
				cond = ` AND ` + orderIndex + ` >= $3`
				args = append(args, cut(toText(f.Job)+keySeparator))
			}
			err := s.readInOrder(ctx, func(b *pgx.Batch) {
				rows = nil
				b.Queue(s.sql(`SELECT `+liveColumns+liveFrom+` WHERE (cardinality($1::text[]) = 0 OR s.state = ANY($1)) AND ($2 = '' OR s.job = $2)`+cond+
					` AND `+readableSQL+` ORDER BY `+orderIndex+`, `+orderText+`, s.slot LIMIT `+fmt.Sprint(portion)), args...).Query(func(r pgx.Rows) error {
					for r.Next() {
						var x liveRow
						if err := x.scan(r); err != nil {
							return err
						}
						rows = append(rows, x)
					}
					return r.Err()
				})
			})
			if err != nil {
				yield(commitstep.Live{}, err)
				return
			}
			for i := range rows {
				if f.Match != nil && !f.Match(fromText(rows[i].dataset)) {
					continue
				}
				l, err := rows[i].live()
				if isFormat(err) {
					// Quarantine lists it from now on. Where nothing can be written, as on a
					// standby, it is told here, and hides no others.
					if err = s.setAside(ctx, rows[i], err); err == nil {
						continue
					}
					l = commitstep.Live{}
				}
				if !yield(l, err) || err != nil && !isFormat(err) {
					return
				}
			}
			if len(rows) < portion {
				return
			}
			k := rows[len(rows)-1].key()
			after, slot = &k, rows[len(rows)-1].slot
		}
	}
}

// Quarantine lists what cannot be read, as far as somebody tried to.
func (s *Store) Quarantine(ctx context.Context) ([]commitstep.Quarantined, error) {
	var out []commitstep.Quarantined
	err := s.read(ctx, func(b *pgx.Batch) {
		out = nil
		b.Queue(s.sql(`SELECT sequence, job, dataset, name_known, place, problem, newer FROM {s}.quarantine ORDER BY job, dataset, sequence`)).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var q commitstep.Quarantined
				var job, dataset, place, problem string
				if err := rows.Scan(&q.ID, &job, &dataset, &q.NameKnown, &place, &problem, &q.Newer); err != nil {
					return err
				}
				if q.NameKnown {
					q.Key = commitstep.Key{Job: fromText(job), Dataset: fromText(dataset)}
				}
				q.Where, q.Problem = fromText(place), fromText(problem)
				out = append(out, q)
			}
			return rows.Err()
		})
	})
	slices.SortStableFunc(out, func(a, b commitstep.Quarantined) int { return a.Key.Compare(b.Key) })
	return out, err
}
