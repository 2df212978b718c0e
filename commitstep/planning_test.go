package commitstep_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func newPlanning(t interface{ Fatalf(string, ...any) }, locks ...string) *commitstep.Planning {
	p, err := commitstep.NewPlanning(uuid.New(), commitstep.Key{Job: "j", Dataset: "d"}, locks)
	if err != nil {
		t.Fatalf("planning: %v", err)
	}
	return p
}

func address(path string) commitstep.Address {
	return commitstep.Address{Resource: commitstep.LocalResource, Path: path}
}

type claim struct {
	path string
	use  commitstep.PathUse
}

// clashes are pairs of claims that no plan may hold, in whichever order its
// steps are prepared.
func TestClashingClaims(t *testing.T) {
	t.Parallel()
	const (
		sf = commitstep.SourceFile
		st = commitstep.SourceTree
		df = commitstep.DestinationFile
		dt = commitstep.DestinationTree
	)
	for _, c := range []struct {
		name string
		a, b claim
	}{
		{"one source twice", claim{"/s/a", sf}, claim{"/s/a", sf}},
		{"one source tree twice", claim{"/s", st}, claim{"/s", st}},
		{"a file and the directory it lies in", claim{"/s/a", sf}, claim{"/s", st}},
		{"a file deep in a moved directory", claim{"/s/a/b/c", sf}, claim{"/s", st}},
		{"a directory in a moved directory", claim{"/s/a", st}, claim{"/s", st}},
		{"one destination twice", claim{"/d/a", df}, claim{"/d/a", df}},
		{"a file and a directory at one destination", claim{"/d/a", df}, claim{"/d/a", dt}},
		{"a destination in a published directory", claim{"/d/a/b", df}, claim{"/d/a", dt}},
		{"a published directory in another", claim{"/d/a/b/c", dt}, claim{"/d", dt}},
		{"a file where a directory must be", claim{"/d/a", df}, claim{"/d/a/b", df}},
		{"a destination that is a source", claim{"/x", df}, claim{"/x", sf}},
		{"a destination in a source directory", claim{"/s/a", df}, claim{"/s", st}},
		{"a destination below a source file", claim{"/s/a", df}, claim{"/s", sf}},
		{"a source in a destination directory", claim{"/d/a", sf}, claim{"/d", dt}},
		{"everything in the root", claim{"/", st}, claim{"/d", df}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, order := range [][2]claim{{c.a, c.b}, {c.b, c.a}} {
				p := newPlanning(t)
				if err := p.For(commitstep.Step{Index: 0, Kind: "first"}).Claim(address(order[0].path), order[0].use); err != nil {
					t.Fatal(err)
				}
				err := p.For(commitstep.Step{Stage: 1, Index: 1, Kind: "second"}).Claim(address(order[1].path), order[1].use)
				requireRefusal(t, err, "stage 2 step 2 (second)", "file://"+order[1].path)
			}
		})
	}
}

// The rule behind the table: no two claims of steps overlap.
func TestClaimsProperty(t *testing.T) {
	t.Parallel()
	paths := []string{"/", "/a", "/ab", "/a/b", "/a/b/c", "/a/bc", "/b", "/b/a", "/a b"}
	gen := rapid.Custom(func(t *rapid.T) commitstep.Address {
		return commitstep.Address{Resource: rapid.SampledFrom([]string{"file", "hdfs://p", "hdfs://q"}).Draw(t, "resource"), Path: rapid.SampledFrom(paths).Draw(t, "path")}
	})
	rapid.Check(t, func(t *rapid.T) {
		p := newPlanning(t)
		type made struct {
			a   commitstep.Address
			use commitstep.PathUse
		}
		var all []made
		for i := range rapid.IntRange(1, 8).Draw(t, "n") {
			m := made{gen.Draw(t, "address"), commitstep.PathUse(rapid.IntRange(0, 3).Draw(t, "use"))}
			clash := slices.ContainsFunc(all, func(o made) bool { return o.a.Contains(m.a) || m.a.Contains(o.a) })
			err := p.For(commitstep.Step{Index: i, Kind: "k"}).Claim(m.a, m.use)
			if clash != (err != nil) {
				t.Fatalf("%v after %v: clash %v, error %v", m, all, clash, err)
			}
			if err == nil {
				all = append(all, m)
			}
		}
		look := p.For(commitstep.Step{})
		x := gen.Draw(t, "asked")
		var source, dest bool
		for _, m := range all {
			switch {
			case m.use == commitstep.SourceFile:
				source = source || m.a == x
			case m.use == commitstep.SourceTree:
				source = source || m.a.Contains(x)
			case m.use == commitstep.DestinationFile:
				dest = dest || m.a == x
			case m.use == commitstep.DestinationTree:
				dest = dest || m.a.Contains(x)
			}
		}
		if look.IsSource(x) != source || look.IsDestination(x) != dest {
			t.Fatalf("%v in %v: source %v, destination %v", x, all, look.IsSource(x), look.IsDestination(x))
		}
	})
}

