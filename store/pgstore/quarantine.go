package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func quarantinedErr(key commitstep.Key, place, problem string, newer bool) error {
	is := commitstep.ErrDamaged
	if newer {
		is = commitstep.ErrNewerFormat
	}
	return fmt.Errorf("dataset %s: record %s: %w: %s; see `commitstep quarantine list`", key, place, is, fromText(problem))
}

// setAside notes that a sequence cannot be read, so that no driver takes it and
// its dataset is not ingested.
func (s *Store) setAside(ctx context.Context, r liveRow, why error) error {
	err := s.write(context.WithoutCancel(ctx), func(b *pgx.Batch) {
		b.Queue(s.sql(`INSERT INTO {s}.quarantine (sequence, key_hash, job, dataset, name_known, place, problem, newer)
			SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE EXISTS (SELECT FROM {s}.sequences WHERE id = $1) ON CONFLICT DO NOTHING`),
			r.id, r.hash, r.job, r.dataset, r.nameKnown(), toText(r.where()), toText(why.Error()), !errors.Is(why, commitstep.ErrDamaged))
	})
	if err != nil {
		return fmt.Errorf("%w; nor can sequence %s be set aside: %w", why, r.id, err)
	}
	return nil
}

// verifySequence reads everything of a sequence and returns the first damage.
func (s *Store) verifySequence(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	var r liveRow
	var body []byte
	if err := r.scan(tx.QueryRow(ctx, s.sql(`SELECT `+liveColumns+`, d.steps`+liveFrom+` WHERE s.id = $1`), id), &body); err != nil {
		return err
	}
	if !r.nameKnown() {
		return answered(fmt.Errorf("sequence %s: %w", id, damaged("the row's names are not those it was stored under")))
	}
	if _, err := r.live(); err != nil {
		return answered(err)
	}
	if body != nil {
		if _, err := openPage(id, 0, 0, body); err != nil {
			return answered(fmt.Errorf("steps of dataset %s: %w", r.key(), err))
		}
	}
	pages := 0
	if err := s.eachPage(ctx, tx, id, func(n int, body []byte) error {
		if n != pages {
			return answered(fmt.Errorf("dataset %s: %w", r.key(), damaged("page %d of sequence %s is missing", pages, id)))
		}
		pages++
		_, err := openPage(id, n, n*store.PageSize, body)
		return answered(err)
	}); err != nil {
		return err
	}
	if want := (r.steps + store.PageSize - 1) / store.PageSize; body == nil && pages != want {
		return answered(fmt.Errorf("dataset %s: %w", r.key(), damaged("sequence %s has %d pages of %d", id, pages, want)))
	}
	return nil
}

// eachPage calls fn with the pages of a long sequence, in order, one at a time.
func (s *Store) eachPage(ctx context.Context, tx pgx.Tx, id uuid.UUID, fn func(n int, body []byte) error) error {
	for next := 0; ; {
		var n int
		var body []byte
		err := tx.QueryRow(ctx, s.sql(`SELECT page, body FROM {s}.pages WHERE sequence = $1 AND page >= $2 ORDER BY page LIMIT 1`), id, next).Scan(&n, &body)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = fn(n, body)
		}
		if err != nil {
			return err
		}
		next = n + 1
	}
}

// ReleaseQuarantine reads the damaged sequence of a dataset again. When all of
// it can be read now, by a newer program or after a repair, the dataset counts
// again; otherwise the error matches ErrDamaged or ErrNewerFormat. ErrNotFound
// when nothing of it is quarantined.
func (s *Store) ReleaseQuarantine(ctx context.Context, key commitstep.Key, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	return s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		ids, err := s.quarantined(ctx, tx, key)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := s.verifySequence(ctx, tx, id); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, s.sql(`DELETE FROM {s}.quarantine WHERE sequence = ANY($1::uuid[])`), raw(ids)); err != nil {
			return err
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "quarantine.release", Key: key})
	})
}

func raw(ids []uuid.UUID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}

