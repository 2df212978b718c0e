package commitstep

import "encoding/json"

// StagedBy are the addresses of what a step stages: what it moves away ("from" in
// its parameters), and what else its kind says that its effect is made of ("staged",
// a list of addresses in its evidence: the place of a table that a statement reads).
// Whatever lies below belongs to it. It is empty for a step that stages nothing, or
// of which nobody can tell.
func StagedBy(s Step) []Address {
	var p struct {
		From string `json:"from"`
	}
	var ev struct {
		Staged []string `json:"staged"`
	}
	// Parameters and evidence of other kinds may be anything.
	_ = json.Unmarshal(s.Params, &p)
	_ = json.Unmarshal(s.Evidence, &ev)
	var out []Address
	for _, text := range append([]string{p.From}, ev.Staged...) {
		if text == "" {
			continue
		}
		if a, err := ParseAddress(text, ""); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// Unstaged is the first of the given steps that publishes data of which nobody can
// tell where it was staged; ok is false when there is none. Where such a step was
// declared published, nothing may be cleaned up: it might be the only copy.
func (r *Registry) Unstaged(steps []Step) (_ Step, ok bool) {
	for _, s := range steps {
		k, known := r.Kind(s.Kind)
		if (!known || k.Class == DataStep) && len(StagedBy(s)) == 0 {
			return s, true
		}
	}
	return Step{}, false
}
