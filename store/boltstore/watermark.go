package boltstore

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"go.etcd.io/bbolt"
)

// watermark reads one, none when it was never set; damage is an error.
func readWatermark(r reads, s *Store, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	key := pairKey(k.Job, k.Source)
	rec := r.get(tabWatermarks, key)
	if rec == nil {
		// "None" is only true if every key of the table is certain.
		return commitstep.WatermarkValue{WatermarkKey: k}, s.absent(tabWatermarks, key)
	}
	var v commitstep.WatermarkValue
	if err := openRecord(commitstep.RecordWatermark, key, rec, &v); err != nil {
		return v, fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, err)
	}
	if v.WatermarkKey != k || v.Watermark.IsNone() {
		return v, fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, damaged("the record is of %q of job %q", v.Source, v.Job))
	}
	return v, nil
}

func (t *txn) watermark(k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	return readWatermark(t, t.s, k)
}

func (t *txn) putWatermark(v commitstep.WatermarkValue) {
	key := pairKey(v.Job, v.Source)
	v.Unaccepted = false // computed when it is read
	rec, err := sealRecord(commitstep.RecordWatermark, key, v)
	if err != nil {
		t.err = err
		return
	}
	t.put(tabWatermarks, key, rec)
}

// Watermark returns ErrNotFound when none was ever set, beside whether the job's
// watermarks wait for acceptance, and ErrDamaged, never none, when the record
// cannot be read.
func (s *Store) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	var v commitstep.WatermarkValue
	if s.currentInfo().Importing {
		return v, s.mayRun() // not none: it may not be here yet
	}
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		var err error
		if v, err = readWatermark(rtx{tx}, s, k); err != nil {
			return err
		}
		none := v.Watermark.IsNone()
		if v.Unaccepted, err = s.unaccepted(rtx{tx}, k.Job); err == nil && none {
			err = fmt.Errorf("watermark %q of job %q: %w", k.Source, k.Job, commitstep.ErrNotFound)
		}
		return err
	})
	switch {
	case errors.Is(err, commitstep.ErrNotFound):
		return commitstep.WatermarkValue{WatermarkKey: k, Unaccepted: v.Unaccepted}, err
	case err != nil:
		return commitstep.WatermarkValue{}, err
	}
	return v, nil
}

// ListWatermarks yields watermarks by job and source; job "" is all. One that
// cannot be read is yielded as an error, and the range goes on.
func (s *Store) ListWatermarks(ctx context.Context, job string) iter.Seq2[commitstep.WatermarkValue, error] {
	type item struct {
		v   commitstep.WatermarkValue
		err error
	}
	return func(yield func(commitstep.WatermarkValue, error) bool) {
		var prefix []byte
		if job != "" {
			prefix = appendPart(nil, job)
		}
		for r := range s.chunks(ctx, tabWatermarks, prefix, false) {
			if r.err != nil {
				yield(commitstep.WatermarkValue{}, r.err)
				return
			}
			var items []item
			for _, rec := range r.records {
				j, source, err := parsePair(rec.key)
				if err == nil {
					var v commitstep.WatermarkValue
					v, err = s.Watermark(ctx, commitstep.WatermarkKey{Job: j, Source: source})
					if errors.Is(err, commitstep.ErrNotFound) {
						continue
					}
					items = append(items, item{v, err})
					continue
				}
				items = append(items, item{err: damaged("watermark %x: %v", rec.key, err)})
			}
			for _, it := range items {
				if !yield(it.v, it.err) {
					return
				}
			}
		}
	}
}

// SetWatermark by hand: compare-and-set from what the person saw, audited in
// the same transaction. *PendingError while a live sequence names the key,
// *StaleError when From is not what is stored.
func (s *Store) SetWatermark(ctx context.Context, m commitstep.WatermarkMove, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	if err := commitstep.CheckName("job", m.Job); err != nil {
		return err
	}
	if err := commitstep.CheckName("watermark source", m.Source); err != nil {
		return err
	}
	if m.To.IsNone() {
		return &commitstep.PlanError{Where: fmt.Sprintf("watermark %q", m.Source), Problem: "has no value to set", Hint: "give `to` a value"}
	}
	return s.write(ctx, func(t *txn) error {
		if err := s.mayRun(); err != nil {
			return err
		}
		if err := s.sealed(); err != nil {
			return err
		}
		if err := t.checkLock(m.Lock()); err != nil {
			return err
		}
		stored, err := t.watermark(m.WatermarkKey)
		if err != nil {
			return err
		}
		switch v := m.Judge(stored.Watermark, stored.Token); v.Outcome {
		case commitstep.Done:
			return nil // set before, and only the answer was lost
		case commitstep.NotDone:
		default:
			return &store.StaleError{Move: m, Stored: stored.Watermark, Verdict: v}
		}
		t.putWatermark(commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey, Watermark: m.To, Token: m.Token, SetAt: s.now()})
		t.audit(store.AuditEntry{Person: p, Action: "watermark.set", Key: commitstep.Key{Job: m.Job, Dataset: m.Source}, Before: m.From.String(), After: m.To.String()})
		return nil
	})
}

// unaccepted reports whether the job's watermarks wait for acceptance.
func (s *Store) unaccepted(r reads, job string) (bool, error) {
	s.mu.Lock()
	adoptions := s.info.Adoptions
	s.mu.Unlock()
	if adoptions == 0 {
		return false, nil
	}
	key := []byte(job)
	rec := r.get(tabAccepted, key)
	if rec == nil {
		return true, s.absent(tabAccepted, key)
	}
	var a acceptRecord
	if err := openRecord(commitstep.RecordMeta, key, rec, &a); err != nil {
		return true, fmt.Errorf("acceptance of job %q: %w", job, err)
	}
	return a.Adoption < adoptions, nil
}

// Unaccepted reports whether the job may not ingest yet because the store was
// adopted: true for every job, also one without a watermark, until a person
// accepted it.
func (s *Store) Unaccepted(ctx context.Context, job string) (bool, error) {
	un := true
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		var err error
		un, err = s.unaccepted(rtx{tx}, job)
		return err
	})
	return un, err
}

// AcceptWatermarks lets a job of an adopted store ingest again and returns how
// many watermarks it has. Accepting again only adds an audit row.
func (s *Store) AcceptWatermarks(ctx context.Context, job string, p store.Person) (int, error) {
	if err := checkPerson(p); err != nil {
		return 0, err
	}
	if err := commitstep.CheckName("job", job); err != nil {
		return 0, err
	}
	n := 0
	err := s.write(ctx, func(t *txn) error {
		if err := s.mayRun(); err != nil {
			return err
		}
		n = t.count(tabWatermarks, appendPart(nil, job))
		s.mu.Lock()
		a := acceptRecord{Adoption: s.info.Adoptions, At: s.now()}
		s.mu.Unlock()
		rec, err := sealRecord(commitstep.RecordMeta, []byte(job), a)
		if err != nil {
			return err
		}
		t.put(tabAccepted, []byte(job), rec)
		t.audit(store.AuditEntry{Person: p, Action: "watermark.accept", Key: commitstep.Key{Job: job}, After: fmt.Sprintf("%d watermarks", n)})
		return nil
	})
	return n, err
}
