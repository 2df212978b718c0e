package commitstep

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// PlanKind is the `kind` of a plan document.
const PlanKind = "Plan"

type planDoc struct {
	APIVersion        string          `json:"apiVersion"`
	Kind              string          `json:"kind"`
	ID                *string         `json:"id"`
	Job               string          `json:"job"`
	Dataset           string          `json:"dataset"`
	Locks             []string        `json:"locks"`
	Stages            []stageDoc      `json:"stages"`
	Cleanup           []CleanupParams `json:"cleanup"`
	AcceptReusedPaths string          `json:"acceptReusedPaths"`
	// StepCount is for JSON lines only: how many step lines follow.
	StepCount *int `json:"stepCount"`
}

type stageDoc struct {
	Steps []stepDoc `json:"steps"`
}

type stepDoc struct {
	Kind   string          `json:"kind"`
	Params json.RawMessage `json:"params"`
}

type lineDoc struct {
	Stage *int `json:"stage"`
	stepDoc
}

const docHint = "see docs/formats.md for the plan document"

// ParsePlan reads one plan document in JSON. Unknown and repeated fields are
// refused, since a misspelt one would be a step that silently never runs.
// Errors are *PlanError.
func ParsePlan(data []byte) (*Plan, error) {
	var doc planDoc
	if err := strictJSON(data, &doc); err != nil {
		return nil, &PlanError{Where: "document", Problem: "cannot be read", Err: err, Hint: docHint}
	}
	if doc.StepCount != nil {
		return nil, &PlanError{Where: "document", Problem: "has a stepCount", Hint: "that belongs to plans in JSON lines; remove it"}
	}
	p, err := doc.plan()
	if err != nil {
		return nil, err
	}
	n := 0
	for i, st := range doc.Stages {
		if len(st.Steps) == 0 {
			return nil, &PlanError{Where: fmt.Sprintf("stage %d", i+1), Problem: "has no steps", Hint: "remove it or give it steps"}
		}
		for j, s := range st.Steps {
			spec, err := s.spec(i, n)
			if err != nil {
				return nil, err
			}
			n++
			if j == 0 {
				p.Then(spec)
			} else {
				p.Step(spec)
			}
		}
	}
	return p, nil
}

// maxLine is the longest line of a plan in JSON lines, in bytes.
const maxLine = 4 << 20

// ReadPlanLines reads a long plan as JSON lines: the document without `stages`
// on the first line, then one step a line, {"stage":0,"kind":…,"params":…},
// stages counted from 0. Steps are read from r while the plan is prepared, so
// a plan of a million steps is never held in memory, and its steps can be
// ranged over once; a second time is an error, not an empty plan.
//
// A file that was cut at the end of a line looks whole. The first line may say
// how many step lines follow, `stepCount`; then a short or long one is refused.
func ReadPlanLines(r io.Reader) (*Plan, error) {
	l := newPlanLines(r)
	head, err := l.next()
	if err == io.EOF {
		return nil, &PlanError{Where: "document", Problem: "is empty", Hint: docHint}
	}
	var doc planDoc
	if err == nil {
		err = strictJSON(head, &doc)
	}
	if err != nil {
		return nil, &PlanError{Where: "line 1", Problem: "cannot be read", Err: err, Hint: docHint}
	}
	if doc.Stages != nil {
		return nil, &PlanError{Where: "line 1", Problem: "has stages", Hint: "in JSON lines every step has its own line"}
	}
	p, err := doc.plan()
	if err != nil {
		return nil, err
	}
	l.want = doc.StepCount
	p.Stream = l.steps
	return p, nil
}

// planLines reads non-empty lines and counts all of them.
type planLines struct {
	sc   *bufio.Scanner
	line int
	want *int // stepCount
	used bool
}

func newPlanLines(r io.Reader) *planLines {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), maxLine)
	return &planLines{sc: sc}
}

// next returns io.EOF after the last line. The bytes are valid until the next
// call.
func (l *planLines) next() ([]byte, error) {
	for l.sc.Scan() {
		l.line++
		if err := l.sc.Err(); err != nil {
			return nil, err // what was read before it is part of a line
		}
		if b := bytes.TrimSpace(l.sc.Bytes()); len(b) > 0 {
			return b, nil
		}
	}
	switch err := l.sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		l.line++
		return nil, fmt.Errorf("it is longer than %d bytes", maxLine)
	case err != nil:
		l.line++
		return nil, err
	}
	return nil, io.EOF
}

