package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// Decide applies a person's decision; see [store.Decider].
func (s *Store) Decide(ctx context.Context, d store.Decision) (commitstep.Condition, error) {
	var out commitstep.Condition
	if err := checkPerson(d.Person); err != nil {
		return out, err
	}
	if d.State != commitstep.Pending && d.State != commitstep.Abandoned {
		return out, fmt.Errorf("%w: a sequence becomes pending or abandoned, not %q", commitstep.ErrDecision, d.State)
	}
	err := s.write(ctx, func(t *txn) error {
		var err error
		out, err = t.decide(d)
		return err
	})
	if err != nil {
		return commitstep.Condition{}, err
	}
	return out, nil
}

func (t *txn) decide(d store.Decision) (commitstep.Condition, error) {
	var none commitstep.Condition
	s := t.s
	if err := s.mayRun(); err != nil {
		return none, err
	}
	s.mu.Lock()
	err := s.readable(d.Key)
	q := s.seqs[d.ID]
	var busy error
	if q != nil {
		busy = s.busy(q)
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return none, err
	case q == nil || q.gone || q.cleaning || q.key != d.Key:
		return none, fmt.Errorf("sequence %s of dataset %s: %w", d.ID, d.Key, commitstep.ErrNotFound)
	}
	if err := t.load(q); err != nil {
		return none, err
	}
	switch {
	case q.cond.Version != d.Version:
		return none, fmt.Errorf("sequence %s is at version %d, the decision was made on %d: %w", q.id, q.cond.Version, d.Version, commitstep.ErrVersion)
	case busy != nil && !d.Force:
		return none, busy
	case (d.MarkDone || d.ClearNoReturn) && (d.Step < 0 || d.Step >= q.header.Steps):
		return none, fmt.Errorf("%w: the sequence has no step %d", commitstep.ErrDecision, d.Step)
	}
	before := describe(q.cond.Condition)

	// Nothing refuses any more.
	s.mu.Lock()
	// A commit that fails gives up this epoch with all others in memory, and
	// goes on from it.
	q.epoch++
	q.holder = nil
	s.mu.Unlock()
	t.applyEvents(q, t.queuedEvents(q), nil)
	t.applyDecision(q, d)
	if t.err != nil {
		return none, t.err
	}
	q.cond.State, q.cond.Reason, q.cond.ParkStep, q.cond.ParkTold = d.State, "", -1, false
	q.cond.Owner = commitstep.Instance{} // no claim has this epoch
	if d.State == commitstep.Abandoned {
		if err := t.end(q, commitstep.Abandoned, false, d.Notes, q.cond.Message, nil); err != nil {
			t.err = err
			return none, err
		}
		q.cond.Version++
		q.cond.Epoch = t.epoch(q)
		q.cond.Updated = s.now()
	} else {
		q.cond.seen = visible{} // a decision is seen, whatever it leaves
		t.save(q)
		t.then(func() { s.cold = append(s.cold, q) })
	}
	t.audit(store.AuditEntry{Person: d.Person, Action: "resolve", Key: q.key, Sequence: q.id, Decision: string(d.Kind), Before: before, After: describe(q.cond.Condition)})
	return q.cond.Condition, nil
}

func describe(c commitstep.Condition) string {
	if c.Reason == "" {
		return string(c.State)
	}
	return string(c.State) + " " + string(c.Reason)
}

// applyDecision changes the progress as the decision says.
func (t *txn) applyDecision(q *seq, d store.Decision) {
	if d.ResetAttempts {
		for _, n := range t.progressPages(q) {
			p := t.loadProgress(q, n)
			if p == nil {
				return
			}
			for _, note := range p.Steps {
				note.Failed = 0
			}
			t.saveProgress(q, n, p)
		}
	}
	if d.MarkDone && !slices.Contains(q.cond.DeclaredPublished, d.Step) {
		q.cond.DeclaredPublished = append(q.cond.DeclaredPublished, d.Step)
	}
	if !d.MarkDone && !d.ClearNoReturn {
		return
	}
	n, i := d.Step/store.PageSize, d.Step%store.PageSize
	p := t.loadProgress(q, n)
	if p == nil {
		return
	}
	if d.MarkDone {
		p.setDone(i)
	}
	if d.ClearNoReturn {
		note := p.note(i)
		note.Note, note.NoReturn = nil, nil
	}
	t.saveProgress(q, n, p)
}

// progressPages lists the pages of which anything is known.
func (t *txn) progressPages(q *seq) []int {
	if !q.long {
		return []int{0}
	}
	var out []int
	c := t.bucket(tabProgress).Cursor()
	for k, _ := c.Seek(q.id[:]); k != nil && bytes.HasPrefix(k, q.id[:]); k, _ = c.Next() {
		if _, n, err := parsePageKey(k); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// ReleaseQuarantine reads the damaged records of a dataset again. When all can
// be read now (by a newer program, say), the dataset counts again; otherwise
// the first one's error is returned, which matches ErrDamaged or
// ErrNewerFormat. ErrNotFound when nothing of it is quarantined.
func (s *Store) ReleaseQuarantine(ctx context.Context, key commitstep.Key, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	return s.write(ctx, func(t *txn) error {
		bad := s.badOf(key)
		if len(bad) == 0 {
			return fmt.Errorf("dataset %s is not quarantined: %w", key, commitstep.ErrNotFound)
		}
		x := &index{seqs: make(map[uuid.UUID]*seq)}
		for _, b := range bad {
			rec := t.get(b.tab, b.key)
			if rec == nil {
				return b.error()
			}
			if _, err := commitstep.Open(recordTypes[b.tab], b.key, rec); err != nil {
				b.err = err
				return b.error()
			}
		}
		k := liveKey(key)
		if rec := t.get(tabLive, k); rec != nil {
			if x.record(tabLive, k, rec); len(x.bad) > 0 {
				return x.bad[0].error()
			}
			for _, q := range x.seqs {
				if err := t.load(q); err != nil {
					return err
				}
				q.epoch = q.cond.Epoch
			}
		}
		t.audit(store.AuditEntry{Person: p, Action: "quarantine.release", Key: key})
		t.then(func() {
			s.dropBad(bad)
			for id, q := range x.seqs {
				s.seqs[id] = q
			}
			s.paths.forget()
		})
		return nil
	})
}

// badOf lists the damaged records of a dataset.
func (s *Store) badOf(key commitstep.Key) []*badRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*badRecord
	for _, b := range s.bad {
		if b.nameKnown && b.sequenceRecord() && b.dataset == key {
			out = append(out, b)
		}
	}
	return out
}

// dropBad must be called with s.mu held.
func (s *Store) dropBad(gone []*badRecord) {
	s.bad = slices.DeleteFunc(s.bad, func(b *badRecord) bool { return slices.Contains(gone, b) })
}
