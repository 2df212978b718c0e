package commitstep_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

// requireRefusal holds that err is one clear refusal: a *PlanError on one line
// that says every part of says.
func requireRefusal(t testing.TB, err error, says ...string) {
	t.Helper()
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) {
		t.Fatalf("want a *PlanError, got %v", err)
	}
	text := err.Error()
	if strings.ContainsAny(text, "\n\r") {
		t.Errorf("the refusal is not one line: %q", text)
	}
	for _, s := range says {
		if !strings.Contains(text, s) {
			t.Errorf("%q does not say %q", text, s)
		}
	}
}

// collect ranges over a plan's steps.
func collect(p *commitstep.Plan) (steps []commitstep.StagedSpec, err error) {
	for s, err := range p.Steps() {
		if err != nil {
			return steps, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// requireRefusalRapid is requireRefusal inside a property.
func requireRefusalRapid(t interface{ Fatalf(string, ...any) }, err error) {
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) || pe.Problem == "" {
		t.Fatalf("want a *PlanError with a problem, got %v", err)
	}
}

// canonical sorts the fields of parameters.
func canonical(t testing.TB, raw json.RawMessage) json.RawMessage {
	t.Helper()
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
