package hs2

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/beltran/gohive/hiveserver"
)

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

// parseState reads a state's name.
func parseState(name string) State {
	for s, n := range stateNames {
		if strings.EqualFold(n, name) {
			return State(s)
		}
	}
	return Unknown
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
	// the server sent no list, or one that cannot be read.
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

// beforeMove are the types of the tasks that only compute: they write into
// staging, or nothing.
var beforeMove = map[string]bool{"MAPRED": true, "MAPREDLOCAL": true, "TEZ": true, "SPARK": true, "CONDITIONAL": true, "DEPENDENCY_COLLECTION": true}

// MoveBegan tells whether a task has begun that may touch the target: a MOVE, or
// any other that does more than compute. known is false when there is no list of
// tasks. Hive lists a task once it begins, so an empty list means that none did,
// and the answer is only final when the state is. A table that is written directly,
// without a move, is not seen.
func (s Status) MoveBegan() (began, known bool) {
	if !s.TasksKnown {
		return false, false
	}
	for _, t := range s.Tasks {
		if !beforeMove[t.Type] && (!t.Begin.IsZero() || !t.waits()) {
			return true, true
		}
	}
	return false, true
}

// waits tells that the task has not been started. A state that nobody knows is no
// sign of that.
func (t Task) waits() bool {
	switch t.State {
	case "CREATED", "INITIALIZED", "QUEUED":
		return true
	}
	return false
}

var states = map[hiveserver.TOperationState]State{
	hiveserver.TOperationState_INITIALIZED_STATE: Initialized,
	hiveserver.TOperationState_PENDING_STATE:     Pending,
	hiveserver.TOperationState_RUNNING_STATE:     Running,
	hiveserver.TOperationState_FINISHED_STATE:    Finished,
	hiveserver.TOperationState_CANCELED_STATE:    Canceled,
	hiveserver.TOperationState_CLOSED_STATE:      Closed,
	hiveserver.TOperationState_ERROR_STATE:       Error,
	hiveserver.TOperationState_TIMEDOUT_STATE:    TimedOut,
}

func (o *Operation) status(r *hiveserver.TGetOperationStatusResp) Status {
	s := Status{
		SQLState: r.GetSqlState(), Code: r.GetErrorCode(), Message: r.GetErrorMessage(), ModifiedRows: r.NumModifiedRows,
		Started: millis(r.GetOperationStarted()), Completed: millis(r.GetOperationCompleted()),
		HasResult: o.h.hasResult,
	}
	if r.OperationState != nil {
		s.State = states[*r.OperationState]
	}
	if r.HasResultSet != nil { // Hive knows after compiling only
		s.HasResult = *r.HasResultSet
	}
	if r.TaskStatus != nil {
		s.Tasks, s.TasksKnown = parseTasks([]byte(*r.TaskStatus))
	}
	return s
}

func millis(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// parseTasks reads a JSON array of tasks. ok is false when any of it cannot be
// read: a list with a gap says nothing about what has not begun.
func parseTasks(b []byte) (tasks []Task, ok bool) {
	var list []struct {
		TaskID         *string `json:"taskId"`
		TaskType       *string `json:"taskType"`
		Name           string  `json:"name"`
		TaskState      *string `json:"taskState"`
		BeginTime      *int64  `json:"beginTime"`
		EndTime        *int64  `json:"endTime"`
		ReturnValue    *int64  `json:"returnValue"`
		ErrorMsg       string  `json:"errorMsg"`
		ExternalHandle string  `json:"externalHandle"`
	}
	if json.Unmarshal(b, &list) != nil || list == nil {
		return nil, false
	}
	tasks = make([]Task, 0, len(list))
	for _, t := range list {
		if t.TaskType == nil || t.TaskState == nil {
			return nil, false
		}
		task := Task{Type: *t.TaskType, Name: t.Name, State: *t.TaskState, ReturnValue: t.ReturnValue, Error: t.ErrorMsg, ExternalHandle: t.ExternalHandle}
		if t.TaskID != nil {
			task.ID = *t.TaskID
		}
		if t.BeginTime != nil {
			task.Begin = millis(*t.BeginTime)
		}
		if t.EndTime != nil {
			task.End = millis(*t.EndTime)
		}
		tasks = append(tasks, task)
	}
	return tasks, true
}
