package boltstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
)

// Steps are the bulk of what is read and written: their JSON is put together
// and taken apart by hand, always in the same order of fields and without
// blanks in between:
//
//	[{"stage":0,"kind":"k","version":1,"class":"c","params":…,"evidence":…},…]

// appendSteps writes steps as a JSON array. Parameters and evidence are JSON
// already; they are checked, not decoded.
func appendSteps(b []byte, steps []commitstep.Step) ([]byte, error) {
	b = append(b, '[')
	for i := range steps {
		s := &steps[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"stage":`...)
		b = strconv.AppendInt(b, int64(s.Stage), 10)
		b = append(b, `,"kind":`...)
		b = appendText(b, s.Kind)
		b = append(b, `,"version":`...)
		b = strconv.AppendInt(b, int64(s.Version), 10)
		if s.Class != "" {
			b = append(b, `,"class":`...)
			b = appendText(b, string(s.Class))
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
				return nil, fmt.Errorf("boltstore: step %d (%s): its parameters or evidence are not valid JSON", s.Index, s.Kind)
			}
			b = append(b, part.name...)
			b = append(b, raw...)
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

// appendText writes s as a JSON string.
func appendText(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			q, err := json.Marshal(s)
			if err != nil { // strings always marshal
				return append(b, `""`...)
			}
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// decodeSteps reads the steps of a page; first is the index of its first step.
// raw may be reused by the caller.
func decodeSteps(raw []byte, first int) ([]commitstep.Step, error) {
	steps, ok := parseSteps(bytes.Clone(raw))
	if !ok {
		// Another version may write them in another order.
		steps = nil
		if err := decode(raw, &steps); err != nil {
			return nil, err
		}
	}
	for i := range steps {
		steps[i].Index = first + i
	}
	return steps, nil
}

// stepParser walks over JSON whose checksum was right, so it only has to find
// where values end, and gives up on anything it does not expect.
type stepParser struct {
	b  []byte
	at int
	ok bool
}

// parseSteps takes a page apart. Parameters and evidence share raw's memory,
// which the steps then own.
func parseSteps(raw []byte) ([]commitstep.Step, bool) {
	p := &stepParser{b: raw, ok: true}
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

func (p *stepParser) skip(text string) bool {
	if !p.ok || len(p.b)-p.at < len(text) || string(p.b[p.at:p.at+len(text)]) != text {
		return false
	}
	p.at += len(text)
	return true
}

func (p *stepParser) expect(text string) {
	if !p.skip(text) {
		p.ok = false
	}
}

// int reads a number of up to 9 digits.
func (p *stepParser) int() int {
	n, start := 0, p.at
	for p.ok && p.at < len(p.b) && p.b[p.at] >= '0' && p.b[p.at] <= '9' && p.at-start < 9 {
		n = n*10 + int(p.b[p.at]-'0')
		p.at++
	}
	if p.at == start {
		p.ok = false
	}
	return n
}

// text reads up to the closing quote; escapes are left to the slow way.
func (p *stepParser) text() []byte {
	if !p.ok {
		return nil
	}
	i := bytes.IndexByte(p.b[p.at:], '"')
	// The slow way also knows what becomes of bytes that are no UTF-8.
	if i < 0 || bytes.IndexByte(p.b[p.at:p.at+i], '\\') >= 0 || !utf8.Valid(p.b[p.at:p.at+i]) {
		p.ok = false
		return nil
	}
	t := p.b[p.at : p.at+i]
	p.at += i + 1
	return t
}

// value reads one JSON value of any kind.
func (p *stepParser) value() json.RawMessage {
	start, depth := p.at, 0
	for p.ok && p.at < len(p.b) {
		switch p.b[p.at] {
		case '"':
			p.string()
		case '{', '[':
			depth++
			p.at++
		case '}', ']':
			if depth == 0 {
				return p.cut(start)
			}
			depth--
			p.at++
		case ',':
			if depth == 0 {
				return p.cut(start)
			}
			p.at++
		default:
			p.at++
		}
	}
	p.ok = false
	return nil
}

func (p *stepParser) cut(start int) json.RawMessage {
	if p.at == start {
		p.ok = false
	}
	return p.b[start:p.at:p.at]
}

// string passes over a JSON string.
func (p *stepParser) string() {
	for p.at++; p.at < len(p.b); p.at++ {
		switch p.b[p.at] {
		case '\\':
			p.at++
		case '"':
			p.at++
			return
		}
	}
	p.ok = false
}
