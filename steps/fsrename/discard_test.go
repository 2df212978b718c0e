package fsrename_test

import (
	"context"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/fsrename"
)

func TestDiscard(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do    func(p place)
		stays string // "" when all goes
		left  []string
	}{
		"as recorded":     {func(p place) {}, "", nil},
		"gone already":    {func(p place) { p.remove("in") }, "", nil},
		"file rewritten":  {func(p place) { p.remove("in/a"); p.write("in/a", "ours") }, "/in/a", []string{"in/a"}},
		"tree added to":   {func(p place) { p.write("in/d/new", "new") }, "/in/d", []string{"in/d/new", "in/d/sub/f"}},
		"published tree":  {func(p place) { p.rename("in/d", "out/d") }, "", []string{"out/d/sub/f"}},
		"a new run there": {func(p place) { p.remove("in/d"); p.write("in/d/sub/f", "ff") }, "/in/d", []string{"in/d/sub/f"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write("in/a", "ours")
			p.write("in/d/sub/f", "ff")
			planned := p.mustPlan(fsrename.Move("in/a", "out/a"), fsrename.Move("in/d", "out/d"))
			c.do(p)
			var stays []string
			for i := range 2 {
				proc := p.process(planned, i)
				staged, looked, err := proc.Step.(interface {
					Staged(context.Context, *commitstep.Attempt) (bool, []string, error)
				}).Staged(t.Context(), proc.Attempt)
				if err != nil {
					t.Fatal(err)
				}
				s, err := proc.Step.(commitstep.Discarder).Discard(t.Context(), proc.Attempt)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Join(looked, "|") != strings.Join(s, "|") || staged && len(s) > 0 {
					t.Errorf("step %d: a look says %v %q, discarding says %q", i, staged, looked, s)
				}
				stays = append(stays, s...)
			}
			if c.stays == "" && len(stays) > 0 || c.stays != "" && !strings.Contains(strings.Join(stays, "\n"), c.stays) {
				t.Errorf("stays: %q", stays)
			}
			for _, f := range c.left {
				if !p.exists(f) {
					t.Errorf("%s is gone", f)
				}
			}
			if len(c.left) == 0 && (p.exists("in/a") || p.exists("in/d")) {
				t.Error("something is left")
			}
		})
	}
}
