package boltstore

import (
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

func (p *progressPage) done(i int) bool {
	return p != nil && i/8 < len(p.Done) && p.Done[i/8]&(1<<(i%8)) != 0
}

func (p *progressPage) setDone(i int) {
	for len(p.Done) <= i/8 {
		p.Done = append(p.Done, 0)
	}
	p.Done[i/8] |= 1 << (i % 8)
}

func (p *progressPage) note(i int) *stepNote {
	if p.Steps == nil {
		p.Steps = make(map[int]*stepNote)
	}
	n := p.Steps[i]
	if n == nil {
		n = new(stepNote)
		p.Steps[i] = n
	}
	return n
}

// of gives the progress of the i-th step of the page.
func (p *progressPage) of(i int) commitstep.Progress {
	if p == nil {
		return commitstep.Progress{}
	}
	var out commitstep.Progress
	if n := p.Steps[i]; n != nil {
		out = *n
	}
	out.Done = p.done(i)
	return out
}

// apply carries out an event on step i of the page. Repeating an event changes
// nothing, since a driver that did not hear the answer sends it again.
func (p *progressPage) apply(i int, e *store.Event) {
	switch e.Type {
	case store.EventDone, store.EventMove:
		p.setDone(i)
	case store.EventAttempt:
		beginAttempt(p.note(i), e.Attempt)
	case store.EventOutcome:
		endAttempt(p.note(i), e.Attempt)
	case store.EventNote:
		p.note(i).Note = e.Data
	case store.EventNoReturn:
		p.note(i).NoReturn = e.Data
	}
}

// counts reports whether an attempt counts against the cap: one without an
// outcome does, since a step that kills its process must be capped too.
func counts(a *commitstep.AttemptRecord) int {
	switch a.Outcome {
	case commitstep.AttemptDone, commitstep.AttemptStopped, commitstep.AttemptWaiting:
		return 0
	}
	return 1
}

func findAttempt(n *stepNote, number int) *commitstep.AttemptRecord {
	for i := len(n.Attempts) - 1; i >= 0; i-- {
		if n.Attempts[i].Number == number {
			return &n.Attempts[i]
		}
	}
	return nil
}

func beginAttempt(n *stepNote, a commitstep.AttemptRecord) {
	if findAttempt(n, a.Number) != nil {
		return
	}
	n.Attempts = append(n.Attempts, a)
	if extra := len(n.Attempts) - commitstep.KeptAttempts; extra > 0 {
		n.Attempts = append([]commitstep.AttemptRecord(nil), n.Attempts[extra:]...)
	}
	n.Count++
	n.Failed += counts(&a)
}

// endAttempt also takes outcomes of attempts that were never begun in the
// store: the first one of a plan costs no write of its own.
func endAttempt(n *stepNote, a commitstep.AttemptRecord) {
	old := findAttempt(n, a.Number)
	if old == nil {
		beginAttempt(n, a)
		return
	}
	before := counts(old)
	old.Outcome, old.Class, old.Error, old.Ended = a.Outcome, a.Class, a.Error, a.Ended
	if a.Driver != "" {
		old.Driver = a.Driver
	}
	// A reset in between has forgotten the attempt already.
	n.Failed = max(0, n.Failed+counts(old)-before)
}
