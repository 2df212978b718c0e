package steptest

import (
	"context"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

// maxPoints bounds the search for the last point of a step; one that passes
// more of them in a single run is refused rather than tested in part.
const maxPoints = 1000

func interruptions(t *testing.T, c Case) {
	t.Run("around the calls", func(t *testing.T) {
		t.Parallel()
		crashAround(t, c)
	})
	if c.New(t).Points == nil {
		return
	}
	for _, f := range faults {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			for n := range maxPoints {
				if !interruptAt(t, c, n, f) {
					if n == 0 {
						t.Fatal("the step passes no point at all: does the world's resource go through Points?")
					}
					return
				}
			}
			t.Fatalf("more than %d points: make the world smaller", maxPoints)
		})
	}
}

// crashAround ends processes between the calls of the driver.
func crashAround(t *testing.T, c Case) {
	s := newSubject(t, c)
	s.process() // dies before it looked
	p := s.process()
	if _, err := p.Verify(t.Context()); err != nil { // dies after its look
		t.Fatal(err)
	}
	s.wantEffects(0, "before any Execute")
	p = s.process()
	if v, err := p.Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone {
		t.Fatalf("fresh: %q, %v", v, err)
	}
	if err := s.execute(t.Context(), p); err != nil { // dies before it could settle
		t.Fatal(err)
	}
	s.converges("after a crash between Execute and Settle")
	s.converges("after a crash between Settle and the mark")
}

// interruptAt interrupts one run at its n-th point and lets another process go
// on. It reports whether the run had such a point.
func interruptAt(t *testing.T, c Case, n int, f Fault) bool {
	t.Helper()
	s := newSubject(t, c)
	p := s.process()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.w.Points.arm(n, f, cancel)
	died := s.dies(caseName(n, f), func() { _, _ = s.finish(ctx, p) })
	hit := s.w.Points.disarm()
	if hit == "" {
		return false
	}
	when := caseName(n, f) + " (" + hit + ")"
	if crashes := f == CrashBefore || f == CrashAfter; died != crashes {
		t.Fatalf("%s: the process died: %v", when, died)
	}
	if got := s.effects(); got > 1 {
		t.Fatalf("%s: the effect took place %d times", when, got)
	}
	s.converges(when)
	return true
}

// converges lets a fresh process finish the step.
func (s *subject) converges(when string) {
	s.t.Helper()
	v, err := s.finish(s.t.Context(), s.process())
	switch {
	case err != nil:
		s.t.Fatalf("%s: the next process fails: %v", when, err)
	case v.Outcome == commitstep.Done:
		s.want(commitstep.Done, when+", and run again")
		s.wantEffects(1, when)
	case v.Outcome == commitstep.Unknown && s.w.MayPark:
		if got := s.effects(); got > 1 {
			s.t.Fatalf("%s: parked, and the effect took place %d times", when, got)
		}
	default:
		s.t.Fatalf("%s: the next process ends with %q", when, v)
	}
}

func cancelled(t *testing.T, c Case) {
	s := newSubject(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if v, err := s.look(ctx, s.process()); err == nil && v.Outcome != commitstep.NotDone && v.Outcome != commitstep.Unknown {
		t.Fatalf("with an ended context Verify says %q, nothing was done", v)
	}
	p := s.process()
	err := s.execute(ctx, p)
	if n := s.effects(); n > 0 && commitstep.ClassOf(err) == commitstep.ClassNotSent && err != nil {
		t.Fatalf("Execute says that it certainly did nothing (%v), the effect took place %d times", err, n)
	}
	s.converges("after Execute with an ended context")
}
