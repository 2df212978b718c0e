package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const historySelect = `SELECT h.id, h.job, h.dataset, h.plan_id, h.state, h.created, h.steps, h.stages, h.epoch, h.record, d.header, d.steps, c.report
	FROM {s}.history h LEFT JOIN {s}.documents d ON d.id = h.id LEFT JOIN {s}.cleanups c ON c.sequence = h.id `

// scanHistory reads an outcome; bad says what of it cannot be read.
func scanHistory(rows pgx.Row) (e store.HistoryEntry, bad, err error) {
	var job, dataset, planID, state string
	var created time.Time
	var record, header, steps []byte
	var report *string
	if err := rows.Scan(&e.ID, &job, &dataset, &planID, &state, &created, &e.Steps, &e.Stages, &e.Epoch, &record, &header, &steps, &report); err != nil {
		return e, nil, err
	}
	e.Job, e.Dataset, e.PlanID, e.Created = fromText(job), fromText(dataset), fromText(planID), created.UTC()
	fail := func(err error) (store.HistoryEntry, error, error) {
		return e, fmt.Errorf("history of sequence %s: %w", e.ID, err), nil
	}
	payload, err := commitstep.Open(commitstep.RecordHistory, e.ID[:], record)
	if err != nil {
		return fail(err)
	}
	var t records.HistoryTail
	if err := json.Unmarshal(payload, &t); err != nil {
		return fail(damaged("%v", err))
	}
	if string(t.State) != state || t.Epoch != e.Epoch {
		return fail(damaged("its row and its sealed record differ"))
	}
	e.State, e.Ended, e.Notes, e.Message = t.State, t.Ended, t.Notes, t.Message
	if report != nil {
		e.CleanupReport = fromText(*report)
	}
	if header == nil {
		return e, nil, nil // given up as damaged
	}
	h, err := openHeader(e.ID, e.Key, header)
	if err != nil {
		return fail(err)
	}
	e.PlanHash, e.Created, e.Moves, e.Locks, e.Cleanup = h.PlanHash, h.Created, h.Moves, h.Locks, h.Cleanup
	e.AcceptReusedPaths = h.AcceptReusedPaths
	if steps != nil {
		if e.Detail, err = openPage(e.ID, 0, 0, steps); err != nil {
			return fail(err)
		}
	}
	return e, nil, nil
}

// ListHistory yields outcomes, the newest sequence first. Entries that cannot
// be read are passed over, and the range then ends with an error.
func (s *Store) ListHistory(ctx context.Context, f store.HistoryFilter) iter.Seq2[store.HistoryEntry, error] {
	const portion = 200
	return func(yield func(store.HistoryEntry, error) bool) {
		before := uuid.Max
		var trouble error
		for n := 0; ; {
			var list []store.HistoryEntry
			var seen int
			var last uuid.UUID
			var bad error
			err := s.read(ctx, func(b *pgx.Batch) {
				list, seen, bad = nil, 0, nil
				b.Queue(s.sql(historySelect+`WHERE h.id < $1 AND ($2 = '' OR h.job = $2) ORDER BY h.id DESC LIMIT `+fmt.Sprint(portion)), before, toText(f.Job)).Query(func(rows pgx.Rows) error {
					for rows.Next() {
						e, problem, err := scanHistory(rows)
						if err != nil {
							return err
						}
						seen++
						last = e.ID
						if problem != nil {
							bad = problem
							continue
						}
						list = append(list, e)
					}
					return rows.Err()
				})
			})
			if err != nil {
				yield(store.HistoryEntry{}, err)
				return
			}
			if bad != nil && trouble == nil {
				trouble = bad
			}
			for _, e := range list {
				if f.Match != nil && !f.Match(e.Dataset) {
					continue
				}
				if !yield(e, nil) {
					return
				}
				if n++; f.Limit > 0 && n == f.Limit {
					return
				}
			}
			if seen < portion {
				break
			}
			before = last
		}
		if trouble != nil {
			yield(store.HistoryEntry{}, trouble)
		}
	}
}

