package pgstore

import (
	"context"
	"errors"
	"iter"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Export yields all that the store holds; see [store.Copier]. The store should
// be sealed, or it is no whole.
func (s *Store) Export(ctx context.Context) iter.Seq2[store.CopyItem, error] {
	return func(yield func(store.CopyItem, error) bool) {
		for _, part := range []func(context.Context, func(store.CopyItem) bool) (bool, error){
			s.exportStore, s.exportRows, s.exportHistory, s.exportSequences, s.exportPaths, s.exportAudit} {
			more, err := part(ctx, func(it store.CopyItem) bool { return yield(it, nil) })
			if err != nil {
				yield(store.CopyItem{}, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

func (s *Store) exportStore(_ context.Context, give func(store.CopyItem) bool) (bool, error) {
	i := s.Info()
	s.mu.Lock()
	adoptions := s.adopted
	s.mu.Unlock()
	return give(store.CopyItem{Store: &store.CopyStore{ID: i.ID, Location: i.Location, Adoptions: adoptions}}), nil
}

// exportRows gives watermarks, acceptances and plan ids.
func (s *Store) exportRows(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	for v, err := range s.ListWatermarks(ctx, "") {
		if err != nil {
			return false, err
		}
		if !give(store.CopyItem{Watermark: &v}) {
			return false, nil
		}
	}
	after := uuid.Nil
	for {
		var items []store.CopyItem
		err := s.read(ctx, func(b *pgx.Batch) {
			items = nil
			b.Queue(s.sql(`SELECT hash, job, adoption, at FROM {s}.accepted WHERE hash > $1 ORDER BY hash LIMIT 500`), after).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					var a store.CopyAccepted
					var job string
					if err := rows.Scan(&after, &job, &a.Adoption, &a.At); err != nil {
						return err
					}
					a.Job, a.At = fromText(job), a.At.UTC()
					items = append(items, store.CopyItem{Accepted: &a})
				}
				return rows.Err()
			})
		})
		if ok, err := giveAll(items, err, give); !ok || err != nil {
			return ok, err
		}
		if len(items) < 500 {
			break
		}
	}
	after = uuid.Nil
	for {
		var items []store.CopyItem
		err := s.read(ctx, func(b *pgx.Batch) {
			items = nil
			b.Queue(s.sql(`SELECT hash, job, dataset, plan_id, plan_hash, sequence, state FROM {s}.plan_ids WHERE hash > $1 ORDER BY hash LIMIT 500`), after).Query(func(rows pgx.Rows) error {
				for rows.Next() {
					var p store.PlanRecord
					var job, dataset, id string
					if err := rows.Scan(&after, &job, &dataset, &id, &p.Hash, &p.Sequence, &p.State); err != nil {
						return err
					}
					p.Key, p.PlanID = commitstep.Key{Job: fromText(job), Dataset: fromText(dataset)}, fromText(id)
					items = append(items, store.CopyItem{Plan: &p})
				}
				return rows.Err()
			})
		})
		if ok, err := giveAll(items, err, give); !ok || err != nil {
			return ok, err
		}
		if len(items) < 500 {
			return true, nil
		}
	}
}

func giveAll(items []store.CopyItem, err error, give func(store.CopyItem) bool) (bool, error) {
	if err != nil {
		return false, err
	}
	for _, it := range items {
		if !give(it) {
			return false, nil
		}
	}
	return true, nil
}

// exportPages gives the pages of a sequence, as far as they are kept, and
// counts them.
func (s *Store) exportPages(ctx context.Context, id uuid.UUID, give func(store.CopyItem) bool) (n int, more bool, err error) {
	for ; ; n++ {
		p, err := s.Steps(ctx, id, n)
		if errors.Is(err, commitstep.ErrNotFound) {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
		if !give(store.CopyItem{Page: &store.CopyPage{Sequence: id, Page: p}}) {
			return n, false, nil
		}
	}
}

func (s *Store) exportSequences(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	for l, err := range s.Scan(ctx, store.Filter{}) {
		if err != nil {
			return false, err
		}
		if !give(store.CopyItem{Sequence: &l}) {
			return false, nil
		}
		if _, ok, err := s.exportPages(ctx, l.ID, give); !ok || err != nil {
			return ok, err
		}
	}
	// What could not be read was set aside and passed over, by this scan or by
	// another one before. A copy without it would let its dataset be ingested.
	q, err := s.Quarantine(ctx)
	if err == nil && len(q) > 0 {
		err = quarantinedErr(q[0].Key, q[0].Where, toText(q[0].Problem), q[0].Newer)
	}
	return err == nil, err
}

func (s *Store) exportAudit(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	for e, err := range s.ListAudit(ctx) {
		if err != nil {
			return false, err
		}
		if !give(store.CopyItem{Audit: &e}) {
			return false, nil
		}
	}
	return true, nil
}
