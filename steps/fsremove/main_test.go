package fsremove_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"cleanup": cleanupRole})
	goleak.VerifyTestMain(m)
}

// place is a directory of the test's own.
type place struct {
	t    testing.TB
	root string
}

func newPlace(t testing.TB) place { return place{t, t.TempDir()} }

func (p place) path(name string) string { return filepath.Join(p.root, name) }

func (p place) write(name, content string) {
	p.t.Helper()
	p.mkdir(filepath.Dir(name))
	if err := os.WriteFile(p.path(name), []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) mkdir(name string) {
	p.t.Helper()
	if err := os.MkdirAll(p.path(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) remove(name string) {
	p.t.Helper()
	if err := os.RemoveAll(p.path(name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) link(name, target string) {
	p.t.Helper()
	if err := os.Symlink(target, p.path(name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) rename(from, to string) {
	p.t.Helper()
	p.mkdir(filepath.Dir(to))
	if err := os.Rename(p.path(from), p.path(to)); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) exists(name string) bool {
	_, err := os.Lstat(p.path(name))
	return err == nil
}

func (p place) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func (p place) snapshot() (string, error) {
	out := ""
	err := filepath.WalkDir(p.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		out += fmt.Sprintf("%s %s", path[len(p.root):], i.Mode())
		if i.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out += fmt.Sprintf(" %d %q", i.ModTime().UnixNano(), b)
		}
		out += "\n"
		return nil
	})
	return out, err
}

func (p place) kinds(opts ...local.Option) *commitstep.Registry {
	p.t.Helper()
	f, err := local.New(p.root, opts...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { f.Close() })
	return commitstep.NewRegistry(fsrename.Kind(f), fsremove.Kind(f))
}

// plan prepares moves, then a cleanup.
func (p place) plan(cleanup commitstep.CleanupParams, moves ...commitstep.StepSpec) (*steptest.Planned, error) {
	plan := commitstep.NewPlan("job", "dataset").CleanupWith(cleanup)
	if len(moves) > 0 {
		plan.Step(moves...)
	}
	plan.BaseDir = p.root
	return steptest.Plan(p.t.Context(), p.kinds(), plan)
}

func (p place) mustPlan(cleanup commitstep.CleanupParams, moves ...commitstep.StepSpec) *steptest.Planned {
	p.t.Helper()
	planned, err := p.plan(cleanup, moves...)
	if err != nil {
		p.t.Fatal(err)
	}
	return planned
}

// cleanup is a fresh process on the plan's cleanup.
func (p place) cleanup(planned *steptest.Planned, opts ...local.Option) *steptest.Process {
	p.t.Helper()
	proc, err := planned.Process(p.kinds(opts...), planned.Len()-1)
	if err != nil {
		p.t.Fatal(err)
	}
	return proc
}

// clean runs the cleanup and holds that Verify agrees; it gives the report.
func (p place) clean(planned *steptest.Planned, keep ...commitstep.Step) string {
	p.t.Helper()
	proc := p.cleanup(planned)
	c := proc.Step.(commitstep.Cleaner)
	c.KeepSteps(keep)
	if err := proc.Execute(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	if v, err := proc.Verify(p.t.Context()); err != nil || v.Outcome != commitstep.Done {
		p.t.Fatalf("after Execute: %q, %v", v, err)
	}
	return c.Report()
}

// cleanupRole prepares a cleanup in its own process, says "ready", runs it when
// told, stops before the n-th change if asked to, and says what it reports.
// Args: root, and the change to stop before ("" for none).
func cleanupRole(c *testkit.Child) int {
	root, stop := c.Args[0], c.Args[1]
	stopped := false
	f, err := local.New(root, local.WithTrace(func(op local.Op) {
		if string(op.Kind) == stop && !op.After && !stopped {
			stopped = true
			c.Say("before %s", stop)
			c.Hear()
		}
	}))
	if err != nil {
		return c.Fail("%v", err)
	}
	kinds := commitstep.NewRegistry(fsremove.Kind(f))
	plan := commitstep.NewPlan("job", "dataset").CleanupWith(commitstep.CleanupParams{Path: "run", Leftovers: "delete"})
	plan.BaseDir = root
	ctx := context.Background()
	planned, err := steptest.Plan(ctx, kinds, plan)
	if err != nil {
		return c.Fail("%v", err)
	}
	proc, err := planned.Process(kinds, 0)
	if err != nil {
		return c.Fail("%v", err)
	}
	c.Say("ready")
	c.Hear()
	if err := proc.Execute(ctx); err != nil {
		return c.Fail("%v", err)
	}
	c.Say("report %s", strings.ReplaceAll(proc.Step.(commitstep.Cleaner).Report(), "\n", " "))
	return 0
}
