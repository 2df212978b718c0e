package driver

import (
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/google/uuid"
)

// Status is where a sequence stands from the driver's view.
type Status string

// Statuses.
const (
	// StatusCompleted: every step took effect once; also when it had been
	// completed before (Result.Already), or by a driver that took it over from
	// this one (Result.EndedBy).
	StatusCompleted Status = "completed"
	// StatusParked waits for a person; Result.Reason says why.
	StatusParked Status = "parked"
	// StatusWaiting: pending; something could not be reached or is still
	// running within the budget. Recover goes on with it.
	StatusWaiting Status = "waiting"
	// StatusBusy: another driver, or another goroutine of this one, runs it.
	StatusBusy Status = "busy"
	// StatusFenced: this driver lost its lease and touched nothing further; the
	// sequence is pending, run by Result.Holder if that is set.
	StatusFenced Status = "fenced"
	// StatusUnsupported: a step's kind or version is not known here.
	StatusUnsupported Status = "unsupported"
	// StatusStopped: pending; the caller's context ended.
	StatusStopped Status = "stopped"
	// StatusAbandoned: a person gave it up.
	StatusAbandoned Status = "abandoned"
)

// StepReport says what this run did with one step.
type StepReport struct {
	Index   int    `json:"index"`
	Stage   int    `json:"stage"`
	Kind    string `json:"kind"`
	Summary string `json:"summary,omitempty"`
	// Did: "recorded" (done mark found), "declared" (the same, by the word of a
	// person), "already" (in place before this run executed anything), "recovered"
	// (took effect, although its call had failed, was not answered, or ended before the
	// effect did), "executed", or "" when it is not done.
	Did      string `json:"did,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	Error    string `json:"error,omitempty"`
}

// What a StepReport's Did says.
const (
	DidRecorded  = "recorded"
	DidDeclared  = "declared"
	DidAlready   = "already"
	DidRecovered = "recovered"
	DidExecuted  = "executed"
)

// Result is what became of one sequence in one call.
type Result struct {
	Key     commitstep.Key        `json:"key"`
	ID      uuid.UUID             `json:"id"`
	Status  Status                `json:"status"`
	Reason  commitstep.ParkReason `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
	// Already: the plan had been completed before this call.
	Already bool `json:"already,omitempty"`
	// Counts over all steps; Steps lists the first MaxStepReports. Recorded has the
	// declared ones too.
	Total     int          `json:"total"`
	Recorded  int          `json:"recorded,omitempty"`
	InPlace   int          `json:"alreadyInPlace,omitempty"`
	Recovered int          `json:"recovered,omitempty"`
	Executed  int          `json:"executed,omitempty"`
	Steps     []StepReport `json:"steps,omitempty"`
	// Took is how long the call took; of a publish with preparation and put.
	Took time.Duration `json:"took"`
	// Holder is set when busy or fenced, and HeldUntil where its lease ends by time: then
	// the sequence is free, unless the holder renews it before.
	Holder    string    `json:"holder,omitempty"`
	HeldUntil time.Time `json:"heldUntil,omitzero"`
	// EndedBy is set when this driver lost its lease and another one, named here,
	// completed the sequence at EndedAt. The counts are of this driver alone.
	EndedBy string    `json:"endedBy,omitempty"`
	EndedAt time.Time `json:"endedAt,omitzero"`
	// Cleanup says how the cleanup ended, where the call waited for it.
	Cleanup string `json:"cleanup,omitempty"`
}

// MaxStepReports bounds Result.Steps, so that a sequence of a million steps
// stays small.
const MaxStepReports = 1000

// NotFinishedError comes with a Result whose sequence is stored and not
// completed: the promise stands, and Recover goes on with it unless a person gave
// it up.
type NotFinishedError struct {
	Result Result
	// Store is where it is stored, for the command that goes on with it.
	Store string
}

