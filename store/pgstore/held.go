package pgstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// maxQueued is how many events of one sequence may wait before they are
// written without regard to the delay.
const maxQueued = 4096

// held is what this process knows of a sequence that one of its instances
// claimed. While the lease lasts nobody else writes the sequence, so its steps
// and their progress are served from here.
type held struct {
	id    uuid.UUID
	epoch uint64
	owner uuid.UUID // the instance that claimed it
	term  *term
	steps int
	// page and progress are those of a short sequence; nil for a long one, or
	// after a write whose outcome this process did not learn.
	page     []commitstep.Step
	progress []commitstep.Progress
	// marks: the database may hold done marks or notes of it.
	marks bool
	// queue holds events recorded behind, flight those that a commit carries
	// right now. gen changes whenever one of them does.
	queue  []store.Event
	flight []store.Event
	gen    uint64
}

// hold remembers a sequence that was just put or claimed. s.mu must be held.
func (s *Store) hold(h *held) {
	s.held[h.id] = h
	delete(s.queued, h.id)
}

// drop forgets a sequence that this process no longer holds. Events that are
// still queued go on: their claim decides. s.mu must be held.
func (s *Store) drop(f store.Fence) {
	if h := s.held[f.ID]; h != nil && (h.epoch < f.Epoch || s.holdOf(f) != nil) {
		delete(s.held, f.ID)
		delete(s.queued, f.ID)
	}
}

// holdOf returns what is known under f; nil when this process does not hold it
// by that claim. s.mu must be held.
func (s *Store) holdOf(f store.Fence) *held {
	if h := s.held[f.ID]; h != nil && h.epoch == f.Epoch && (f.Owner == uuid.Nil || h.owner == f.Owner) {
		return h
	}
	return nil
}

// fence is what writes of what was recorded behind are conditional on.
func (h *held) fence() store.Fence {
	return store.Fence{ID: h.id, Epoch: h.epoch, Owner: h.owner}
}

// alive reports whether the lease of t certainly still runs. s.mu must be held.
func (s *Store) alive(t *term) bool {
	return t != nil && s.terms[t.instance.ID] == t && time.Now().Before(t.until)
}

// lose remembers claims, or the claim of a put, of which this process does not
// know whether they were made, or will be. Sequences under them are held by an
// instance that does not know of them, and that instance may claim them again.
func (s *Store) lose(claims ...[16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = append(s.lost, claims...)
}

// behind queues events; false when the sequence is not held here.
func (s *Store) behind(f store.Fence, events []store.Event) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true, ErrClosed
	}
	h := s.held[f.ID]
	if h == nil || f.Epoch > h.epoch {
		return false, nil
	}
	if h.epoch == f.Epoch && s.holdOf(f) == nil {
		return false, nil
	}
	if h.epoch != f.Epoch {
		return true, fmt.Errorf("sequence %s is at epoch %d, this driver holds %d: %w", f.ID, h.epoch, f.Epoch, commitstep.ErrFenced)
	}
	if err := checkEvents(f.ID, h.steps, events); err != nil {
		return true, err
	}
	h.queue = append(h.queue, events...)
	h.gen++
	h.apply(events)
	s.queued[f.ID] = h
	s.scheduleFlush(len(h.queue) > maxQueued)
	return true, nil
}

// apply brings the copy of the progress up to date.
func (h *held) apply(events []store.Event) {
	if h.progress == nil {
		return
	}
	for i := range events {
		if e := &events[i]; e.Type != store.EventMessage && e.Step < len(h.progress) {
			applyEvent(&h.progress[e.Step], e)
		}
	}
}

// take moves the queued events into flight, for a commit. s.mu must be held.
func (h *held) take() []store.Event {
	if len(h.queue) == 0 {
		return h.flight
	}
	h.flight = append(h.flight, h.queue...)
	h.queue = nil
	h.gen++
	return h.flight[:len(h.flight):len(h.flight)]
}

// landed ends the flight. s.mu must be held.
func (h *held) landed() {
	h.flight = nil
	h.gen++
}

// forget makes the next look go to the database.
func (h *held) forget() { h.page, h.progress, h.marks = nil, nil, true }

// scheduleFlush makes sure that what is queued is written within MarkDelay, or
// at once. s.mu must be held.
func (s *Store) scheduleFlush(now bool) {
	if s.timer == nil {
		s.timer = time.AfterFunc(s.o.MarkDelay, s.flush)
		if !now {
			return
		}
	}
	if now {
		s.timer.Reset(0)
	} else if len(s.queued) == 1 {
		s.timer.Reset(s.o.MarkDelay)
	}
}

// flush posts a write for every sequence with queued events.
func (s *Store) flush() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return // Close writes them
	}
	list := s.takeQueued()
	s.mu.Unlock()
	for _, o := range list {
		// Refused only after Close, which then has written them itself.
		_ = s.q.Post(o)
	}
}

// takeQueued makes a write of each sequence with queued events. s.mu must be held.
func (s *Store) takeQueued() []*op {
	var list []*op
	for _, h := range s.queued {
		list = append(list, &op{kind: opRecord, fence: h.fence()})
	}
	clear(s.queued)
	return list
}

// applyEvent carries out an event on the progress of its step. Repeating one
// changes nothing.
func applyEvent(p *commitstep.Progress, e *store.Event) {
	switch e.Type {
	case store.EventDone, store.EventMove:
		p.Done = true
	case store.EventAttempt:
		beginAttempt(p, e.Attempt)
	case store.EventOutcome:
		endAttempt(p, e.Attempt)
	case store.EventNote:
		p.Note = e.Data
	case store.EventNoReturn:
		p.NoReturn = e.Data
	}
}

// counts reports whether an attempt counts against the cap: one without an
// outcome does, since a step that kills its process must be capped too.
func counts(outcome string) int {
	switch outcome {
	case commitstep.AttemptDone, commitstep.AttemptStopped, commitstep.AttemptWaiting:
		return 0
	}
	return 1
}

func findAttempt(p *commitstep.Progress, number int) int {
	return slices.IndexFunc(p.Attempts, func(a commitstep.AttemptRecord) bool { return a.Number == number })
}

func beginAttempt(p *commitstep.Progress, a commitstep.AttemptRecord) {
	if findAttempt(p, a.Number) >= 0 {
		return
	}
	p.Attempts = append(slices.Clone(p.Attempts), a)
	if extra := len(p.Attempts) - commitstep.KeptAttempts; extra > 0 {
		p.Attempts = p.Attempts[extra:]
	}
	p.Count++
	p.Failed += counts(a.Outcome)
}

// endAttempt also takes outcomes of attempts that were never begun in the
// store: the first one of a plan costs no write of its own.
func endAttempt(p *commitstep.Progress, a commitstep.AttemptRecord) {
	i := findAttempt(p, a.Number)
	if i < 0 {
		beginAttempt(p, a)
		return
	}
	p.Attempts = slices.Clone(p.Attempts)
	old := &p.Attempts[i]
	before := counts(old.Outcome)
	old.Outcome, old.Class, old.Error, old.Ended = a.Outcome, a.Class, a.Error, a.Ended
	if a.Driver != "" {
		old.Driver = a.Driver
	}
	p.Failed = max(0, p.Failed+counts(a.Outcome)-before)
}
