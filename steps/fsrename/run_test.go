package fsrename_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
)

func (p place) rename(from, to string) {
	p.t.Helper()
	p.mkdir(filepath.Dir(to))
	if err := os.Rename(p.path(from), p.path(to)); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) remove(name string) {
	p.t.Helper()
	if err := os.RemoveAll(p.path(name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) chtimes(name string, at time.Time) {
	p.t.Helper()
	if err := os.Chtimes(p.path(name), at, at); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) modTime(name string) time.Time {
	p.t.Helper()
	i, err := os.Stat(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return i.ModTime()
}

// What others may have done between plan and look, and the only right answer.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tree    bool // the step moves a directory
		do      func(p place)
		want    commitstep.Outcome
		mention string
	}{
		"nothing happened":  {false, func(p place) {}, commitstep.NotDone, "as planned"},
		"renamed":           {false, func(p place) { p.rename("in/a", "out/a") }, commitstep.Done, "what was planned"},
		"renamed, touched":  {false, func(p place) { p.rename("in/a", "out/a"); p.chtimes("out/a", time.Unix(1, 0)) }, commitstep.Done, ""},
		"renamed, cut":      {false, func(p place) { p.rename("in/a", "out/a"); p.write("out/a", "o") }, commitstep.Conflict, "has 1 bytes now"},
		"renamed, added to": {false, func(p place) { p.rename("in/a", "out/a"); p.write("out/a", "ours, and more") }, commitstep.Done, "has 14 bytes now and had 4"},
		"equal length and time, other bytes": {false, func(p place) {
			at := p.modTime("in/a")
			p.remove("in/a")
			p.write("out/a", "ther")
			p.chtimes("out/a", at)
		}, commitstep.Conflict, "planned was"},
		"equal copy, source gone":     {false, func(p place) { p.remove("in/a"); p.write("out/a", "ours") }, commitstep.Conflict, "planned was"},
		"copied, source left":         {false, func(p place) { p.write("out/a", "ours") }, commitstep.Conflict, "planned was"},
		"empty file there":            {false, func(p place) { p.write("out/a", "") }, commitstep.Conflict, "file of 0 bytes"},
		"directory there":             {false, func(p place) { p.mkdir("out/a") }, commitstep.Conflict, "a directory"},
		"moved into a directory":      {false, func(p place) { p.rename("in/a", "out/a/a") }, commitstep.Conflict, "a directory"},
		"link there":                  {false, func(p place) { p.mkdir("out"); p.link("out/a", "../in/a") }, commitstep.Conflict, "a link"},
		"file in the way":             {false, func(p place) { p.write("out", "x") }, commitstep.Conflict, "cannot be made"},
		"consumed":                    {false, func(p place) { p.remove("in/a"); p.mkdir("out") }, commitstep.Unknown, "neither"},
		"staging removed":             {false, func(p place) { p.remove("in") }, commitstep.Unknown, "neither"},
		"source written to":           {false, func(p place) { p.write("in/a", "longer") }, commitstep.Conflict, "has 6 bytes now and had 4"},
		"source overwritten in place": {false, func(p place) { p.write("in/a", "ther"); p.chtimes("in/a", time.Now().Add(time.Hour)) }, commitstep.Conflict, "was modified"},
		"source replaced":             {false, func(p place) { p.remove("in/a"); p.write("in/a", "ours") }, commitstep.Conflict, "changed after it was planned"},
		"source became a directory":   {false, func(p place) { p.remove("in/a"); p.mkdir("in/a") }, commitstep.Conflict, "a directory"},
		"both names":                  {false, func(p place) { p.mkdir("out"); p.hardlink("in/a", "out/a") }, commitstep.Done, ""},
		"consumed and staged again":   {false, func(p place) { p.remove("in/a"); p.write("in/a", "next") }, commitstep.Conflict, ""},

		"tree: nothing happened":     {true, func(p place) {}, commitstep.NotDone, "same 2 files"},
		"tree: renamed":              {true, func(p place) { p.rename("in/a", "out/a") }, commitstep.Done, "same 2 files"},
		"tree: file added at source": {true, func(p place) { p.write("in/a/new", "x") }, commitstep.Conflict, "3 files"},
		"tree: file removed":         {true, func(p place) { p.remove("in/a/y") }, commitstep.Conflict, "1 files"},
		"tree: file replaced":        {true, func(p place) { p.remove("in/a/y"); p.write("in/a/y", "yy") }, commitstep.Conflict, "list of files has changed"},
		"tree: file modified":        {true, func(p place) { p.chtimes("in/a/y", time.Unix(1, 0)) }, commitstep.Conflict, "modified after"},
		"tree: file renamed":         {true, func(p place) { p.rename("in/a/y", "in/a/z") }, commitstep.Conflict, "list of files has changed"},
		"tree: published, added to":  {true, func(p place) { p.rename("in/a", "out/a"); p.write("out/a/new", "x") }, commitstep.Conflict, "was changed"},
		"tree: published, touched":   {true, func(p place) { p.rename("in/a", "out/a"); p.chtimes("out/a/y", time.Unix(1, 0)) }, commitstep.Done, ""},
		"tree: equal tree there": {true, func(p place) {
			p.remove("in/a")
			p.write("out/a/sub/x", "x")
			p.write("out/a/y", "yy")
		}, commitstep.Conflict, "planned was"},
		"tree: empty directory there": {true, func(p place) { p.mkdir("out/a") }, commitstep.Conflict, ""},
		"tree: link put inside":       {true, func(p place) { p.link("in/a/l", "y") }, commitstep.Conflict, "link or special file"},
		"tree: consumed":              {true, func(p place) { p.remove("in/a") }, commitstep.Unknown, "neither"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			if c.tree {
				p.write("in/a/sub/x", "x")
				p.write("in/a/y", "yy")
			} else {
				p.write("in/a", "ours")
			}
			planned := p.mustPlan(fsrename.Move("in/a", "out/a"))
			c.do(p)
			before, err := p.snapshot()
			if err != nil {
				t.Fatal(err)
			}
			p.verdict(planned, c.want, c.mention)
			if c.want == commitstep.NotDone || c.want == commitstep.Done {
				return
			}
			// Whatever the driver believes, Execute adds no damage.
			if err := p.process(planned, 0).Execute(t.Context()); err == nil {
				t.Error("Execute reports success")
			} else if commitstep.ClassOf(err) != commitstep.ClassRefused {
				t.Errorf("Execute: %v (%s)", err, commitstep.ClassOf(err))
			}
			if after, _ := p.snapshot(); after != before {
				t.Errorf("Execute wrote:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func (p place) hardlink(from, to string) {
	p.t.Helper()
	if err := os.Link(p.path(from), p.path(to)); err != nil {
		p.t.Fatal(err)
	}
}

// A process died between the rename and the change of attributes: only those
// are made up for.
func TestAttributesAfterACrash(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "ours")
	opts := []fsrename.Option{fsrename.Mode("0640")}
	if os.Getuid() == 0 { // only root may give files away
		opts = append(opts, fsrename.Owner("12345"), fsrename.Group("54321"))
	}
	planned := p.mustPlan(fsrename.Move("in/a", "out/a", opts...))
	p.rename("in/a", "out/a")
	p.verdict(planned, commitstep.NotDone, "only the attributes are missing")
	var ops []local.OpKind
	proc := p.process(planned, 0, local.WithTrace(func(op local.Op) {
		if op.After {
			ops = append(ops, op.Kind)
		}
	}))
	if err := proc.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		if op != local.OpChmod && op != local.OpChown {
			t.Errorf("Execute did %v", ops)
		}
	}
	p.verdict(planned, commitstep.Done, "")
	i, err := os.Stat(p.path("out/a"))
	if err != nil || i.Mode() != 0o640 {
		t.Fatalf("mode %s, %v", i.Mode(), err)
	}
	ops = nil
	if err := proc.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(ops, local.OpSyncFile) {
		t.Errorf("attributes are not made durable: %v", ops)
	}
}

// A crash can leave both names of the file, before the attributes were set.
func TestAttributesWithASecondName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "ours")
	planned := p.mustPlan(fsrename.Move("in/a", "out/a", fsrename.Mode("0640")))
	if err := os.MkdirAll(p.path("out"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(p.path("in/a"), p.path("out/a")); err != nil {
		t.Fatal(err)
	}
	p.verdict(planned, commitstep.NotDone, "only the attributes are missing")
	proc := p.process(planned, 0)
	if err := proc.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.verdict(planned, commitstep.Done, "")
	if err := proc.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(p.path("in/a")); !os.IsNotExist(err) {
		t.Errorf("the second name is still there: %v", err)
	}
}

// settle settles steps of one stage together, each in a fresh process's hands,
// and gives what was done, in order.
func (p place) settle(planned *steptest.Planned, steps int) []string {
	p.t.Helper()
	var ops []string
	kinds := p.kinds(local.WithTrace(func(op local.Op) {
		if op.After {
			ops = append(ops, string(op.Kind)+" "+strings.TrimPrefix(op.Path, p.root))
		}
	}))
	s := &commitstep.Settling{}
	for i := range steps {
		proc, err := planned.Process(kinds, i)
		if err != nil {
			p.t.Fatal(err)
		}
		if err := proc.Step.(commitstep.Settler).Settle(p.t.Context(), s); err != nil {
			p.t.Fatal(err)
		}
	}
	return ops
}

// The process that renamed died before its fsync; the next one only finds the
// step done, and makes it durable.
func TestSettleAfterACrashOfAnotherProcess(t *testing.T) {
	t.Parallel()
	for name, stage := range map[string]func(p place, n string){
		"files":       func(p place, n string) { p.write("in/"+n, "x") },
		"directories": func(p place, n string) { p.write("in/"+n+"/f", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			var specs []commitstep.StepSpec
			for _, n := range []string{"a", "b", "c"} {
				stage(p, n)
				specs = append(specs, fsrename.Move("in/"+n, "out/day/"+n))
			}
			planned := p.mustPlan(specs...)
			for _, n := range []string{"a", "b", "c"} {
				p.rename("in/"+n, "out/day/"+n)
			}
			ops := p.settle(planned, 3)
			for _, dir := range []string{"syncdir /out/day", "syncdir /out", "syncdir /in", "syncdir "} {
				n := 0
				for _, op := range ops {
					if op == dir {
						n++
					}
				}
				if n == 0 || strings.HasSuffix(dir, "/in") && n > 1 {
					t.Errorf("%q %d times: %q", dir, n, ops)
				}
			}
		})
	}
}

// Where a rename is a link and an unlink, a crash in between leaves the source
// as a second name.
func TestSettleDropsASecondName(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "a")
	p.write("in/b", "b")
	planned := p.mustPlan(fsrename.Move("in/a", "out/a"), fsrename.Move("in/b", "out/b"))
	p.rename("in/a", "out/a")
	p.hardlink("in/b", "out/b")
	ops := p.settle(planned, 2)
	if p.exists("in/b") || p.read("out/b") != "b" {
		t.Fatalf("the source is there: %v, published %q", p.exists("in/b"), p.read("out/b"))
	}
	// The drop came after the first step's sync of the same directory.
	unlink, last := -1, -1
	for i, op := range ops {
		if strings.HasPrefix(op, "unlink") {
			unlink = i
		}
		if op == "syncdir /in" {
			last = i
		}
	}
	if unlink < 0 || last < unlink {
		t.Errorf("the drop is not made durable: %q", ops)
	}
}

func TestSettleWhenTheStagingDirectoryIsGone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("staging/in/a", "a")
	planned := p.mustPlan(fsrename.Move("staging/in/a", "out/a"))
	p.rename("staging/in/a", "out/a")
	p.remove("staging")
	if ops := p.settle(planned, 1); !slices.Contains(ops, "syncdir ") {
		t.Fatalf("the removal is not made durable: %q", ops)
	}
}

// Two plans, two sources, one destination: one wins, whatever the order.
func TestSixteenPlansWantOneDestination(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	const n = 16
	planned := make([]*steptest.Planned, n)
	for i := range n {
		p.write(fmt.Sprintf("in/%d", i), fmt.Sprint(i))
		planned[i] = p.mustPlan(fsrename.Move(fmt.Sprintf("in/%d", i), "out/a"))
	}
	verdicts := make([]commitstep.Verdict, n)
	var wg sync.WaitGroup
	for i := range n {
		proc := p.process(planned[i], 0)
		wg.Go(func() {
			if v, err := proc.Verify(t.Context()); err != nil || v.Outcome != commitstep.NotDone && v.Outcome != commitstep.Conflict {
				t.Errorf("%q, %v", v, err)
			}
			_ = proc.Execute(t.Context())
			v, err := proc.Verify(t.Context())
			if err != nil {
				t.Error(err)
			}
			verdicts[i] = v
		})
	}
	wg.Wait()
	won := 0
	for i, v := range verdicts {
		switch v.Outcome {
		case commitstep.Done:
			won++
			if got := p.read("out/a"); got != fmt.Sprint(i) {
				t.Errorf("%d says done, the destination holds %q", i, got)
			}
		case commitstep.Conflict:
			if got := p.read(fmt.Sprintf("in/%d", i)); got != fmt.Sprint(i) {
				t.Errorf("the loser %d holds %q", i, got)
			}
		default:
			t.Errorf("%d: %q", i, v)
		}
	}
	if won != 1 {
		t.Fatalf("%d plans won", won)
	}
}

// Names differ by a byte or by an encoding of one: no two are one file.
func TestNamesAreBytes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	names := []string{"part=a%20b", "part=a b", "part=a+b", "part=a%2Bb", "a:b", "a?b", "a#b", "é", "e\u0301", strings.Repeat("가", 85)}
	var specs []commitstep.StepSpec
	for _, n := range names {
		p.write("in/"+n+"/f", n)
		specs = append(specs, fsrename.Move("in/"+n+"/f", "out/"+n+"/f"))
	}
	planned := p.mustPlan(specs...)
	for i := range names {
		if err := p.process(planned, i).Execute(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range names {
		if got := p.read("out/" + n + "/f"); got != n {
			t.Errorf("%q holds %q", n, got)
		}
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "x")
	proc := p.process(p.mustPlan(fsrename.Move("in/a", "out/a")), 0)
	want := p.path("in/a") + " -> " + p.path("out/a")
	if got := proc.Step.(interface{ Summary() string }).Summary(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// No path looks like another one, or like two lines.
	p.write("in/b\nc", "x")
	proc = p.process(p.mustPlan(fsrename.Move("in/b\nc", "out/b c")), 0)
	want = strconv.Quote(p.path("in/b\nc")) + " -> " + p.path("out/b c")
	if got := proc.Step.(interface{ Summary() string }).Summary(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The rename failed because something took the destination after the look: a
// definite no, and nothing is overwritten.
func TestADestinationTakenAfterTheLook(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "ours")
	planned := p.mustPlan(fsrename.Move("in/a", "out/a"))
	taken := false
	proc := p.process(planned, 0, local.WithTrace(func(op local.Op) {
		if op.Kind == local.OpRename && !op.After && !taken {
			taken = true
			p.write("out/a", "foreign")
		}
	}))
	err := proc.Execute(t.Context())
	if !errors.Is(err, fs.ErrExist) || commitstep.ClassOf(err) != commitstep.ClassRefused {
		t.Fatal(err)
	}
	if p.read("out/a") != "foreign" || p.read("in/a") != "ours" {
		t.Fatal("something was overwritten")
	}
	p.verdict(planned, commitstep.Conflict, "")
}
