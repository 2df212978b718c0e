package commitstep

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// PlanKind is the `kind` of a plan document.
const PlanKind = "Plan"

type planDoc struct {
	APIVersion        string          `json:"apiVersion"`
	Kind              string          `json:"kind"`
	ID                string          `json:"id"`
	Job               string          `json:"job"`
	Dataset           string          `json:"dataset"`
	Locks             []string        `json:"locks"`
	Stages            []stageDoc      `json:"stages"`
	Cleanup           []CleanupParams `json:"cleanup"`
	AcceptReusedPaths string          `json:"acceptReusedPaths"`
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

// ReadPlanLines reads a long plan as JSON lines: the document without `stages`
// on the first line, then one step a line, {"stage":0,"kind":…,"params":…},
// stages counted from 0. Steps are read from r while the plan is prepared, so
// a plan of a million steps is never held in memory.
func ReadPlanLines(r io.Reader) (*Plan, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 4<<20)
	next := func() ([]byte, bool) {
		for sc.Scan() {
			if b := bytes.TrimSpace(sc.Bytes()); len(b) > 0 {
				return b, true
			}
		}
		return nil, false
	}
	head, ok := next()
	if !ok {
		return nil, &PlanError{Where: "document", Problem: "is empty", Err: sc.Err(), Hint: docHint}
	}
	var doc planDoc
	if err := strictJSON(head, &doc); err != nil {
		return nil, &PlanError{Where: "line 1", Problem: "cannot be read", Err: err, Hint: docHint}
	}
	if doc.Stages != nil {
		return nil, &PlanError{Where: "line 1", Problem: "has stages", Hint: "in JSON lines every step has its own line"}
	}
	p, err := doc.plan()
	if err != nil {
		return nil, err
	}
	p.Stream = func(yield func(StagedSpec, error) bool) {
		for n := 0; ; n++ {
			b, ok := next()
			if !ok {
				if err := sc.Err(); err != nil {
					yield(StagedSpec{}, &PlanError{Where: fmt.Sprintf("step %d", n+1), Problem: "cannot be read", Err: err})
				}
				return
			}
			var l lineDoc
			err := strictJSON(b, &l)
			if err == nil && l.Stage == nil {
				err = errors.New("it has no stage")
			}
			if err != nil {
				yield(StagedSpec{}, &PlanError{Where: fmt.Sprintf("step %d", n+1), Problem: "cannot be read", Err: err, Hint: docHint})
				return
			}
			spec, err := l.spec(*l.Stage, n)
			if err != nil {
				yield(StagedSpec{}, err)
				return
			}
			if !yield(StagedSpec{Stage: *l.Stage, StepSpec: spec}, nil) {
				return
			}
		}
	}
	return p, nil
}

func (d planDoc) plan() (*Plan, error) {
	if d.APIVersion != APIVersion || d.Kind != PlanKind {
		return nil, &PlanError{Where: "document", Problem: fmt.Sprintf("says apiVersion %q and kind %q", d.APIVersion, d.Kind), Hint: fmt.Sprintf("this program reads apiVersion: %s, kind: %s", APIVersion, PlanKind)}
	}
	p := NewPlan(d.Job, d.Dataset).WithID(d.ID).Lock(d.Locks...)
	p.AcceptReusedPaths = d.AcceptReusedPaths
	if err := p.Validate(); err != nil {
		return nil, err
	}
	for _, c := range d.Cleanup {
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
	return nil
}

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

// strictJSON decodes exactly one value without unknown or repeated fields.
func strictJSON(data []byte, v any) error {
	if err := noRepeats(json.NewDecoder(bytes.NewReader(data))); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("it is empty or ends too early")
		}
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows after the end of the document")
	}
	return nil
}

// noRepeats refuses objects that name a field twice; field names are compared
// without regard to case, as encoding/json matches them.
func noRepeats(d *json.Decoder) error {
	type level struct {
		object bool
		key    bool // the next token is a key
		seen   map[string]bool
	}
	var stack []level
	for {
		t, err := d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "json: "))
		}
		if delim, ok := t.(json.Delim); ok && (delim == '}' || delim == ']') {
			stack = stack[:len(stack)-1]
		} else if n := len(stack); n > 0 && stack[n-1].object && stack[n-1].key {
			k, _ := t.(string)
			if stack[n-1].seen[strings.ToLower(k)] {
				return fmt.Errorf("the field %q appears twice", k)
			}
			stack[n-1].seen[strings.ToLower(k)] = true
			stack[n-1].key = false
			continue
		} else if ok {
			if len(stack) > 200 {
				return errors.New("it is nested too deeply")
			}
			stack = append(stack, level{object: delim == '{', key: delim == '{', seen: map[string]bool{}})
			continue
		}
		if n := len(stack); n > 0 && stack[n-1].object {
			stack[n-1].key = true
		}
	}
}
