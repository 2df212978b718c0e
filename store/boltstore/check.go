package boltstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"os"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// maxProblems bounds how many problems one Check lists.
const maxProblems = 1000

// Check reads everything, history included, and yields every problem found, in
// words: pages, sums, checksums, contents, and whether the records agree with
// each other. It changes nothing; writers wait while it runs. The error is for
// a check that could not be made.
func (s *Store) Check(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		c := &checker{ctx: ctx}
		if err := s.write(ctx, c.run); err != nil {
			yield("", fmt.Errorf("check: %w", err))
			return
		}
		for _, p := range c.problems {
			if !yield(p, nil) {
				return
			}
		}
	}
}

type checker struct {
	ctx      context.Context
	t        *txn
	problems []string
	more     int
	headers  map[uuid.UUID]bool // sequences with a header
	hurt     bool               // some header cannot be read
	lastNo   uint64             // of the audit
}

func (c *checker) add(format string, a ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, fmt.Sprintf(format, a...))
	} else {
		c.more++
	}
}

// run is an operation of the committer: the transaction has written nothing
// yet, so the file is as of the last commit and stands still.
func (c *checker) run(t *txn) error {
	c.t, c.headers = t, make(map[uuid.UUID]bool)
	f, err := os.Open(t.s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	x, err := readIndex(f, fi.Size())
	if err != nil {
		c.add("%s", err)
		return nil // what the pages hold is beyond trust
	}
	for _, b := range x.bad {
		c.add("record %s: %s", b.where(), b.err)
	}
	c.hurt = x.hasBad(tabLive, tabCleaning)
	for tab := tabLive; tab < tableCount; tab++ {
		if t.bucket(tab) == nil {
			continue
		}
		cur := t.bucket(tab).Cursor()
		for k, v := cur.First(); k != nil; k, v = cur.Next() {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			payload, err := commitstep.Open(recordTypes[tab], k, v)
			if err != nil { // listed above
				if tab == tabAudit && len(k) == 8 {
					c.lastNo = binary.BigEndian.Uint64(k)
				}
				continue
			}
			if err := c.record(tab, k, payload); err != nil {
				c.add("record %s: %s", (&badRecord{tab: tab, key: k}).where(), err)
			}
		}
	}
	if c.more > 0 {
		c.problems = append(c.problems, fmt.Sprintf("and %d more problems", c.more))
	}
	return nil
}

// record holds one record against its key and against the others.
func (c *checker) record(tab table, k, payload []byte) error {
	switch tab {
	case tabLive, tabCleaning:
		return c.header(tab, k, payload)
	case tabPages:
		id, n, err := parsePageKey(k)
		if err != nil {
			return err
		}
		_, err = decodeSteps(payload, n*store.PageSize)
		return c.belongs(id, err)
	case tabProgress:
		id, _, err := parsePageKey(k)
		if err != nil {
			return err
		}
		return c.belongs(id, decode(payload, new(progressPage)))
	case tabConditions:
		id, err := parseID(k)
		if err != nil {
			return err
		}
		return c.belongs(id, decode(payload, new(conditionRecord)))
	case tabLocks:
		return c.lock(k, payload)
	case tabWatermarks:
		var v commitstep.WatermarkValue
		if err := decode(payload, &v); err != nil {
			return err
		}
		if string(pairKey(v.Job, v.Source)) != string(k) || v.Watermark.IsNone() {
			return damaged("it is of watermark %q of job %q", v.Source, v.Job)
		}
	case tabAccepted:
		return decode(payload, new(acceptRecord))
	case tabPlanIDs:
		var r store.PlanRecord
		if err := decode(payload, &r); err != nil {
			return err
		}
		if string(tripleKey(r.Key, r.PlanID)) != string(k) {
			return damaged("it is of plan id %q of dataset %s", r.PlanID, r.Key)
		}
		if r.State.Live() {
			return damaged("it has no outcome")
		}
	case tabHistory:
		_, err := decodeHistory(k, c.t.get(tab, k))
		return err
	case tabAudit:
		var e store.AuditEntry
		if err := decode(payload, &e); err != nil {
			return err
		}
		if len(k) != 8 || binary.BigEndian.Uint64(k) != e.Number {
			return damaged("it calls itself number %d", e.Number)
		}
		if e.Number != c.lastNo+1 {
			c.add("audit: number %d follows number %d", e.Number, c.lastNo)
		}
		c.lastNo = e.Number
	case tabAside:
		return decode(payload, new(asideRecord))
	case tabPaths:
		var r pathRecord
		if err := decode(payload, &r); err != nil {
			return err
		}
		if len(k) != len(commitstep.PathDigest{}) || r == (pathRecord{}) {
			return damaged("it names no sequence")
		}
	}
	return nil
}

// belongs completes the check of a record that is part of a sequence. Records
// whose sequence ended wait for their removal, or are kept on purpose.
func (c *checker) belongs(id uuid.UUID, err error) error {
	if err != nil || c.hurt {
		return err
	}
	if _, ok := c.headers[id]; ok {
		return nil
	}
	s := c.t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.garbage) > 0 || len(s.dropIDs) > 0 || len(s.putting) > 0 || c.t.get(tabHistory, id[:]) != nil {
		return nil
	}
	return damaged("sequence %s has no header", id)
}

