package fsremove_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
)

func TestKit(t *testing.T) {
	t.Parallel()
	steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
		p := newPlace(t)
		stage := func() {
			p.write("run/a", "a")
			p.write("run/sub/deep/b", "b")
			p.mkdir("run/empty")
			p.link("run/link", "../other")
			p.write("other/keep", "keep")
		}
		stage()
		points := &steptest.Points{}
		return steptest.World{
			Plan: func() *commitstep.Plan {
				plan := commitstep.NewPlan("job", "dataset").CleanupWith(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
				plan.BaseDir = p.root
				return plan
			},
			Kinds: func() *commitstep.Registry {
				f, err := local.New(p.root)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { f.Close() })
				return commitstep.NewRegistry(fsremove.Kind(fstest.Hooked(f, func(op string, a commitstep.Address, do func() error) error {
					return points.Do(op+" "+a.Base(), do)
				})))
			},
			Snapshot: p.snapshot,
			Effects: func() (int, error) {
				if p.exists("run") {
					return 0, nil
				}
				if p.read("other/keep") != "keep" {
					return 0, errors.New("something outside was removed")
				}
				return 1, nil
			},
			Points:       points,
			MovedOn:      func() error { stage(); return nil },
			SharesEffect: true,
		}
	}})
}

func TestAnEmptyStagingDirectoryGoes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/day/a", "a")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run"}, fsrename.Move("run/day/a", "out/a"))
	p.rename("run/day/a", "out/a")
	if report := p.clean(planned); report != "" || p.exists("run") {
		t.Fatalf("report %q, the directory is there: %v", report, p.exists("run"))
	}
	if p.clean(planned) != "" || p.read("out/a") != "a" {
		t.Fatal("the second run did something")
	}
}

func TestAPublishedDirectoryLeavesNothingToClean(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/a", "a")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run"}, fsrename.Move("run", "out/day"))
	p.rename("run", "out/day")
	p.write("run/a", "the next run's")
	if report := p.clean(planned); report != "" || p.read("run/a") != "the next run's" || p.read("out/day/a") != "a" {
		t.Fatalf("report %q", report)
	}
}

// What came after the plan, or was changed since, stays and is reported; the
// rest goes.
func TestForeignThingsStay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do    func(p place)
		stays map[string]string // file: content
		goes  []string
	}{
		"new file":              {func(p place) { p.write("run/new", "new") }, map[string]string{"run/new": "new"}, []string{"run/a", "run/sub"}},
		"new file deep":         {func(p place) { p.write("run/sub/new", "new") }, map[string]string{"run/sub/new": "new"}, []string{"run/a", "run/sub/b"}},
		"same name":             {func(p place) { p.remove("run/a"); p.write("run/a", "aa") }, map[string]string{"run/a": "aa"}, []string{"run/sub"}},
		"same name and content": {func(p place) { p.remove("run/a"); p.write("run/a", "a") }, map[string]string{"run/a": "a"}, []string{"run/sub"}},
		"written to":            {func(p place) { p.write("run/a", "more") }, map[string]string{"run/a": "more"}, []string{"run/sub"}},
		"replaced by a tree":    {func(p place) { p.remove("run/a"); p.write("run/a/x", "x") }, map[string]string{"run/a/x": "x"}, []string{"run/sub"}},
		"all of it again": {func(p place) {
			p.remove("run")
			p.write("run/a", "a")
			p.write("run/sub/b", "b")
		}, map[string]string{"run/a": "a", "run/sub/b": "b"}, nil},
		"directory is a link now": {func(p place) { p.rename("run/sub", "moved"); p.link("run/sub", "../moved") }, map[string]string{"run/sub/b": "b"}, []string{"run/a"}},
		"a name that is no text":  {func(p place) { p.write("run/sub/\xff", "x") }, map[string]string{"run/sub/\xff": "x"}, []string{"run/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write("run/a", "a")
			p.write("run/sub/b", "b")
			planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
			c.do(p)
			for round := range 2 {
				if report := p.clean(planned); report == "" {
					t.Errorf("round %d: nothing is reported", round)
				}
				for f, content := range c.stays {
					if got := p.read(f); got != content {
						t.Errorf("round %d: %s holds %q", round, f, got)
					}
				}
				for _, f := range c.goes {
					if p.exists(f) {
						t.Errorf("round %d: %s is there", round, f)
					}
				}
			}
		})
	}
}

// A link is removed, never followed.
func TestLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("outside/f", "keep")
	p.mkdir("run")
	p.link("run/to-dir", "../outside")
	p.link("run/to-file", "../outside/f")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	if report := p.clean(planned); report != "" || p.exists("run") || p.read("outside/f") != "keep" {
		t.Fatalf("report %q", report)
	}
}

