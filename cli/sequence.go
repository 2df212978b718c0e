package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// sequenceView is a live sequence as printed. Steps count from 1.
type sequenceView struct {
	Job      string                `json:"job"`
	Dataset  string                `json:"dataset"`
	Sequence *uuid.UUID            `json:"sequence,omitempty"`
	State    commitstep.State      `json:"state"`
	Reason   commitstep.ParkReason `json:"reason,omitempty"`
	// ParkedStep is the step that parked it, absent if none did.
	ParkedStep int        `json:"parkedStep,omitempty"`
	Message    string     `json:"message,omitempty"`
	Cleaning   bool       `json:"cleaning,omitempty"`
	PlanID     string     `json:"planId,omitempty"`
	Steps      int        `json:"steps"`
	StepsDone  *int       `json:"stepsDone,omitempty"`
	Stages     int        `json:"stages"`
	Created    *time.Time `json:"created,omitempty"`
	Updated    *time.Time `json:"updated,omitempty"`
	Version    uint64     `json:"version"`
	Epoch      uint64     `json:"epoch"`
	Holder     string     `json:"holder,omitempty"`
	HeldUntil  *time.Time `json:"heldUntil,omitempty"`
	Locks      []string   `json:"locks,omitempty"`
	Moves      []moveView `json:"moves,omitempty"`
	// AcceptReusedPaths is the plan's reason for using earlier paths.
	AcceptReusedPaths string `json:"acceptReusedPaths,omitempty"`
	// LastError is the newest failed attempt of a step that is not done.
	LastError string `json:"lastError,omitempty"`
	// Unreadable says why the record cannot be read.
	Unreadable string `json:"unreadable,omitempty"`
}

func viewLive(l commitstep.Live) sequenceView {
	v := sequenceView{Job: l.Job, Dataset: l.Dataset, Sequence: &l.ID, State: l.State, Reason: l.Reason, Message: l.Message, Cleaning: l.Cleaning,
		PlanID: l.PlanID, Steps: l.Steps, Stages: l.Stages, Created: utc(l.Created), Updated: utc(l.Updated), Version: l.Version, Epoch: l.Epoch,
		Locks: l.Locks, Moves: viewMoves(l.Moves), AcceptReusedPaths: l.AcceptReusedPaths}
	if l.State == commitstep.Parked && l.ParkStep >= 0 {
		v.ParkedStep = l.ParkStep + 1
	}
	return v
}

// messageText is what a list says about the sequence. A park's message stays
// stored after the decision about it, and is no news any more.
func (v sequenceView) messageText() string {
	switch {
	case v.State != commitstep.Pending:
		return v.Message
	case v.LastError != "":
		return v.LastError
	case strings.HasPrefix(v.Message, string(driver.StatusWaiting)+": "), strings.HasPrefix(v.Message, string(driver.StatusUnsupported)+": "):
		return v.Message
	case v.Message != "":
		return "earlier: " + v.Message
	}
	return ""
}

// lastError is the newest failed attempt of the steps of a page that are not
// done.
func lastError(page store.Page) string {
	var newest time.Time
	text := ""
	for i, p := range page.Progress {
		if p.Done || i >= len(page.Steps) {
			continue
		}
		for _, a := range p.Attempts {
			if a.Error != "" && !a.Started.Before(newest) {
				st := page.Steps[i]
				newest, text = a.Started, fmt.Sprintf("step %d (%s) attempt %d: %s", st.Index+1, st.Kind, a.Number, a.Error)
			}
		}
	}
	return text
}

// addHolder asks who runs the sequence right now.
func (v *sequenceView) addHolder(ctx context.Context, st store.Store, l commitstep.Live) error {
	in, until, held, err := st.Holder(ctx, l)
	if err == nil && held {
		v.Holder, v.HeldUntil = instanceText(in), utc(until)
	}
	return err
}

func instanceText(in commitstep.Instance) string {
	who := in.Name
	if who == "" {
		who = in.ID.String()
	}
	if in.Host != "" {
		who += " on " + in.Host
	}
	return who
}

// stateText is the state with its reason.
func (v sequenceView) stateText() string {
	s := string(v.State)
	switch {
	case v.Cleaning:
		s = "cleaning"
	case v.Reason != "":
		s += " " + string(v.Reason)
	case v.Holder != "":
		s += " (running)"
	}
	return s
}

// inspectedStep is one step as `pending show` and `pending verify` print it.
type inspectedStep struct {
	Step        int                 `json:"step"`
	Stage       int                 `json:"stage"`
	Kind        string              `json:"kind"`
	Version     int                 `json:"version"`
	Summary     string              `json:"summary,omitempty"`
	Done        bool                `json:"done"`
	Verdict     *commitstep.Verdict `json:"verdict,omitempty"`
	LookError   string              `json:"lookError,omitempty"`
	Unsupported string              `json:"unsupported,omitempty"`
	Attempts    []attemptView       `json:"attempts,omitempty"`
	// AttemptCount counts all attempts; Attempts holds the newest.
	AttemptCount int             `json:"attemptCount,omitempty"`
	Failed       int             `json:"failed,omitempty"`
	NoReturn     json.RawMessage `json:"pointOfNoReturn,omitempty"`
	Note         json.RawMessage `json:"note,omitempty"`
	Params       json.RawMessage `json:"params,omitempty"`
	Evidence     json.RawMessage `json:"evidence,omitempty"`
	// Pack is what was gathered for a person's decision when the step parked its
	// sequence, or later on demand.
	Pack *hivepublish.Pack `json:"evidencePack,omitempty"`
}

type attemptView struct {
	Number  int        `json:"number"`
	Started *time.Time `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	Outcome string     `json:"outcome,omitempty"`
	Class   string     `json:"class,omitempty"`
	Error   string     `json:"error,omitempty"`
	Driver  string     `json:"driver,omitempty"`
}

func viewStep(s driver.StepView) inspectedStep {
	v := inspectedStep{Step: s.Index + 1, Stage: s.Stage + 1, Kind: s.Kind, Version: s.Version, Summary: s.Summary, Done: s.Progress.Done, Verdict: s.Verdict,
		LookError: s.LookError, Unsupported: s.Unsupported, AttemptCount: s.Progress.Count, Failed: s.Progress.Failed,
		NoReturn: s.Progress.NoReturn, Note: s.Progress.Note, Params: s.Params, Evidence: s.Evidence}
	for _, a := range s.Progress.Attempts {
		v.Attempts = append(v.Attempts, attemptView{a.Number, utc(a.Started), utc(a.Ended), a.Outcome, a.Class, a.Error, a.Driver})
	}
	v.Pack, v.Note = liftPack(v.Note)
	return v
}

// text is the step's state in one cell.
func (v inspectedStep) text() string {
	switch {
	case v.Done:
		return "done (recorded)"
	case v.Unsupported != "":
		return "unsupported: " + v.Unsupported
	case v.LookError != "":
		return "could not look: " + v.LookError
	case v.Verdict != nil:
		return v.Verdict.String()
	case v.NoReturn != nil:
		return "past its point of no return"
	case v.AttemptCount > 0:
		return "tried, not recorded done"
	}
	return "not recorded done"
}

func (a attemptView) text() string {
	o := a.Outcome
	if o == "" {
		o = "no outcome recorded"
	}
	if a.Error != "" {
		o += ": " + a.Error
	}
	return o
}
