package pgstore

import (
	"context"
	"errors"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// exportHistory gives outcomes, what is kept of abandoned sequences, and the
// attempts of all of them. Those of short sequences are asked for together.
func (s *Store) exportHistory(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	const together = 64
	var list []store.HistoryEntry
	for e, err := range s.ListHistory(ctx, store.HistoryFilter{}) {
		if err != nil {
			return false, err
		}
		if list = append(list, e); len(list) == together {
			if ok, err := s.exportOutcomes(ctx, list, give); !ok || err != nil {
				return ok, err
			}
			list = list[:0]
		}
	}
	return s.exportOutcomes(ctx, list, give)
}

func (s *Store) exportOutcomes(ctx context.Context, list []store.HistoryEntry, give func(store.CopyItem) bool) (bool, error) {
	var short [][16]byte
	for _, e := range list {
		if e.Steps <= store.PageSize {
			short = append(short, e.ID)
		}
	}
	of, err := s.pastAttempts(ctx, short, 0)
	if err != nil {
		return false, err
	}
	for _, e := range list {
		if !give(store.CopyItem{History: &e}) {
			return false, nil
		}
		pages := 0
		if e.State == commitstep.Abandoned && e.Detail == nil {
			n, ok, err := s.exportPages(ctx, e.ID, give)
			if !ok || err != nil {
				return ok, err
			}
			pages = n
		}
		if e.Steps > store.PageSize {
			if ok, err := s.exportLongAttempts(ctx, e.ID, pages, give); !ok || err != nil {
				return ok, err
			}
		} else if a := of[e.ID]; a != nil && pages == 0 {
			if !give(store.CopyItem{Attempts: a}) {
				return false, nil
			}
		}
	}
	return true, nil
}

// exportLongAttempts gives the attempts of a long sequence from page n on.
func (s *Store) exportLongAttempts(ctx context.Context, id uuid.UUID, n int, give func(store.CopyItem) bool) (bool, error) {
	for {
		var next *int
		err := s.read(ctx, func(b *pgx.Batch) {
			b.Queue(s.sql(`SELECT min(step) FROM {s}.attempts WHERE sequence = $1 AND step >= $2`), id, n*store.PageSize).QueryRow(func(r pgx.Row) error { return r.Scan(&next) })
		})
		if err != nil || next == nil {
			return true, err
		}
		n = *next / store.PageSize
		of, err := s.pastAttempts(ctx, [][16]byte{id}, n)
		if err != nil {
			return false, err
		}
		if a := of[id]; a != nil && !give(store.CopyItem{Attempts: a}) {
			return false, nil
		}
		n++
	}
}

// pastAttempts reads the attempts at page n of sequences that are not live or
// cleaning any more: those go with their pages.
func (s *Store) pastAttempts(ctx context.Context, ids [][16]byte, n int) (map[uuid.UUID]*store.CopyAttempts, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var out map[uuid.UUID]*store.CopyAttempts
	err := s.read(ctx, func(b *pgx.Batch) {
		out = map[uuid.UUID]*store.CopyAttempts{}
		b.Queue(s.sql(`SELECT sequence, step, number, started, ended, outcome, class, error, driver, forgiven FROM {s}.attempts a
			WHERE sequence = ANY($1::uuid[]) AND step >= $2 AND step < $3 AND NOT EXISTS (SELECT FROM {s}.sequences q WHERE q.id = a.sequence)
			ORDER BY sequence, step, number`), ids, n*store.PageSize, (n+1)*store.PageSize).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id uuid.UUID
				var step int
				var a commitstep.AttemptRecord
				var started, ended pgtype.Timestamptz
				var forgiven bool
				if err := rows.Scan(&id, &step, &a.Number, &started, &ended, &a.Outcome, &a.Class, &a.Error, &a.Driver, &forgiven); err != nil {
					return err
				}
				for _, t := range []*string{&a.Outcome, &a.Class, &a.Error, &a.Driver} {
					*t = fromText(*t)
				}
				if started.Valid {
					a.Started = started.Time.UTC()
				}
				if ended.Valid {
					a.Ended = ended.Time.UTC()
				}
				if out[id] == nil {
					out[id] = &store.CopyAttempts{Sequence: id, Number: n, Steps: map[int]commitstep.Progress{}}
				}
				p := out[id].Steps[step-n*store.PageSize]
				p.Attempts = append(p.Attempts, a)
				p.Count++
				if !forgiven {
					p.Failed += counts(a.Outcome)
				}
				out[id].Steps[step-n*store.PageSize] = p
			}
			return rows.Err()
		})
	})
	return out, err
}

// attempts imports those of a sequence with an outcome.
func (im *importer) attempts(c *store.CopyAttempts) error {
	for i, p := range c.Steps {
		if c.Number < 0 || i < 0 || i >= store.PageSize {
			return answered(errors.New("pgstore: import: attempts at a step that no page has"))
		}
		if err := im.attemptsAt(c.Sequence, c.Number*store.PageSize+i, p); err != nil {
			return err
		}
	}
	return nil
}

func (im *importer) attemptsAt(id uuid.UUID, step int, p commitstep.Progress) error {
	for _, a := range attemptsOf(p) {
		if err := im.exec(`INSERT INTO {s}.attempts (sequence, step, number, started, ended, outcome, class, error, driver, forgiven) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			id, step, a.Number, timeOrNull(a.Started), timeOrNull(a.Ended), toText(a.Outcome), toText(a.Class), toText(a.Error), toText(a.Driver), a.forgiven); err != nil {
			return err
		}
	}
	return nil
}

type pastAttempt struct {
	commitstep.AttemptRecord
	forgiven bool
}

// attemptsOf gives rows whose counts are those of p. Attempts that p counts but
// does not hold any more come back as bare rows, numbered below the others.
func attemptsOf(p commitstep.Progress) []pastAttempt {
	var out []pastAttempt
	failed := 0
	first := p.Count + 1
	for _, a := range p.Attempts {
		out = append(out, pastAttempt{AttemptRecord: a})
		failed += counts(a.Outcome)
		first = min(first, a.Number)
	}
	missing := max(0, p.Count-len(p.Attempts))
	for i := range missing {
		a := commitstep.AttemptRecord{Number: first - 1 - i, Outcome: commitstep.AttemptWaiting, Error: "not kept by the store that this was copied from"}
		if failed < p.Failed {
			a.Outcome = commitstep.AttemptFailed
			failed++
		}
		out = append(out, pastAttempt{AttemptRecord: a})
	}
	for i := range out {
		if failed > p.Failed && counts(out[i].Outcome) > 0 {
			out[i].forgiven = true
			failed--
		}
	}
	return out
}
