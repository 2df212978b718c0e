package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
)

// insertMark is the value of the point of no return: with it, the statement may
// have been sent.
type insertMark struct {
	Server  string     `json:"server"`
	Session sessionRef `json:"session"`
	Attempt int        `json:"attempt"`
	At      time.Time  `json:"at"`
}

// insertNote is what is known behind a mark. It belongs to the mark with the same
// session; the note of an earlier attempt says nothing about a later one.
type insertNote struct {
	Session sessionRef `json:"session"`
	// Never says why the statement certainly was not accepted.
	Never string `json:"never,omitempty"`
	// Lost is the error instead of an answer to the submission.
	Lost      string       `json:"lost,omitempty"`
	Operation operationRef `json:"operation"`
	QueryID   string       `json:"queryId,omitempty"`
	Submitted time.Time    `json:"submitted,omitzero"`
	// Final is the operation's last state, once it cannot change any more.
	Final *Outcome `json:"final,omitempty"`
	// Ending is what refused decisions have seen.
	Ending ending `json:"ending,omitzero"`
	// Evidence is the pack gathered when the sequence was parked.
	Evidence *Pack `json:"evidence,omitempty"`
}

// Outcome is the state in which an operation was seen.
type Outcome struct {
	State    string    `json:"state"`
	SQLState string    `json:"sqlState,omitempty"`
	Code     int32     `json:"code,omitempty"`
	Message  string    `json:"message,omitempty"`
	Tasks    []TaskRow `json:"tasks,omitempty"`
	// Moved says whether a task that touches the target had begun: "began", "not
	// begun", or "" where the server did not say.
	Moved string    `json:"moved,omitempty"`
	Rows  *int64    `json:"rows,omitempty"`
	At    time.Time `json:"at"`
	// Fate is what follows from it.
	Fate string `json:"fate"`
}

// TaskRow is one task of a statement's plan.
type TaskRow struct {
	ID    string `json:"id"`
	Type  string `json:"type"`
	State string `json:"state"`
	Error string `json:"error,omitempty"`
}

func (s *Server) outcome(st hs2.Status) *Outcome {
	o := &Outcome{State: st.State.String(), SQLState: st.SQLState, Code: st.Code, Message: st.Message, Rows: st.ModifiedRows, At: s.now().UTC(), Fate: polled(st, nil).String()}
	switch movedOf(st) {
	case moveBegan:
		o.Moved = "began"
	case moveNotBegun:
		o.Moved = "not begun"
	}
	for _, t := range st.Tasks {
		o.Tasks = append(o.Tasks, TaskRow{ID: t.ID, Type: t.Type, State: t.State, Error: t.Error})
	}
	return o
}

// fate reads it back.
func (o *Outcome) fate() fate {
	for _, f := range []fate{fateFinished, fateUntouched} {
		if o.Fate == f.String() {
			return f
		}
	}
	return fateUnknown
}

// notes reads mark and note.
func (s *insertStep) notes(a *commitstep.Attempt) (mark insertMark, passed bool, n insertNote, err error) {
	if passed, err = a.NoReturn(&mark); err != nil {
		return mark, passed, n, err
	}
	if _, err = a.LastNote(&n); err != nil {
		return mark, passed, n, err
	}
	if n.Session.handle != mark.Session.handle {
		n = insertNote{Session: mark.Session}
	}
	if u := s.unnoted; u != nil && passed && u.Session.handle == mark.Session.handle {
		n = *u
	}
	return mark, passed, n, nil
}

// note writes what must not be lost, also when ctx has ended meanwhile. What could
// not be written is kept, and tried again by the next Reattach.
func (s *insertStep) note(ctx context.Context, a *commitstep.Attempt, n insertNote) error {
	err := note(ctx, a, n)
	if s.unnoted = nil; err != nil {
		s.unnoted = &n
	}
	return err
}

// name is how people find the statement.
func (n insertNote) name() string {
	if n.QueryID != "" {
		return n.QueryID
	}
	return n.Operation.guid
}

func (o *Outcome) text() string {
	if o.Message == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", clip(o.Message))
}

// clip keeps a server's messages, which hold whole stack traces, readable.
func clip(s string) string {
	const most = 500
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most]) + " …"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// noteTimeout bounds a note that is written although its context has ended.
const noteTimeout = 10 * time.Second

// note writes what must not be lost, also when ctx has ended meanwhile.
func note(ctx context.Context, a *commitstep.Attempt, v any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	return a.Note(ctx, v)
}

// unsure takes the class off an error of the journal: that a note was not written
// says nothing about the statement.
func unsure(err error) error {
	if err == nil {
		return nil
	}
	return &unclassified{err}
}

// unclassified hides a class from commitstep.ClassOf and keeps the sentinels.
type unclassified struct{ err error }

func (e *unclassified) Error() string        { return e.err.Error() }
func (e *unclassified) Is(target error) bool { return errors.Is(e.err, target) }
