package commitstep

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxNameBytes is the longest job, dataset, lock, source or plan id, in bytes.
const MaxNameBytes = 1024

// Key names what is published as one unit: a dataset inside a job. At most one
// live sequence exists per Key. The parts are compared byte for byte; nothing
// is folded, trimmed or normalised.
type Key struct {
	Job     string `json:"job"`
	Dataset string `json:"dataset"`
}

// String is for people; it quotes both parts so that "a/b" in job "c" cannot
// be mistaken for "b" in job "c/a".
func (k Key) String() string { return fmt.Sprintf("%q/%q", k.Job, k.Dataset) }

// Validate reports a [*PlanError] when a part is empty, too long or not UTF-8.
func (k Key) Validate() error {
	if err := CheckName("job", k.Job); err != nil {
		return err
	}
	return CheckName("dataset", k.Dataset)
}

// Compare orders keys by job, then dataset, bytewise.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Job, o.Job); c != 0 {
		return c
	}
	return strings.Compare(k.Dataset, o.Dataset)
}

// CheckName reports a [*PlanError] unless text is non-empty valid UTF-8 of at
// most [MaxNameBytes] bytes. What says which name it is, for the message.
func CheckName(what, text string) error {
	switch {
	case text == "":
		return &PlanError{Where: what, Problem: "is empty", Hint: "give the " + what + " a name"}
	case len(text) > MaxNameBytes:
		return &PlanError{Where: what, Problem: fmt.Sprintf("has %d bytes, more than the %d allowed", len(text), MaxNameBytes), Hint: "shorten the " + what}
	case !utf8.ValidString(text):
		return &PlanError{Where: what, Problem: fmt.Sprintf("is not valid UTF-8 (%q)", text), Hint: "names are UTF-8 text"}
	}
	return nil
}
