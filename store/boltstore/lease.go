package boltstore

import (
	"context"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// Leases live in memory only. One process owns the file, so every lease that
// is worth anything was given by this Store; with the process all of them end,
// and the next one finds every sequence free.

// lease is one term of a driver instance. A new Join makes a new lease, so that
// what an instance held in an earlier term is not its own any more.
type lease struct {
	instance commitstep.Instance
	until    time.Time
	left     bool
}

// alive must be called with s.mu held.
func (s *Store) alive(l *lease) bool {
	return l != nil && !l.left && s.leases[l.instance.ID] == l && s.o.Clock.Now().Before(l.until)
}

// Join registers a driver instance and starts its lease of Options.LeaseTTL.
// Joining again starts a new term: sequences held in the old one are free.
func (s *Store) Join(ctx context.Context, in commitstep.Instance) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	if in.ID == uuid.Nil {
		return time.Time{}, fmt.Errorf("boltstore: a driver instance needs an id")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return time.Time{}, ErrClosed
	}
	if s.failed != nil {
		return time.Time{}, s.failure()
	}
	l := &lease{instance: in, until: s.o.Clock.Now().Add(s.o.LeaseTTL)}
	s.leases[in.ID] = l
	return l.until, nil
}

// Renew prolongs the lease by Options.LeaseTTL from now. It matches ErrFenced
// when the lease had ended, also by a failed commit.
func (s *Store) Renew(ctx context.Context, instance uuid.UUID) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return time.Time{}, ErrClosed
	}
	l := s.leases[instance]
	if !s.alive(l) {
		delete(s.leases, instance)
		return time.Time{}, fmt.Errorf("lease of instance %s: %w; join again", instance, commitstep.ErrFenced)
	}
	l.until = s.o.Clock.Now().Add(s.o.LeaseTTL)
	return l.until, nil
}

// Leave ends the lease; what the instance still holds becomes free. Leaving
// without a lease does nothing.
func (s *Store) Leave(_ context.Context, instance uuid.UUID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[instance]; l != nil {
		l.left = true
		delete(s.leases, instance)
	}
	return nil
}

// Release gives a claim back. It writes nothing; events that were recorded
// behind stay queued.
func (s *Store) Release(_ context.Context, f store.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.seqs[f.ID]; q != nil && q.epoch == f.Epoch {
		q.holder = nil
		s.cold = append(s.cold, q)
	}
	return nil
}

// Holder tells which live lease holds the sequence.
func (s *Store) Holder(_ context.Context, l commitstep.Live) (commitstep.Instance, time.Time, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.seqs[l.ID]
	if q == nil || !s.alive(q.holder) {
		return commitstep.Instance{}, time.Time{}, false, nil
	}
	return q.holder.instance, q.holder.until, true, nil
}

// busy is the error for a sequence that a live lease holds, nil otherwise. s.mu
// must be held.
func (s *Store) busy(q *seq) error {
	if !s.alive(q.holder) {
		return nil
	}
	return &store.BusyError{Key: q.key, ID: q.id, Holder: q.holder.instance, Until: q.holder.until}
}

// owner is the live lease of an instance that wants to hold something. s.mu
// must be held.
func (s *Store) owner(id uuid.UUID) (*lease, error) {
	l := s.leases[id]
	if !s.alive(l) {
		return nil, fmt.Errorf("instance %s has no lease: %w; join again", id, commitstep.ErrFenced)
	}
	return l, nil
}
