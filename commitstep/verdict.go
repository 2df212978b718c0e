package commitstep

import "fmt"

// Outcome is the kind of answer that Verify gives.
type Outcome uint8

const (
	// Unknown: Verify looked and cannot tell. The zero value, so that a
	// forgotten answer is never mistaken for a success.
	Unknown Outcome = iota
	// Done: this very effect is in place.
	Done
	// NotDone: the effect is certainly not in place and may be executed.
	NotDone
	// Conflict: something else is where the effect should be; executing would
	// damage it or can never succeed.
	Conflict
)

func (o Outcome) String() string {
	switch o {
	case Done:
		return "done"
	case NotDone:
		return "not done"
	case Conflict:
		return "conflict"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// MarshalText gives the words used in JSON: done, not done, unknown, conflict.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText accepts what MarshalText writes.
func (o *Outcome) UnmarshalText(b []byte) error {
	for _, c := range []Outcome{Unknown, Done, NotDone, Conflict} {
		if c.String() == string(b) {
			*o = c
			return nil
		}
	}
	return fmt.Errorf("commitstep: %q is no outcome", b)
}

// Verdict is the answer of Verify together with what it rests on. Evidence is
// a sentence for people: what was seen and where.
type Verdict struct {
	Outcome  Outcome `json:"outcome"`
	Evidence string  `json:"evidence,omitempty"`
	// Already is set with Done when the effect was found in place although the
	// last call for it had failed or its answer was lost ("recovered").
	Already bool `json:"already,omitempty"`
	// Visible is set with NotDone and Conflict when the step's effect is there
	// all the same: something is missing from it, or it was changed since. A
	// sequence with such a step is not abandoned as if nothing had happened.
	// Done says it without.
	Visible bool `json:"visible,omitempty"`
}

// ButVisible returns v with Visible set.
func (v Verdict) ButVisible() Verdict {
	v.Visible = true
	return v
}

func (v Verdict) String() string {
	if v.Evidence == "" {
		return v.Outcome.String()
	}
	return v.Outcome.String() + ": " + v.Evidence
}

// IsDone, IsNotDone, IsUnknown and InConflict build verdicts from a format.
func IsDone(format string, a ...any) Verdict {
	return Verdict{Outcome: Done, Evidence: fmt.Sprintf(format, a...)}
}

// IsNotDone builds a NotDone verdict.
func IsNotDone(format string, a ...any) Verdict {
	return Verdict{Outcome: NotDone, Evidence: fmt.Sprintf(format, a...)}
}

// IsUnknown builds an Unknown verdict.
func IsUnknown(format string, a ...any) Verdict {
	return Verdict{Outcome: Unknown, Evidence: fmt.Sprintf(format, a...)}
}

// InConflict builds a Conflict verdict.
func InConflict(format string, a ...any) Verdict {
	return Verdict{Outcome: Conflict, Evidence: fmt.Sprintf(format, a...)}
}
