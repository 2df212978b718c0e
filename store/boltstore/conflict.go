package boltstore

import (
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// What stands in the way of a put: a plan id, a lock, another sequence.

// checkPlanID refuses a plan id that is known, as the contract of Put says.
func (t *txn) checkPlanID(h *commitstep.Header) error {
	if h.PlanID == "" {
		return nil
	}
	rec, known, err := lookupPlan(t, t.s, h.Key, h.PlanID)
	if err != nil || !known {
		return err
	}
	switch {
	case rec.Hash != h.PlanHash:
		return fmt.Errorf("plan id %q of dataset %s: %w (sequence %s, %s); give the new plan a new id", h.PlanID, h.Key, commitstep.ErrPlanConflict, rec.Sequence, rec.State)
	case rec.State == commitstep.Abandoned:
		return fmt.Errorf("plan id %q of dataset %s: %w (sequence %s); give a new plan a new id", h.PlanID, h.Key, commitstep.ErrAbandoned, rec.Sequence)
	}
	return &store.AlreadyError{Record: rec}
}

// locksOf are the locks of a sequence: those it names, and those of the
// watermarks it moves, which a watermark step names too.
func locksOf(h *commitstep.Header) []string {
	if len(h.Moves) == 0 {
		return h.Locks
	}
	locks := slices.Clone(h.Locks)
	for _, m := range h.Moves {
		locks = append(locks, m.Lock())
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

// checkLock refuses a lock that a live sequence holds.
func (t *txn) checkLock(lock string) error {
	k := []byte(lock)
	rec := t.get(tabLocks, k)
	if rec == nil {
		return t.s.absent(tabLocks, k)
	}
	var l lockRecord
	if err := openRecord(commitstep.RecordLock, k, rec, &l); err != nil {
		return fmt.Errorf("lock %q: %w", lock, err)
	}
	return t.pending(l.Key, lock)
}

// pending builds the error that names the live sequence of key.
func (t *txn) pending(key commitstep.Key, lock string) error {
	k := liveKey(key)
	rec := t.get(tabLive, k)
	if rec == nil {
		return damaged("lock %q names dataset %s, which has no live sequence", lock, key)
	}
	raw, _, err := openHeader(k, rec)
	if err != nil {
		return fmt.Errorf("dataset %s: %w", key, err)
	}
	id, err := headerID(raw)
	if err != nil {
		return fmt.Errorf("dataset %s: %w", key, err)
	}
	c, err := readCondition(t, t.s, &commitstep.Header{ID: id})
	if err != nil {
		return fmt.Errorf("dataset %s: %w", key, err)
	}
	return &commitstep.PendingError{Key: key, ID: id, State: c.State, Reason: c.Reason, Lock: lock}
}
