package steptest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/google/uuid"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cell is a place that holds one value, and the kind that sets it. Its defects
// are what the kit has to find.
type cell struct {
	defect string
	points *steptest.Points

	mu    sync.Mutex
	owner string // token of who set it, "" while it is free
	sets  int
	looks int
}

type cellParams struct {
	Value string `json:"value"`
}

type cellEvidence struct {
	Owner string `json:"owner"` // whom the value was found to belong to
	Known bool   `json:"known"`
}

type cellStep struct {
	c     *cell
	p     cellParams
	e     cellEvidence
	told  bool // process-local memory, which no later process has
	index int
}

func (c *cell) read() (owner string, err error) {
	err = c.points.Do("read", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		owner = c.owner
		return nil
	})
	return owner, err
}

func (c *cell) kind() commitstep.Kind {
	return commitstep.Kind{Name: "cell.set", Version: 2, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
		st := &cellStep{c: c, index: s.Index}
		if c.defect == "lenient parameters" {
			_ = json.Unmarshal(s.Params, &st.p)
		} else if err := commitstep.DecodeParams(s, &st.p); err != nil {
			return nil, err
		}
		if c.defect == "panics" && st.p.Value == "" {
			panic("no value")
		}
		if len(s.Evidence) > 0 {
			if err := json.Unmarshal(s.Evidence, &st.e); err != nil && c.defect != "lenient evidence" {
				return nil, fmt.Errorf("evidence: %w: %w", commitstep.ErrDamaged, err)
			}
		}
		return st, nil
	}}
}

func (s *cellStep) Prepare(_ context.Context, p *commitstep.Preparation) error {
	owner, err := s.c.read()
	if err != nil && s.c.defect != "plans blindly" {
		return err
	}
	if s.c.defect == "planning writes" {
		s.c.mu.Lock()
		s.c.looks++
		s.c.mu.Unlock()
	}
	return p.Set(s.p, cellEvidence{Owner: owner, Known: true})
}

func (s *cellStep) Verify(_ context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	if s.c.defect == "remembers" && s.told {
		return commitstep.IsDone("we did it"), nil
	}
	owner, err := s.c.read()
	switch {
	case err != nil && s.c.defect == "error is absence":
		owner = ""
	case err != nil:
		return commitstep.Verdict{}, err
	}
	if s.c.defect == "looking writes" {
		s.c.mu.Lock()
		s.c.looks++
		s.c.mu.Unlock()
	}
	if !s.e.Known && s.c.defect != "lenient evidence" {
		return commitstep.Verdict{}, fmt.Errorf("no evidence: %w", commitstep.ErrDamaged)
	}
	switch {
	case owner == a.Token.String():
		return commitstep.IsDone("the cell is ours"), nil
	case owner == "":
		return commitstep.IsNotDone("the cell is free"), nil
	case s.c.defect == "existence is done":
		return commitstep.IsDone("the cell is set"), nil
	}
	return commitstep.InConflict("the cell belongs to %s", owner), nil
}

func (s *cellStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := ctx.Err(); err != nil && s.c.defect != "claims innocence" {
		return commitstep.NotSent(err)
	}
	err := s.c.points.Do("set", func() error {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		mine := s.c.owner == a.Token.String()
		switch {
		case mine && s.c.defect != "repeats add up":
			return nil
		case s.c.owner != "" && !mine && s.c.defect != "overwrites":
			return commitstep.Refused(fmt.Errorf("the cell is taken"))
		}
		s.c.owner = a.Token.String()
		s.c.sets++
		return nil
	})
	s.told = true
	if s.c.defect == "claims innocence" && ctx.Err() != nil {
		return commitstep.NotSent(ctx.Err())
	}
	return err
}

func (s *cellStep) Settle(context.Context, *commitstep.Settling) error {
	return s.c.points.Do("settle", func() error { return nil })
}

