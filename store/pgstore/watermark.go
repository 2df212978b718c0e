package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// watermarkText is the canonical text of a watermark, by which compare-and-set
// compares; nil for none.
func watermarkText(w commitstep.Watermark) *string {
	if w.IsNone() {
		return nil
	}
	b, err := json.Marshal(w)
	if err != nil { // a text or a number always marshals
		return nil
	}
	t := string(b)
	return &t
}

func sealWatermark(v commitstep.WatermarkValue) []byte {
	v.Unaccepted = false // computed when it is read
	b, err := json.Marshal(v)
	if err != nil { // plain values always marshal
		b = []byte("null")
	}
	h := watermarkHash(v.WatermarkKey)
	return commitstep.Seal(commitstep.RecordWatermark, h[:], b)
}

const watermarkColumns = `hash, job, source, value, token, record`

// scanWatermark reads a row and holds its columns, which compare-and-set uses,
// against the sealed record.
func scanWatermark(rows pgx.Rows) (commitstep.WatermarkValue, error) {
	var hash, token uuid.UUID
	var job, source, value string
	var record []byte
	var v commitstep.WatermarkValue
	if err := rows.Scan(&hash, &job, &source, &value, &token, &record); err != nil {
		return v, err
	}
	k := commitstep.WatermarkKey{Job: fromText(job), Source: fromText(source)}
	v.WatermarkKey = k
	payload, err := commitstep.Open(commitstep.RecordWatermark, hash[:], record)
	if err != nil {
		return v, answered(fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, err))
	}
	if err := json.Unmarshal(payload, &v); err != nil {
		return commitstep.WatermarkValue{WatermarkKey: k}, answered(fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, damaged("%v", err)))
	}
	if t := watermarkText(v.Watermark); v.WatermarkKey != k || watermarkHash(k) != hash || t == nil || *t != value || v.Token != token {
		return commitstep.WatermarkValue{WatermarkKey: k}, answered(fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, damaged("its row and its sealed record differ")))
	}
	return v, nil
}

// storedWatermark reads one; the zero value when it was never set.
func (s *Store) storedWatermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	v := commitstep.WatermarkValue{WatermarkKey: k}
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(`SELECT `+watermarkColumns+` FROM {s}.watermarks WHERE hash = $1`), watermarkHash(k)).Query(func(rows pgx.Rows) (err error) {
			for rows.Next() {
				if v, err = scanWatermark(rows); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	return v, err
}

// Watermark returns ErrNotFound when none was ever set, beside whether the job's
// watermarks wait for acceptance, and ErrDamaged, never none, when the record
// cannot be read.
func (s *Store) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	if stamp := s.Info().Stamped; isUnfinished(stamp) {
		return commitstep.WatermarkValue{}, s.stampedErr(stamp, "") // not none: it is not here yet
	}
	var v commitstep.WatermarkValue
	found := false
	un := true
	err := s.read(ctx, func(b *pgx.Batch) {
		found = false
		b.Queue(s.sql(`SELECT `+watermarkColumns+` FROM {s}.watermarks WHERE hash = $1`), watermarkHash(k)).Query(func(rows pgx.Rows) (err error) {
			for rows.Next() {
				found = true
				if v, err = scanWatermark(rows); err != nil {
					return err
				}
			}
			return rows.Err()
		})
		s.queueUnaccepted(b, k.Job, &un)
	})
	if err != nil {
		return commitstep.WatermarkValue{}, err
	}
	if !found {
		return commitstep.WatermarkValue{WatermarkKey: k, Unaccepted: un}, fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, commitstep.ErrNotFound)
	}
	v.Unaccepted = un
	return v, nil
}

// ListWatermarks yields watermarks by job and source; job "" is all. One that
// cannot be read is yielded as an error, and the range goes on.
func (s *Store) ListWatermarks(ctx context.Context, job string) iter.Seq2[commitstep.WatermarkValue, error] {
	type item struct {
		v   commitstep.WatermarkValue
		err error
	}
	return func(yield func(commitstep.WatermarkValue, error) bool) {
		after := "" // below every sort text, since names are not empty
		for {
			var items []item
			var last string
			err := s.read(ctx, func(b *pgx.Batch) {
				items, last = nil, ""
				b.Queue(s.sql(`SELECT `+watermarkColumns+`, (SELECT adoptions FROM {s}.store) > coalesce((SELECT adoption FROM {s}.accepted a WHERE a.job = w.job), 0)
					FROM {s}.watermarks w WHERE (w.job || E'\x01\x01' || w.source) > $1 AND ($2 = '' OR w.job = $2) ORDER BY w.job || E'\x01\x01' || w.source LIMIT 500`),
					after, toText(job)).Query(func(rows pgx.Rows) error {
					for rows.Next() {
						var un bool
						v, err := scanWatermark(tail{rows, []any{&un}})
						if err != nil {
							if _, ok := err.(*verdictError); !ok {
								return err
							}
							err = errors.Unwrap(err)
						}
						v.Unaccepted = un
						items = append(items, item{v, err})
						last = toText(v.Job) + keySeparator + toText(v.Source)
					}
					return rows.Err()
				})
			})
			if err != nil {
				yield(commitstep.WatermarkValue{}, err)
				return
			}
			for _, it := range items {
				if !yield(it.v, it.err) {
					return
				}
			}
			if len(items) < 500 {
				return
			}
			after = last
		}
	}
}