// Steps are prepared in parallel; of many that claim one thing one gets it.
func TestConcurrentClaims(t *testing.T) {
	t.Parallel()
	p := newPlanning(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for i := range 16 {
		wg.Go(func() {
			pr := p.For(commitstep.Step{Index: i, Kind: "k"})
			for name, err := range map[string]error{
				"path":  pr.Claim(address("/d/a"), commitstep.DestinationFile),
				"lock":  pr.AddLock("l", true),
				"ours":  pr.Claim(address(fmt.Sprintf("/d/%d", i)), commitstep.DestinationFile),
				"plain": pr.AddLock("shared", false),
			} {
				if err == nil {
					mu.Lock()
					won[name]++
					mu.Unlock()
				}
			}
			runs := 0
			_ = pr.Once("dir", func() error { runs++; return nil })
			mu.Lock()
			won["once"] += runs
			mu.Unlock()
		})
	}
	wg.Wait()
	if want := map[string]int{"path": 1, "lock": 1, "ours": 16, "plain": 16, "once": 1}; fmt.Sprint(won) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", won, want)
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	p := newPlanning(t, "b", "a", "a") // naming one twice asks for nothing more
	pr := p.For(commitstep.Step{Kind: "k"})
	requireRefusal(t, pr.AddLock("a", true), `needs "a"`)
	if err := pr.AddLock("c", true); err != nil {
		t.Fatal(err)
	}
	requireRefusal(t, pr.AddLock("c", false), `needs "c"`)
	requireRefusal(t, pr.AddLock("c", true), `needs "c"`)
	if got := strings.Join(p.Locks(), " "); got != "a b c" {
		t.Errorf("locks are %q", got)
	}
	for i := len(p.Locks()); i < commitstep.MaxLocks; i++ {
		if err := pr.AddLock(fmt.Sprintf("n%d", i), i%2 == 0); err != nil {
			t.Fatalf("lock %d: %v", i, err)
		}
	}
	requireRefusal(t, pr.AddLock("one more", false), "10000", "split the plan")
	if err := pr.AddLock("a", false); err != nil {
		t.Errorf("a lock that is held already is refused: %v", err)
	}
	requireRefusal(t, pr.AddLock(rep("x", 1025), false), "stage 1 step 1 (k)", "1025 bytes")
	for _, bad := range []string{"", "\xff"} {
		_, err := commitstep.NewPlanning(uuid.New(), commitstep.Key{}, []string{bad})
		requireRefusal(t, err, "lock")
	}
	many := make([]string, commitstep.MaxLocks+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	_, err := commitstep.NewPlanning(uuid.New(), commitstep.Key{}, many)
	requireRefusal(t, err, "10000")
}

func TestMovesAreSorted(t *testing.T) {
	t.Parallel()
	p := newPlanning(t)
	for _, s := range []string{"b", "a", "c"} {
		p.For(commitstep.Step{}).AddMove(commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: s}})
	}
	got := ""
	for _, m := range p.Moves() {
		got += m.Source
	}
	if got != "abc" {
		t.Errorf("moves are in the order %q", got)
	}
}

func TestPreparationSpeaksOfItsStep(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	p, err := commitstep.NewPlanning(id, commitstep.Key{Job: "j", Dataset: "d"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pr := p.For(commitstep.Step{Stage: 1, Index: 4, Kind: "k"})
	requireRefusal(t, pr.Errorf("do that", "is %s", "so"), "stage 2 step 5 (k) is so; do that")
	if pr.Token() != commitstep.StepToken(id, 4) || pr.Key.Dataset != "d" || pr.Sequence != id {
		t.Errorf("preparation %+v", pr)
	}
	if err := pr.Set(map[string]int{"a": 1}, nil); err != nil || string(pr.Step.Params) != `{"a":1}` || pr.Step.Evidence != nil {
		t.Errorf("%+v, %v", pr.Step, err)
	}
	if err := pr.Set(1, map[string]int{"e": 2}); err != nil || string(pr.Step.Evidence) != `{"e":2}` {
		t.Errorf("%+v, %v", pr.Step, err)
	}
	for _, err := range []error{pr.Set(func() {}, nil), pr.Set(1, func() {})} {
		if err == nil || !strings.Contains(err.Error(), "stage 2 step 5") {
			t.Errorf("what cannot be stored is accepted: %v", err)
		}
	}
}
