package boltstore

import (
	"bytes"
	"context"

	"github.com/google/uuid"
)

// collectStep bounds how many records one transaction of a collection removes,
// so that writers never wait long for it.
const collectStep = 64

// dropped is a sequence whose pages and progress are no longer needed.
type dropped struct{ id uuid.UUID }

// collect starts the removal, in the background and in bounded steps, of what
// no header refers to any more. A crash in between is harmless: the rest is
// found at the next open. s.mu must be held.
func (s *Store) collect() {
	if s.collects || s.closed || len(s.garbage) == 0 && len(s.dropIDs) == 0 || s.q == nil {
		return
	}
	s.collects = true
	// Post may be called with s.mu held: it only queues.
	if s.q.Post(s.collectOp) != nil {
		s.collects = false
	}
}

// collectOp removes one portion and posts the next.
func (s *Store) collectOp(t *txn) error {
	s.mu.Lock()
	s.collects = false
	n := min(len(s.garbage), collectStep)
	some := s.garbage[:n:n]
	var drop *dropped
	if n == 0 && len(s.dropIDs) > 0 {
		drop = &s.dropIDs[0]
	}
	s.mu.Unlock()
	for _, o := range some {
		if !t.keeps(o) {
			t.del(o.tab, o.key)
		}
	}
	ended := true
	if drop != nil {
		ended = t.dropPages(drop.id)
	}
	t.then(func() {
		// A store that was opened again in between has found its own garbage.
		if len(s.garbage) >= n {
			s.garbage = s.garbage[n:]
		}
		if drop != nil && ended && len(s.dropIDs) > 0 && s.dropIDs[0].id == drop.id {
			s.dropIDs = s.dropIDs[1:]
		}
		s.collect()
	})
	return nil
}

// dropPages removes up to collectStep pages and progress records of id and
// reports whether none are left.
func (t *txn) dropPages(id uuid.UUID) bool {
	n := 0
	for _, tab := range []table{tabPages, tabProgress} {
		var keys [][]byte
		c := t.bucket(tab).Cursor()
		for k, _ := c.Seek(id[:]); k != nil && bytes.HasPrefix(k, id[:]); k, _ = c.Next() {
			if n == collectStep {
				break
			}
			keys = append(keys, bytes.Clone(k))
			n++
		}
		for _, k := range keys {
			t.del(tab, k)
		}
	}
	return n < collectStep
}

// waitCollected waits until the background removal has nothing left to do.
func (s *Store) waitCollected(ctx context.Context) error {
	for {
		s.mu.Lock()
		busy := len(s.garbage) > 0 || len(s.dropIDs) > 0
		s.mu.Unlock()
		if !busy {
			return nil
		}
		// A write of nothing returns after what was queued before it.
		if err := s.write(ctx, func(*txn) error { return nil }); err != nil {
			return err
		}
	}
}
