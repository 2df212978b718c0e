package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// stampedErr is the refusal of a stamped store. One that is sealed too cannot be
// adopted, so that the seal is what there is to say.
func (s *Store) stampedErr() error {
	switch {
	case s.info.Importing:
		return fmt.Errorf("store %q: %w: %w: it is an %s", s.path, commitstep.ErrStamped, store.ErrUnfinished, s.info.Stamped)
	case s.info.SealedFor != "":
		return s.sealedErr()
	}
	return fmt.Errorf("store %q: %w (%s); nothing runs before `commitstep store adopt --reason …`", s.path, commitstep.ErrStamped, s.info.Stamped)
}

func (s *Store) sealedErr() error {
	return fmt.Errorf("store %q: %w: its copy is %s; use that one, and if `commitstep store copy` broke off, repeat it first", s.path, commitstep.ErrSealed, s.info.SealedFor)
}

// keepsSeal refuses what would have a sealed store run again, or seem to.
func (s *Store) keepsSeal(what string) error {
	if err := s.sealed(); err != nil {
		return fmt.Errorf("%s: %w (a seal is for ever: whatever is done here, nothing runs)", what, err)
	}
	return nil
}

// sealed refuses writes of watermarks in a sealed store.
func (s *Store) sealed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.info.SealedFor != "" {
		return s.sealedErr()
	}
	return nil
}

// mayRun refuses changes to a stamped copy.
func (s *Store) mayRun() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.info.Stamped != "" {
		return s.stampedErr()
	}
	return nil
}

// count is the number of records of a table whose key starts with prefix.
func (t *txn) count(tab table, prefix []byte) int {
	n := 0
	c := t.bucket(tab).Cursor()
	for k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		n++
	}
	return n
}

// putInfo changes what the store says about itself.
func (t *txn) putInfo(info storeRecord) {
	rec, err := sealRecord(commitstep.RecordMeta, keyStore, info)
	if err != nil {
		t.err = err
		return
	}
	t.put(tabMeta, keyStore, rec)
	t.then(func() { t.s.info = info })
}

func (s *Store) currentInfo() storeRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Seal refuses all puts and watermark writes from now on, for ever, since the
// store is copied to target, which the refusals name. Sealing again for the
// same target is success; for another one it is ErrSealed. A stamped store is
// refused with ErrStamped: it is for a person to say first that it counts.
func (s *Store) Seal(ctx context.Context, target string, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	if target == "" {
		return fmt.Errorf("boltstore: seal: the name of the new store is required")
	}
	return s.write(ctx, func(t *txn) error {
		info := s.currentInfo()
		if info.SealedFor == target {
			return nil
		}
		if err := s.sealed(); err != nil {
			return err
		}
		if err := s.mayRun(); err != nil {
			return err
		}
		info.SealedFor = target
		t.putInfo(info)
		t.audit(store.AuditEntry{Person: p, Action: "store.seal", After: target})
		return nil
	})
}

// Stamp marks the store as a copy that runs nothing until it is adopted; see
// [store.Stamper].
func (s *Store) Stamp(ctx context.Context, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	return s.write(ctx, func(t *txn) error {
		info := s.currentInfo()
		if info.Importing {
			return fmt.Errorf("%w: store %q is an %s", commitstep.ErrDecision, s.path, info.Stamped)
		}
		if err := s.keepsSeal("stamp"); err != nil {
			return err
		}
		if in, until, ok, err := s.LiveLease(ctx); err != nil || ok {
			if err == nil {
				err = store.AtWork("the store was not stamped", in, until)
			}
			return err
		}
		info.Stamped = fmt.Sprintf("stamped by %s at %s: %s", p.Name, s.now().Format(time.RFC3339), p.Reason)
		t.putInfo(info)
		t.audit(store.AuditEntry{Person: p, Action: "store.stamp", After: info.Stamped})
		return nil
	})
}

// Adopt lifts the stamp of a copy, in one transaction: every live sequence is
// parked ADOPTED, since the world may have moved on after the copy was made,
// no job may ingest before a person accepted its watermarks, and the store
// gets an id of its own. A store without a stamp is refused with ErrDecision, a
// sealed one with ErrSealed, since its copy goes on.
func (s *Store) Adopt(ctx context.Context, p store.Person) (int, error) {
	if err := checkPerson(p); err != nil {
		return 0, err
	}
	parked := 0
	err := s.write(ctx, func(t *txn) error {
		info := s.currentInfo()
		if err := s.keepsSeal("adopt"); err != nil {
			return err
		}
		if info.Stamped == "" {
			return fmt.Errorf("%w: store %q is not a stamped copy, there is nothing to adopt", commitstep.ErrDecision, s.path)
		}
		if info.Importing {
			return fmt.Errorf("%w: store %q is an %s", commitstep.ErrDecision, s.path, info.Stamped)
		}
		for _, q := range s.snapshotSeqs() {
			if q.gone || q.cleaning {
				continue
			}
			if err := t.load(q); err != nil {
				s.distrust(q, err)
				continue
			}
			if q.cond.State == commitstep.Parked && q.cond.Reason != commitstep.Adopted {
				q.cond.Message = fmt.Sprintf("was %s before the adoption: %s", q.cond.Reason, q.cond.Message)
			}
			q.cond.State, q.cond.Reason, q.cond.ParkStep, q.cond.ParkTold = commitstep.Parked, commitstep.Adopted, -1, false
			t.save(q)
			t.then(func() { s.cold = append(s.cold, q) })
			parked++
		}
		id, err := uuid.NewV7()
		if err != nil {
			t.err = err
			return err
		}
		before := info.Stamped
		info.Stamped, info.ID = "", id
		info.Adoptions++
		t.putInfo(info)
		t.audit(store.AuditEntry{Person: p, Action: "store.adopt", Before: before, After: fmt.Sprintf("%d sequences parked", parked)})
		return nil
	})
	if err != nil {
		return 0, err
	}
	return parked, nil
}
