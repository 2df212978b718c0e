package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// reads is what a read and a write transaction have in common.
type reads interface {
	get(tab table, key []byte) []byte
}

// rtx reads in a read transaction.
type rtx struct{ tx *bbolt.Tx }

func (r rtx) get(tab table, key []byte) []byte {
	return r.tx.Bucket([]byte(tableNames[tab])).Get(key)
}

func (r rtx) cursor(tab table) *bbolt.Cursor {
	return r.tx.Bucket([]byte(tableNames[tab])).Cursor()
}

// LookupPlan answers what is known of a plan id of a dataset. ErrNotFound when
// it was never used.
func (s *Store) LookupPlan(ctx context.Context, key commitstep.Key, planID string) (store.PlanRecord, error) {
	var rec store.PlanRecord
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		var known bool
		var err error
		rec, known, err = lookupPlan(rtx{tx}, s, key, planID)
		if err == nil && !known {
			err = fmt.Errorf("plan id %q of dataset %s: %w", planID, key, commitstep.ErrNotFound)
		}
		return err
	})
	return rec, err
}

// lookupPlan looks among the outcomes, then at the live sequence: a plan id
// gets a record of its own only with its outcome.
func lookupPlan(r reads, s *Store, key commitstep.Key, planID string) (store.PlanRecord, bool, error) {
	k := tripleKey(key, planID)
	if raw := r.get(tabPlanIDs, k); raw != nil {
		var rec store.PlanRecord
		if err := openRecord(commitstep.RecordPlanID, k, raw, &rec); err != nil {
			return rec, false, fmt.Errorf("plan id %q of dataset %s: %w", planID, key, err)
		}
		return rec, true, nil
	}
	if err := s.absent(tabPlanIDs, k); err != nil {
		return store.PlanRecord{}, false, err
	}
	raw := r.get(tabLive, liveKey(key))
	if raw == nil {
		return store.PlanRecord{}, false, s.absent(tabLive, liveKey(key))
	}
	l, _, err := decodeLive(r, s, tabLive, liveKey(key), raw)
	if err != nil {
		return store.PlanRecord{}, false, err
	}
	if l.PlanID != planID {
		return store.PlanRecord{}, false, nil
	}
	return store.PlanRecord{Key: key, PlanID: planID, Hash: l.PlanHash, Sequence: l.ID, State: l.State}, true, nil
}

// decodeLive reads a header and its condition as they are in the file.
func decodeLive(r reads, s *Store, tab table, key, record []byte) (*commitstep.Live, *conditionRecord, error) {
	var dataset commitstep.Key
	var err error
	if tab == tabCleaning {
		dataset, _, err = parseTriple(key)
	} else {
		dataset, err = parseLiveKey(key)
	}
	if err != nil {
		return nil, nil, damaged("%v", err)
	}
	raw, _, err := openHeader(key, record)
	if err != nil {
		return nil, nil, fmt.Errorf("dataset %s: %w", dataset, err)
	}
	h, err := decodeHeader(raw, dataset)
	if err != nil {
		return nil, nil, fmt.Errorf("dataset %s: %w", dataset, err)
	}
	c, err := readCondition(r, s, h)
	if err != nil {
		return nil, nil, fmt.Errorf("dataset %s: %w", dataset, err)
	}
	return &commitstep.Live{Header: *h, Condition: c.Condition}, c, nil
}

// overlay adds what only memory knows: a claim that was not written yet.
func (s *Store) overlay(l *commitstep.Live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.seqs[l.ID]; q != nil && q.epoch >= l.Epoch {
		l.Epoch = q.epoch
		if q.holder != nil {
			l.Owner = q.holder.instance
		}
	}
}

// Get returns the live sequence of key, else the newest that is still
// cleaning. ErrNotFound without one, ErrDamaged when it is quarantined.
func (s *Store) Get(ctx context.Context, key commitstep.Key) (commitstep.Live, error) {
	s.mu.Lock()
	err := s.readable(key)
	s.mu.Unlock()
	if err != nil {
		return commitstep.Live{}, err
	}
	var l *commitstep.Live
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		r := rtx{tx}
		tab, k := tabLive, liveKey(key)
		rec := r.get(tab, k)
		if rec == nil {
			tab = tabCleaning
			prefix := tripleKey(key, "")
			c := r.cursor(tab)
			for ck, cv := c.Seek(prefix); ck != nil && bytes.HasPrefix(ck, prefix); ck, cv = c.Next() {
				k, rec = ck, cv
			}
		}
		if rec == nil {
			if err := s.noneOf(key); err != nil {
				return err
			}
			return fmt.Errorf("dataset %s has no sequence: %w", key, commitstep.ErrNotFound)
		}
		var err error
		l, _, err = decodeLive(r, s, tab, k, rec)
		return err
	})
	if err != nil {
		return commitstep.Live{}, err
	}
	s.overlay(l)
	return *l, nil
}

// Find is Get by sequence id.
func (s *Store) Find(ctx context.Context, id uuid.UUID) (commitstep.Live, error) {
	l, err := s.located(ctx, id, func(r rtx, tab table, key, record []byte) (*commitstep.Live, error) {
		l, _, err := decodeLive(r, s, tab, key, record)
		return l, err
	})
	if err != nil {
		return commitstep.Live{}, err
	}
	s.overlay(l)
	return *l, nil
}

