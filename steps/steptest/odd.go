package steptest

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

func versions(t *testing.T, c Case) {
	s := newSubject(t, c)
	step, err := s.planned.Step(s.index)
	if err != nil {
		t.Fatal(err)
	}
	kinds := s.w.Kinds()
	k, ok := kinds.Kind(step.Kind)
	if !ok || k.Version != step.Version {
		t.Fatalf("planned with version %d of %s, registered is %d", step.Version, step.Kind, k.Version)
	}
	if k.Class != step.Class {
		t.Errorf("planned with class %q, the kind has %q", step.Class, k.Class)
	}
	p := s.process()
	if _, is := p.Step.(commitstep.Guard); is != k.Guards {
		t.Errorf("the kind says Guards: %v, its steps say %v", k.Guards, is)
	}
	if _, is := p.Step.(commitstep.OnPark); is != k.WantsPark {
		t.Errorf("the kind says WantsPark: %v, its steps say %v", k.WantsPark, is)
	}
	newer := step
	newer.Version++
	if _, err := kinds.Build(newer); !errors.Is(err, commitstep.ErrUnsupported) {
		t.Errorf("a newer version is not refused as unsupported: %v", err)
	}
	never := step
	never.Version = 0
	if _, err := kinds.Build(never); err == nil {
		t.Error("version 0 is accepted")
	}
	foreign := step
	foreign.Kind += ".unheard-of"
	if _, err := kinds.Build(foreign); !errors.Is(err, commitstep.ErrUnsupported) {
		t.Errorf("an unknown kind is not refused as unsupported: %v", err)
	}
}

// oddValues are what a value of any type may be replaced by.
var oddValues = []string{`null`, `{}`, `[]`, `""`, `"\u0000"`, `0`, `-1`, `1e400`, `true`, `[[[[1]]]]`, `{"a":{"b":null}}`}

func oddParams(t *testing.T, c Case) {
	s := newSubject(t, c)
	step, err := s.planned.Step(s.index)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(step.Params, &fields); err != nil {
		t.Fatalf("parameters are not an object: %v", err)
	}
	with := func(name, value string) json.RawMessage {
		m := maps.Clone(fields)
		if m == nil {
			m = map[string]json.RawMessage{}
		}
		if value == "" {
			delete(m, name)
		} else {
			m[name] = json.RawMessage(value)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	unknown := step
	unknown.Params = with("no such parameter", "1")
	if _, err := s.w.Kinds().Build(unknown); err == nil {
		t.Error("an unknown parameter is accepted: a misspelt one would be ignored")
	} else if !planErr(err) {
		t.Errorf("the refusal of an unknown parameter is no *PlanError: %v", err)
	}
	odd := []json.RawMessage{nil, json.RawMessage(`null`), json.RawMessage(`[]`), json.RawMessage(`"x"`), json.RawMessage(`{"`), json.RawMessage(``)}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		odd = append(odd, with(name, ""))
		for _, v := range oddValues {
			odd = append(odd, with(name, v))
		}
	}
	for _, params := range odd {
		bad := step
		bad.Params = params
		s.tolerates(bad, "parameters "+string(params))
		if s.w.Plan != nil {
			continue
		}
		w := s.w
		w.Spec.Params = params
		before := s.snapshot()
		s.dies("planning with parameters "+string(params), func() {
			_, _ = Plan(t.Context(), w.Kinds(), w.plan())
		})
		if after := s.snapshot(); after != before {
			t.Fatalf("planning with parameters %s wrote", params)
		}
	}
}

// tolerates holds that a damaged stored step is refused or looked at without a
// panic, and never taken for done in a world in which nothing happened.
func (s *subject) tolerates(step commitstep.Step, what string) (v commitstep.Verdict, err error) {
	s.t.Helper()
	s.dies("a look with "+what, func() {
		// Not through Build, which would turn a panic into an error.
		k, _ := s.w.Kinds().Kind(step.Kind)
		var b commitstep.CommitStep
		if b, err = k.New(step); err != nil {
			return
		}
		a := commitstep.NewAttempt(s.planned.ID, s.planned.Key, s.index, commitstep.Progress{}, nil)
		if v, err = s.look(s.t.Context(), &Process{Step: b, Attempt: a}); err != nil {
			return
		}
		if v.Outcome == commitstep.Done && s.effects() == 0 {
			s.t.Errorf("nothing was done; with %s Verify says %q", what, v)
		}
	})
	return v, err
}

func oddEvidence(t *testing.T, c Case) {
	s := newSubject(t, c)
	step, err := s.planned.Step(s.index)
	if err != nil {
		t.Fatal(err)
	}
	if step.Evidence == nil {
		return // the kind rests on its token alone
	}
	half := step.Evidence[:len(step.Evidence)/2]
	odd := []json.RawMessage{nil, json.RawMessage(`null`), json.RawMessage(`{}`), json.RawMessage(`[]`), json.RawMessage(`"x"`), json.RawMessage(`7`), half}
	damaged := func(each func(step commitstep.Step, what string)) {
		for _, e := range odd {
			bad := step
			bad.Evidence = e
			each(bad, "evidence "+string(e))
		}
	}
	damaged(func(bad commitstep.Step, what string) { _, _ = s.tolerates(bad, what) })
	s.done("run")
	damaged(func(bad commitstep.Step, what string) {
		if v, err := s.tolerates(bad, what); err == nil && v.Outcome == commitstep.NotDone {
			t.Errorf("it is done; with %s Verify says %q: it would be executed again", what, v)
		}
	})
}