// tail is a row with more columns than its reader knows.
type tail struct {
	pgx.Rows
	rest []any
}

func (t tail) Scan(dest ...any) error { return t.Rows.Scan(append(dest, t.rest...)...) }

func (s *Store) queueUnaccepted(b *pgx.Batch, job string, un *bool) {
	b.Queue(s.sql(`SELECT (SELECT adoptions FROM {s}.store) > coalesce((SELECT adoption FROM {s}.accepted WHERE hash = $1), 0)`), jobHash(job)).
		QueryRow(func(row pgx.Row) error { return row.Scan(un) })
}

// Unaccepted reports whether the job may not ingest yet because the store was
// adopted: true for every job, also one without a watermark, until a person
// accepted it.
func (s *Store) Unaccepted(ctx context.Context, job string) (bool, error) {
	un := true
	err := s.read(ctx, func(b *pgx.Batch) { s.queueUnaccepted(b, job, &un) })
	return un, err
}

// SetWatermark by hand: compare-and-set from what the person saw, audited in
// the same transaction. *PendingError while a live sequence names the key,
// *StaleError when From is not what is stored.
func (s *Store) SetWatermark(ctx context.Context, m commitstep.WatermarkMove, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	if err := commitstep.CheckName("job", m.Job); err != nil {
		return err
	}
	if err := commitstep.CheckName("watermark source", m.Source); err != nil {
		return err
	}
	if m.To.IsNone() {
		return &commitstep.PlanError{Where: fmt.Sprintf("watermark %q", m.Source), Problem: "has no value to set", Hint: "give `to` a value"}
	}
	return s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		if err := s.mayRun(ctx, tx); err != nil {
			return err
		}
		if err := s.notSealed(ctx, tx); err != nil {
			return err
		}
		// The lock that a plan moving this watermark takes: whoever has it, or
		// wants it, waits for the other.
		lock := lockHash(m.Lock())
		tag, err := tx.Exec(ctx, s.sql(`INSERT INTO {s}.locks (hash, lock, sequence) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`), lock, toText(m.Lock()), uuid.Nil)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			if err := s.pendingLock(ctx, tx, m.Lock()); err != nil {
				return answered(err)
			}
			return errRace
		}
		stored := commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey}
		rows, err := tx.Query(ctx, s.sql(`SELECT `+watermarkColumns+` FROM {s}.watermarks WHERE hash = $1 FOR UPDATE`), watermarkHash(m.WatermarkKey))
		if err != nil {
			return err
		}
		for rows.Next() {
			if stored, err = scanWatermark(rows); err != nil {
				rows.Close()
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		switch v := m.Judge(stored.Watermark, stored.Token); v.Outcome {
		case commitstep.Done:
			return answered(errDone)
		case commitstep.NotDone:
		default:
			return answered(&store.StaleError{Move: m, Stored: stored.Watermark, Verdict: v})
		}
		v := commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey, Watermark: m.To, Token: m.Token, SetAt: s.now()}
		if _, err := tx.Exec(ctx, s.sql(`INSERT INTO {s}.watermarks (hash, job, source, value, was, token, sequence, set_at, record) VALUES ($1, $2, $3, $4, $5, $6, NULL, $7, $8)
			ON CONFLICT (hash) DO UPDATE SET value = EXCLUDED.value, was = EXCLUDED.was, token = EXCLUDED.token, sequence = NULL, set_at = EXCLUDED.set_at, record = EXCLUDED.record`),
			watermarkHash(m.WatermarkKey), toText(m.Job), toText(m.Source), *watermarkText(m.To), watermarkText(m.From), m.Token, v.SetAt, sealWatermark(v)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(`DELETE FROM {s}.locks WHERE hash = $1 AND sequence = $2`), lock, uuid.Nil); err != nil {
			return err
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "watermark.set", Key: commitstep.Key{Job: m.Job, Dataset: m.Source}, Before: m.From.String(), After: m.To.String()})
	})
}

// AcceptWatermarks lets a job of an adopted store ingest again and returns how
// many watermarks it has. Accepting again only adds an audit row.
func (s *Store) AcceptWatermarks(ctx context.Context, job string, p store.Person) (int, error) {
	if err := checkPerson(p); err != nil {
		return 0, err
	}
	if err := commitstep.CheckName("job", job); err != nil {
		return 0, err
	}
	n := 0
	err := s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		if err := s.mayRun(ctx, tx); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, s.sql(`SELECT count(*) FROM {s}.watermarks WHERE job = $1`), toText(job)).Scan(&n); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(`INSERT INTO {s}.accepted (hash, job, adoption, at) SELECT $1, $2, adoptions, now() FROM {s}.store
			ON CONFLICT (hash) DO UPDATE SET adoption = EXCLUDED.adoption, at = EXCLUDED.at`), jobHash(job), toText(job)); err != nil {
			return err
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "watermark.accept", Key: commitstep.Key{Job: job}, After: fmt.Sprintf("%d watermarks", n)})
	})
	return n, err
}
