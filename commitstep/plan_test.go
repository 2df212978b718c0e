package commitstep_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

func spec(kind string) commitstep.StepSpec {
	return commitstep.NewSpec(kind, map[string]string{"path": kind})
}

func stagesOf(steps []commitstep.StagedSpec) string {
	var s []string
	for _, st := range steps {
		s = append(s, fmt.Sprintf("%d:%s", st.Stage, st.Kind))
	}
	return strings.Join(s, " ")
}

func TestBuilderStages(t *testing.T) {
	t.Parallel()
	a, b, c := spec("a"), spec("b"), spec("c")
	for want, p := range map[string]*commitstep.Plan{
		"":            commitstep.NewPlan("j", "d"),
		"0:a":         commitstep.NewPlan("j", "d").Then(a),
		"0:a 0:b":     commitstep.NewPlan("j", "d").Step(a).Step(b),
		"0:a 1:b 1:c": commitstep.NewPlan("j", "d").Step(a).Then(b).Step(c),
		"0:a 1:b 2:c": commitstep.NewPlan("j", "d").Then(a).Then(b).Then(c),
		"0:b 0:a":     commitstep.NewPlan("j", "d").Then().Then(b, a), // empty stages leave no gap
		"0:c 1:a":     commitstep.NewPlan("j", "d").Step().Step(c).Then().Then().Step(a).Then(),
	} {
		for range 2 { // ranging does not use a built plan up
			steps, err := collect(p)
			if err != nil || stagesOf(steps) != want {
				t.Errorf("got %q, %v; want %q", stagesOf(steps), err, want)
			}
		}
	}
}

func TestRangingCanStopEarly(t *testing.T) {
	t.Parallel()
	p := commitstep.NewPlan("j", "d").Step(spec("a"), spec("b"))
	for s, err := range p.Steps() {
		if err != nil || s.Kind != "a" {
			t.Fatal(s, err)
		}
		break
	}
}

func TestBuilderMistakesAreKept(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	bad := commitstep.StepSpec{Kind: "a", Err: boom}
	steps, err := collect(commitstep.NewPlan("j", "d").Step(spec("x")).Then(bad, spec("y")))
	requireRefusal(t, err, "stage 2 step 2 (a)", "boom")
	if !errors.Is(err, boom) || len(steps) != 1 {
		t.Errorf("%v after %d steps", err, len(steps))
	}
	_, err = collect(commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("a", math.NaN())))
	requireRefusal(t, err, "stage 1 step 1 (a)")
	if err := commitstep.NewPlan("j", "d").Fail(boom).Validate(); !errors.Is(err, boom) {
		t.Errorf("Validate says %v", err)
	}
}

func TestStreamsMustCountStagesInOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stages []int
		ok     int // steps before the refusal
	}{
		{[]int{1}, 0}, {[]int{-1}, 0}, {[]int{0, 2}, 1}, {[]int{0, 1, 0}, 2}, {[]int{0, 0, 1, 3}, 3}, {[]int{0, -1}, 1}, {[]int{0, math.MinInt}, 1}, {[]int{0, math.MaxInt}, 1},
	} {
		p := commitstep.NewPlan("j", "d")
		p.Stream = func(yield func(commitstep.StagedSpec, error) bool) {
			for _, s := range c.stages {
				if !yield(commitstep.StagedSpec{Stage: s, StepSpec: spec("a")}, nil) {
					return
				}
			}
		}
		steps, err := collect(p)
		requireRefusal(t, err, "stages count from 0")
		if len(steps) != c.ok {
			t.Errorf("stages %v: %d steps before the refusal, want %d", c.stages, len(steps), c.ok)
		}
	}
	boom := errors.New("boom")
	p := commitstep.NewPlan("j", "d").Step(spec("ignored: a stream replaces built steps"))
	p.Stream = func(yield func(commitstep.StagedSpec, error) bool) {
		_ = yield(commitstep.StagedSpec{StepSpec: spec("a")}, nil) && yield(commitstep.StagedSpec{}, boom) && yield(commitstep.StagedSpec{StepSpec: spec("never")}, nil)
	}
	steps, err := collect(p)
	if !errors.Is(err, boom) || stagesOf(steps) != "0:a" {
		t.Errorf("got %q, %v", stagesOf(steps), err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", commitstep.MaxNameBytes)
	for _, good := range []string{"a", "a/b", "a:b", "..", "/abs", "%2F", "_x", " ", "\n", "\x00", "\ufffd", long, strings.Repeat("\ud55c", 341)} {
		if err := commitstep.NewPlan(good, good).WithID(good).Lock(good).Validate(); err != nil {
			t.Errorf("%q is refused: %v", good, err)
		}
	}
	for bad, says := range map[string]string{"": "is empty", "\xff": "not valid UTF-8", "a\xc3": "not valid UTF-8", long + "x": "1025 bytes", strings.Repeat("\ud55c", 342): "1026 bytes"} {
		requireRefusal(t, commitstep.NewPlan(bad, "d").Validate(), "job", says)
		requireRefusal(t, commitstep.NewPlan("j", bad).Validate(), "dataset", says)
		requireRefusal(t, commitstep.NewPlan("j", "d").Lock("l", bad).Validate(), "lock", says)
		if bad != "" { // no id is fine
			requireRefusal(t, commitstep.NewPlan("j", "d").WithID(bad).Validate(), "id", says)
		}
	}
}

func TestKeysAreNotMistaken(t *testing.T) {
	t.Parallel()
	k, o := commitstep.Key{Job: "c", Dataset: "a/b"}, commitstep.Key{Job: "c/a", Dataset: "b"}
	if k.String() == o.String() || k.Compare(o) >= 0 || o.Compare(k) <= 0 || k.Compare(k) != 0 {
		t.Errorf("%s and %s", k, o)
	}
	a, b := commitstep.WatermarkKey{Job: "a:b", Source: "c"}, commitstep.WatermarkKey{Job: "a", Source: "b:c"}
	if a.Lock() == b.Lock() {
		t.Errorf("%v and %v share the lock %q", a, b, a.Lock())
	}
	if want := "watermark:3:a:b:c"; a.Lock() != want {
		t.Errorf("the lock is %q, want %q", a.Lock(), want)
	}
	// The longest names have a lock of their own that a store accepts.
	long := strings.Repeat("\ud55c", 341)
	locks := map[string]bool{}
	for _, k := range []commitstep.WatermarkKey{{Job: long, Source: long}, {Job: long + "x", Source: long}, {Job: long, Source: long + "x"}, {Job: "x", Source: long}, {Job: long, Source: "x"}} {
		l := k.Lock()
		if err := commitstep.CheckName("lock", l); err != nil || locks[l] {
			t.Errorf("a lock of %d bytes: %v, taken already %v", len(l), err, locks[l])
		}
		locks[l] = true
	}
}

// The hash decides whether a repeated plan id is the same plan; these values
// were computed outside. A change makes every known plan id a conflict.
func TestPlanHash(t *testing.T) {
	t.Parallel()
	sum := func(p *commitstep.Plan, steps []commitstep.Step, cleanup ...commitstep.Step) string {
		h := commitstep.NewPlanHasher(p)
		for _, s := range steps {
			h.Step(s)
		}
		for _, s := range cleanup {
			h.Cleanup(s)
		}
		return h.Sum()
	}
	plan := func() *commitstep.Plan { return commitstep.NewPlan("kafka-hdfs", "MyTopic").Lock("l2", "l1", "l2") }
	rename := commitstep.Step{Kind: "fs.rename", Version: 1, Params: json.RawMessage(`{"from":"file:///s/a b.avro", "to":"file:///d/a b.avro"}`)}
	mark := commitstep.Step{Stage: 1, Kind: "watermark.set", Version: 1, Params: json.RawMessage(`{"source":"MyTopic:0","from":null,"to":{"value":100}}`)}
	clean := commitstep.Step{Kind: "fs.remove", Version: 1, Params: json.RawMessage(`{"path":"file:///s"}`)}
	base := sum(plan(), []commitstep.Step{rename, mark}, clean)
	if want := "sha256:fd018ee7dfc9fdb7cc1e6797a9498a98b6c618f74b1202a319b1e7b3726dd299"; base != want {
		t.Errorf("got %s, want %s", base, want)
	}

	same := rename
	same.Evidence, same.Index, same.Class = json.RawMessage(`{"id":"1"}`), 7, commitstep.LedgerStep
	withID := plan().WithID("x")
	withID.AcceptReusedPaths, withID.BaseDir = "tested", "/b"
	if got := sum(withID.Lock("l1"), []commitstep.Step{same, mark}, clean); got != base {
		t.Error("the id, the evidence or the order of locks is part of the hash")
	}

	other := rename
	other.Params = json.RawMessage(`{"from":"file:///s/a b.avro","to":"file:///d/a%20b.avro"}`)
	version := rename
	version.Version = 2
	late := rename
	late.Stage = 1
	seen := map[string]string{base: "the plan"}
	for what, got := range map[string]string{
		"another parameter":      sum(plan(), []commitstep.Step{other, mark}, clean),
		"another version":        sum(plan(), []commitstep.Step{version, mark}, clean),
		"another stage":          sum(plan(), []commitstep.Step{late, mark}, clean),
		"another order":          sum(plan(), []commitstep.Step{mark, rename}, clean),
		"one step less":          sum(plan(), []commitstep.Step{rename}, clean),
		"no cleanup":             sum(plan(), []commitstep.Step{rename, mark}),
		"the cleanup as a step":  sum(plan(), []commitstep.Step{rename, mark, clean}),
		"another lock":           sum(plan().Lock("l3"), []commitstep.Step{rename, mark}, clean),
		"another dataset":        sum(commitstep.NewPlan("kafka-hdfs", "MyTopic2").Lock("l1", "l2"), []commitstep.Step{rename, mark}, clean),
		"names cut elsewhere":    sum(commitstep.NewPlan("kafka-hdfsM", "yTopic").Lock("l1", "l2"), []commitstep.Step{rename, mark}, clean),
		"locks merged into one":  sum(commitstep.NewPlan("kafka-hdfs", "MyTopic").Lock("l1,l2"), []commitstep.Step{rename, mark}, clean),
		"no locks, same dataset": sum(commitstep.NewPlan("kafka-hdfs", "MyTopic"), []commitstep.Step{rename, mark}, clean),
	} {
		if was, dup := seen[got]; dup {
			t.Errorf("%s has the hash of %s", what, was)
		}
		seen[got] = what
	}
}

// What is hashed are lines of JSON, also of plans that are too long to be
// hashed at once.
func TestPlanHashIsThatOfItsLines(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 20, 500} {
		h := commitstep.NewPlanHasher(commitstep.NewPlan("job", "dataset <1>"))
		want := sha256.New()
		line := func(v ...any) {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			want.Write(append(b, '\n'))
		}
		fmt.Fprintf(want, "%s\n", `["plan",{"job":"job","dataset":"dataset \u003c1\u003e"},null]`)
		for i := range n {
			s := commitstep.Step{Stage: i, Kind: `a "kind"`, Version: i % 3, Params: json.RawMessage([]string{`{"path":"/data/1"}`, `{ "path": "a & b" }`, "\"é\u2028\"", ``}[i%4])}
			h.Step(s)
			h.Cleanup(s)
			var params any = s.Params
			if len(s.Params) == 0 {
				params = nil
			}
			line("step", s.Stage, s.Kind, s.Version, params)
			line("cleanup", s.Kind, s.Version, params)
		}
		if got := h.Sum(); got != fmt.Sprintf("sha256:%x", want.Sum(nil)) || got != h.Sum() {
			t.Errorf("%d steps: %s", n, got)
		}
	}
}