func (e *NotFinishedError) Error() string {
	r := e.Result
	s := fmt.Sprintf("dataset %s: sequence %s is %s", r.Key, r.ID, r.Status)
	if r.Reason != "" {
		s += " " + string(r.Reason)
	}
	if r.Holder != "" {
		s += ", run by " + r.Holder
		if !r.HeldUntil.IsZero() {
			s += " until " + r.HeldUntil.UTC().Format(time.RFC3339)
		}
	}
	if r.Message != "" {
		s += ": " + r.Message
	}
	switch r.Status {
	case StatusParked:
		s += fmt.Sprintf("; look with `commitstep pending show %s%s`, decide with `commitstep resolve %s%s`", r.ID, storeFlag(e.Store), r.ID, storeFlag(e.Store))
	case StatusAbandoned:
		s += "; make a new plan with a new id"
	case StatusUnsupported:
		s += "; use a program that registers this kind and version"
	default:
		s += fmt.Sprintf("; `%s` goes on with it", recoverCommand(r.Key.Job, e.Store))
	}
	return s
}

// Is makes errors.Is(err, commitstep.ErrAbandoned) true when a person gave the
// sequence up.
func (e *NotFinishedError) Is(target error) bool {
	return target == commitstep.ErrAbandoned && e.Result.Status == StatusAbandoned
}

func recoverCommand(job, store string) string {
	return "commitstep recover --job " + shell.Quote(job) + storeFlag(store)
}

func storeFlag(store string) string {
	if store == "" {
		return ""
	}
	return " --store " + shell.Quote(store)
}

// Report is what Recover did. The zero Report lets nothing be ingested.
type Report struct {
	Job string `json:"job,omitempty"`
	// Complete: Recover read the job's pending sequences to the end. Never set
	// without a job, or when Blocked: nothing may be ingested on the word of such
	// a report.
	Complete bool          `json:"complete"`
	Started  time.Time     `json:"started"`
	Took     time.Duration `json:"took"`
	// Counts by status; Results lists what is not completed, and the completed
	// ones up to MaxResults.
	Counts  map[Status]int `json:"counts"`
	Results []Result       `json:"results"`
	// Quarantined datasets cannot be read.
	Quarantined []commitstep.Quarantined `json:"quarantined,omitempty"`
	// Unaccepted: the store was adopted and the watermarks of the job, or
	// without a job of any, are not accepted.
	Unaccepted bool `json:"unaccepted,omitempty"`
	// Stamped or damaged beyond names: nothing of this store may be ingested.
	Blocked string `json:"blocked,omitempty"`

	notFree map[string]Status // datasets of Job that may not be ingested
	scoped  bool              // a dataset filter was used
}

// MaxResults bounds the completed results kept in a Report.
const MaxResults = 10_000

// MayIngest is true only if Recover read this job to its end and the dataset
// is free: nothing of it is pending, parked, busy or unreadable.
func (r Report) MayIngest(dataset string) bool {
	if !r.Complete || r.Blocked != "" || r.Unaccepted || r.scoped {
		return false
	}
	_, bad := r.notFree[dataset]
	return !bad
}

// NotFree lists the datasets of the job that may not be ingested, with why.
func (r Report) NotFree() map[string]Status {
	m := make(map[string]Status, len(r.notFree))
	for k, v := range r.notFree {
		m[k] = v
	}
	return m
}

// count adds a step to the result.
func (r *run) count(s commitstep.Step, did string, attempts int, b commitstep.CommitStep) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(s, did, attempts, b, "")
	switch did {
	case DidRecorded, DidDeclared:
		r.res.Recorded++
	case DidAlready:
		r.res.InPlace++
	case DidRecovered:
		r.res.Recovered++
	case DidExecuted:
		r.res.Executed++
	}
}

// left adds a step that is not done to the result, with why.
func (r *run) left(it *item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(it.step, "", it.progress.Count, it.behave, it.end.message)
}

// report lists a step while there is room; r.mu is held.
func (r *run) report(s commitstep.Step, did string, attempts int, b commitstep.CommitStep, problem string) {
	if r.res.Steps == nil {
		r.res.Steps = make([]StepReport, 0, min(r.live.Steps, MaxStepReports))
	}
	if len(r.res.Steps) < MaxStepReports {
		if b == nil {
			// Only for its summary; a step that cannot be built has none.
			b, _ = r.e.cfg.Kinds.Build(s)
		}
		r.res.Steps = append(r.res.Steps, StepReport{Index: s.Index, Stage: s.Stage, Kind: s.Kind, Summary: summary(b), Did: did, Attempts: attempts, Error: problem})
	}
}

// Summarizer is implemented by steps that can say in one line what they do.
type Summarizer interface{ Summary() string }

func summary(b commitstep.CommitStep) string {
	if s, ok := b.(Summarizer); ok {
		return s.Summary()
	}
	return ""
}
