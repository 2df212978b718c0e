package boltstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
)

// keptRecord is the most bytes of a header record that stay in memory while a
// driver holds the sequence, so that completing it need not read it again.
const keptRecord = 16 << 10

// pageBatch is how many bytes of pages one transaction of a long put carries,
// about: enough to make its commit worth while, little enough to be no burden
// on memory and on the writers that wait for it.
const pageBatch = 1 << 20

// Put stores a sequence, claimed by owner with epoch 1; see [store.Store].
func (s *Store) Put(ctx context.Context, d store.Draft, owner uuid.UUID) (commitstep.Live, error) {
	if err := d.Key.Validate(); err != nil {
		return commitstep.Live{}, err
	}
	if d.ID == uuid.Nil {
		return commitstep.Live{}, fmt.Errorf("boltstore: put %s: a sequence needs an id", d.Key)
	}
	ended, err := s.beginPut(ctx, d.ID)
	if err != nil {
		return commitstep.Live{}, err
	}
	defer ended()
	s.mu.Lock()
	err = s.mayPut()
	known := s.seqs[d.ID] != nil
	s.mu.Unlock()
	if err != nil {
		return commitstep.Live{}, err
	}

	p := &putting{s: s, d: d, owner: owner, known: known, buf: s.scratch.Get().(*[]byte)}
	defer s.scratch.Put(p.buf)
	stored := false
	defer func() {
		if p.written > 0 && !stored {
			p.discard()
		}
	}()
	if err := p.readPages(ctx); err != nil {
		return commitstep.Live{}, err
	}
	h, err := d.Header()
	if err != nil {
		return commitstep.Live{}, err
	}
	if err := p.setHeader(h); err != nil {
		return commitstep.Live{}, err
	}
	if d.Roots != nil {
		p.roots = d.Roots()
	}
	if err := s.write(ctx, p.apply); err != nil {
		// After a lost answer the sequence may be there: its pages stay, and if
		// it is not there, opening the file again finds them.
		stored = errors.Is(err, commitstep.ErrOutcomeUnknown)
		return commitstep.Live{}, err
	}
	stored = !p.repeated
	return p.live, nil
}

