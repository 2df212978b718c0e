package pgstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Steps returns page n of a sequence with its progress, queued marks included;
// see [store.Store]. Pages of an abandoned sequence are served until its history
// is pruned, since its staging may still have to be removed.
func (s *Store) Steps(ctx context.Context, id uuid.UUID, n int) (store.Page, error) {
	if err := s.open(); err != nil {
		return store.Page{}, err
	}
	if p, ok := s.cachedPage(id, n); ok {
		return p, nil
	}
	for {
		s.mu.Lock()
		var gen uint64
		if h := s.held[id]; h != nil {
			gen = h.gen
		}
		s.mu.Unlock()
		page, err := s.readPage(ctx, id, n)
		if err != nil {
			return store.Page{}, err
		}
		// Queued events are added to what the database said. If they were
		// written, or more came, between the two looks, both are done again.
		s.mu.Lock()
		h := s.held[id]
		if h != nil && h.gen != gen {
			s.mu.Unlock()
			continue
		}
		if h != nil {
			first := n * store.PageSize
			for _, list := range [][]store.Event{h.flight, h.queue} {
				for i := range list {
					if e := &list[i]; e.Type != store.EventMessage && e.Step >= first && e.Step < first+len(page.Steps) {
						applyEvent(&page.Progress[e.Step-first], e)
					}
				}
			}
		}
		s.mu.Unlock()
		return page, nil
	}
}

// cachedPage serves a short sequence from memory while the lease under which
// it is held certainly lasts: nobody else can have written it.
func (s *Store) cachedPage(id uuid.UUID, n int) (store.Page, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[id]
	if n != 0 || h == nil || h.page == nil || !s.alive(h.term) {
		return store.Page{}, false
	}
	return store.Page{Steps: slices.Clone(h.page), Progress: slices.Clone(h.progress)}, true
}

func (s *Store) readPage(ctx context.Context, id uuid.UUID, n int) (store.Page, error) {
	none := func() error { return fmt.Errorf("page %d of sequence %s: %w", n, id, commitstep.ErrNotFound) }
	if n < 0 {
		return store.Page{}, none()
	}
	var body []byte
	var bad *string
	var newer *bool
	var job, dataset string
	found := false
	var all *progressSet
	err := s.read(ctx, func(b *pgx.Batch) {
		found = false
		b.Queue(s.sql(`SELECT x.job, x.dataset, coalesce(p.body, CASE WHEN $2 = 0 THEN d.steps END), q.problem, q.newer
			FROM (SELECT id, job, dataset FROM {s}.sequences WHERE id = $1
				UNION ALL SELECT id, job, dataset FROM {s}.history WHERE id = $1 AND state = 'abandoned') x
			LEFT JOIN {s}.documents d ON d.id = x.id LEFT JOIN {s}.pages p ON p.sequence = x.id AND p.page = $2
			LEFT JOIN {s}.quarantine q ON q.sequence = x.id LIMIT 1`), id, n).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				if err := rows.Scan(&job, &dataset, &body, &bad, &newer); err != nil {
					return err
				}
			}
			return rows.Err()
		})
		all = s.queueProgress(b, [][16]byte{id}, n*store.PageSize, (n+1)*store.PageSize)
	})
	key := commitstep.Key{Job: fromText(job), Dataset: fromText(dataset)}
	switch {
	case err != nil:
		return store.Page{}, err
	case found && bad != nil:
		return store.Page{}, quarantinedErr(key, "documents/"+id.String(), *bad, *newer)
	case !found || body == nil:
		return store.Page{}, none()
	}
	steps, err := openPage(id, n, n*store.PageSize, body)
	if err == nil {
		err = all.bad[id]
	}
	if err != nil {
		err = fmt.Errorf("page %d of sequence %s of dataset %s: %w", n, id, key, err)
		if isFormat(err) {
			r := liveRow{id: id, hash: keyHash(key), job: job, dataset: dataset}
			if err := s.setAside(ctx, r, err); err != nil {
				return store.Page{}, err
			}
		}
		return store.Page{}, err
	}
	p := store.Page{Number: n, Steps: steps}
	p.Progress, _ = all.page(id, n, len(steps))
	return p, nil
}

// progressSet is what is known of the steps of some sequences.
type progressSet struct {
	marks map[stepID][]byte
	steps map[stepID]*commitstep.Progress
	bad   map[uuid.UUID]error
}

