package boltstore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// asideRecord keeps the bytes of a damaged record that a person gave up.
type asideRecord struct {
	Table   string    `json:"table"`
	Key     []byte    `json:"key"`
	Value   []byte    `json:"value"`
	Problem string    `json:"problem"`
	At      time.Time `json:"at"`
}

// AbandonQuarantine gives up what is damaged of a dataset: its sequence ends
// as abandoned, its key and locks are free, and the damaged bytes are kept
// aside in the store. The zero key stands for the records whose dataset cannot
// be told; a (job, source) for a damaged watermark, which then counts as never
// set. ErrNotFound when nothing of the key is damaged.
func (s *Store) AbandonQuarantine(ctx context.Context, key commitstep.Key, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	return s.write(ctx, func(t *txn) error {
		if err := s.mayRun(); err != nil {
			return err
		}
		bad := s.badOf(key)
		if len(bad) == 0 {
			bad = s.badElsewhere(key)
		}
		if len(bad) == 0 {
			return fmt.Errorf("nothing of dataset %s is quarantined: %w", key, commitstep.ErrNotFound)
		}
		ended, err := t.abandonRest(key, bad)
		if err != nil {
			return err
		}
		for _, b := range bad {
			t.setAside(b)
		}
		t.freeLocks()
		t.audit(store.AuditEntry{Person: p, Action: "quarantine.abandon", Key: key, Sequence: ended, Before: bad[0].where(), After: "kept aside"})
		if t.err != nil {
			return t.err
		}
		t.then(func() { s.dropBad(bad) })
		return nil
	})
}

// badElsewhere lists the damaged watermarks of (job, source), or with the zero
// key all records that cannot be named.
func (s *Store) badElsewhere(key commitstep.Key) []*badRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*badRecord
	for _, b := range s.bad {
		switch {
		case key == (commitstep.Key{}):
			if !b.nameKnown && b.blocks() || b.stray() {
				out = append(out, b)
			}
		case b.tab == tabWatermarks && b.nameKnown && bytes.Equal(b.certainKey(), pairKey(key.Job, key.Dataset)):
			out = append(out, b)
		}
	}
	return out
}

// abandonRest ends the sequence of a dataset whose header can still be read;
// only some of its other records are damaged then.
func (t *txn) abandonRest(key commitstep.Key, bad []*badRecord) (uuid.UUID, error) {
	k := liveKey(key)
	for _, b := range bad {
		if b.tab == tabLive || b.tab == tabCleaning || b.tab == tabWatermarks || !b.nameKnown {
			return b.id, nil
		}
	}
	rec := t.get(tabLive, k)
	if rec == nil {
		return uuid.Nil, nil
	}
	x := &index{seqs: make(map[uuid.UUID]*seq)}
	x.record(tabLive, k, rec)
	for _, q := range x.seqs {
		raw, _, err := openHeader(k, rec)
		if err != nil {
			return q.id, err
		}
		if q.header, err = decodeHeader(raw, key); err != nil {
			return q.id, err
		}
		if c, err := readCondition(t, t.s, q.header); err == nil {
			q.cond, q.epoch, q.stored = c, c.Epoch, t.get(tabConditions, q.id[:]) != nil
		} else {
			c := freshCondition(q.header, commitstep.Instance{})
			q.cond = &conditionRecord{Condition: c}
		}
		// The damaged records must be set aside before the end removes them.
		for _, b := range bad {
			t.setAside(b)
		}
		if err := t.end(q, commitstep.Abandoned, false, store.HistoryNotes{DeclaredPublished: q.cond.DeclaredPublished}, "abandoned because "+bad[0].err.Error(), nil); err != nil {
			t.err = err
			return q.id, err
		}
		return q.id, nil
	}
	return uuid.Nil, nil
}

// setAside moves a damaged record out of its table. Doing it twice is harmless.
func (t *txn) setAside(b *badRecord) {
	rec := t.get(b.tab, b.key)
	if rec == nil || t.err != nil {
		return
	}
	payload, err := json.Marshal(asideRecord{Table: b.tab.String(), Key: b.key, Value: rec, Problem: b.err.Error(), At: t.s.now()})
	if err != nil {
		t.err = err
		return
	}
	id, err := uuid.NewV7()
	if err != nil {
		t.err = err
		return
	}
	t.s.paths.forget()
	t.put(tabAside, id[:], commitstep.Seal(commitstep.RecordMeta, id[:], payload))
	t.del(b.tab, b.key)
	// What the sum holds for the record as it once was goes with it.
	t.sums[b.tab].Hash -= b.excess
	b.excess = 0
}

// freeLocks removes locks whose holder has no live sequence any more.
func (t *txn) freeLocks() {
	var gone [][]byte
	c := t.bucket(tabLocks).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		var l lockRecord
		if openRecord(commitstep.RecordLock, k, v, &l) == nil && t.get(tabLive, liveKey(l.Key)) == nil {
			gone = append(gone, bytes.Clone(k))
		}
	}
	for _, k := range gone {
		t.del(tabLocks, k)
	}
}
