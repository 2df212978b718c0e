package boltstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// where is the table and key of the header's record.
func (q *seq) where() (table, []byte) {
	if q.cleaning {
		return tabCleaning, cleaningKey(q.key, q.id)
	}
	return tabLive, liveKey(q.key)
}

// now is the time for records: wall clock, in UTC.
func (s *Store) now() time.Time { return s.o.Clock.Now().Round(0).UTC() }

// fenced is the sequence that f may write, or ErrFenced. It is called by the
// committer, so that no other write can come in between.
func (t *txn) fenced(f store.Fence) (*seq, error) {
	t.s.mu.Lock()
	q, err := t.s.fencedLocked(f)
	t.s.mu.Unlock()
	if err == nil && q.gone {
		err = fmt.Errorf("sequence %s has ended: %w", f.ID, commitstep.ErrFenced)
	}
	return q, err
}

func (s *Store) fencedLocked(f store.Fence) (*seq, error) {
	q := s.seqs[f.ID]
	if q == nil {
		return nil, fmt.Errorf("sequence %s has an outcome or is not here: %w", f.ID, commitstep.ErrFenced)
	}
	if q.epoch != f.Epoch {
		return nil, fmt.Errorf("sequence %s is at epoch %d, this driver holds %d: %w", f.ID, q.epoch, f.Epoch, commitstep.ErrFenced)
	}
	return q, nil
}

// load brings header and condition of q into its caches.
func (t *txn) load(q *seq) error {
	if q.header == nil {
		tab, key := q.where()
		rec := t.get(tab, key)
		if rec == nil {
			return damaged("the header of sequence %s is missing", q.id)
		}
		raw, _, err := openHeader(key, rec)
		if err != nil {
			return fmt.Errorf("dataset %s: %w", q.key, err)
		}
		if q.header, err = decodeHeader(raw, q.key); err != nil {
			return fmt.Errorf("dataset %s: %w", q.key, err)
		}
	}
	if q.cond == nil {
		c, err := readCondition(t, t.s, q.header)
		if err != nil {
			return fmt.Errorf("dataset %s: %w", q.key, err)
		}
		q.cond, q.stored = c, t.get(tabConditions, q.id[:]) != nil
	}
	return nil
}

// readCondition reads the changing part of a sequence. Without a record the
// sequence is as it was put, if the absence of a record can be trusted.
func readCondition(r reads, s *Store, h *commitstep.Header) (*conditionRecord, error) {
	rec := r.get(tabConditions, h.ID[:])
	if rec == nil {
		if err := s.absent(tabConditions, h.ID[:]); err != nil {
			return nil, err
		}
		c := &conditionRecord{Condition: freshCondition(h, commitstep.Instance{})}
		c.seen = visibleOf(&c.Condition)
		return c, nil
	}
	c := new(conditionRecord)
	if err := openRecord(commitstep.RecordCondition, h.ID[:], rec, c); err != nil {
		return nil, err
	}
	c.seen = visibleOf(&c.Condition)
	return c, nil
}

// save writes the condition of q after a change: with it the newest epoch and
// owner become durable.
func (t *txn) save(q *seq) {
	t.s.mu.Lock()
	q.cond.Epoch = q.epoch
	if q.holder != nil {
		q.cond.Owner = q.holder.instance
	}
	t.s.mu.Unlock()
	if v := visibleOf(&q.cond.Condition); v != q.cond.seen {
		q.cond.Version++
		q.cond.seen = v
	}
	q.cond.Updated = t.s.now()
	rec, err := sealRecord(commitstep.RecordCondition, q.id[:], q.cond)
	if err != nil {
		t.err = err
		return
	}
	if q.stored {
		t.put(tabConditions, q.id[:], rec)
	} else {
		t.insert(tabConditions, q.id[:], rec)
		q.stored = true
	}
}

// queuedEvents takes the events of q that no running transaction carries yet.
// They leave the queue once the transaction is durable.
func (t *txn) queuedEvents(q *seq) []mark {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	events := q.queue[q.taken:]
	if len(events) == 0 {
		return nil
	}
	if q.taken == 0 {
		t.then(func() {
			q.queue = append([]mark(nil), q.queue[q.taken:]...)
			q.taken = 0
			q.gen++
			if len(q.queue) == 0 {
				q.queue = nil
				delete(t.s.queued, q)
			}
		})
	}
	q.taken = len(q.queue)
	return events[:len(events):len(events)]
}