// A step that a person declared published was not proved: its source stays,
// also where the staging directory knows it under another name.
func TestDeclaredStepsKeepTheirSources(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/a", "a")
	p.write("run/left", "x")
	p.write("run/tree/f", "f")
	p.write("run/table/deep/g", "g")
	p.link("alias", "run")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"}, fsrename.Move("run/a", "out/a"))
	var keep []commitstep.Step
	for _, from := range []string{"alias/left", "run/tree"} {
		keep = append(keep, stepOf(fsrename.Move(p.path(from), p.path("out/x"))))
	}
	// A kind that moves nothing says in its evidence what it is made of.
	keep = append(keep, commitstep.Step{Kind: "other", Version: 1, Params: json.RawMessage(`{"query":"SELECT 1"}`), Evidence: json.RawMessage(`{"staged":["` + p.path("run/table") + `"]}`)})
	report := p.clean(planned, keep...)
	for f, content := range map[string]string{"run/a": "a", "run/left": "x", "run/tree/f": "f", "run/table/deep/g": "g"} {
		if got := p.read(f); got != content {
			t.Errorf("%s holds %q", f, got)
		}
	}
	if !strings.Contains(report, "declared published") {
		t.Errorf("report %q", report)
	}
}

func stepOf(s commitstep.StepSpec) commitstep.Step {
	return commitstep.Step{Kind: s.Kind, Version: 1, Params: s.Params}
}

// One failure does not keep the rest, and is told.
func TestFailuresAreCollectedAndRetried(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/a", "a")
	p.write("run/b", "b")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	broken := true
	f, err := local.New(p.root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kinds := commitstep.NewRegistry(fsremove.Kind(fstest.Hooked(f, func(op string, a commitstep.Address, do func() error) error {
		if broken && op == "Remove" && a.Base() == "a" {
			return syscall.EIO
		}
		return do()
	})))
	proc, err := planned.Process(kinds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Execute(t.Context()); !errors.Is(err, syscall.EIO) || p.exists("run/b") || !p.exists("run/a") {
		t.Fatalf("%v; a is there: %v, b is there: %v", err, p.exists("run/a"), p.exists("run/b"))
	}
	if v, err := proc.Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone {
		t.Fatalf("%q, %v", v, err)
	}
	broken = false
	if err := proc.Execute(t.Context()); err != nil || p.exists("run") {
		t.Fatalf("%v", err)
	}
}

// A removal that died in the middle is finished by the next process: ours goes,
// a foreign file returns to its name.
func TestARemovalThatDied(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/sub/ours", "ours")
	p.write("run/sub/taken", "taken")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	// As the removal leaves it: each file alone in a private directory.
	p.rename("run/sub/ours", "run/sub/.commitstep-trash-1/ours")
	p.remove("run/sub/taken")
	p.write("run/sub/.commitstep-trash-2/taken", "foreign")
	p.mkdir("run/sub/.commitstep-trash-3")
	if v, err := p.cleanup(planned).Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone {
		t.Fatalf("%q, %v", v, err)
	}
	report := p.clean(planned)
	if got := p.read("run/sub/taken"); got != "foreign" {
		t.Errorf("the foreign file holds %q", got)
	}
	left, err := os.ReadDir(p.path("run/sub"))
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if !strings.Contains(report, "taken") {
		t.Errorf("report %q", report)
	}
}

// A process is frozen at any moment of its cleanup, the next run stages new
// files under the same names, the process thaws: nothing of the new run is
// lost.
func TestAFrozenCleanupLosesNothingOfTheNextRun(t *testing.T) {
	t.Parallel()
	for _, before := range []string{"", "mkdir", "rename", "unlink", "rmdir"} {
		t.Run("before "+before, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			names := []string{"a", "b", "sub/c"}
			for _, n := range names {
				p.write("run/"+n, "old")
			}
			child := testkit.Start(t, "cleanup", p.root, before)
			child.WaitLine("ready")
			if before != "" {
				child.Tell("go")
				child.WaitLine("before " + before)
			}
			child.Freeze()
			// What a next run does: it clears its place and stages again.
			p.remove("run/a")
			p.remove("run/b")
			p.remove("run/sub")
			for _, n := range names {
				p.write("run/"+n, "new")
			}
			child.Tell("go")
			child.Thaw()
			child.WaitLine("report")
			if code, _ := child.Exit(); code != 0 {
				t.Fatal(child.Output())
			}
			for _, n := range names {
				if got := p.read("run/" + n); got != "new" {
					t.Errorf("%s holds %q", n, got)
				}
			}
			// Nothing is hidden in a private place either.
			err := filepath.WalkDir(p.root, func(path string, _ os.DirEntry, err error) error {
				if strings.Contains(path, ".commitstep") {
					t.Errorf("left behind: %s", path)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// The record that a cleanup ended is durable, so the removal is before it.
func TestTheRemovalIsDurable(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("staging/run/a", "a")
	p.write("staging/run/sub/b", "b")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "staging/run", Leftovers: "delete"})
	p.write("staging/run/sub/new", "new")
	last := map[string]local.OpKind{} // of each directory
	proc := p.cleanup(planned, local.WithTrace(func(op local.Op) {
		if !op.After {
			return
		}
		dir := filepath.Dir(op.Path)
		if op.Kind == local.OpSyncDir {
			dir = op.Path
		}
		last[strings.TrimPrefix(dir, p.root)] = op.Kind
	}))
	if err := proc.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/staging/run/sub", "/staging/run", "/staging"} {
		if last[dir] != local.OpSyncDir {
			t.Errorf("the last change in %s is %s: %v", dir, last[dir], last)
		}
	}
}

func TestCleanupEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("run/a", "a")
	planned := p.mustPlan(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := p.cleanup(planned).Execute(ctx)
	if !errors.Is(err, context.Canceled) || !p.exists("run/a") {
		t.Fatal(err)
	}
}

var _ filesys.Sweeper = (*local.Files)(nil)