// LookupHistory finds the outcome of a sequence; ErrNotFound without one,
// ErrDamaged when it cannot be read.
func (s *Store) LookupHistory(ctx context.Context, id uuid.UUID) (store.HistoryEntry, error) {
	var e store.HistoryEntry
	var bad error
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(historySelect+`WHERE h.id = $1`), id).QueryRow(func(row pgx.Row) (err error) {
			if e, bad, err = scanHistory(row); errors.Is(err, pgx.ErrNoRows) {
				bad, err = fmt.Errorf("history of sequence %s: %w", id, commitstep.ErrNotFound), nil
			}
			return err
		})
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return store.HistoryEntry{}, err
	}
	return e, nil
}

// audit appends a decision to the audit, in the transaction of what it records.
// The lock on the store's row makes its number the next one.
func (s *Store) audit(ctx context.Context, tx pgx.Tx, token uuid.UUID, e store.AuditEntry) error {
	if _, err := tx.Exec(ctx, s.sql(`SELECT FROM {s}.store FOR UPDATE`)); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, s.sql(`SELECT coalesce(max(number), 0) + 1 FROM {s}.audit`)).Scan(&e.Number); err != nil {
		return err
	}
	if e.At.IsZero() {
		e.At = s.now()
	}
	return s.putAudit(ctx, tx, token, e)
}

func auditKey(number uint64) []byte { return fmt.Appendf(nil, "audit %d", number) }

func (s *Store) putAudit(ctx context.Context, tx pgx.Tx, token uuid.UUID, e store.AuditEntry) error {
	args, err := auditRow(token, e)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql(putAuditSQL), args...)
	return err
}

const putAuditSQL = `INSERT INTO {s}.audit (number, token, at, person, action, reason, job, dataset, sequence, decision, record) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

func auditRow(token uuid.UUID, e store.AuditEntry) ([]any, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, answered(fmt.Errorf("pgstore: audit: %w", err))
	}
	var sequence *uuid.UUID
	if e.Sequence != uuid.Nil {
		sequence = &e.Sequence
	}
	return []any{int64(e.Number), token, e.At, toText(e.Name), toText(e.Action), toText(e.Reason), toText(e.Key.Job), toText(e.Key.Dataset), sequence, toText(e.Decision),
		commitstep.Seal(commitstep.RecordAudit, auditKey(e.Number), b)}, nil
}

// ListAudit yields decisions, oldest first. A decision that is missing or
// cannot be read ends the range with an error, after those that can be.
func (s *Store) ListAudit(ctx context.Context) iter.Seq2[store.AuditEntry, error] {
	return func(yield func(store.AuditEntry, error) bool) {
		var after uint64
		var trouble error
		for {
			type row struct {
				number int64
				record []byte
			}
			var rows []row
			err := s.read(ctx, func(b *pgx.Batch) {
				rows = nil
				b.Queue(s.sql(`SELECT number, record FROM {s}.audit WHERE number > $1 ORDER BY number LIMIT 500`), int64(after)).Query(func(r pgx.Rows) error {
					for r.Next() {
						var x row
						if err := r.Scan(&x.number, &x.record); err != nil {
							return err
						}
						rows = append(rows, x)
					}
					return r.Err()
				})
			})
			if err != nil {
				yield(store.AuditEntry{}, err)
				return
			}
			for _, r := range rows {
				if uint64(r.number) != after+1 && trouble == nil {
					trouble = fmt.Errorf("audit: %w", damaged("entry %d is missing", after+1))
				}
				after = uint64(r.number)
				var e store.AuditEntry
				payload, err := commitstep.Open(commitstep.RecordAudit, auditKey(after), r.record)
				if err == nil {
					err = json.Unmarshal(payload, &e)
				}
				if err != nil {
					if trouble == nil {
						trouble = fmt.Errorf("audit entry %d: %w", after, err)
					}
					continue
				}
				if !yield(e, nil) {
					return
				}
			}
			if len(rows) < 500 {
				break
			}
		}
		if trouble != nil {
			yield(store.AuditEntry{}, trouble)
		}
	}
}

// RecordAudit appends an entry for an action that happened outside the store.
func (s *Store) RecordAudit(ctx context.Context, e store.AuditEntry) error {
	if err := checkPerson(e.Person); err != nil {
		return err
	}
	if e.Action == "" {
		return fmt.Errorf("pgstore: an audit entry needs an action")
	}
	return s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		return s.audit(ctx, tx, token, e)
	})
}
