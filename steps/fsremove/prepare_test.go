package fsremove_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
)

func TestPlanTimeFaults(t *testing.T) {
	t.Parallel()
	move := fsrename.Move("run/a", "out/a")
	for name, c := range map[string]struct {
		stage func(p place)
		path  string
		left  string
		moves []commitstep.StepSpec
		want  string
	}{
		"missing":                 {nil, "none", "", []commitstep.StepSpec{move}, "is missing"},
		"a file":                  {nil, "run/a", "", nil, "no directory"},
		"a link":                  {func(p place) { p.link("l", "run") }, "l", "", nil, "no directory"},
		"the root":                {nil, ".", "", []commitstep.StepSpec{move}, "the root of the file system"},
		"the root, delete":        {nil, ".", "delete", nil, "the root of the file system"},
		"outside":                 {nil, "..", "delete", nil, "wrong path"},
		"through a link outside":  {func(p place) { p.link("l", "..") }, "l/x", "", nil, "without the link"},
		"above a destination":     {nil, "out", "delete", []commitstep.StepSpec{move}, "a destination of the plan lies inside"},
		"around a destination":    {nil, "run", "delete", []commitstep.StepSpec{fsrename.Move("run/a", "run/published/a")}, "lies inside"},
		"inside a published tree": {func(p place) { p.write("d/x", "") }, "out/d/x", "delete", []commitstep.StepSpec{fsrename.Move("d", "out/d")}, "inside the destination"},
		"a leftover":              {func(p place) { p.write("run/other", "") }, "run", "", []commitstep.StepSpec{move}, `1 things lie that the plan does not move: "other"`},
		"many leftovers": {func(p place) {
			for i := range 7 {
				p.write(fmt.Sprintf("run/sub/%d", i), "")
			}
		}, "run", "", []commitstep.StepSpec{move}, "7 things"},
		"a link is a leftover":     {func(p place) { p.link("run/l", "/etc/passwd") }, "run", "", []commitstep.StepSpec{move}, `"l"`},
		"a misspelt wish":          {nil, "run", "remove", []commitstep.StepSpec{move}, `leftovers: "remove"`},
		"a name that is not UTF-8": {func(p place) { p.write("run/bad\xff", "") }, "run", "delete", []commitstep.StepSpec{move}, `\xff`},
		"no path":                  {nil, "", "", nil, "wrong path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write("run/a", "a")
			p.mkdir("out")
			if c.stage != nil {
				c.stage(p)
			}
			before, err := p.snapshot()
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.plan(commitstep.CleanupParams{Path: c.path, Leftovers: c.left}, c.moves...)
			var pe *commitstep.PlanError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want a *PlanError with %q", err, c.want)
			}
			if after, _ := p.snapshot(); after != before {
				t.Fatal("the refusal wrote")
			}
		})
	}
}

func TestAStepOfAStageIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/a", "a")
	plan := commitstep.NewPlan("job", "dataset").Step(commitstep.NewSpec(fsremove.Name, commitstep.CleanupParams{Path: "run", Leftovers: "delete"}))
	plan.BaseDir = p.root
	_, err := steptest.Plan(t.Context(), p.kinds(), plan)
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), "cleanup list") {
		t.Fatal(err)
	}
}

func TestTooMuchToRecord(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("run")
	for i := range fsremove.MaxRecorded {
		f, err := os.Create(p.path(fmt.Sprintf("run/%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	_, err := p.plan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), "9999") {
		t.Fatal(err)
	}
	// The plan's own sources are not recorded and do not count.
	p.remove("run")
	for i := range 50 {
		p.write(fmt.Sprintf("run/%d", i), "x")
	}
	var moves []commitstep.StepSpec
	for i := range 50 {
		moves = append(moves, fsrename.Move(fmt.Sprintf("run/%d", i), fmt.Sprintf("out/%d", i)))
	}
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run"}, moves...)
	s, err := planned.Step(planned.Len() - 1)
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]json.RawMessage
	if err := json.Unmarshal(s.Evidence, &e); err != nil || len(e) != 1 {
		t.Fatalf("recorded %s, %v", s.Evidence, err)
	}
}

// Evidence that was tampered with cannot make the cleanup leave its path.
func TestRecordedNamesStayBelowThePath(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/a", "a")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	s, err := planned.Step(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"../a", "x/../../a", "/etc/passwd", "", ".", "a/"} {
		s.Evidence, err = json.Marshal(map[string]any{"top": map[string]string{"id": "x"}, "files": []map[string]string{{"name": bad, "id": "x"}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.kinds().Build(s); !errors.Is(err, commitstep.ErrDamaged) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
