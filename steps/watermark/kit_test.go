package watermark_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/commitstep/engine/steps/watermark"
)

// foreign are the ways a watermark can be something else than 100 or our 200.
var foreign = map[string]commitstep.Watermark{
	"the same value by another hand": commitstep.Int(200),
	"already past":                   commitstep.Int(300),
	"in between":                     commitstep.Int(150),
	"turned back":                    commitstep.Int(90),
	"a recreated source":             commitstep.Int(0).InEpoch(1),
	"a text":                         commitstep.Text("100"),
}

func TestKitInTheCommitStore(t *testing.T) {
	t.Parallel()
	steptest.Run(t, steptest.Case{New: func(testing.TB) steptest.World {
		st, points := newMemory(), &steptest.Points{}
		st.put(commitstep.Int(100))
		st.do = points.Do
		w := steptest.World{
			Spec:  watermark.Set(topic.Source, commitstep.Int(100), commitstep.Int(200)),
			Key:   commitstep.Key{Job: topic.Job, Dataset: "MyTopic"},
			Kinds: func() *commitstep.Registry { return commitstep.NewRegistry(watermark.Kind(st)) },
			Snapshot: func() (string, error) {
				st.mu.Lock()
				defer st.mu.Unlock()
				return fmt.Sprint(st.m, st.moves), nil
			},
			Effects: func() (int, error) {
				st.mu.Lock()
				defer st.mu.Unlock()
				return st.moves, nil
			},
			Apply:   st.apply,
			Points:  points,
			Foreign: map[string]func() error{},
			MovedOn: func() error { st.put(commitstep.Int(300)); return nil },
		}
		for name, v := range foreign {
			w.Foreign[name] = func() error { st.put(v); return nil }
		}
		return w
	}})
}

func TestKitInFiles(t *testing.T) {
	t.Parallel()
	steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
		points, renames := &steptest.Points{}, 0
		hand := openFiles(t)
		if err := hand.Set(t.Context(), topic, commitstep.None(), commitstep.Int(100)); err != nil {
			t.Fatal(err)
		}
		by := func(v commitstep.Watermark) func() error {
			return func() error {
				now, err := hand.Read(t.Context(), topic)
				if err != nil {
					return err
				}
				return hand.Set(t.Context(), topic, now, v)
			}
		}
		w := steptest.World{
			Spec: watermark.Set(topic.Source, commitstep.Int(100), commitstep.Int(200), watermark.In("marks")),
			Key:  commitstep.Key{Job: topic.Job, Dataset: "MyTopic"},
			Kinds: func() *commitstep.Registry {
				f, err := watermark.Files("marks", hand.Dir(), watermark.WithSeam(func(op string, run func() error) error {
					return points.Do(op, func() error {
						err := run()
						if op == "rename" && err == nil {
							renames++
						}
						return err
					})
				}))
				if err != nil {
					t.Fatal(err)
				}
				return commitstep.NewRegistry(watermark.Kind(nil, f))
			},
			Snapshot: func() (string, error) { return dump(hand.Dir()) },
			Effects:  func() (int, error) { return renames, nil },
			Points:   points,
			Foreign:  map[string]func() error{},
			MovedOn:  by(commitstep.Int(300)),
		}
		for name, v := range foreign {
			w.Foreign[name] = by(v)
		}
		return w
	}})
}

