package boltstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// maxQueued is how many events of one sequence may wait before they are
// written without regard to the delay, which bounds the memory they take.
const maxQueued = 32_768

// Record writes events of one sequence, all or none, in order; see
// [store.Store]. A watermark move is always written durably.
func (s *Store) Record(ctx context.Context, f store.Fence, durable bool, events ...store.Event) error {
	if len(events) == 0 {
		return nil
	}
	durable = durable || slices.ContainsFunc(events, func(e store.Event) bool { return e.Type == store.EventMove })
	if !durable {
		return s.recordBehind(f, events)
	}
	if err := s.check(f, events); err != nil {
		return err
	}
	events = ownEvents(events)
	return s.write(ctx, func(t *txn) error {
		q, err := t.fenced(f)
		if err != nil {
			return err
		}
		if err := t.load(q); err != nil {
			return err
		}
		values, err := t.checkMoves(q, events)
		if err != nil {
			return err
		}
		t.applyEvents(q, t.queuedEvents(q), events)
		for _, v := range values {
			t.putWatermark(v)
		}
		t.save(q)
		return nil
	})
}

// check is the part of Record's refusals that needs no transaction.
func (s *Store) check(f store.Fence, events []store.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.failure()
	}
	q, err := s.fencedLocked(f)
	if err != nil {
		return err
	}
	return checkEvents(q.id, q.steps, events)
}

func (s *Store) recordBehind(f store.Fence, events []store.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.failed != nil {
		return s.failure()
	}
	q, err := s.fencedLocked(f)
	if err != nil {
		return err
	}
	if err := checkEvents(q.id, q.steps, events); err != nil {
		return err
	}
	q.queue = appendMarks(q.queue, events)
	s.queued[q] = struct{}{}
	s.scheduleFlush(len(q.queue)-q.taken > maxQueued)
	return nil
}

// scheduleFlush makes sure that what is queued is written within MarkDelay, or
// at once. s.mu must be held.
func (s *Store) scheduleFlush(now bool) {
	if now && s.flushing && s.timer != nil && s.timer.Stop() {
		s.flushing = false
	}
	if s.flushing {
		return
	}
	s.flushing = true
	delay := s.o.MarkDelay
	if now {
		delay = 0
	}
	// Posting to a queue that was closed meanwhile is refused, and Close has
	// flushed by itself.
	s.timer = time.AfterFunc(delay, func() { _ = s.q.Post(s.flushOp) })
}

// flushOp writes all queued events of all sequences.
func (s *Store) flushOp(t *txn) error {
	s.mu.Lock()
	s.flushing = false
	list := make([]*seq, 0, len(s.queued))
	for q := range s.queued {
		list = append(list, q)
	}
	s.mu.Unlock()
	for _, q := range list {
		if q.gone {
			continue
		}
		if err := t.load(q); err != nil {
			// Its header was readable when the events came: the file is being
			// damaged. The sequence is set aside, the others go on.
			s.distrust(q, err)
			continue
		}
		if events := t.queuedEvents(q); events != nil {
			t.applyEvents(q, events, nil)
			t.save(q)
		}
	}
	return nil
}

// Park stops a sequence durably until a person decides, and releases the
// claim. Parking again replaces the reason.
func (s *Store) Park(ctx context.Context, f store.Fence, p store.Parking, events ...store.Event) error {
	if p.Reason == "" {
		return fmt.Errorf("boltstore: park sequence %s: a reason is required", f.ID)
	}
	if err := s.check(f, events); err != nil {
		return err
	}
	events = ownEvents(events)
	return s.write(ctx, func(t *txn) error {
		q, err := t.fenced(f)
		if err != nil {
			return err
		}
		if err := t.load(q); err != nil {
			return err
		}
		if q.cond.Cleaning {
			return fmt.Errorf("sequence %s is completed: %w", q.id, commitstep.ErrFenced)
		}
		values, err := t.checkMoves(q, events)
		if err != nil {
			return err
		}
		t.applyEvents(q, t.queuedEvents(q), events)
		for _, v := range values {
			t.putWatermark(v)
		}
		q.cond.State, q.cond.Reason, q.cond.ParkStep, q.cond.ParkTold = commitstep.Parked, p.Reason, p.Step, false
		if p.Message != "" {
			q.cond.Message = p.Message
		}
		t.save(q)
		t.then(func() {
			if q.epoch == f.Epoch {
				q.holder = nil
				s.cold = append(s.cold, q)
			}
		})
		return nil
	})
}

// ParkTold notes that every OnPark succeeded for the current park. On a
// sequence that is not parked (any more) it does nothing.
func (s *Store) ParkTold(ctx context.Context, f store.Fence) error {
	return s.write(ctx, func(t *txn) error {
		q, err := t.fenced(f)
		if err != nil {
			return err
		}
		if err := t.load(q); err != nil {
			return err
		}
		if q.cond.State != commitstep.Parked || q.cond.ParkTold {
			return nil
		}
		t.applyEvents(q, t.queuedEvents(q), nil)
		q.cond.ParkTold = true
		t.save(q)
		return nil
	})
}
