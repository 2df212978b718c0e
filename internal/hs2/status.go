package hs2

import "time"

// State is where an operation is.
type State uint8

// States. Finished, Canceled, Closed, Error and TimedOut are final.
const (
	// Unknown: the server named none, or one that this package does not know.
	Unknown State = iota
	Initialized
	Pending
	Running
	Finished
	Canceled
	Closed
	Error
	TimedOut
)

var stateNames = [...]string{"UNKNOWN", "INITIALIZED", "PENDING", "RUNNING", "FINISHED", "CANCELED", "CLOSED", "ERROR", "TIMEDOUT"}

// String is the server's name of it.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return stateNames[Unknown]
}

// Final tells whether the state cannot change any more.
func (s State) Final() bool {
	switch s {
	case Finished, Canceled, Closed, Error, TimedOut:
		return true
	}
	return false
}

// Status is what the server says of an operation.
type Status struct {
	State State
	// SQLState, Code and Message describe an error; Code 0 means none was sent.
	SQLState string
	Code     int32
	Message  string
	// Tasks is the statement's plan as far as it was made. TasksKnown is false when
	// the server sent none, or rubbish.
	Tasks      []Task
	TasksKnown bool
	// ModifiedRows is nil when the server did not count.
	ModifiedRows *int64
	// Started and Completed are the server's clock, zero when unset.
	Started, Completed time.Time
	HasResult          bool
}

// Task is one task of a statement's plan.
type Task struct {
	ID    string
	Type  string // the server's word: MAPRED, MOVE, STATS, …
	Name  string
	State string // INITIALIZED, QUEUED, RUNNING, FINISHED
	// Begin and End are zero when the task has not begun, or not ended.
	Begin, End  time.Time
	ReturnValue *int64
	Error       string
	// ExternalHandle names the job in the execution engine.
	ExternalHandle string
}

// MoveBegan tells whether a task that touches the target has begun. known is false
// when the list of tasks does not say.
func (s Status) MoveBegan() (began, known bool) { return false, false }
