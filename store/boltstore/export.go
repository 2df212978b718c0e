package boltstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

var (
	_ store.Copier  = (*Store)(nil)
	_ store.Stamper = (*Store)(nil)
)

// LiveLease finds a driver instance of this process that is at work; other
// processes cannot have the file open.
func (s *Store) LiveLease(context.Context) (commitstep.Instance, time.Time, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		if s.alive(l) {
			return l.instance, l.until, true, nil
		}
	}
	return commitstep.Instance{}, time.Time{}, false, nil
}

// Export yields all that the store holds; see [store.Copier].
func (s *Store) Export(ctx context.Context) iter.Seq2[store.CopyItem, error] {
	return func(yield func(store.CopyItem, error) bool) {
		i := s.currentInfo()
		from := &store.CopyStore{ID: i.ID, Location: "bolt:" + s.path, Adoptions: i.Adoptions}
		if !yield(store.CopyItem{Store: from}, nil) {
			return
		}
		for _, part := range []func(context.Context, func(store.CopyItem) bool) (bool, error){s.exportRecords, s.exportHistory, s.exportSequences, s.exportPaths, s.exportAudit} {
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

// exportRecords gives watermarks, acceptances and plan ids.
func (s *Store) exportRecords(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	for v, err := range s.ListWatermarks(ctx, "") {
		if err != nil {
			return false, err
		}
		if !give(store.CopyItem{Watermark: &v}) {
			return false, nil
		}
	}
	for _, tab := range []table{tabAccepted, tabPlanIDs} {
		for c := range s.chunks(ctx, tab, nil, false) {
			if c.err != nil {
				return false, c.err
			}
			for _, r := range c.records {
				var it store.CopyItem
				var err error
				if tab == tabAccepted {
					var a acceptRecord
					err = openRecord(commitstep.RecordMeta, r.key, r.value, &a)
					it.Accepted = &store.CopyAccepted{Job: string(r.key), Adoption: a.Adoption, At: a.At}
				} else {
					it.Plan = new(store.PlanRecord)
					err = openRecord(commitstep.RecordPlanID, r.key, r.value, it.Plan)
				}
				if err != nil {
					return false, fmt.Errorf("%s %x: %w", tab, r.key, err)
				}
				if !give(it) {
					return false, nil
				}
			}
		}
	}
	return true, nil
}

func (s *Store) exportHistory(ctx context.Context, give func(store.CopyItem) bool) (bool, error) {
	for e, err := range s.ListHistory(ctx, store.HistoryFilter{}) {
		if err != nil {
			return false, err
		}
		if !give(store.CopyItem{History: &e}) {
			return false, nil
		}
		if e.State == commitstep.Abandoned && e.Detail == nil {
			if ok, err := s.exportPages(ctx, e.ID, give); !ok || err != nil {
				return ok, err
			}
		}
		if ok, err := s.exportAttempts(ctx, e.ID, give); !ok || err != nil {
			return ok, err
		}
	}
	return true, nil
}

// exportPages gives the pages of a sequence, as far as they are kept.
func (s *Store) exportPages(ctx context.Context, id uuid.UUID, give func(store.CopyItem) bool) (bool, error) {
	for n := 0; ; n++ {
		p, err := s.Steps(ctx, id, n)
		if errors.Is(err, commitstep.ErrNotFound) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !give(store.CopyItem{Page: &store.CopyPage{Sequence: id, Page: p}}) {
			return false, nil
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
		if ok, err := s.exportPages(ctx, l.ID, give); !ok || err != nil {
			return ok, err
		}
	}
	// The scan passes over what is quarantined. A copy without it would let its
	// dataset be ingested.
	q, err := s.Quarantine(ctx)
	if err == nil && len(q) > 0 {
		is := commitstep.ErrDamaged
		if q[0].Newer {
			is = commitstep.ErrNewerFormat
		}
		err = fmt.Errorf("store %q: record %s: %w: %s; see `commitstep quarantine list`", s.path, q[0].Where, is, q[0].Problem)
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
