package fsrename_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/google/uuid"
)

func (p place) kinds(opts ...local.Option) *commitstep.Registry {
	return commitstep.NewRegistry(fsrename.Kind(p.files(opts...)))
}

// plan prepares steps in one stage.
func (p place) plan(specs ...commitstep.StepSpec) (*steptest.Planned, error) {
	plan := commitstep.NewPlan("job", "dataset").Step(specs...)
	plan.BaseDir = p.root
	return steptest.Plan(p.t.Context(), p.kinds(), plan)
}

func (p place) mustPlan(specs ...commitstep.StepSpec) *steptest.Planned {
	p.t.Helper()
	planned, err := p.plan(specs...)
	if err != nil {
		p.t.Fatal(err)
	}
	return planned
}

// process is a fresh process on a planned step.
func (p place) process(planned *steptest.Planned, index int, opts ...local.Option) *steptest.Process {
	p.t.Helper()
	s, err := planned.Process(p.kinds(opts...), index)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p place) verdict(planned *steptest.Planned, want commitstep.Outcome, mention string) {
	p.t.Helper()
	v, err := p.process(planned, 0).Verify(p.t.Context())
	if err != nil || v.Outcome != want || !strings.Contains(v.Evidence, mention) {
		p.t.Fatalf("verdict %q, %v; want %q with %q", v, err, want, mention)
	}
}

