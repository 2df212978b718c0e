package fsrename_test

import (
	"context"
	"iter"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
)

// reader changes the ids that a file system shows.
type reader struct {
	filesys.FS
	id func(filesys.ID) filesys.ID
}

func (r reader) Stat(ctx context.Context, a commitstep.Address) (filesys.Info, error) {
	i, err := r.FS.Stat(ctx, a)
	i.ID = r.id(i.ID)
	return i, err
}

func (r reader) List(ctx context.Context, a commitstep.Address) iter.Seq2[filesys.Info, error] {
	return func(yield func(filesys.Info, error) bool) {
		for i, err := range r.FS.List(ctx, a) {
			i.ID = r.id(i.ID)
			if !yield(i, err) {
				return
			}
		}
	}
}

func (p place) withIDs(id func(filesys.ID) filesys.ID) *commitstep.Registry {
	return commitstep.NewRegistry(fsrename.Kind(reader{p.files(), id}))
}

// Without identity, length and content decide.
func TestWithoutStableIDs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(p place)
		want commitstep.Outcome
	}{
		"nothing happened":   {func(p place) {}, commitstep.NotDone},
		"renamed":            {func(p place) { p.rename("in/a", "out/a"); p.rename("in/d", "out/d") }, commitstep.Done},
		"other bytes there":  {func(p place) { p.write("out/a", "ther"); p.write("out/d/f", "zz") }, commitstep.Conflict},
		"other length there": {func(p place) { p.write("out/a", "x"); p.write("out/d/f", "z") }, commitstep.Conflict},
		"source changed":     {func(p place) { p.write("in/a", "ther"); p.write("in/d/f", "zz") }, commitstep.Conflict},
		"neither":            {func(p place) { p.remove("in") }, commitstep.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write("in/a", "ours")
			p.write("in/d/f", "ff")
			none := p.withIDs(func(filesys.ID) filesys.ID { return filesys.ID{} })
			plan := commitstep.NewPlan("job", "dataset").Step(fsrename.Move("in/a", "out/a"), fsrename.Move("in/d", "out/d"))
			plan.BaseDir = p.root
			planned, err := steptest.Plan(t.Context(), none, plan)
			if err != nil {
				t.Fatal(err)
			}
			c.do(p)
			for i := range 2 {
				proc, err := planned.Process(none, i)
				if err != nil {
					t.Fatal(err)
				}
				v, err := proc.Verify(t.Context())
				if err != nil || v.Outcome != c.want {
					t.Errorf("step %d: %q, %v; want %q", i, v, err, c.want)
				}
				if c.want != commitstep.NotDone {
					continue
				}
				if err := proc.Execute(t.Context()); err != nil {
					t.Error(err)
				}
				if v, err := proc.Verify(t.Context()); err != nil || v.Outcome != commitstep.Done {
					t.Errorf("step %d after Execute: %q, %v", i, v, err)
				}
			}
		})
	}
}

// Ids obtained in two ways say nothing about each other: no false conflict, no
// false done.
func TestIDsThatCannotBeComparedAreUnknown(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "ours")
	planned := p.mustPlan(fsrename.Move("in/a", "out/a"))
	other := p.withIDs(func(i filesys.ID) filesys.ID { i.Text = "other:" + i.Text; return i })
	for _, move := range []func(){func() {}, func() { p.rename("in/a", "out/a") }} {
		move()
		proc, err := planned.Process(other, 0)
		if err != nil {
			t.Fatal(err)
		}
		v, err := proc.Verify(t.Context())
		if err != nil || v.Outcome != commitstep.Unknown || !strings.Contains(v.Evidence, "cannot be compared") {
			t.Fatalf("%q, %v", v, err)
		}
	}
}