func TestPlanTimeRefusals(t *testing.T) {
	t.Parallel()
	files := openFiles(t)
	for name, c := range map[string]struct {
		stored commitstep.Watermark
		specs  []commitstep.StepSpec
		want   []string // all stand in the one error
		is     error
	}{
		"a replay of an old plan": {stored: commitstep.Int(100), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(80), commitstep.Int(90))},
			want: []string{"80", "90", "100", "MyTopic:0", "read the watermark again"}, is: commitstep.ErrStale},
		"nothing is stored": {specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(80), commitstep.Int(90))},
			want: []string{"80", "none"}, is: commitstep.ErrStale},
		"something is stored": {stored: commitstep.Int(100), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.None(), commitstep.Int(90))},
			want: []string{"none", "100"}, is: commitstep.ErrStale},
		"the same number in another epoch": {stored: commitstep.Int(100).InEpoch(2), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(100), commitstep.Int(101))},
			want: []string{"epoch 2"}, is: commitstep.ErrStale},
		"backwards":                  {stored: commitstep.Int(100), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(100), commitstep.Int(99))}, want: []string{"does not move forward", "100", "99", "higher source epoch"}},
		"on the spot":                {stored: commitstep.Int(100), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(100), commitstep.Int(100))}, want: []string{"does not move forward"}},
		"to a lower epoch":           {stored: commitstep.Int(1).InEpoch(2), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(1).InEpoch(2), commitstep.Int(9).InEpoch(1))}, want: []string{"does not move forward"}},
		"to nothing":                 {stored: commitstep.Int(100), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(100), commitstep.None())}, want: []string{"no value to set"}},
		"from a number to a text":    {stored: commitstep.Int(100), specs: []commitstep.StepSpec{watermark.Set("MyTopic:0", commitstep.Int(100), commitstep.Text("101"))}, want: []string{"within one source epoch"}},
		"without a source":           {specs: []commitstep.StepSpec{watermark.Set("", commitstep.None(), commitstep.Int(1))}, want: []string{"source is empty"}},
		"twice in one plan":          {specs: []commitstep.StepSpec{watermark.Set("a", commitstep.None(), commitstep.Int(1)), watermark.Set("a", commitstep.None(), commitstep.Int(2))}, want: []string{"which another step of the plan needs too"}},
		"twice in different targets": {specs: []commitstep.StepSpec{watermark.Set("a", commitstep.None(), commitstep.Int(1)), watermark.Set("a", commitstep.None(), commitstep.Int(2), watermark.In("marks"))}, want: []string{"which another step of the plan needs too"}},
		"an unbound target":          {specs: []commitstep.StepSpec{watermark.Set("a", commitstep.None(), commitstep.Int(1), watermark.In("zk"))}, want: []string{`"zk"`, "bind it"}, is: commitstep.ErrUnsupported},
		"no from":                    {specs: []commitstep.StepSpec{commitstep.NewSpec("watermark.set", map[string]any{"source": "a", "to": 1})}, want: []string{`"from"`, "null if the source was never read"}},
		"no to":                      {specs: []commitstep.StepSpec{commitstep.NewSpec("watermark.set", map[string]any{"source": "a", "from": nil})}, want: []string{`"to"`}},
		"half a number":              {specs: []commitstep.StepSpec{commitstep.NewSpec("watermark.set", map[string]any{"source": "a", "from": nil, "to": 1.5})}, want: []string{`"to"`, "whole number"}},
		"a misspelt field":           {specs: []commitstep.StepSpec{commitstep.NewSpec("watermark.set", map[string]any{"source": "a", "from": nil, "to": 1, "epoc": 1})}, want: []string{"epoc"}},
		"text that is no UTF-8":      {specs: []commitstep.StepSpec{watermark.Set("a", commitstep.None(), commitstep.Text("\xff"))}, want: []string{"UTF-8"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newMemory()
			if !c.stored.IsNone() {
				st.put(c.stored)
			}
			_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(watermark.Kind(st, files)), commitstep.NewPlan(topic.Job, "d").Step(c.specs...))
			requirePlanError(t, err)
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if c.is != nil && !isErr(err, c.is) {
				t.Errorf("%q does not wrap %q", err, c.is)
			}
		})
	}
}

// A source that was recreated starts again at a lower position, in a higher
// epoch: that is a move forward, planned and done.
func TestRecreatedSource(t *testing.T) {
	t.Parallel()
	st := newMemory()
	st.put(commitstep.Int(5000))
	kinds := commitstep.NewRegistry(watermark.Kind(st))
	p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan(topic.Job, "d").Step(watermark.Set(topic.Source, commitstep.Int(5000), commitstep.Int(10).InEpoch(1))))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Moves) != 1 || p.Moves[0].To != commitstep.Int(10).InEpoch(1) || p.Moves[0].Job != topic.Job {
		t.Fatalf("moves are %+v", p.Moves)
	}
	if want := []string{topic.Lock()}; !slices.Equal(p.Locks, want) {
		t.Fatalf("locks are %q, want %q", p.Locks, want)
	}
	if err := st.apply(t.Context(), p.Moves[0], p.ID); err != nil {
		t.Fatal(err)
	}
	proc, err := p.Process(kinds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := proc.Verify(t.Context()); err != nil || v.Outcome != commitstep.Done {
		t.Fatalf("%q, %v", v, err)
	}
	// From now on a plan of the old epoch is late, however high its numbers.
	_, err = steptest.Plan(t.Context(), kinds, commitstep.NewPlan(topic.Job, "d").Step(watermark.Set(topic.Source, commitstep.Int(5000), commitstep.Int(6000))))
	if !isErr(err, commitstep.ErrStale) {
		t.Fatalf("an old epoch is planned: %v", err)
	}
}

