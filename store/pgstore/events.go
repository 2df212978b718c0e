package pgstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// checkEvents refuses events that could not be stored, before they are queued.
func checkEvents(id uuid.UUID, steps int, events []store.Event) error {
	for i := range events {
		e := &events[i]
		switch {
		case e.Type < store.EventDone || e.Type > store.EventMessage:
			return fmt.Errorf("pgstore: sequence %s: event type %d is unknown", id, e.Type)
		case e.Type != store.EventMessage && (e.Step < 0 || steps > 0 && e.Step >= steps):
			return fmt.Errorf("pgstore: sequence %s: an event names step %d of %d", id, e.Step, steps)
		case len(e.Data) > 0 && !commitstep.ValidJSON(e.Data):
			return fmt.Errorf("pgstore: sequence %s: the note of step %d is not valid JSON", id, e.Step)
		case e.Type == store.EventMove && e.Move.To.IsNone():
			return fmt.Errorf("pgstore: sequence %s: the move of step %d has no value to set", id, e.Step)
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
			out[i].Data = json.RawMessage("null") // an empty value must still be a mark
		}
	}
	return out
}

type stepID struct {
	sequence uuid.UUID
	n        int // step or page
}

// writes are the rows that the events of one statement come to: at most one row
// for each thing, whatever the number of events.
type writes struct {
	marks    map[stepID]*[64]byte
	attempts map[attemptID]*attemptRow
	notes    map[stepID]*noteRow
	messages map[uuid.UUID]string
	moves    []moveRow
}

type attemptID struct {
	stepID
	number int
}

type attemptRow struct {
	commitstep.AttemptRecord
	ended bool
}

type noteRow struct {
	note, noReturn []byte
	epoch          uint64
	serial         int64
}

type moveRow struct {
	sequence uuid.UUID
	move     commitstep.WatermarkMove
	at       time.Time
}

func newWrites() *writes {
	return &writes{marks: map[stepID]*[64]byte{}, attempts: map[attemptID]*attemptRow{}, notes: map[stepID]*noteRow{}, messages: map[uuid.UUID]string{}}
}

// add takes over the events of one sequence, in order. Without marks, done
// marks are left out: the sequence is about to end.
func (w *writes) add(f store.Fence, serial int64, events []store.Event, now time.Time, marks bool) {
	id := f.ID
	for i := range events {
		e := &events[i]
		switch e.Type {
		case store.EventDone, store.EventMove:
			if e.Type == store.EventMove {
				w.moves = append(w.moves, moveRow{id, e.Move, now})
			}
			if !marks {
				continue
			}
			k := stepID{id, e.Step / store.PageSize}
			bits := w.marks[k]
			if bits == nil {
				bits = new([64]byte)
				w.marks[k] = bits
			}
			b := e.Step % store.PageSize
			bits[b/8] |= 0x80 >> (b % 8)
		case store.EventAttempt, store.EventOutcome:
			k := attemptID{stepID{id, e.Step}, e.Attempt.Number}
			row := w.attempts[k]
			if row == nil {
				row = &attemptRow{AttemptRecord: e.Attempt}
				w.attempts[k] = row
			}
			if e.Type == store.EventOutcome {
				row.ended = true
				row.Outcome, row.Class, row.Error, row.Ended = e.Attempt.Outcome, e.Attempt.Class, e.Attempt.Error, e.Attempt.Ended
				if e.Attempt.Driver != "" {
					row.Driver = e.Attempt.Driver
				}
			}
		case store.EventNote, store.EventNoReturn:
			k := stepID{id, e.Step}
			row := w.notes[k]
			if row == nil {
				row = &noteRow{epoch: f.Epoch, serial: serial}
				w.notes[k] = row
			}
			if e.Type == store.EventNote {
				row.note = commitstep.Seal(commitstep.RecordProgress, noteKey(id, e.Step, 'n'), e.Data)
			} else {
				row.noReturn = commitstep.Seal(commitstep.RecordProgress, noteKey(id, e.Step, 'r'), e.Data)
			}
		case store.EventMessage:
			w.messages[id] = toText(e.Message)
		}
	}
}

// noteKey is what a note's checksum covers besides its text: whose it is.
func noteKey(id uuid.UUID, step int, what byte) []byte {
	return append(append(id[:len(id):len(id)], what), byte(step>>24), byte(step>>16), byte(step>>8), byte(step))
}