// beginPut makes sure that one sequence is put by one goroutine at a time, so
// that a repetition never writes over pages that are in use.
func (s *Store) beginPut(ctx context.Context, id uuid.UUID) (ended func(), err error) {
	for {
		s.mu.Lock()
		running := s.putting[id]
		if running == nil {
			done := make(chan struct{})
			s.putting[id] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.putting, id)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mayPut refuses puts of the whole store. s.mu must be held.
func (s *Store) mayPut() error {
	switch {
	case s.closed:
		return ErrClosed
	case s.failed != nil:
		return s.failure()
	case s.info.Stamped != "":
		return s.stampedErr()
	case s.info.SealedFor != "":
		return s.sealedErr()
	}
	for _, b := range s.bad {
		if !b.nameKnown && b.blocks() {
			return fmt.Errorf("store %q: %w: a record in %q whose dataset cannot be told; no plan may be stored, run `commitstep store check`", s.path, commitstep.ErrDamaged, b.tab)
		}
	}
	return nil
}

// putting is one put on its way.
type putting struct {
	s     *Store
	d     store.Draft
	owner uuid.UUID
	known bool // the id is live already: nothing is written

	steps   int
	pages   int
	buf     *[]byte // scratch, given back at the end
	inline  []byte  // the steps, while there is one short page; lies in buf
	written int     // pages in the file
	batch   []pageRecord
	bytes   int

	header *commitstep.Header
	roots  []commitstep.StagingRoot
	long   bool
	key    []byte
	record []byte

	live     commitstep.Live
	repeated bool
}

type pageRecord struct{ key, record []byte }

func (p *putting) readPages(ctx context.Context) error {
	var second []byte // for the pages after one that may be inline
	last := store.PageSize
	for steps, err := range p.d.Pages {
		if err != nil {
			return err
		}
		if len(steps) == 0 {
			continue
		}
		if last != store.PageSize || len(steps) > store.PageSize {
			return fmt.Errorf("boltstore: put %s: pages must have %d steps, all but the last", p.d.Key, store.PageSize)
		}
		last = len(steps)
		for i := range steps {
			if steps[i].Index != p.steps+i {
				return fmt.Errorf("boltstore: put %s: step %d calls itself %d", p.d.Key, p.steps+i, steps[i].Index)
			}
		}
		if p.pages == 0 {
			if *p.buf, err = records.AppendSteps((*p.buf)[:0], steps); err != nil {
				return err
			}
			if p.inline = *p.buf; len(p.inline) > inlineLimit {
				p.page(0, p.inline)
				p.inline = nil
			}
		} else {
			if p.inline != nil {
				p.page(0, p.inline)
				p.inline = nil
			}
			if second, err = records.AppendSteps(second[:0], steps); err != nil {
				return err
			}
			p.page(p.pages, second)
		}
		p.pages++
		p.steps += len(steps)
		if p.bytes >= pageBatch {
			if err := p.writePages(ctx); err != nil {
				return err
			}
		}
	}
	if p.steps == 0 {
		return fmt.Errorf("boltstore: put %s: a sequence needs at least one step", p.d.Key)
	}
	return p.writePages(ctx)
}

func (p *putting) page(n int, steps []byte) {
	if p.known {
		return
	}
	key := pageKey(p.d.ID, n)
	rec := commitstep.Seal(commitstep.RecordPage, key, steps)
	p.batch = append(p.batch, pageRecord{key, rec})
	p.bytes += len(rec)
}

// writePages stores pages that nothing refers to yet.
func (p *putting) writePages(ctx context.Context) error {
	if len(p.batch) == 0 {
		return nil
	}
	batch := p.batch
	p.written += len(batch)
	err := p.s.write(ctx, func(t *txn) error {
		for _, r := range batch {
			t.put(tabPages, r.key, r.record)
		}
		return nil
	})
	p.batch, p.bytes = p.batch[:0:0], 0
	return err
}

// discard removes the pages of a put that did not become a sequence. A crash
// leaves them for the next open.
func (p *putting) discard() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.s.seqs[p.d.ID] == nil {
		p.s.dropIDs = append(p.s.dropIDs, dropped{p.d.ID})
		p.s.collect()
	}
}

func (p *putting) setHeader(h commitstep.Header) error {
	if h.ID != p.d.ID || h.Key != p.d.Key {
		return fmt.Errorf("boltstore: put %s: the header is of sequence %s of dataset %s", p.d.Key, h.ID, h.Key)
	}
	if h.Steps != p.steps {
		return fmt.Errorf("boltstore: put %s: the header counts %d steps, the pages have %d", p.d.Key, h.Steps, p.steps)
	}
	for _, l := range h.Locks {
		if err := commitstep.CheckName("lock", l); err != nil {
			return err
		}
	}
	if len(h.Locks) > commitstep.MaxLocks {
		return fmt.Errorf("boltstore: put %s: %d locks are more than the %d a sequence may hold", p.d.Key, len(h.Locks), commitstep.MaxLocks)
	}
	if h.PlanID != "" {
		if err := commitstep.CheckName("id", h.PlanID); err != nil {
			return err
		}
	}
	h.PageSize = store.PageSize
	h.Created = h.Created.Round(0).UTC()
	h.Cleanup = slices.Clone(h.Cleanup)
	for i := range h.Cleanup {
		h.Cleanup[i].Index = h.Steps + i
	}
	// The header goes behind the steps in the scratch memory.
	n := len(p.inline)
	both, err := records.AppendHeader((*p.buf)[:n], &h)
	if err != nil {
		return fmt.Errorf("boltstore: put %s: header: %w", p.d.Key, err)
	}
	*p.buf = both
	var steps []byte
	if p.long = n == 0; !p.long {
		steps = both[:n]
	}
	p.header = &h
	p.key = liveKey(h.Key)
	p.record = commitstep.SealBuffer(commitstep.RecordHeader, p.key, encodeHeader(both[n:], steps))
	return nil
}

// apply is the durable moment of the put.
func (p *putting) apply(t *txn) error {
	s, h := p.s, p.header
	if known, err := p.repetition(t); known || err != nil {
		return err
	}
	s.mu.Lock()
	l, err := s.owner(p.owner)
	if err == nil {
		err = s.mayPut()
	}
	if err == nil {
		err = s.readable(h.Key)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := t.checkPlanID(h); err != nil {
		return err
	}
	if t.get(tabLive, p.key) != nil {
		return t.pending(h.Key, "")
	}
	locks := locksOf(h)
	for _, lock := range locks {
		if err := t.checkLock(lock); err != nil {
			return err
		}
	}
	for _, m := range h.Moves {
		stored, err := t.watermark(m.WatermarkKey)
		if err != nil {
			return err
		}
		if v := m.Judge(stored.Watermark, stored.Token); v.Outcome != commitstep.NotDone {
			return &store.StaleError{Move: m, Stored: stored.Watermark, Verdict: v}
		}
	}
	if used, err := t.findUsed(h.Used, p.roots, h.AcceptReusedPaths != ""); used != nil || err != nil {
		if err == nil {
			err = used
		}
		return err
	}
	if err := t.remember(h.ID, p.roots); err != nil {
		return err
	}

	t.insert(tabLive, p.key, p.record)
	if len(locks) > 0 {
		holder, err := json.Marshal(lockRecord{ID: h.ID, Key: h.Key})
		if err != nil {
			return err
		}
		for _, lock := range locks {
			k := []byte(lock)
			t.insert(tabLocks, k, commitstep.Seal(commitstep.RecordLock, k, holder))
		}
	}
	p.live = commitstep.Live{Header: *h, Condition: freshCondition(h, l.instance)}
	q := &seq{id: h.ID, key: h.Key, long: p.long, epoch: 1, holder: l, steps: h.Steps, header: h,
		cond: &conditionRecord{Condition: p.live.Condition, seen: visibleOf(&p.live.Condition)}}
	if len(p.record) <= keptRecord {
		q.record = p.record
	}
	// Memory knows it before the file does: a reader that finds it in one finds
	// it in the other, and a commit that fails drops all that memory knows.
	s.mu.Lock()
	s.seqs[q.id] = q
	s.mu.Unlock()
	s.paths.add(q.id, h.Used)
	return nil
}

// repetition answers a put of a sequence that is here already, live or with an
// outcome.
func (p *putting) repetition(t *txn) (bool, error) {
	h := p.header
	t.s.mu.Lock()
	q := t.s.seqs[h.ID]
	var epoch uint64
	var owner commitstep.Instance
	if q != nil {
		epoch = q.epoch
		if q.holder != nil {
			owner = q.holder.instance
		}
	}
	t.s.mu.Unlock()
	var have *commitstep.Header
	if q != nil {
		if err := t.load(q); err != nil {
			return false, err
		}
		have = q.header
		p.live = commitstep.Live{Header: *have, Condition: q.cond.Condition}
		p.live.Epoch = epoch
		if owner.ID != uuid.Nil {
			p.live.Owner = owner
		}
	} else {
		rec, err := t.outcome(h.ID)
		if rec == nil || err != nil {
			return false, err
		}
		e, err := decodeHistory(h.ID[:], rec)
		if err != nil {
			return false, fmt.Errorf("history of sequence %s: %w", h.ID, err)
		}
		have = &commitstep.Header{ID: e.ID, Key: e.Key, PlanID: e.PlanID, PlanHash: e.PlanHash, Created: e.Created, Steps: e.Steps, Stages: e.Stages, PageSize: store.PageSize, Locks: e.Locks, Moves: e.Moves, Cleanup: e.Cleanup}
		p.live = commitstep.Live{Header: *have, Condition: commitstep.Condition{State: e.State, ParkStep: -1, Epoch: e.Epoch, Updated: e.Ended, Message: e.Message}}
	}
	if have.Key != h.Key || have.PlanHash != h.PlanHash {
		return false, fmt.Errorf("sequence id %s is taken by another plan, of dataset %s: %w; use a new id", h.ID, have.Key, commitstep.ErrPlanConflict)
	}
	p.repeated = true
	return true, nil
}