// applyEvents carries out events on the progress of q. It must only be called
// once nothing can refuse the operation any more.
func (t *txn) applyEvents(q *seq, queued []mark, events []store.Event) {
	pages := make(map[int]*progressPage)
	page := func(step int) *progressPage {
		n := step / store.PageSize
		if pages[n] == nil {
			pages[n] = t.loadProgress(q, n)
		}
		return pages[n]
	}
	for _, m := range queued {
		if m.event != nil && m.event.Type == store.EventMessage {
			q.cond.Message = m.event.Message
		} else if p := page(m.step); p != nil {
			p.applyMark(m.step%store.PageSize, m)
		}
	}
	for i := range events {
		if e := &events[i]; e.Type == store.EventMessage {
			q.cond.Message = e.Message
		} else if p := page(e.Step); p != nil {
			p.apply(e.Step%store.PageSize, e)
		}
	}
	if t.err != nil {
		return
	}
	for n, p := range pages {
		t.saveProgress(q, n, p)
	}
}

// loadProgress returns the progress of page n, to be changed and saved; nil
// when it cannot be read, which t.err then says.
func (t *txn) loadProgress(q *seq, n int) *progressPage {
	if !q.long {
		if q.cond.Progress == nil {
			q.cond.Progress = new(progressPage)
		}
		return q.cond.Progress
	}
	p := new(progressPage)
	key := pageKey(q.id, n)
	if rec := t.get(tabProgress, key); rec != nil {
		if err := openRecord(commitstep.RecordProgress, key, rec, p); err != nil {
			t.err = fmt.Errorf("progress of dataset %s: %w", q.key, err)
			return nil
		}
	} else if err := t.s.absent(tabProgress, key); err != nil {
		t.err = err
		return nil
	}
	return p
}

func (t *txn) saveProgress(q *seq, n int, p *progressPage) {
	if !q.long || t.err != nil {
		return // it travels with the condition
	}
	key := pageKey(q.id, n)
	rec, err := sealRecord(commitstep.RecordProgress, key, p)
	if err != nil {
		t.err = err
		return
	}
	t.put(tabProgress, key, rec)
}

// mark is an event recorded behind. Without an event it is a done mark, of
// which a long sequence queues very many.
type mark struct {
	step  int
	event *store.Event
}

func (p *progressPage) applyMark(i int, m mark) {
	if m.event == nil {
		p.setDone(i)
	} else {
		p.apply(i, m.event)
	}
}

// appendMarks queues copies of events.
func appendMarks(queue []mark, events []store.Event) []mark {
	for i := range events {
		e := &events[i]
		if e.Type == store.EventDone {
			queue = append(queue, mark{step: e.Step})
		} else {
			queue = append(queue, mark{step: e.Step, event: &ownEvents(events[i : i+1])[0]})
		}
	}
	return queue
}

// checkEvents refuses events that could not be stored, before they are queued.
func checkEvents(id uuid.UUID, steps int, events []store.Event) error {
	for i := range events {
		e := &events[i]
		switch {
		case e.Type < store.EventDone || e.Type > store.EventMessage:
			return fmt.Errorf("boltstore: sequence %s: event type %d is unknown", id, e.Type)
		case e.Type != store.EventMessage && (e.Step < 0 || e.Step >= steps):
			return fmt.Errorf("boltstore: sequence %s: an event names step %d of %d", id, e.Step, steps)
		case len(e.Data) > 0 && !json.Valid(e.Data):
			return fmt.Errorf("boltstore: sequence %s: the note of step %d is not valid JSON", id, e.Step)
		}
	}
	return nil
}

// ownEvents copies events, since the caller may use its memory again.
func ownEvents(events []store.Event) []store.Event {
	out := append([]store.Event(nil), events...)
	for i := range out {
		if out[i].Data != nil {
			out[i].Data = append(json.RawMessage(nil), out[i].Data...)
		}
		if out[i].Type == store.EventNoReturn && len(out[i].Data) == 0 {
			// An empty value must still be a mark.
			out[i].Data = json.RawMessage("null")
		}
	}
	return out
}

// checkMoves judges the watermark moves among events against what is stored
// and returns the values to be written. It writes nothing.
func (t *txn) checkMoves(q *seq, events []store.Event) ([]commitstep.WatermarkValue, error) {
	var out []commitstep.WatermarkValue
	for i := range events {
		if events[i].Type != store.EventMove {
			continue
		}
		m := events[i].Move
		if err := t.s.sealed(); err != nil {
			return nil, err
		}
		stored, err := t.watermark(m.WatermarkKey)
		if err != nil {
			return nil, err
		}
		v := m.Judge(stored.Watermark, stored.Token)
		switch v.Outcome {
		case commitstep.Done:
		case commitstep.NotDone:
			out = append(out, commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey, Watermark: m.To, Token: m.Token, Sequence: q.id, SetAt: t.s.now()})
		default:
			return nil, &store.StaleError{Move: m, Stored: stored.Watermark, Verdict: v}
		}
	}
	return out, nil
}
