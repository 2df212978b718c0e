package steptest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Case is what a kind gives to [Run].
type Case struct {
	// New builds a fresh world that shares nothing with any other. It is called
	// many times, from parallel tests; it may use t.TempDir and t.Cleanup.
	New func(t testing.TB) World
}

// World is a private place in which one step is planned and run. Its functions
// are called from one goroutine at a time, except those of the registry.
type World struct {
	// Spec is the step under test, as the caller of a plan writes it.
	Spec commitstep.StepSpec
	// Plan builds the whole plan around Spec when it needs more than the one
	// step: the steps before it, or a cleanup. nil is a plan of Spec alone. The
	// step under test is the last one.
	Plan func() *commitstep.Plan
	// Key of the plan; zero is a key of the kit's.
	Key commitstep.Key
	// BaseDir of the plan.
	BaseDir string
	// Kinds makes the registry of one process. A new one is asked for after
	// every crash, so nothing that a process knew may survive in it.
	Kinds func() *commitstep.Registry
	// Snapshot describes everything that a look must leave as it is.
	Snapshot func() (string, error)
	// Effects counts how often the effect took place.
	Effects func() (int, error)
	// Apply is the commit store, for kinds that are a commitstep.StoreStep: it
	// applies the move, or refuses it when something else is stored. It should
	// pass through Points too.
	Apply func(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error
	// Points are the operations to interrupt. Without them the kit interrupts
	// only around Execute and Settle.
	Points *Points
	// Foreign are things that others may put where the effect belongs; each
	// must make Verify answer Conflict.
	Foreign map[string]func() error
	// MovedOn is what a later sequence does to the place once this one has
	// completed. A frozen process that thaws then must change nothing. nil
	// leaves that out.
	MovedOn func() error
	// SharesEffect: the effect belongs to the thing and not to the step, so that
	// it does not matter which of two equal steps brought it about (a file that
	// was moved is moved). Otherwise the effect of an equal step with another
	// token must be a conflict.
	SharesEffect bool
	// MayPark: after an interruption the step may honestly answer Unknown, as
	// irreversible ones do. The effect still takes place at most once.
	MayPark bool
}

// Run puts a kind through the whole kit.
func Run(t *testing.T, c Case) {
	t.Helper()
	checks := []struct {
		name string
		fn   func(*testing.T, Case)
	}{
		{"planning only reads", planningReads},
		{"the stored form survives", storedForm},
		{"a look never writes", looks},
		{"a failed look is no answer", failedLooks},
		{"runs once", runsOnce},
		{"repeats are harmless", repeats},
		{"late processes change nothing", lateProcess},
		{"interruptions", interruptions},
		{"cancelled contexts", cancelled},
		{"look-alikes are conflicts", lookAlikes},
		{"concurrent looks", concurrentLooks},
		{"newer versions are refused", versions},
		{"odd parameters are refused", oddParams},
		{"damaged evidence is no answer", oddEvidence},
		{"being parked is told repeatably", parked},
	}
	for _, ck := range checks {
		t.Run(ck.name, func(t *testing.T) {
			t.Parallel()
			ck.fn(t, c)
		})
	}
}

// subject is a world with its step planned.
type subject struct {
	t       testing.TB
	w       World
	planned *Planned
	index   int
}

func (w World) plan() *commitstep.Plan {
	if w.Plan != nil {
		return w.Plan()
	}
	key := w.Key
	if key == (commitstep.Key{}) {
		key = commitstep.Key{Job: "steptest", Dataset: "one step"}
	}
	p := commitstep.NewPlan(key.Job, key.Dataset).Step(w.Spec)
	p.BaseDir = w.BaseDir
	return p
}

func newSubject(t testing.TB, c Case) *subject {
	t.Helper()
	w := c.New(t)
	if w.Kinds == nil || w.Snapshot == nil || w.Effects == nil {
		t.Fatal("steptest: a World needs Kinds, Snapshot and Effects")
	}
	p, err := Plan(t.Context(), w.Kinds(), w.plan())
	if err != nil {
		t.Fatalf("a good plan is refused: %v", err)
	}
	return &subject{t: t, w: w, planned: p, index: p.Len() - 1}
}

// process starts a fresh driver process on the step.
func (s *subject) process() *Process {
	s.t.Helper()
	p, err := s.planned.Process(s.w.Kinds(), s.index)
	if err != nil {
		s.t.Fatalf("the stored step cannot be built: %v", err)
	}
	return p
}

// execute brings the effect about, in the commit store for store steps.
func (s *subject) execute(ctx context.Context, p *Process) error {
	if ss, ok := p.Step.(commitstep.StoreStep); ok {
		if m, ok := ss.Move(); ok {
			if s.w.Apply == nil {
				s.t.Fatal("steptest: the effect is in the commit store, so the World needs Apply")
			}
			return s.w.Apply(ctx, m, p.Attempt.Sequence)
		}
	}
	return p.Execute(ctx)
}

func (s *subject) finish(ctx context.Context, p *Process) (commitstep.Verdict, error) {
	return p.finish(ctx, func() error { return s.execute(ctx, p) })
}

func (s *subject) snapshot() string {
	s.t.Helper()
	snap, err := s.w.Snapshot()
	if err != nil {
		s.t.Fatalf("snapshot: %v", err)
	}
	return snap
}

func (s *subject) effects() int {
	s.t.Helper()
	n, err := s.w.Effects()
	if err != nil {
		s.t.Fatalf("effects: %v", err)
	}
	return n
}

// look verifies and holds that nothing was written.
func (s *subject) look(ctx context.Context, p *Process) (commitstep.Verdict, error) {
	s.t.Helper()
	before := s.snapshot()
	v, err := p.Verify(ctx)
	if after := s.snapshot(); after != before {
		s.t.Fatalf("Verify wrote.\nbefore:\n%s\nafter:\n%s", before, after)
	}
	return v, err
}

// want holds that a fresh process sees this outcome.
func (s *subject) want(o commitstep.Outcome, when string) {
	s.t.Helper()
	v, err := s.look(s.t.Context(), s.process())
	if err != nil {
		s.t.Fatalf("%s: Verify could not look: %v", when, err)
	}
	if v.Outcome != o {
		s.t.Fatalf("%s: Verify says %q, want %q", when, v, o)
	}
	if v.Evidence == "" {
		s.t.Errorf("%s: the verdict %q names no evidence", when, v)
	}
}

// wantEffects holds the number of effects.
func (s *subject) wantEffects(n int, when string) {
	s.t.Helper()
	if got := s.effects(); got != n {
		s.t.Fatalf("%s: the effect took place %d times, want %d", when, got, n)
	}
}

// done runs the step to its end in a fresh process.
func (s *subject) done(when string) {
	s.t.Helper()
	v, err := s.finish(s.t.Context(), s.process())
	if err != nil {
		s.t.Fatalf("%s: %v", when, err)
	}
	if v.Outcome != commitstep.Done {
		s.t.Fatalf("%s: the step ends with %q", when, v)
	}
}

// dies runs fn and reports whether the process died in it. Any other panic is
// the step's own and fails the test.
func (s *subject) dies(what string, fn func()) (died bool) {
	s.t.Helper()
	defer func() {
		s.t.Helper()
		switch r := recover().(type) {
		case nil:
		case crash:
			died = true
		default:
			s.t.Fatalf("%s panicked: %v", what, r)
		}
	}()
	fn()
	return false
}

// planErr reports whether err is one clear refusal.
func planErr(err error) bool {
	var pe *commitstep.PlanError
	return errors.As(err, &pe)
}

func caseName(n int, f Fault) string { return fmt.Sprintf("point %d, %s", n, f) }
