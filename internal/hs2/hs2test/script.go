package hs2test

import (
	"strings"
	"sync"

	"github.com/commitstep/engine/internal/hs2"
)

// Action is what happens to a call.
type Action uint8

// Actions.
const (
	// Pass answers as usual: the hook only watches.
	Pass Action = iota
	// CutBefore ends the connection; the call has no effect.
	CutBefore
	// CutAfter lets the call have its effect, and ends the connection instead of
	// answering.
	CutAfter
	// Hang has the effect and holds the answer back until Release.
	Hang
	// HangBefore holds the call back until Release, and then lets it have its effect.
	HangBefore
	// Exception has no effect and answers with Thrift's "internal error".
	Exception
	// Rubbish has the effect and answers with Hook.Bytes, framed as usual.
	Rubbish
)

// Hook is an action that waits for its call. Methods are safe for concurrent use.
type Hook struct {
	rpc      string
	nth      int
	do       Action
	bytes    []byte
	mu       sync.Mutex
	seen     int
	fired    chan struct{}
	release  chan struct{}
	released sync.Once
	once     sync.Once
}

// Fired is closed once the call has come.
func (h *Hook) Fired() <-chan struct{} { return h.fired }

// Release lets calls go that hang.
func (h *Hook) Release() { h.released.Do(func() { close(h.release) }) }

