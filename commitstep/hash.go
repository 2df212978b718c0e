package commitstep

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
)

// PlanHasher computes the hash of a plan as resolved, without evidence: two
// plans have the same hash when they ask for the same effects. Use the methods
// in order: NewPlanHasher, Step for every step, Cleanup, Sum.
type PlanHasher struct{ h hash.Hash }

// NewPlanHasher starts with the plan's names and locks.
func NewPlanHasher(p *Plan) *PlanHasher {
	h := &PlanHasher{sha256.New()}
	h.add("plan", p.Key, p.Locks)
	return h
}

// Step adds a resolved step.
func (h *PlanHasher) Step(s Step) { h.add("step", s.Stage, s.Kind, s.Version, s.Params) }

// Cleanup adds a resolved cleanup step.
func (h *PlanHasher) Cleanup(s Step) { h.add("cleanup", s.Kind, s.Version, s.Params) }

// Sum is the hash as text.
func (h *PlanHasher) Sum() string { return "sha256:" + hex.EncodeToString(h.h.Sum(nil)) }

func (h *PlanHasher) add(parts ...any) {
	// Marshal of these plain values cannot fail except for invalid raw JSON,
	// which DecodeParams refused before.
	b, err := json.Marshal(parts)
	if err != nil {
		b = []byte(err.Error())
	}
	h.h.Write(b)
	h.h.Write([]byte{'\n'})
}
