package boltstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
)

// Complete ends a sequence as completed, in one durable write; see
// [store.Store].
func (s *Store) Complete(ctx context.Context, f store.Fence, cleaning bool, h store.HistoryNotes, events ...store.Event) error {
	err := s.check(f, events)
	if errors.Is(err, commitstep.ErrFenced) {
		// Perhaps it is completed, and only the answer was lost.
		return s.completedBefore(ctx, f, err)
	}
	if err != nil {
		return err
	}
	events = ownEvents(events)
	err = s.write(ctx, func(t *txn) error {
		q, err := t.fenced(f)
		if err != nil {
			return err
		}
		if err := t.load(q); err != nil {
			return err
		}
		switch {
		case q.cond.Cleaning:
			return nil // completed before, by the same fence
		case q.cond.State == commitstep.Parked:
			return fmt.Errorf("sequence %s was parked (%s) and waits for a person: %w", q.id, q.cond.Reason, commitstep.ErrFenced)
		}
		values, err := t.checkMoves(q, events)
		if err != nil {
			return err
		}
		for _, v := range values {
			t.putWatermark(v)
		}
		return t.end(q, commitstep.Completed, cleaning, h, "", events)
	})
	if errors.Is(err, commitstep.ErrFenced) {
		return s.completedBefore(ctx, f, err)
	}
	return err
}

// completedBefore turns fenced into success when history has the sequence
// completed under the same epoch.
func (s *Store) completedBefore(ctx context.Context, f store.Fence, fenced error) error {
	e, err := s.LookupHistory(ctx, f.ID)
	if err == nil && e.State == commitstep.Completed && e.Epoch == f.Epoch {
		return nil
	}
	if err != nil && !errors.Is(err, commitstep.ErrNotFound) {
		return err
	}
	return fenced
}

// end moves a sequence into the history and frees its key and locks. With
// cleaning its header stays, in a place where it stands in nobody's way.
func (t *txn) end(q *seq, state commitstep.State, cleaning bool, notes store.HistoryNotes, message string, events []store.Event) error {
	s, h := t.s, q.header
	tab, key := q.where()
	rec := q.record
	if rec == nil {
		rec = t.get(tab, key)
	}
	raw, steps, err := openHeader(key, rec)
	if err != nil {
		return fmt.Errorf("dataset %s: %w", q.key, err)
	}
	detail := steps
	if h.Steps > store.HistoryDetailSteps && state != commitstep.Abandoned {
		detail = nil
	}
	hist, err := encodeHistory(raw, detail, records.HistoryTail{State: state, Ended: s.now(), Epoch: t.epoch(q), Notes: notes, Message: message})
	if err != nil {
		return err
	}
	var kept []byte
	if cleaning {
		kept = encodeHeader(raw, steps)
	}
	// Nothing refuses any more, and raw and steps are copied: writes may follow.
	t.insert(tabHistory, q.id[:], commitstep.SealBuffer(commitstep.RecordHistory, q.id[:], hist))
	t.remove(tab, key, rec)
	for _, lock := range locksOf(h) {
		t.del(tabLocks, []byte(lock))
	}
	if h.PlanID != "" {
		k := tripleKey(h.Key, h.PlanID)
		rec, err := sealRecord(commitstep.RecordPlanID, k, store.PlanRecord{Key: h.Key, PlanID: h.PlanID, Hash: h.PlanHash, Sequence: h.ID, State: state})
		if err != nil {
			t.err = err
			return err
		}
		t.put(tabPlanIDs, k, rec)
	}
	s.paths.remove(q.id, h.Used)
	queued := t.queuedEvents(q)
	q.gone = true
	if !cleaning {
		// The queued events are superseded: the sequence has its outcome.
		if q.stored {
			t.del(tabConditions, q.id[:])
		}
		t.forget(q, state == commitstep.Abandoned)
		return nil
	}
	t.applyEvents(q, queued, events)
	q.cond.State, q.cond.Reason, q.cond.ParkStep, q.cond.Cleaning = state, "", -1, true
	t.save(q)
	k := cleaningKey(q.key, q.id)
	t.insert(tabCleaning, k, commitstep.SealBuffer(commitstep.RecordHeader, k, kept))
	t.then(func() { q.cleaning, q.gone, q.record = true, false, nil })
	return nil
}

// forget takes q out of the memory once the transaction is durable, and has
// the pages of a long sequence removed in the background, unless they are kept
// to tell what is staged (kept.go).
func (t *txn) forget(q *seq, keep bool) {
	s := t.s
	t.then(func() {
		delete(s.seqs, q.id)
		delete(s.queued, q)
		q.queue = nil
		q.gen++
		if q.long && !keep {
			s.dropIDs = append(s.dropIDs, dropped{q.id})
			s.collect()
		}
	})
}

func (t *txn) epoch(q *seq) uint64 {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return q.epoch
}

// Cleaned ends the cleaning state. It is written behind: if the process dies
// before, the cleanup runs again, which is harmless.
func (s *Store) Cleaned(_ context.Context, f store.Fence, report string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.failed != nil:
		return s.failure()
	}
	q, err := s.fencedLocked(f)
	if err != nil {
		return err
	}
	if !q.cleaning {
		return fmt.Errorf("sequence %s is not cleaning: %w", f.ID, commitstep.ErrFenced)
	}
	s.behind = append(s.behind, func(t *txn) error { return t.cleaned(f, report) })
	s.scheduleFlush(false)
	return nil
}

func (t *txn) cleaned(f store.Fence, report string) error {
	q, err := t.fenced(f)
	if err != nil {
		return nil // claimed by another since, who will clean it
	}
	if report != "" {
		rec := t.get(tabHistory, q.id[:])
		var r historyRecord
		if err := openRecord(commitstep.RecordHistory, q.id[:], rec, &r); err != nil {
			return nil // a damaged history is found by its readers
		}
		b, err := encodeHistory(r.Header, r.Detail, records.HistoryTail{State: r.State, Ended: r.Ended, Epoch: r.Epoch, Notes: r.Notes, Message: r.Message, CleanupReport: report})
		if err != nil {
			return nil
		}
		t.put(tabHistory, q.id[:], commitstep.SealBuffer(commitstep.RecordHistory, q.id[:], b))
	}
	tab, key := q.where()
	t.del(tab, key)
	t.del(tabConditions, q.id[:])
	q.gone = true
	t.forget(q, false)
	return nil
}