// A plan that cannot succeed is refused with what, where and what to do, before
// anything is promised.
func TestPlanTimeFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage func(p place)
		steps []commitstep.StepSpec
		want  string // in the problem
		is    error  // nil: any
	}{
		"source missing":             {nil, moves("in/none", "out/a"), "is missing", os.ErrNotExist},
		"source's directory missing": {nil, moves("no/none", "out/a"), "is missing", os.ErrNotExist},
		"source is a link":           {func(p place) { p.link("in/l", "a") }, moves("in/l", "out/a"), "neither a regular file", nil},
		"source through a link out":  {func(p place) { p.link("l", "..") }, moves("l/x", "out/a"), "leaves", filesys.ErrEscapes},
		"empty where 1,234 bytes were written": {func(p place) { p.write("in/e", "") },
			[]commitstep.StepSpec{fsrename.Move("in/e", "out/a", fsrename.Length(1234))}, "has 0 bytes, its writer wrote 1234", nil},
		"directory with another length": {func(p place) { p.write("d/x", "12"); p.write("d/y", "3") },
			[]commitstep.StepSpec{fsrename.Move("d", "out/a", fsrename.Length(4))}, "has 3 bytes, its writer wrote 4", nil},
		"destination taken":               {func(p place) { p.write("out/a", "other") }, moves("in/a", "out/a"), "is taken by a file of 5 bytes", os.ErrExist},
		"destination taken by an equal":   {func(p place) { p.write("out/a", "a") }, moves("in/a", "out/a"), "is taken", os.ErrExist},
		"destination is a directory":      {func(p place) { p.mkdir("out/a") }, moves("in/a", "out/a"), "is taken by a directory", os.ErrExist},
		"destination is a dead link":      {func(p place) { p.mkdir("out"); p.link("out/a", "nowhere") }, moves("in/a", "out/a"), "is taken by a link", os.ErrExist},
		"file in the way":                 {func(p place) { p.write("out", "x") }, moves("in/a", "out/b/c"), "is a file where a directory must be", filesys.ErrNotDirectory},
		"destination through a link out":  {func(p place) { p.link("out", "..") }, moves("in/a", "out/x"), "leaves", filesys.ErrEscapes},
		"destination outside":             {nil, moves("in/a", "../a"), "wrong destination", filesys.ErrEscapes},
		"two of one source":               {nil, moves("in/a", "out/a", "in/a", "out/b"), "moves too", nil},
		"two to one destination":          {nil, moves("in/a", "out/a", "in/b", "out/a"), "another step of the plan has too", nil},
		"into itself":                     {func(p place) { p.write("d/x", "") }, moves("d", "d/e"), "into itself", nil},
		"onto itself":                     {nil, moves("in/a", "in/a"), "into itself", nil},
		"over its own directory":          {nil, moves("in/a", "in"), "over the directory", nil},
		"destination in another's source": {func(p place) { p.write("d/x", "") }, moves("d", "out/d", "in/a", "d/a"), "inside", nil},
		"directory with a link":           {func(p place) { p.write("d/x", ""); p.link("d/l", "x") }, moves("d", "out/d"), "neither a regular file", nil},
		"another file system":             {nil, moves("in/a", "hdfs://prod/a"), "moves from file to hdfs://prod", filesys.ErrOtherFileSystem},
		"unknown user": {nil, []commitstep.StepSpec{fsrename.Move("in/a", "out/a", fsrename.Owner("no such user"))},
			"cannot be set", nil},
		"wrong mode":      {nil, []commitstep.StepSpec{fsrename.Move("in/a", "out/a", fsrename.Mode("rw"))}, "cannot be set", nil},
		"negative length": {nil, []commitstep.StepSpec{fsrename.Move("in/a", "out/a", fsrename.Length(-1))}, "length -1", nil},
		"not UTF-8":       {nil, moves("in/\xff", "out/a"), "not valid UTF-8", nil},
		"misspelt":        {nil, []commitstep.StepSpec{{Kind: fsrename.Name, Params: json.RawMessage(`{"from":"in/a","to":"out/a","lenght":1}`)}}, "wrong parameters", nil},
		"no destination":  {nil, moves("in/a", ""), "wrong destination", nil},

		"name too long":                    {func(p place) { p.mkdir("out") }, moves("in/a", "out/"+tooLong), "shorter name", filesys.ErrNameTooLong},
		"name too long, directory missing": {nil, moves("in/a", "out/"+tooLong), "shorter name", filesys.ErrNameTooLong},
		"name too long, not the first":     {nil, moves("in/b", "out/b", "in/a", "out/"+tooLong), "shorter name", filesys.ErrNameTooLong},
		"directory's name too long":        {nil, moves("in/a", "out/"+tooLong+"/a"), "shorter name", filesys.ErrNameTooLong},
		"path too long":                    {nil, moves("in/a", tooDeep+"/a"), "shorter directory names", filesys.ErrNameTooLong},
		"source's name too long":           {nil, moves("in/"+tooLong, "out/a"), "cannot exist", filesys.ErrNameTooLong},
		"a path inside too long": {func(p place) { p.write("d/"+strings.Repeat(strings.Repeat("x", 200)+"/", 2)+"y", "") }, moves("d", tooDeep[:3800]+"/e"),
			"shorter directory names", filesys.ErrNameTooLong},
		"file to a slash":         {nil, moves("in/a", "out/"), "with a slash at its end", nil},
		"file to a slash and dot": {nil, moves("in/a", "out/."), "out/a", nil},
		"source is a device":      {nil, moves("/dev/null", "out/a"), "lies outside", filesys.ErrEscapes},
		"source is a pipe":        {func(p place) { p.pipe("in/p") }, moves("in/p", "out/a"), "is a pipe", nil},
		"directory with a pipe":   {func(p place) { p.mkdir("d"); p.pipe("d/p") }, moves("d", "out/d"), "take it out", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write("in/a", "a")
			p.write("in/b", "b")
			if c.stage != nil {
				c.stage(p)
			}
			before, err := p.snapshot()
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.plan(c.steps...)
			var pe *commitstep.PlanError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("got %v, want a *PlanError with %q and %v", err, c.want, c.is)
			}
			if after, _ := p.snapshot(); after != before {
				t.Fatalf("the refusal wrote:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// A directory may be written with a slash: it gets the name itself.
func TestDirectoryToASlash(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("d/x", "x")
	p.process(p.mustPlan(fsrename.Move("d/", "out/e/")), 0)
}

// A device is no link, and the advice must not speak of one.
func TestDeviceAsASource(t *testing.T) {
	t.Parallel()
	f, err := local.New("/")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plan := commitstep.NewPlan("job", "dataset").Step(fsrename.Move("/dev/null", filepath.Join(t.TempDir(), "a")))
	_, err = steptest.Plan(t.Context(), commitstep.NewRegistry(fsrename.Kind(f)), plan)
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), "is a device") || strings.Contains(err.Error(), "link") {
		t.Fatal(err)
	}
}

// However far Prepare came when its context ended, it says only that.
func TestPrepareSaysOnlyThatItsContextEnded(t *testing.T) {
	t.Parallel()
	for after := range 12 {
		p := newPlace(t)
		p.write("in/a/x", "a")
		ctx, cancel := context.WithCancel(t.Context())
		f := &ending{Files: p.files(), left: after, end: cancel}
		s := commitstep.Step{Kind: fsrename.Name, Version: fsrename.Version, Params: json.RawMessage(`{"from":"in/a","to":"out/a"}`)}
		b, err := commitstep.NewRegistry(fsrename.Kind(f)).Build(s)
		if err != nil {
			t.Fatal(err)
		}
		pl, err := commitstep.NewPlanning(uuid.New(), commitstep.Key{Job: "job", Dataset: "dataset"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		pr := pl.For(s)
		pr.BaseDir = p.root
		err = b.(commitstep.Preparer).Prepare(ctx, pr)
		if f.left >= 0 && err == nil {
			if after < 5 {
				t.Errorf("the step looked %d times only", after-f.left)
			}
			cancel()
			break
		}
		if err != context.Canceled {
			t.Errorf("ended at look %d: %v", after, err)
		}
	}
}

// ending ends the context at a chosen look.
type ending struct {
	*local.Files
	left int
	end  func()
}

func (e *ending) tick() {
	if e.left--; e.left < 0 {
		e.end()
	}
}

func (e *ending) Stat(ctx context.Context, a commitstep.Address) (filesys.Info, error) {
	e.tick()
	return e.Files.Stat(ctx, a)
}

func (e *ending) List(ctx context.Context, a commitstep.Address) iter.Seq2[filesys.Info, error] {
	e.tick()
	return e.Files.List(ctx, a)
}

func (e *ending) SyncFile(ctx context.Context, a commitstep.Address) error {
	e.tick()
	return e.Files.SyncFile(ctx, a)
}

func (e *ending) SyncDir(ctx context.Context, a commitstep.Address) error {
	e.tick()
	return e.Files.SyncDir(ctx, a)
}

var (
	tooLong = strings.Repeat("n", 256)
	tooDeep = strings.Repeat(strings.Repeat("d", 200)+"/", 25)
)

func (p place) pipe(name string) {
	p.t.Helper()
	if err := syscall.Mkfifo(p.path(name), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func moves(fromTo ...string) []commitstep.StepSpec {
	var out []commitstep.StepSpec
	for i := 0; i < len(fromTo); i += 2 {
		out = append(out, fsrename.Move(fromTo[i], fromTo[i+1]))
	}
	return out
}

func (p place) link(name, target string) {
	p.t.Helper()
	if err := os.Symlink(target, p.path(name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) mkdir(name string) {
	p.t.Helper()
	if err := os.MkdirAll(p.path(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func TestAnUnknownResourceIsLeftPending(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	_, err := p.plan(fsrename.Move("hdfs://prod/a", "hdfs://prod/b"))
	if !errors.Is(err, commitstep.ErrUnsupported) {
		t.Fatal(err)
	}
}

// Staged data is durable before it is promised: each file, and each staging
// directory once.
func TestPrepareMakesStagedDataDurable(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var specs []commitstep.StepSpec
	for i := range 5 {
		p.write(fmt.Sprintf("in/%d", i), "x")
		specs = append(specs, fsrename.Move(fmt.Sprintf("in/%d", i), fmt.Sprintf("out/%d", i)))
	}
	p.write("tree/a/b", "x")
	specs = append(specs, fsrename.Move("tree", "out/tree"))
	count := map[string]int{}
	kinds := p.kinds(local.WithTrace(func(op local.Op) {
		if !op.After {
			return
		}
		switch op.Kind {
		case local.OpSyncFile, local.OpSyncDir:
			count[string(op.Kind)+" "+strings.TrimPrefix(op.Path, p.root)]++
		default:
			t.Errorf("planning does %+v", op)
		}
	}))
	plan := commitstep.NewPlan("job", "dataset").Step(specs...)
	plan.BaseDir = p.root
	if _, err := steptest.Plan(t.Context(), kinds, plan); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"syncfile /in/0", "syncfile /in/4", "syncdir /in", "syncfile /tree/a/b", "syncdir /tree/a", "syncdir /tree"} {
		if count[want] == 0 {
			t.Errorf("no %s: %v", want, count)
		}
	}
	if n := count["syncdir /in"]; n != 1 {
		t.Errorf("the staging directory was synced %d times", n)
	}
}

// A streamed plan may stage its second file after the first was prepared.
func TestAFileStagedLaterIsDurableToo(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	syncs := 0
	kinds := p.kinds(local.WithTrace(func(op local.Op) {
		if op.After && op.Kind == local.OpSyncDir && op.Path == p.path("in") {
			syncs++
		}
	}))
	plan := commitstep.NewPlan("job", "dataset")
	plan.BaseDir = p.root
	plan.Stream = func(yield func(commitstep.StagedSpec, error) bool) {
		for i := range 2 {
			p.write(fmt.Sprintf("in/%d", i), "x")
			if !yield(commitstep.StagedSpec{StepSpec: fsrename.Move(fmt.Sprintf("in/%d", i), fmt.Sprintf("out/%d", i))}, nil) {
				return
			}
		}
	}
	if _, err := steptest.Plan(t.Context(), kinds, plan); err != nil {
		t.Fatal(err)
	}
	if syncs != 2 {
		t.Fatalf("the staging directory was synced %d times", syncs)
	}
}

func TestDirectoryDestinationsAreLocked(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("d/x", "x")
	p.write("f", "x")
	long := strings.Repeat(strings.Repeat("x", 200)+"/", 6)
	p.write("e/x", "x")
	planned := p.mustPlan(fsrename.Move("d", "out/d"), fsrename.Move("f", "out/f"), fsrename.Move("e", long+"e"))
	if len(planned.Locks) != 2 {
		t.Fatalf("locks %q", planned.Locks)
	}
	for _, l := range planned.Locks {
		if err := commitstep.CheckName("lock", l); err != nil {
			t.Error(err)
		}
	}
	if want := "path:file://" + filepath.Join(p.root, "out/d"); planned.Locks[1] != want && planned.Locks[0] != want {
		t.Errorf("locks %q, want %q among them", planned.Locks, want)
	}
}

func TestPrepareEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("f", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	plan := commitstep.NewPlan("job", "dataset").Step(fsrename.Move("f", "g"))
	plan.BaseDir = p.root
	if _, err := steptest.Plan(ctx, p.kinds(), plan); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
