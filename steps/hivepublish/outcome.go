package hivepublish

import (
	"errors"

	"github.com/commitstep/engine/internal/hs2"
)

// What became of a statement is decided here, once for all kinds, by the call in
// which an answer arrived and by the operation's state. SQL state and text are
// never asked: most runtime errors are 08S01, "communication failure", and say
// that they arose while compiling.

// call is where something was learnt.
type call uint8

const (
	beforeSubmit call = iota // dial, TLS, SASL, OpenSession, the point of no return
	atSubmit                 // ExecuteStatement
	atPoll                   // GetOperationStatus
)

// reply is what the call gave.
type reply uint8

const (
	unsent   reply = iota // certainly no byte of it left this process
	lost                  // sent, and no usable answer
	no                    // the server's definite no
	noHandle              // the server does not know the handle
	yes                   // an answer
)

// moved says whether a task that touches the target had begun.
type moved uint8

const (
	moveUnsaid moved = iota
	moveNotBegun
	moveBegan
)

// fate is what is known of a statement.
type fate uint8

const (
	fateUnknown   fate = iota // it may or may not have taken effect, or may yet
	fateNeverSent             // it never reached the server
	fateRefused               // the server did not accept it
	fateRunning               // the server runs it
	fateFinished              // all of it was done
	fateUntouched             // it ended before it touched the target
	fateUnseen                // nobody could look just now
)

func (f fate) String() string {
	return [...]string{"unknown", "never sent", "refused", "running", "finished", "ended before it touched the target", "not seen"}[f]
}

// report is one thing that was learnt.
type report struct {
	call  call
	reply reply
	state hs2.State
	moved moved
}

// outcomes is the table; the first line that matches counts, and what matches
// none is unknown. nil matches everything.
var outcomes = []struct {
	call  call
	reply []reply
	state []hs2.State
	moved []moved
	fate  fate
}{
	{beforeSubmit, nil, nil, nil, fateNeverSent},
	{atSubmit, []reply{unsent}, nil, nil, fateNeverSent},
	// HiveServer2 excludes that a statement runs whose submission it answers with
	// an error, also of a session that it does not know.
	{atSubmit, []reply{no, noHandle}, nil, nil, fateRefused},
	{atSubmit, []reply{lost}, nil, nil, fateUnknown},
	{atPoll, []reply{unsent, lost}, nil, nil, fateUnseen},
	{atPoll, []reply{no, noHandle}, nil, nil, fateUnknown},
	{atPoll, []reply{yes}, []hs2.State{hs2.Initialized, hs2.Pending, hs2.Running}, nil, fateRunning},
	{atPoll, []reply{yes}, []hs2.State{hs2.Finished}, nil, fateFinished},
	// With asynchronous compilation errors of the text arrive here too, before any
	// task was made.
	{atPoll, []reply{yes}, []hs2.State{hs2.Error}, []moved{moveNotBegun}, fateUntouched},
	// Cancelled and timed out are no "nothing happened": the MOVE task may have been
	// half way.
	{atPoll, []reply{yes}, nil, nil, fateUnknown},
}

// sort looks the report up.
func (r report) sort() fate {
	for _, o := range outcomes {
		if o.call == r.call && has(o.reply, r.reply) && has(o.state, r.state) && has(o.moved, r.moved) {
			return o.fate
		}
	}
	return fateUnknown
}

func has[T comparable](list []T, v T) bool {
	for _, e := range list {
		if e == v {
			return true
		}
	}
	return list == nil
}

// replyOf sorts an error of a call; nil is yes.
func replyOf(err error) reply {
	var t *hs2.TransportError
	switch {
	case err == nil:
		return yes
	case errors.As(err, &t) && !t.Sent:
		return unsent
	case errors.As(err, &t):
		return lost
	case errors.Is(err, hs2.ErrUnknownHandle):
		return noHandle
	case answered(err):
		return no
	}
	// An error that this package does not know is no answer.
	return lost
}

// movedOf reads the list of tasks.
func movedOf(st hs2.Status) moved {
	began, known := st.MoveBegan()
	switch {
	case began:
		return moveBegan
	case known:
		return moveNotBegun
	}
	return moveUnsaid
}

// submitted sorts the answer to ExecuteStatement, of an error.
func submitted(err error) fate { return report{call: atSubmit, reply: replyOf(err)}.sort() }

// polled sorts the answer to GetOperationStatus.
func polled(st hs2.Status, err error) fate {
	r := report{call: atPoll, reply: replyOf(err)}
	if err == nil {
		r.state, r.moved = st.State, movedOf(st)
	}
	return r.sort()
}