func (h *Hook) meets(rpc string) bool {
	if h.rpc != rpc {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen++
	if h.nth != 0 && h.seen != h.nth {
		return false
	}
	h.once.Do(func() { close(h.fired) })
	return true
}

// On adds a hook for the nth call of rpc from now on, or for every one if nth is 0.
func (s *Server) On(rpc string, nth int, do Action) *Hook { return s.on(rpc, nth, do, nil) }

// OnRubbish is On for Rubbish with its bytes.
func (s *Server) OnRubbish(rpc string, nth int, bytes []byte) *Hook {
	return s.on(rpc, nth, Rubbish, bytes)
}

func (s *Server) on(rpc string, nth int, do Action, bytes []byte) *Hook {
	h := &Hook{rpc: rpc, nth: nth, do: do, bytes: bytes, fired: make(chan struct{}), release: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, h)
	return h
}

// Run says how statements run.
type Run struct {
	// Reject refuses the statement as it is submitted: it does not run.
	Reject *Failure
	// Steps are the answers to GetOperationStatus, one after another; the last one
	// stays. None is Finished, as a statement that writes nothing.
	Steps []Step
	// Columns and Rows are the result: values as [hs2.Rows] has them.
	Columns []hs2.Column
	Rows    [][]any
	Logs    []string
}

// Failure is an error as the server sends it. Zero values are not sent.
type Failure struct {
	SQLState string
	Code     int32
	Message  string
}

// Step is one answer to GetOperationStatus.
type Step struct {
	State hs2.State
	Failure
	// Tasks is the JSON of the tasks; "" sends none.
	Tasks    string
	Modified *int64
}

// Tasks of an INSERT OVERWRITE as Hive 4.0.1 on Tez lists them, shortened: a task
// is listed once it begins.
const (
	TasksNone      = `[]`
	TasksMap       = `[{"taskId":"Stage-1","taskType":"MAPRED","name":"TEZ","taskState":"RUNNING","beginTime":1796097036940}]`
	TasksMapFailed = `[{"taskId":"Stage-1","taskType":"MAPRED","name":"TEZ","taskState":"FINISHED","beginTime":1796097036940,"endTime":1796097039848,"returnValue":2,"errorMsg":"org.apache.hadoop.hive.ql.metadata.HiveException: Vertex failed"}]`
	TasksMove      = `[{"taskId":"Stage-1","taskType":"MAPRED","name":"TEZ","taskState":"FINISHED","beginTime":1796097036940,"endTime":1796097039848,"returnValue":0},{"taskId":"Stage-2","taskType":"DEPENDENCY_COLLECTION","name":"DEPENDENCY_COLLECTION","taskState":"FINISHED","beginTime":1796097039848,"endTime":1796097039848,"returnValue":0},{"taskId":"Stage-0","taskType":"MOVE","name":"MOVE","taskState":"RUNNING","beginTime":1796097039849}]`
	TasksDone      = `[{"taskId":"Stage-1","taskType":"MAPRED","name":"TEZ","taskState":"FINISHED","beginTime":1796097036940,"endTime":1796097039848,"returnValue":0},{"taskId":"Stage-2","taskType":"DEPENDENCY_COLLECTION","name":"DEPENDENCY_COLLECTION","taskState":"FINISHED","beginTime":1796097039848,"endTime":1796097039848,"returnValue":0},{"taskId":"Stage-0","taskType":"MOVE","name":"MOVE","taskState":"FINISHED","beginTime":1796097039849,"endTime":1796097040686,"returnValue":0},{"taskId":"Stage-3","taskType":"STATS","name":"STATS TASK","taskState":"FINISHED","beginTime":1796097040686,"endTime":1796097040900,"returnValue":0}]`
)

// Running is a statement in its map phase.
func Running() Step { return Step{State: hs2.Running, Tasks: TasksMap} }

// Moving is a statement in its move phase.
func Moving() Step { return Step{State: hs2.Running, Tasks: TasksMove} }

// Finished is a statement that wrote so many rows.
func Finished(rows int64) Step { return Step{State: hs2.Finished, Tasks: TasksDone, Modified: &rows} }

// FailedMap is a statement whose computation failed: the target was not touched.
func FailedMap() Step {
	return Step{State: hs2.Error, Tasks: TasksMapFailed, Failure: Failure{"08S01", 2,
		"Error while compiling statement: FAILED: Execution Error, return code 2 from org.apache.hadoop.hive.ql.exec.tez.TezTask. Vertex failed, vertexName=Map 1"}}
}

// FailedMove is a statement that failed while it replaced the target.
func FailedMove() Step {
	return Step{State: hs2.Error, Tasks: TasksMove, Failure: Failure{"08S01", 1,
		"Error while compiling statement: FAILED: Execution Error, return code 1 from org.apache.hadoop.hive.ql.exec.MoveTask."}}
}

// ErrorBare is the moment in which a server shows the state and not yet the reason.
func ErrorBare() Step { return Step{State: hs2.Error, Tasks: TasksMapFailed} }

// Canceled is a statement that somebody cancelled.
func Canceled() Step { return Step{State: hs2.Canceled} }

// TimedOut is a statement that its session's limit ended.
func TimedOut() Step { return Step{State: hs2.TimedOut} }

// SyntaxError is how a statement that cannot be parsed is refused.
func SyntaxError() *Failure {
	return &Failure{"42000", 40000, "Error while compiling statement: FAILED: ParseException line 1:0 cannot recognize input near 'SELEC' '1' '<EOF>'"}
}

// MissingTable is how a statement on a table that is not there is refused.
func MissingTable() *Failure {
	return &Failure{"42S02", 10001, "Error while compiling statement: FAILED: SemanticException [Error 10001]: Line 1:14 Table not found 'nosuch'"}
}

// PoolFull is how a statement is refused for which no thread is free. (From the
// server's source.)
func PoolFull() *Failure {
	return &Failure{"", 0, "The background threadpool cannot accept new task for execution, please retry the operation"}
}

type script struct {
	part string
	run  Run
}

// Statement says how every statement runs from now on whose text contains part. The
// latest one that fits counts. Without one a statement finishes at once.
func (s *Server) Statement(part string, run Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts = append(s.scripts, script{part, run})
}

func (s *Server) runOf(sql string) Run {
	for i := len(s.scripts) - 1; i >= 0; i-- {
		if strings.Contains(sql, s.scripts[i].part) {
			return s.scripts[i].run
		}
	}
	return Run{}
}

// Statement is one that was submitted, refused ones included.
type Statement struct {
	SQL     string
	Overlay map[string]string
	// Session and Operation are GUIDs; Operation is empty for a refused one.
	Session, Operation string
	Async              bool
}

// Statements lists what was submitted, in order.
func (s *Server) Statements() []Statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Statement(nil), s.submitted...)
}

// Count is how many submitted statements contain part.
func (s *Server) Count(part string) int {
	n := 0
	for _, st := range s.Statements() {
		if strings.Contains(st.SQL, part) {
			n++
		}
	}
	return n
}

// Advance takes the next step of every statement that contains part, without
// anybody asking for its status.
func (s *Server) Advance(part string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.operations {
		if strings.Contains(o.sql, part) {
			o.next()
		}
	}
}

// Calls counts the calls of rpc.
func (s *Server) Calls(rpc string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[rpc]
}

// Sessions are the configurations of the sessions that are open, by GUID.
func (s *Server) Sessions() map[string]map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]map[string]string{}
	for guid, session := range s.sessions {
		m[guid] = session.conf
	}
	return m
}

// Forget loses every session, operation and query list entry and ends all
// connections, as a restart does.
func (s *Server) Forget() {
	s.mu.Lock()
	s.sessions, s.operations, s.historical = map[string]*session{}, map[string]*operation{}, nil
	s.mu.Unlock()
	s.DropConnections()
}

// ForgetOperation loses one operation, as a time-out does.
func (s *Server) ForgetOperation(guid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.operations, guid)
}