// Short and full forms of a document are one plan.
func TestShortFormsResolveToTheSame(t *testing.T) {
	t.Parallel()
	kinds := commitstep.NewRegistry(watermark.Kind(newMemory()))
	forms := map[string]bool{}
	for _, params := range []string{
		`{"source":"s","from":null,"to":7}`,
		`{"to":{"value":7},"from":null,"source":"s","target":""}`,
		`{ "source" : "s", "from" : null, "to" : {"epoch":0,"value":7} }`,
	} {
		p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(commitstep.StepSpec{Kind: watermark.KindName, Params: []byte(params)}))
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Step(0)
		if err != nil {
			t.Fatal(err)
		}
		forms[string(s.Params)] = true
	}
	if want := `{"source":"s","from":null,"to":{"value":7}}`; len(forms) != 1 || !forms[want] {
		t.Fatalf("resolved to %q, want only %s", slices.Collect(maps.Keys(forms)), want)
	}
}

// What cannot be read is never none: not while planning, not while looking.
func TestUnreadableIsNeverNone(t *testing.T) {
	t.Parallel()
	for _, why := range []error{commitstep.ErrDamaged, commitstep.ErrNewerFormat, fmt.Errorf("connection reset")} {
		st := newMemory()
		kinds := commitstep.NewRegistry(watermark.Kind(st))
		plan := func() *commitstep.Plan {
			return commitstep.NewPlan(topic.Job, "d").Step(watermark.Set(topic.Source, commitstep.None(), commitstep.Int(1)))
		}
		p, err := steptest.Plan(t.Context(), kinds, plan())
		if err != nil {
			t.Fatal(err)
		}
		st.err = why
		if _, err := steptest.Plan(t.Context(), kinds, plan()); !isErr(err, why) || isErr(err, commitstep.ErrStale) {
			t.Errorf("%v: planning says %v", why, err)
		} else if strings.Count(err.Error(), "stage 1 step 1") > 1 || strings.Count(err.Error(), "plan: ") > 1 {
			t.Errorf("%q says twice where", err)
		}
		proc, err := p.Process(kinds, 0)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := proc.Verify(t.Context()); !isErr(err, why) {
			t.Errorf("%v: Verify says %q, %v", why, v, err)
		}
	}
}

func TestUnacceptedIsNotPlannedOn(t *testing.T) {
	t.Parallel()
	// Also one that the copy lacks: it may have been set after it was made.
	for _, at := range []commitstep.Watermark{commitstep.Int(1), commitstep.None()} {
		st := newMemory()
		st.put(at)
		v := st.m[topic]
		v.Unaccepted = true
		st.m[topic] = v
		_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(watermark.Kind(st)), commitstep.NewPlan(topic.Job, "d").Step(watermark.Set(topic.Source, at, commitstep.Int(2))))
		requirePlanError(t, err)
		if !strings.Contains(err.Error(), "watermark accept") {
			t.Errorf("%q does not say what to do", err)
		}
	}
}

// Evidence of one step in another's place would move the wrong watermark.
func TestEvidenceOfAnotherStepIsDamage(t *testing.T) {
	t.Parallel()
	st := newMemory()
	kinds := commitstep.NewRegistry(watermark.Kind(st))
	p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").
		Step(watermark.Set("a", commitstep.None(), commitstep.Int(1)), watermark.Set("b", commitstep.None(), commitstep.Int(1))))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := p.Step(0)
	b, _ := p.Step(1)
	a.Evidence = b.Evidence
	built, err := kinds.Build(a)
	if err != nil {
		t.Fatal(err)
	}
	v, err := built.Verify(t.Context(), commitstep.NewAttempt(p.ID, p.Key, 0, commitstep.Progress{}, nil))
	if !isErr(err, commitstep.ErrDamaged) {
		t.Fatalf("%q, %v", v, err)
	}
}

func TestTargetsNeedNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	f := openFiles(t)
	kinds := commitstep.NewRegistry(watermark.Kind(newMemory(), f, f))
	if _, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(watermark.Set("a", commitstep.None(), commitstep.Int(1)))); err == nil || !strings.Contains(err.Error(), `"marks"`) {
		t.Fatalf("two targets of one name are accepted: %v", err)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	for want, spec := range map[string]commitstep.StepSpec{
		`watermark "a": none -> 1`:                     watermark.Set("a", commitstep.None(), commitstep.Int(1)),
		`watermark "a": "x" -> "y" (epoch 1) in marks`: watermark.Set("a", commitstep.Text("x"), commitstep.Text("y").InEpoch(1), watermark.In("marks")),
	} {
		s, err := watermark.Kind(newMemory(), openFiles(t)).New(commitstep.Step{Kind: spec.Kind, Version: 1, Params: spec.Params})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.(interface{ Summary() string }).Summary(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
