package records

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/commitstep/engine/commitstep"
)

// Steps are the bulk of what is read and written: their JSON is put together
// and taken apart by hand, always in the same order of fields and without
// blanks in between:
//
//	[{"stage":0,"kind":"k","version":1,"class":"c","params":…,"evidence":…},…]

// AppendSteps writes steps as a JSON array. Parameters and evidence are JSON
// already; they are checked, not decoded. Its error names the step.
func AppendSteps(b []byte, steps []commitstep.Step) ([]byte, error) {
	b = append(b, '[')
	for i := range steps {
		s := &steps[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"stage":`...)
		b = strconv.AppendInt(b, int64(s.Stage), 10)
		b = append(b, `,"kind":`...)
		b = AppendText(b, s.Kind)
		b = append(b, `,"version":`...)
		b = strconv.AppendInt(b, int64(s.Version), 10)
		if s.Class != "" {
			b = append(b, `,"class":`...)
			b = AppendText(b, string(s.Class))
		}
		for _, part := range [...]struct {
			name string
			raw  json.RawMessage
		}{{`,"params":`, s.Params}, {`,"evidence":`, s.Evidence}} {
			raw := bytes.TrimSpace(part.raw)
			if len(raw) == 0 {
				continue
			}
			if !commitstep.ValidJSON(raw) {
				return nil, fmt.Errorf("step %d (%s): its parameters or evidence are not valid JSON", s.Index, s.Kind)
			}
			b = append(b, part.name...)
			b = append(b, raw...)
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

// DecodeSteps reads the steps of a page, in any order of fields; first is the
// index of its first step. raw may be reused by the caller.
func DecodeSteps(raw []byte, first int) ([]commitstep.Step, error) {
	steps, ok := parseSteps(bytes.Clone(raw))
	if !ok {
		// Another version may write them in another order.
		steps = nil
		if err := json.Unmarshal(raw, &steps); err != nil {
			return nil, err
		}
	}
	for i := range steps {
		steps[i].Index = first + i
	}
	return steps, nil
}

// parseSteps takes a page apart. Parameters and evidence share raw's memory,
// which the steps then own.
func parseSteps(raw []byte) ([]commitstep.Step, bool) {
	p := &parser{b: raw, ok: true}
	var steps []commitstep.Step
	var kind string // most steps of a page have the same
	p.expect("[")
	for p.ok {
		var s commitstep.Step
		p.expect(`{"stage":`)
		s.Stage = p.int()
		p.expect(`,"kind":"`)
		if k := p.text(); string(k) == kind {
			s.Kind = kind
		} else {
			kind = string(k)
			s.Kind = kind
		}
		p.expect(`,"version":`)
		s.Version = p.int()
		if p.skip(`,"class":"`) {
			s.Class = commitstep.StepClass(p.text())
		}
		if p.skip(`,"params":`) {
			s.Params = p.value()
		}
		if p.skip(`,"evidence":`) {
			s.Evidence = p.value()
		}
		p.expect("}")
		steps = append(steps, s)
		if p.skip("]") {
			return steps, p.ok && p.at == len(p.b)
		}
		p.expect(",")
	}
	return nil, false
}
