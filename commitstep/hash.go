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
	// text holds the lines that are not hashed yet. Short plans are hashed at once.
	text []byte
	h    hash.Hash // nil until text was too long
}

// hashAhead is how many bytes are kept before they are hashed.
const hashAhead = 4 << 10

// NewPlanHasher starts with the plan's names and locks. The order of locks and
// their repetition ask for nothing.
func NewPlanHasher(p *Plan) *PlanHasher {
	h := &PlanHasher{text: make([]byte, 0, 1<<10)}
	h.write(`["plan",{"job":`)
	h.quote(p.Job)
	h.write(`,"dataset":`)
	h.quote(p.Dataset)
	h.write("},")
	if len(p.Locks) == 0 {
		h.write("null")
	} else {
		for i, l := range slices.Compact(slices.Sorted(slices.Values(p.Locks))) {
			h.write("[,"[min(i, 1):][:1])
			h.quote(l)
		}
		h.write("]")
	}
	h.write("]")
	h.end()
	return h
}

// Step adds a resolved step.
func (h *PlanHasher) Step(s Step) {
	h.write(`["step",`)
	h.text = strconv.AppendInt(h.text, int64(s.Stage), 10)
	h.write(",")
	h.step(s)
}

// Cleanup adds a resolved cleanup step.
func (h *PlanHasher) Cleanup(s Step) {
	h.write(`["cleanup",`)
	h.step(s)
}

// Sum is the hash as text.
func (h *PlanHasher) Sum() string {
	const prefix = "sha256:"
	var sum [sha256.Size]byte
	if h.h == nil {
		sum = sha256.Sum256(h.text)
	} else {
		h.h.Write(h.text)
		h.h.Sum(sum[:0])
		h.text = h.text[:0]
	}
	var out [len(prefix) + 2*sha256.Size]byte
	copy(out[:], prefix)
	hex.Encode(out[len(prefix):], sum[:])
	return string(out[:])
}

func (h *PlanHasher) step(s Step) {
	h.quote(s.Kind)
	h.write(",")
	h.text = strconv.AppendInt(h.text, int64(s.Version), 10)
	h.write(",")
	h.params(s.Params)
	h.write("]")
	h.end()
}

// hashPlain tells the bytes that JSON may hold and that are hashed as they are.
var hashPlain = func() (t [256]bool) {
	for c := '!'; c < 0x80; c++ {
		t[c] = c != '<' && c != '>' && c != '&'
	}
	return t
}()

// params writes what json.Marshal makes of raw JSON: white space removed, and
// the characters escaped that HTML would mistake.
func (h *PlanHasher) params(raw json.RawMessage) {
	if len(raw) == 0 {
		h.write("null")
		return
	}
	for _, c := range raw {
		if !hashPlain[c] {
			h.oddParams(raw)
			return
		}
	}
	h.text = append(h.text, raw...)
}

func (h *PlanHasher) oddParams(raw json.RawMessage) {
	var compact, escaped bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		// What is no JSON was refused before; if not, its bytes count.
		h.text = append(h.text, raw...)
		return
	}
	json.HTMLEscape(&escaped, compact.Bytes())
	h.text = append(h.text, escaped.Bytes()...)
}

func (h *PlanHasher) write(s string) { h.text = append(h.text, s...) }

// quote writes a JSON string.
func (h *PlanHasher) quote(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			b, _ := json.Marshal(s) // text always marshals
			h.text = append(h.text, b...)
			return
		}
	}
	h.text = append(h.text, '"')
	h.text = append(h.text, s...)
	h.text = append(h.text, '"')
}

// end ends a line.
func (h *PlanHasher) end() {
	h.text = append(h.text, '\n')
	if len(h.text) < hashAhead {
		return
	}
	if h.h == nil {
		h.h = sha256.New()
	}
	h.h.Write(h.text)
	h.text = h.text[:0]
}
