package commitstep

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"slices"
	"strconv"
)

// PlanHasher computes the hash of a plan as resolved, without evidence: two
// plans have the same hash when they ask for the same effects. Use the methods
// in order: NewPlanHasher, Step for every step, Cleanup, Sum. What is hashed
// are lines of JSON, see docs/formats.md; white space in parameters does not
// count.
type PlanHasher struct {
	h    hash.Hash
	line bytes.Buffer
}

// NewPlanHasher starts with the plan's names and locks. The order of locks and
// their repetition ask for nothing.
func NewPlanHasher(p *Plan) *PlanHasher {
	h := &PlanHasher{h: sha256.New()}
	h.line.Grow(512)
	h.line.WriteString(`["plan",{"job":`)
	h.text(p.Job)
	h.line.WriteString(`,"dataset":`)
	h.text(p.Dataset)
	h.line.WriteString("},")
	if len(p.Locks) == 0 {
		h.line.WriteString("null")
	} else {
		for i, l := range slices.Compact(slices.Sorted(slices.Values(p.Locks))) {
			h.line.WriteByte("[,"[min(i, 1)])
			h.text(l)
		}
		h.line.WriteByte(']')
	}
	h.line.WriteByte(']')
	h.end()
	return h
}

// Step adds a resolved step.
func (h *PlanHasher) Step(s Step) {
	h.line.WriteString(`["step",`)
	h.line.WriteString(strconv.Itoa(s.Stage))
	h.line.WriteByte(',')
	h.step(s)
}

// Cleanup adds a resolved cleanup step.
func (h *PlanHasher) Cleanup(s Step) {
	h.line.WriteString(`["cleanup",`)
	h.step(s)
}

// Sum is the hash as text.
func (h *PlanHasher) Sum() string { return "sha256:" + hex.EncodeToString(h.h.Sum(nil)) }

func (h *PlanHasher) step(s Step) {
	h.text(s.Kind)
	h.line.WriteByte(',')
	h.line.WriteString(strconv.Itoa(s.Version))
	h.line.WriteByte(',')
	h.params(s.Params)
	h.line.WriteByte(']')
	h.end()
}

// params writes what json.Marshal makes of raw JSON: white space removed, and
// the characters escaped that HTML would mistake.
func (h *PlanHasher) params(raw json.RawMessage) {
	plain := len(raw) > 0
	for _, c := range raw {
		if c <= ' ' || c >= 0x80 || c == '<' || c == '>' || c == '&' {
			plain = false
			break
		}
	}
	switch start := h.line.Len(); {
	case plain:
		h.line.Write(raw)
	case len(raw) == 0:
		h.line.WriteString("null")
	case json.Compact(&h.line, raw) != nil:
		// What is no JSON was refused before; if not, its bytes count.
		h.line.Write(raw)
	default:
		params := bytes.Clone(h.line.Bytes()[start:])
		h.line.Truncate(start)
		json.HTMLEscape(&h.line, params)
	}
}

// text writes a JSON string.
func (h *PlanHasher) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			b, _ := json.Marshal(s) // text always marshals
			h.line.Write(b)
			return
		}
	}
	h.line.WriteByte('"')
	h.line.WriteString(s)
	h.line.WriteByte('"')
}

func (h *PlanHasher) end() {
	h.line.WriteByte('\n')
	h.h.Write(h.line.Bytes())
	h.line.Reset()
}
