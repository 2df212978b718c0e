package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/google/uuid"
)

// resultView is what became of one sequence in one call, as printed. Steps and
// stages count from 1.
type resultView struct {
	Job      string                `json:"job"`
	Dataset  string                `json:"dataset"`
	Sequence *uuid.UUID            `json:"sequence,omitempty"`
	Status   driver.Status         `json:"status"`
	Reason   commitstep.ParkReason `json:"reason,omitempty"`
	Message  string                `json:"message,omitempty"`
	Already  bool                  `json:"already"`
	Counts   countsView            `json:"counts"`
	Steps    []stepResult          `json:"steps,omitempty"`
	// StepsOmitted counts steps that Steps leaves out.
	StepsOmitted int    `json:"stepsOmitted,omitempty"`
	TookMillis   int64  `json:"tookMillis"`
	Holder       string `json:"holder,omitempty"`
	// HeldUntil is when the holder's lease ends unless it is renewed.
	HeldUntil *time.Time `json:"heldUntil,omitempty"`
	// EndedBy is the driver that completed it after this one had lost it.
	EndedBy string     `json:"endedBy,omitempty"`
	EndedAt *time.Time `json:"endedAt,omitempty"`
	Cleanup string     `json:"cleanup,omitempty"`
}

// countsView sorts the steps by what this call did with them.
type countsView struct {
	Total          int `json:"total"`
	Recorded       int `json:"recorded"`
	AlreadyInPlace int `json:"alreadyInPlace"`
	Recovered      int `json:"recovered"`
	Executed       int `json:"executed"`
}

type stepResult struct {
	Step     int    `json:"step"`
	Stage    int    `json:"stage"`
	Kind     string `json:"kind"`
	Summary  string `json:"summary,omitempty"`
	Did      string `json:"did,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	Error    string `json:"error,omitempty"`
}

func viewResult(r driver.Result) resultView {
	v := resultView{Job: r.Key.Job, Dataset: r.Key.Dataset, Status: r.Status, Reason: r.Reason, Message: r.Message, Already: r.Already,
		Counts:     countsView{r.Total, r.Recorded, r.InPlace, r.Recovered, r.Executed},
		TookMillis: r.Took.Milliseconds(), Holder: r.Holder, HeldUntil: utc(r.HeldUntil), EndedBy: r.EndedBy, EndedAt: utc(r.EndedAt), Cleanup: r.Cleanup}
	if r.ID != uuid.Nil {
		v.Sequence = &r.ID
	}
	for _, s := range r.Steps {
		v.Steps = append(v.Steps, stepResult{s.Index + 1, s.Stage + 1, s.Kind, s.Summary, s.Did, s.Attempts, s.Error})
	}
	slices.SortStableFunc(v.Steps, func(a, b stepResult) int { return a.Step - b.Step })
	if len(r.Steps) == driver.MaxStepReports && r.Total > len(r.Steps) {
		v.StepsOmitted = r.Total - len(r.Steps)
	}
	return v
}

// didText says what a call did with a step, in words.
func didText(did string) string {
	switch did {
	case driver.DidRecorded:
		return "was done before"
	case driver.DidDeclared:
		return "a person declared it published"
	case driver.DidAlready:
		return "was in place already"
	case driver.DidRecovered:
		return "took effect; its call had failed, was not answered, or ended before it did"
	case driver.DidExecuted:
		return "done now"
	case "":
		return "not done"
	}
	return did
}

// headline is one sentence about the sequence.
func (v resultView) headline() string {
	s := fmt.Sprintf("dataset %s of job %s: %s", name(v.Dataset), name(v.Job), v.Status)
	if v.Already {
		s += " before this call"
	}
	if v.Reason != "" {
		s += " " + string(v.Reason)
	}
	if v.Holder != "" {
		s += ", held by " + holderUntil(v.Holder, v.HeldUntil)
	}
	if v.EndedBy != "" {
		s += " by another driver"
	}
	if v.Sequence != nil {
		s += fmt.Sprintf(" (sequence %s)", v.Sequence)
	}
	return s
}

// shownSteps is how many steps of one sequence a table shows; JSON has more.
const shownSteps = 100

// table adds the sequence with its steps.
func (v resultView) table(t *table, steps bool) {
	t.line("%s", v.headline())
	if v.Message != "" {
		t.line("  %s", oneLine(v.Message))
	}
	if steps {
		for i, s := range v.Steps {
			if i == shownSteps {
				t.line("  and %d more steps; -o json shows up to %d", v.Counts.Total-i, driver.MaxStepReports)
				break
			}
			t.row(fmt.Sprintf("  step %d/%d", s.Step, v.Counts.Total), s.Kind, didText(s.Did), oneLine(s.Summary))
		}
	}
	c := v.Counts
	if !steps || len(v.Steps) > shownSteps {
		t.line("  %d steps: %d done now, %d were done before", c.Total, c.Executed, c.Recorded+c.AlreadyInPlace+c.Recovered)
	}
	if v.Cleanup != "" {
		t.line("  cleanup: %s", oneLine(v.Cleanup))
	}
}

// holderUntil names a holder for people, with the end of its lease where that
// is known.
func holderUntil(holder string, until *time.Time) string {
	if until == nil {
		return oneLine(holder)
	}
	return oneLine(holder) + " until " + until.UTC().Format(time.RFC3339)
}

// utc is the time as JSON shows it; nil leaves a zero time out.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	u := t.UTC()
	return &u
}
