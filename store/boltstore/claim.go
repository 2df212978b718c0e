package boltstore

import (
	"context"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// A claim raises the epoch in memory and writes nothing; the epoch becomes
// durable with the next durable write of the sequence. That is safe although a
// crash makes the next process count from the older epoch on: an epoch only
// matters against writers that still carry a lower one, and they all died with
// the process, since one process owns the file. And no effect is ever made
// under an epoch that is not durable: a driver that recovers stores the attempt
// before each effect, and a sequence is put with its epoch. After a failed
// commit, where writers survive, epochs go on from the highest in memory.

const defaultClaim = 64

// Claim gives owner up to f.Limit (default 64) sequences; see [store.Store].
// Sequences of one key are given together, so that a caller who goes on after
// the last key misses none; the limit may be passed by those of one key.
func (s *Store) Claim(ctx context.Context, owner uuid.UUID, f store.ClaimFilter) ([]commitstep.Live, error) {
	if err := s.mayClaim(owner); err != nil {
		return nil, err
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultClaim
	}
	scan := &scanner{s: s, job: f.Job, match: f.Match, after: f.After, keep: func(l *commitstep.Live) bool {
		if f.Parked {
			return l.State == commitstep.Parked && !l.ParkTold && s.free(l.ID)
		}
		return (l.State == commitstep.Pending || l.Cleaning) && s.free(l.ID)
	}}
	for {
		found, more, err := scan.next(ctx, limit)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			// All of them may have gone in the meantime; then look further.
			if out, err := s.take(ctx, owner, found, f.Parked); err != nil || len(out) > 0 {
				return out, err
			}
		}
		if !more {
			return nil, nil
		}
	}
}

// ClaimOne claims the sequence of a key, live or else cleaning, whatever its
// state. ErrNotFound, ErrDamaged, or *BusyError, also when owner holds it.
func (s *Store) ClaimOne(ctx context.Context, owner uuid.UUID, key commitstep.Key) (commitstep.Live, error) {
	if err := s.mayClaim(owner); err != nil {
		return commitstep.Live{}, err
	}
	for {
		l, err := s.Get(ctx, key)
		if err != nil {
			return commitstep.Live{}, err
		}
		s.mu.Lock()
		q := s.seqs[l.ID]
		if q != nil {
			err = s.busy(q)
		}
		s.mu.Unlock()
		if err != nil {
			return commitstep.Live{}, err
		}
		out, err := s.takeOne(ctx, owner, l)
		if err != nil || len(out) > 0 {
			if err != nil {
				return commitstep.Live{}, err
			}
			return out[0], nil
		}
		// It ended between the look and the claim; look again.
	}
}

func (s *Store) mayClaim(owner uuid.UUID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.failed != nil:
		return s.failure()
	case s.info.Stamped != "":
		return s.stampedErr()
	case s.info.SealedFor != "":
		// Its sequences live on in the new store; running them here too would
		// publish twice.
		return s.sealedErr()
	}
	_, err := s.owner(owner)
	return err
}

func (s *Store) free(id uuid.UUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.seqs[id]
	return q != nil && !s.alive(q.holder)
}

// take claims what is still free of the candidates. It runs in the committer,
// so that no write of an earlier holder can land after the condition was read.
func (s *Store) take(ctx context.Context, owner uuid.UUID, found []commitstep.Live, parked bool) ([]commitstep.Live, error) {
	return s.claimOp(ctx, owner, found, func(c *conditionRecord) bool {
		if parked {
			return c.State == commitstep.Parked && !c.ParkTold
		}
		return c.State == commitstep.Pending || c.Cleaning
	})
}

func (s *Store) takeOne(ctx context.Context, owner uuid.UUID, l commitstep.Live) ([]commitstep.Live, error) {
	out, err := s.claimOp(ctx, owner, []commitstep.Live{l}, func(*conditionRecord) bool { return true })
	if err == nil && len(out) == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q := s.seqs[l.ID]; q != nil {
			return nil, s.busy(q)
		}
	}
	return out, err
}

func (s *Store) claimOp(ctx context.Context, owner uuid.UUID, found []commitstep.Live, want func(*conditionRecord) bool) ([]commitstep.Live, error) {
	var out []commitstep.Live
	err := s.write(ctx, func(t *txn) error {
		s.mu.Lock()
		l, err := s.owner(owner)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		for i := range found {
			live, err := t.claim(&found[i], l, want)
			if isFormat(err) {
				continue // it is or will be set aside; see Quarantine
			}
			if err != nil {
				return err
			}
			if live != nil {
				out = append(out, *live)
			}
		}
		return nil
	})
	if err != nil {
		// What memory was told is undone by the reopening after a failed commit.
		return nil, fmt.Errorf("claim: %w", err)
	}
	return out, nil
}

func (t *txn) claim(found *commitstep.Live, l *lease, want func(*conditionRecord) bool) (*commitstep.Live, error) {
	s := t.s
	s.mu.Lock()
	q := s.seqs[found.ID]
	free := q != nil && !q.gone && !s.alive(q.holder)
	s.mu.Unlock()
	if !free {
		return nil, nil
	}
	if q.header == nil {
		q.header = &found.Header // immutable, and read from the same record
	}
	if err := t.load(q); err != nil {
		return nil, err
	}
	if !want(q.cond) {
		return nil, nil
	}
	live := &commitstep.Live{Header: *q.header, Condition: q.cond.Condition}
	s.mu.Lock()
	q.epoch++
	q.holder, q.steps = l, q.header.Steps
	live.Epoch, live.Owner = q.epoch, l.instance
	s.mu.Unlock()
	return live, nil
}
