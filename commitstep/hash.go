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
	// Plain text and lists of it always marshal.
	b, _ := json.Marshal([]any{"plan", p.Key, slices.Compact(slices.Sorted(slices.Values(p.Locks)))})
	h.line.Write(b)
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
	kind, _ := json.Marshal(s.Kind)
	h.line.Write(kind)
	h.line.WriteByte(',')
	h.line.WriteString(strconv.Itoa(s.Version))
	h.line.WriteByte(',')
	switch start := h.line.Len(); {
	case len(s.Params) == 0:
		h.line.WriteString("null")
	case json.Compact(&h.line, s.Params) != nil:
		// What is no JSON was refused before; if not, its bytes count.
		h.line.Write(s.Params)
	case bytes.ContainsAny(h.line.Bytes()[start:], "<>&\u2028\u2029"):
		params := bytes.Clone(h.line.Bytes()[start:])
		h.line.Truncate(start)
		json.HTMLEscape(&h.line, params)
	}
	h.line.WriteByte(']')
	h.end()
}

func (h *PlanHasher) end() {
	h.line.WriteByte('\n')
	h.h.Write(h.line.Bytes())
	h.line.Reset()
}