func (c *checker) header(tab table, k, payload []byte) error {
	raw, steps, err := splitHeader(payload)
	if err != nil {
		return err
	}
	id, err := headerID(raw)
	if err != nil {
		return err
	}
	c.headers[id] = true
	var dataset commitstep.Key
	if tab == tabLive {
		dataset, err = parseLiveKey(k)
	} else {
		dataset, _, err = parseTriple(k)
	}
	if err != nil {
		return err
	}
	h, err := decodeHeader(raw, dataset)
	if err != nil {
		return err
	}
	if h.ID != id {
		return damaged("the header does not start with its id")
	}
	// A condition that cannot be read is listed with its own record.
	if cond, err := readCondition(c.t, c.t.s, h); err == nil && cond.State.Live() != (tab == tabLive) {
		return damaged("a sequence that is %s is kept in %q", cond.State, tab)
	}
	for _, lock := range locksOf(h) {
		if tab != tabLive {
			break
		}
		var r lockRecord
		key := []byte(lock)
		if rec := c.t.get(tabLocks, key); rec == nil {
			c.add("dataset %s: its lock %q is missing", h.Key, lock)
		} else if openRecord(commitstep.RecordLock, key, rec, &r) == nil && r.ID != h.ID {
			c.add("dataset %s: its lock %q is held by sequence %s", h.Key, lock, r.ID)
		}
	}
	if steps != nil {
		list, err := decodeSteps(steps, 0)
		if err == nil && len(list) != h.Steps {
			err = damaged("it has %d steps and should have %d", len(list), h.Steps)
		}
		return err
	}
	for n := 0; n*store.PageSize < h.Steps; n++ {
		key := pageKey(h.ID, n)
		rec := c.t.get(tabPages, key)
		if rec == nil {
			return damaged("page %d of its %d steps is missing", n, h.Steps)
		}
		page, err := commitstep.Open(commitstep.RecordPage, key, rec)
		if err != nil {
			continue // listed with its own record
		}
		list, err := decodeSteps(page, n*store.PageSize)
		if err != nil {
			return err
		}
		if want := min(store.PageSize, h.Steps-n*store.PageSize); len(list) != want {
			return damaged("page %d has %d steps and should have %d", n, len(list), want)
		}
	}
	return nil
}

func (c *checker) lock(k, payload []byte) error {
	var r lockRecord
	if err := decode(payload, &r); err != nil {
		return err
	}
	if _, ok := c.headers[r.ID]; !ok && !c.hurt {
		return damaged("it is held by sequence %s, which is not live", r.ID)
	}
	return nil
}