func cellCase(defect string) steptest.Case {
	return steptest.Case{New: func(testing.TB) steptest.World {
		c := &cell{defect: defect, points: &steptest.Points{}}
		set := func(owner string) func() error {
			return func() error {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.owner = owner
				return nil
			}
		}
		return steptest.World{
			Spec:  commitstep.NewSpec("cell.set", cellParams{Value: "x"}),
			Kinds: func() *commitstep.Registry { return commitstep.NewRegistry(c.kind()) },
			Snapshot: func() (string, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				return fmt.Sprint(c.owner, c.sets, c.looks), nil
			},
			Effects: func() (int, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.sets, nil
			},
			Points:  c.points,
			Foreign: map[string]func() error{"somebody else's": set("somebody")},
			MovedOn: set("a later one"),
		}
	}}
}

func TestAGoodKindPasses(t *testing.T) {
	t.Parallel()
	steptest.Run(t, cellCase(""))
}

// defects, with the check that has to find each.
var defects = map[string]string{
	"looking writes":     "a_look_never_writes",
	"planning writes":    "planning_only_reads",
	"plans blindly":      "planning_only_reads",
	"error is absence":   "a_failed_look_is_no_answer",
	"existence is done":  "look-alikes_are_conflicts",
	"overwrites":         "late_processes_change_nothing",
	"repeats add up":     "repeats_are_harmless",
	"remembers":          "look-alikes_are_conflicts",
	"lenient parameters": "odd_parameters_are_refused",
	"panics":             "odd_parameters_are_refused",
	"lenient evidence":   "", // harmless in this kind, see below
	"claims innocence":   "cancelled_contexts",
}

// irreversibleDefects are those of the printer.
var irreversibleDefects = map[string]string{
	"marks late":       "interruptions",
	"never marks":      "interruptions",
	"forgets the mark": "interruptions",
	"counts parks":     "being_parked_is_told_repeatably",
	"park flag":        "newer_versions_are_refused",
}

const defectEnv = "STEPTEST_DEFECT"

// TestDefective fails by design; TestTheKitFinds runs it in a process of its own.
func TestDefective(t *testing.T) {
	d, ok := os.LookupEnv(defectEnv)
	if !ok {
		return
	}
	if _, ok := irreversibleDefects[d]; ok {
		steptest.Run(t, printerCase(d))
	} else {
		steptest.Run(t, cellCase(d))
	}
}

func TestTheKitFinds(t *testing.T) {
	t.Parallel()
	all := maps.Clone(defects)
	maps.Copy(all, irreversibleDefects)
	for defect, check := range all {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestDefective$", "-test.count=1")
			cmd.Env = append(os.Environ(), defectEnv+"="+defect)
			out, err := cmd.CombinedOutput()
			if check == "" {
				// Not every leniency is a fault: this kind rests on its token.
				if err != nil {
					t.Fatalf("a harmless difference is refused:\n%s", out)
				}
				return
			}
			if err == nil {
				t.Fatalf("the kit does not find it:\n%s", out)
			}
			if !strings.Contains(string(out), "--- FAIL: TestDefective/"+check) {
				t.Fatalf("it is found, but not by %q:\n%s", check, out)
			}
		})
	}
}

func TestPlanKeepsLocksMovesAndRefusals(t *testing.T) {
	t.Parallel()
	c := &cell{}
	kinds := commitstep.NewRegistry(c.kind())
	plan := commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("cell.set", cellParams{})).Lock("b", "a")
	p, err := steptest.Plan(t.Context(), kinds, plan)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(p.Locks) != "[a b]" || p.Len() != 1 || p.ID == uuid.Nil {
		t.Fatalf("planned %+v", p)
	}
	_, err = steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("nothing", 1)))
	if err == nil {
		t.Fatal("an unknown kind is planned")
	}
	_, err = steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("cell.set", map[string]string{"password": "x"})))
	if err == nil {
		t.Fatal("a secret is planned")
	}
}