func (s *Store) progressOf(ctx context.Context, ids [][16]byte) (*progressSet, error) {
	var all *progressSet
	if err := s.read(ctx, func(b *pgx.Batch) { all = s.queueProgress(b, ids, 0, store.PageSize) }); err != nil {
		return nil, err
	}
	for _, err := range all.bad {
		return nil, err
	}
	return all, nil
}

// queueProgress queues the statements that read marks, notes and attempts of
// the steps from first to below end.
func (s *Store) queueProgress(b *pgx.Batch, ids [][16]byte, first, end int) *progressSet {
	all := &progressSet{marks: map[stepID][]byte{}, steps: map[stepID]*commitstep.Progress{}, bad: map[uuid.UUID]error{}}
	at := func(id uuid.UUID, step int) *commitstep.Progress {
		k := stepID{id, step}
		if all.steps[k] == nil {
			all.steps[k] = &commitstep.Progress{}
		}
		return all.steps[k]
	}
	b.Queue(s.sql(`SELECT sequence, page, done FROM {s}.progress WHERE sequence = ANY($1::uuid[]) AND page >= $2 AND page < $3`), ids, first/store.PageSize, (end+store.PageSize-1)/store.PageSize).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var k stepID
				var bits pgtype.Bits
				if err := rows.Scan(&k.sequence, &k.n, &bits); err != nil {
					return err
				}
				all.marks[k] = bits.Bytes
			}
			return rows.Err()
		})
	b.Queue(s.sql(`SELECT sequence, step, note, no_return FROM {s}.step_notes WHERE sequence = ANY($1::uuid[]) AND step >= $2 AND step < $3`), ids, first, end).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id uuid.UUID
				var step int
				var note, noReturn []byte
				if err := rows.Scan(&id, &step, &note, &noReturn); err != nil {
					return err
				}
				p := at(id, step)
				for _, x := range []struct {
					record []byte
					what   byte
					to     *[]byte
				}{{note, 'n', (*[]byte)(&p.Note)}, {noReturn, 'r', (*[]byte)(&p.NoReturn)}} {
					if x.record == nil {
						continue
					}
					payload, err := commitstep.Open(commitstep.RecordProgress, noteKey(id, step, x.what), x.record)
					if err != nil {
						all.bad[id] = fmt.Errorf("note of step %d of sequence %s: %w", step, id, err)
						continue
					}
					if len(payload) > 0 {
						*x.to = payload
					}
				}
			}
			return rows.Err()
		})
	// The newest attempts, and the counts over all of them.
	b.Queue(s.sql(`SELECT * FROM (SELECT sequence, step, number, started, ended, outcome, class, error, driver,
			count(*) OVER w AS n, count(*) FILTER (WHERE NOT forgiven AND outcome NOT IN ('done', 'stopped', 'waiting')) OVER w AS failed,
			row_number() OVER (PARTITION BY sequence, step ORDER BY number DESC) AS age
		FROM {s}.attempts WHERE sequence = ANY($1::uuid[]) AND step >= $2 AND step < $3 WINDOW w AS (PARTITION BY sequence, step)) x
		WHERE age <= `+fmt.Sprint(commitstep.KeptAttempts)+` ORDER BY sequence, step, number`), ids, first, end).
		Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id uuid.UUID
				var step int
				var a commitstep.AttemptRecord
				var started, ended pgtype.Timestamptz
				var outcome, class, text, driver string
				var count, failed int
				var age int64
				if err := rows.Scan(&id, &step, &a.Number, &started, &ended, &outcome, &class, &text, &driver, &count, &failed, &age); err != nil {
					return err
				}
				a.Outcome, a.Class, a.Error, a.Driver = fromText(outcome), fromText(class), fromText(text), fromText(driver)
				if started.Valid {
					a.Started = started.Time.UTC()
				}
				if ended.Valid {
					a.Ended = ended.Time.UTC()
				}
				p := at(id, step)
				p.Attempts = append(p.Attempts, a)
				p.Count, p.Failed = count, failed
			}
			return rows.Err()
		})
	return all
}

// page gives the progress of count steps of page n, and whether the database
// holds marks or notes of them.
func (all *progressSet) page(id uuid.UUID, n, count int) (out []commitstep.Progress, any bool) {
	out = make([]commitstep.Progress, count)
	bits := all.marks[stepID{id, n}]
	any = bits != nil
	for i := range out {
		if p := all.steps[stepID{id, n*store.PageSize + i}]; p != nil {
			out[i] = *p
			any = any || p.Note != nil || p.NoReturn != nil
		}
		if i/8 < len(bits) && bits[i/8]&(0x80>>(i%8)) != 0 {
			out[i].Done = true
		}
	}
	return out, any
}