// quarantined lists the sequences of a dataset that are set aside; the zero key
// stands for those whose name cannot be told.
func (s *Store) quarantined(ctx context.Context, tx pgx.Tx, key commitstep.Key) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, s.sql(`SELECT sequence FROM {s}.quarantine WHERE CASE WHEN $2 THEN NOT name_known ELSE name_known AND key_hash = $1 END ORDER BY sequence FOR UPDATE`),
		keyHash(key), key == commitstep.Key{})
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err == nil && len(ids) == 0 {
		err = answered(fmt.Errorf("dataset %s is not quarantined: %w", key, commitstep.ErrNotFound))
	}
	return ids, err
}

// AbandonQuarantine gives up what is damaged of a dataset: its sequence ends as
// abandoned, its key and locks are free, and the damaged bytes are kept aside.
// The zero key stands for sequences whose dataset cannot be told; a (job,
// source) for a damaged watermark, which then counts as never set. ErrNotFound
// when nothing of the key is damaged.
func (s *Store) AbandonQuarantine(ctx context.Context, key commitstep.Key, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	return s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		if err := s.mayRun(ctx, tx); err != nil {
			return err
		}
		ids, err := s.quarantined(ctx, tx, key)
		if errors.Is(err, commitstep.ErrNotFound) {
			if done, werr := s.abandonWatermark(ctx, tx, token, key, p); done || werr != nil {
				return werr
			}
		}
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := s.abandonDamaged(ctx, tx, id); err != nil {
				return err
			}
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "quarantine.abandon", Key: key, Sequence: ids[0], Before: "documents/" + ids[0].String(), After: "kept aside"})
	})
}

func (s *Store) abandonDamaged(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	var problem string
	if err := tx.QueryRow(ctx, s.sql(`SELECT problem FROM {s}.quarantine WHERE sequence = $1`), id).Scan(&problem); err != nil {
		return err
	}
	for _, q := range []string{
		`INSERT INTO {s}.aside (place, body, problem) SELECT 'documents/' || id, header || coalesce(steps, ''), $2 FROM {s}.documents WHERE id = $1`,
		`INSERT INTO {s}.aside (place, body, problem) SELECT 'pages/' || sequence || '/' || page, body, $2 FROM {s}.pages WHERE sequence = $1`,
	} {
		if _, err := tx.Exec(ctx, s.sql(q), id, problem); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, s.sql(`DELETE FROM {s}.quarantine WHERE sequence = $1`), id); err != nil {
		return err
	}
	var declared []int32
	if err := tx.QueryRow(ctx, s.sql(`SELECT declared FROM {s}.sequences WHERE id = $1`), id).Scan(&declared); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	var notes store.HistoryNotes
	for _, n := range declared {
		notes.DeclaredPublished = append(notes.DeclaredPublished, int(n))
	}
	return s.end(ctx, tx, id, ending{state: commitstep.Abandoned, at: s.now(), message: "abandoned because " + problem, notes: notes, drop: true})
}

// abandonWatermark removes a watermark that cannot be read.
func (s *Store) abandonWatermark(ctx context.Context, tx pgx.Tx, token uuid.UUID, key commitstep.Key, p store.Person) (bool, error) {
	k := commitstep.WatermarkKey{Job: key.Job, Source: key.Dataset}
	rows, err := tx.Query(ctx, s.sql(`SELECT `+watermarkColumns+` FROM {s}.watermarks WHERE hash = $1 FOR UPDATE`), watermarkHash(k))
	if err != nil {
		return false, err
	}
	var bad error
	for rows.Next() {
		if _, err := scanWatermark(rows); err != nil {
			bad = err
		}
	}
	if err := rows.Err(); err != nil || bad == nil {
		return false, err
	}
	if _, ours := bad.(*verdictError); !ours {
		return false, bad
	}
	for _, q := range []string{
		`INSERT INTO {s}.aside (place, body, problem) SELECT 'watermarks/' || hash, record, $2 FROM {s}.watermarks WHERE hash = $1`,
		`DELETE FROM {s}.watermarks WHERE hash = $1 AND $2 <> ''`,
	} {
		if _, err := tx.Exec(ctx, s.sql(q), watermarkHash(k), toText(bad.Error())); err != nil {
			return false, err
		}
	}
	return true, s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "quarantine.abandon", Key: key, Before: bad.Error(), After: "kept aside"})
}