// located runs fn on the header record of a sequence. Between the look at the
// index and the transaction it may move or end, so the look is repeated.
func (s *Store) located(ctx context.Context, id uuid.UUID, fn func(r rtx, tab table, key, record []byte) (*commitstep.Live, error)) (*commitstep.Live, error) {
	for {
		s.mu.Lock()
		q := s.seqs[id]
		if q == nil {
			err, live, cleaning := s.unreadable(id), s.nameless(tabLive), s.nameless(tabCleaning)
			s.mu.Unlock()
			if err != nil {
				return nil, err
			}
			return nil, s.noSequence(ctx, id, live, cleaning)
		}
		tab, key := q.where()
		s.mu.Unlock()
		var l *commitstep.Live
		moved := false
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			rec := rtx{tx}.get(tab, key)
			if rec == nil {
				moved = true
				return nil
			}
			if raw, _, err := openHeader(key, rec); err == nil {
				if have, err := headerID(raw); err == nil && have != id {
					moved = true // ended, and another took the key
					return nil
				}
			}
			var err error
			l, err = fn(rtx{tx}, tab, key, rec)
			return err
		})
		if err != nil || !moved {
			return l, err
		}
		// The move is durable but not yet in memory, which takes a moment; a
		// write of nothing returns after it.
		if err := s.write(ctx, func(*txn) error { return nil }); err != nil {
			return nil, err
		}
	}
}

// noSequence is the error for an id that no readable header has. live and
// cleaning are the errors of headers that cannot be read: it may be one of
// them, but not a live one if it has its outcome.
func (s *Store) noSequence(ctx context.Context, id uuid.UUID, live, cleaning error) error {
	unsure := cleaning
	if live != nil {
		if _, err := s.LookupHistory(ctx, id); err != nil {
			unsure = live
		}
	}
	if unsure != nil {
		return fmt.Errorf("sequence %s may be the one that cannot be read: %w", id, unsure)
	}
	return fmt.Errorf("sequence %s: %w", id, commitstep.ErrNotFound)
}

// Steps returns page n of a sequence with its progress, queued marks included;
// see [store.Store].
func (s *Store) Steps(ctx context.Context, id uuid.UUID, n int) (store.Page, error) {
	for {
		s.mu.Lock()
		var gen uint64
		var queue []mark
		if q := s.seqs[id]; q != nil {
			gen, queue = q.gen, q.queue[:len(q.queue):len(q.queue)]
		}
		s.mu.Unlock()
		page := store.Page{Number: n}
		var progress *progressPage
		_, err := s.located(ctx, id, func(r rtx, tab table, key, record []byte) (*commitstep.Live, error) {
			var err error
			page.Steps, progress, err = readPage(r, s, id, n, key, record)
			return nil, err
		})
		if errors.Is(err, commitstep.ErrNotFound) {
			return s.orKept(ctx, id, n, err)
		}
		if err != nil {
			return store.Page{}, err
		}
		// Queued events are added to what the file said. If they were written
		// between the two looks, both are done again.
		s.mu.Lock()
		q := s.seqs[id]
		same := q != nil && q.gen == gen
		s.mu.Unlock()
		if !same {
			continue
		}
		first := n * store.PageSize
		for _, m := range queue {
			if m.step >= first && m.step < first+len(page.Steps) && (m.event == nil || m.event.Type != store.EventMessage) {
				if progress == nil {
					progress = new(progressPage)
				}
				progress.applyMark(m.step-first, m)
			}
		}
		page.Progress = make([]commitstep.Progress, len(page.Steps))
		for i := range page.Progress {
			page.Progress[i] = progress.of(i)
		}
		return page, nil
	}
}

func readPage(r rtx, s *Store, id uuid.UUID, n int, key, record []byte) ([]commitstep.Step, *progressPage, error) {
	_, raw, err := openHeader(key, record)
	if err != nil {
		return nil, nil, err
	}
	past := func() error { return fmt.Errorf("page %d of sequence %s: %w", n, id, commitstep.ErrNotFound) }
	if n < 0 {
		return nil, nil, past()
	}
	progress := new(progressPage)
	if raw != nil {
		if n > 0 {
			return nil, nil, past()
		}
		if rec := r.get(tabConditions, id[:]); rec != nil {
			var c conditionRecord
			if err := openRecord(commitstep.RecordCondition, id[:], rec, &c); err != nil {
				return nil, nil, fmt.Errorf("condition of sequence %s: %w", id, err)
			}
			if c.Progress != nil {
				progress = c.Progress
			}
		} else if err := s.absent(tabConditions, id[:]); err != nil {
			return nil, nil, err
		}
	} else {
		return readLongPage(r, s, id, n)
	}
	steps, err := decodeSteps(raw, n*store.PageSize)
	return steps, progress, err
}

// readLongPage reads a page that is kept apart from its header.
func readLongPage(r rtx, s *Store, id uuid.UUID, n int) ([]commitstep.Step, *progressPage, error) {
	progress := new(progressPage)
	k := pageKey(id, n)
	rec := r.get(tabPages, k)
	if rec == nil {
		if err := s.absent(tabPages, k); err != nil {
			return nil, nil, err
		}
		return nil, nil, fmt.Errorf("page %d of sequence %s: %w", n, id, commitstep.ErrNotFound)
	}
	raw, err := commitstep.Open(commitstep.RecordPage, k, rec)
	if err != nil {
		return nil, nil, fmt.Errorf("page %d of sequence %s: %w", n, id, err)
	}
	if rec := r.get(tabProgress, k); rec != nil {
		if err := openRecord(commitstep.RecordProgress, k, rec, progress); err != nil {
			return nil, nil, fmt.Errorf("progress of page %d of sequence %s: %w", n, id, err)
		}
	} else if err := s.absent(tabProgress, k); err != nil {
		return nil, nil, err
	}
	steps, err := decodeSteps(raw, n*store.PageSize)
	return steps, progress, err
}

func isFormat(err error) bool {
	return errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat)
}
