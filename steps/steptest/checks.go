package steptest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

func planningReads(t *testing.T, c Case) {
	w := c.New(t)
	look := func() string {
		t.Helper()
		snap, err := w.Snapshot()
		if err != nil {
			t.Fatalf("snapshot: %v", err)
		}
		return snap
	}
	before := look()
	for i := range 2 {
		if _, err := Plan(t.Context(), w.Kinds(), w.plan()); err != nil {
			t.Fatalf("plan %d of the same step in the same place: %v", i+1, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = Plan(ended, w.Kinds(), w.plan()) // may work, may not; must not write or hang
	if w.Points != nil {
		for n := range maxPoints {
			w.Points.arm(n, FailBefore, func() {})
			_, err := Plan(t.Context(), w.Kinds(), w.plan())
			hit := w.Points.disarm()
			if hit == "" {
				break
			}
			if err == nil {
				t.Errorf("planning goes on although %q failed (point %d)", hit, n)
			}
		}
	}
	if after := look(); after != before {
		t.Fatalf("planning wrote.\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

func storedForm(t *testing.T, c Case) {
	s := newSubject(t, c)
	step, err := s.planned.Step(s.index)
	if err != nil {
		t.Fatal(err)
	}
	where := commitstep.Where(step.Stage, step.Index, step.Kind)
	if err := commitstep.CheckNoSecrets(where, step.Params); err != nil {
		t.Errorf("the resolved parameters are refused: %v", err)
	}
	if step.Evidence != nil && !json.Valid(step.Evidence) {
		t.Errorf("the evidence is not JSON: %q", step.Evidence)
	}
	// Resolving what is resolved already changes nothing, or a plan id would be
	// compared with another hash.
	b, err := s.w.Kinds().Build(step)
	if err != nil {
		t.Fatalf("the stored step cannot be built: %v", err)
	}
	if r, ok := b.(commitstep.Resolver); ok {
		planning, err := commitstep.NewPlanning(s.planned.ID, s.planned.Key, nil)
		if err != nil {
			t.Fatal(err)
		}
		pr := planning.For(step)
		if err := r.Resolve(pr); err != nil {
			t.Errorf("resolved parameters cannot be resolved again: %v", err)
		} else if string(pr.Step.Params) != string(step.Params) {
			t.Errorf("resolving twice changes %s into %s", step.Params, pr.Step.Params)
		}
	}
	again, err := json.Marshal(step)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(s.planned.stored[s.index]) {
		t.Errorf("stored as %s, read and stored again as %s", s.planned.stored[s.index], again)
	}
	s.done("built from its stored bytes")
	s.wantEffects(1, "built from its stored bytes")
}

func looks(t *testing.T, c Case) {
	s := newSubject(t, c)
	p := s.process()
	for range 3 {
		if v, err := s.look(t.Context(), p); err != nil || v.Outcome != commitstep.NotDone {
			t.Fatalf("before anything happened Verify says %q, %v", v, err)
		}
	}
	s.wantEffects(0, "after looks only")
	s.done("run")
	for range 3 {
		s.want(commitstep.Done, "after the run")
	}
	s.wantEffects(1, "after the run and further looks")
}

func failedLooks(t *testing.T, c Case) {
	for _, truth := range []commitstep.Outcome{commitstep.NotDone, commitstep.Done} {
		s := newSubject(t, c)
		if s.w.Points == nil {
			return // nothing can be made to fail
		}
		if truth == commitstep.Done {
			s.done("run")
		}
		for _, f := range []Fault{FailBefore, FailAfter} {
			for n := range maxPoints {
				p := s.process()
				s.w.Points.arm(n, f, func() {})
				v, err := p.Verify(t.Context())
				hit := s.w.Points.disarm()
				if hit == "" {
					break
				}
				if err == nil && v.Outcome != truth && v.Outcome != commitstep.Unknown {
					t.Errorf("the truth is %q; with %q failing (%s) Verify says %q", truth, hit, caseName(n, f), v)
				}
			}
		}
	}
}

func runsOnce(t *testing.T, c Case) {
	s := newSubject(t, c)
	p := s.process()
	if v, err := p.Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone {
		t.Fatalf("fresh: %q, %v", v, err)
	}
	s.wantEffects(0, "before Execute")
	if err := s.execute(t.Context(), p); err != nil {
		t.Fatalf("Execute in a good world: %v", err)
	}
	if v, err := s.look(t.Context(), p); err != nil || v.Outcome != commitstep.Done {
		t.Fatalf("after Execute: %q, %v", v, err)
	}
	for range 2 {
		if err := p.Settle(t.Context()); err != nil {
			t.Fatalf("Settle: %v", err)
		}
	}
	s.want(commitstep.Done, "after Settle")
	s.wantEffects(1, "after Settle")
}

func repeats(t *testing.T, c Case) {
	s := newSubject(t, c)
	p := s.process()
	if _, ok := p.Step.(commitstep.Irreversible); ok {
		// The driver never repeats these; interruptions covers what it does.
		s.done("run")
		s.done("run again")
		s.wantEffects(1, "run twice")
		return
	}
	for i := range 3 {
		if err := s.execute(t.Context(), p); err != nil && i == 0 {
			t.Fatalf("first Execute: %v", err)
		}
	}
	s.want(commitstep.Done, "executed three times by one process")
	_ = s.execute(t.Context(), s.process()) // refused or harmless
	s.want(commitstep.Done, "executed again by another process")
	s.done("run again")
	s.wantEffects(1, "after all repeats")
}

func lateProcess(t *testing.T, c Case) {
	s := newSubject(t, c)
	late := s.process()
	if v, err := late.Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone {
		t.Fatalf("fresh: %q, %v", v, err)
	}
	s.done("run by a newer process") // while late stands between its look and its effect
	_ = s.execute(t.Context(), late)
	s.want(commitstep.Done, "after the late Execute")
	s.wantEffects(1, "after the late Execute")
	if err := late.Attempt.Note(t.Context(), "late"); !errors.Is(err, commitstep.ErrFenced) {
		t.Fatalf("steptest: the journal let an old epoch write: %v", err)
	}
	if s.w.MovedOn == nil {
		return
	}
	if err := s.w.MovedOn(); err != nil {
		t.Fatalf("MovedOn: %v", err)
	}
	before := s.snapshot()
	_ = s.execute(t.Context(), late)
	if after := s.snapshot(); after != before {
		t.Fatalf("a process that thawed after the place moved on has written.\nbefore:\n%s\nafter:\n%s", before, after)
	}
	v, err := s.look(t.Context(), s.process())
	if err == nil && v.Outcome == commitstep.NotDone {
		t.Errorf("after the place moved on Verify says %q: it would be executed again", v)
	}
}

func lookAlikes(t *testing.T, c Case) {
	for name := range c.New(t).Foreign {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lookAlike(t, c, name)
		})
	}
	if s := newSubject(t, c); !s.w.SharesEffect {
		twin, err := Plan(t.Context(), s.w.Kinds(), s.w.plan())
		if err != nil {
			t.Fatal(err)
		}
		other := *s
		other.planned = twin
		other.done("an equal step of another plan")
		s.want(commitstep.Conflict, "after an equal step of another plan")
		before := s.snapshot()
		_ = s.execute(t.Context(), s.process())
		if after := s.snapshot(); after != before {
			t.Fatalf("Execute wrote over the effect of another plan.\nbefore:\n%s\nafter:\n%s", before, after)
		}
	}
}

func lookAlike(t *testing.T, c Case, name string) {
	s := newSubject(t, c)
	p := s.process()
	if v, err := p.Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone {
		t.Fatalf("fresh: %q, %v", v, err)
	}
	if err := s.w.Foreign[name](); err != nil {
		t.Fatalf("foreign: %v", err)
	}
	// It came between the look and the effect.
	before := s.snapshot()
	if err := s.execute(t.Context(), p); err == nil {
		t.Error("Execute reports success")
	}
	if after := s.snapshot(); after != before {
		t.Fatalf("Execute wrote over it.\nbefore:\n%s\nafter:\n%s", before, after)
	}
	// Not only for others: what this process remembers of its call is no proof.
	if v, err := s.look(t.Context(), p); err != nil || v.Outcome != commitstep.Conflict {
		t.Fatalf("after its own Execute the process says %q, %v", v, err)
	}
	s.want(commitstep.Conflict, "after Execute")
	s.wantEffects(0, "after Execute")
}

func concurrentLooks(t *testing.T, c Case) {
	s := newSubject(t, c)
	for _, truth := range []commitstep.Outcome{commitstep.NotDone, commitstep.Done} {
		if truth == commitstep.Done {
			s.done("run")
		}
		before := s.snapshot()
		var wg sync.WaitGroup
		kinds := s.w.Kinds()
		for range 8 {
			wg.Go(func() {
				p, err := s.planned.Process(kinds, s.index)
				if err != nil {
					t.Errorf("build: %v", err)
					return
				}
				for range 4 {
					if v, err := p.Verify(t.Context()); err != nil || v.Outcome != truth {
						t.Errorf("one of many looks says %q, %v; want %q", v, err, truth)
					}
				}
			})
		}
		wg.Wait()
		if after := s.snapshot(); after != before {
			t.Fatalf("concurrent looks wrote.\nbefore:\n%s\nafter:\n%s", before, after)
		}
	}
}

func parked(t *testing.T, c Case) {
	s := newSubject(t, c)
	p := s.process()
	on, ok := p.Step.(commitstep.OnPark)
	if !ok {
		return // the kind does not want to know
	}
	if err := on.OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told once"); err != nil {
		t.Fatalf("OnPark: %v", err)
	}
	before := s.snapshot()
	p = s.process()
	if err := p.Step.(commitstep.OnPark).OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told once"); err != nil {
		t.Fatalf("OnPark for the second time: %v", err)
	}
	if after := s.snapshot(); after != before {
		t.Fatalf("being told twice changed more than being told once.\nbefore:\n%s\nafter:\n%s", before, after)
	}
}