func (l *planLines) steps(yield func(StagedSpec, error) bool) {
	fail := func(problem string, err error, hint string) {
		yield(StagedSpec{}, &PlanError{Where: fmt.Sprintf("line %d", l.line), Problem: problem, Err: err, Hint: hint})
	}
	if l.used {
		fail("was read already", nil, "the steps of a plan in JSON lines can be read once; open the file again")
		return
	}
	l.used = true
	for n := 0; ; n++ {
		b, err := l.next()
		if err == io.EOF {
			if l.want != nil && *l.want != n {
				fail(fmt.Sprintf("is the last one: %d steps were read, stepCount says %d", n, *l.want), nil, "the file is cut short or was written by two writers; nothing was published")
			}
			return
		}
		var d lineDoc
		if err == nil {
			err = strictJSON(b, &d)
		}
		if err == nil && d.Stage == nil {
			err = errors.New("it has no stage")
		}
		if err != nil {
			fail("cannot be read", err, docHint)
			return
		}
		spec, err := d.spec(*d.Stage, n)
		if err != nil {
			yield(StagedSpec{}, err)
			return
		}
		if !yield(StagedSpec{Stage: *d.Stage, StepSpec: spec}, nil) {
			return
		}
	}
}

func (d planDoc) plan() (*Plan, error) {
	if d.APIVersion != APIVersion || d.Kind != PlanKind {
		return nil, &PlanError{Where: "document", Problem: fmt.Sprintf("says apiVersion %q and kind %q", d.APIVersion, d.Kind), Hint: fmt.Sprintf("this program reads apiVersion: %s, kind: %s", APIVersion, PlanKind)}
	}
	p := NewPlan(d.Job, d.Dataset).Lock(d.Locks...)
	if d.ID != nil {
		// An empty id is what an unset variable leaves; taking it for no id would
		// let the plan be published twice.
		if err := CheckName("id", *d.ID); err != nil {
			return nil, err
		}
		p.WithID(*d.ID)
	}
	p.AcceptReusedPaths = d.AcceptReusedPaths
	if err := p.Validate(); err != nil {
		return nil, err
	}
	for i, c := range d.Cleanup {
		if c.Path == "" {
			return nil, &PlanError{Where: fmt.Sprintf("cleanup %d", i+1), Problem: "has no path", Hint: "name the staging directory of this run"}
		}
		p.CleanupWith(c)
	}
	return p, nil
}

// Validate checks the plan's names. Steps are checked while they are prepared.
func (p *Plan) Validate() error {
	if err := p.Err(); err != nil {
		return err
	}
	if err := p.Key.Validate(); err != nil {
		return err
	}
	if p.ID != "" {
		if err := CheckName("id", p.ID); err != nil {
			return err
		}
	}
	for _, l := range p.Locks {
		if err := CheckName("lock", l); err != nil {
			return err
		}
	}
	if r := p.AcceptReusedPaths; r != "" {
		if n := utf8.RuneCountInString(strings.TrimSpace(r)); n < minReason || len(r) > MaxNameBytes || !utf8.ValidString(r) {
			return &PlanError{Where: "acceptReusedPaths", Problem: "is no reason", Hint: fmt.Sprintf("say in at least %d characters, and at most %d bytes of UTF-8, why nothing of an earlier run can still arrive at the paths", minReason, MaxNameBytes)}
		}
	}
	return nil
}

// minReason is the shortest reason that a plan gives, in characters.
const minReason = 5

func (s stepDoc) spec(stage, index int) (StepSpec, error) {
	where := Where(stage, index, s.Kind)
	if s.Kind == "" {
		return StepSpec{}, &PlanError{Where: where, Problem: "has no kind", Hint: docHint}
	}
	if err := CheckNoSecrets(where, s.Params); err != nil {
		return StepSpec{}, err
	}
	return StepSpec{Kind: s.Kind, Params: s.Params}, nil
}

// DecodeParams decodes a step's parameters strictly into v; for kinds.
func DecodeParams(s Step, v any) error {
	raw := s.Params
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = []byte("{}")
	}
	if err := strictJSON(raw, v); err != nil {
		return &PlanError{Where: Where(s.Stage, s.Index, s.Kind), Problem: "has wrong parameters", Err: err, Hint: "see the kind in docs/formats.md"}
	}
	return nil
}
