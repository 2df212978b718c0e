package steptest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
)

// printer prints a page that nobody can ask it about afterwards: a step that
// cannot be taken back, and whose outcome may stay unknown.
type printer struct {
	defect string
	points *steptest.Points

	mu    sync.Mutex
	pages int
	told  int
}

type pageStep struct {
	p      *printer
	params struct{}
}

func (p *printer) kind() commitstep.Kind {
	return commitstep.Kind{Name: "page.print", Version: 1, WantsPark: p.defect != "park flag", New: func(s commitstep.Step) (commitstep.CommitStep, error) {
		st := &pageStep{p: p}
		if err := commitstep.DecodeParams(s, &st.params); err != nil {
			return nil, err
		}
		return st, nil
	}}
}

func (s *pageStep) Irreversible() {}

func (s *pageStep) Verify(_ context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	var outcome string
	noted, err := a.LastNote(&outcome)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	passed, err := a.NoReturn(nil)
	switch {
	case err != nil:
		return commitstep.Verdict{}, err
	case noted:
		return commitstep.IsDone("it was noted as %s", outcome), nil
	case !passed, s.p.defect == "forgets the mark":
		return commitstep.IsNotDone("the printer was never called"), nil
	}
	return commitstep.IsUnknown("the printer was called and its answer is lost"), nil
}

func (s *pageStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	mark := func() error {
		return s.p.points.Do("mark", func() error { return a.PointOfNoReturn(ctx, "page") })
	}
	if s.p.defect != "marks late" && s.p.defect != "never marks" {
		if err := mark(); err != nil {
			return commitstep.NotSent(err)
		}
	}
	err := s.p.points.Do("print", func() error {
		s.p.mu.Lock()
		defer s.p.mu.Unlock()
		s.p.pages++
		return nil
	})
	if err != nil {
		return err
	}
	if s.p.defect == "marks late" {
		if err := mark(); err != nil {
			return err
		}
	}
	return s.p.points.Do("note", func() error { return a.Note(ctx, "printed") })
}

func (s *pageStep) OnPark(context.Context, *commitstep.Attempt, commitstep.ParkReason, string) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.told == 0 || s.p.defect == "counts parks" {
		s.p.told++
	}
	return nil
}

func printerCase(defect string) steptest.Case {
	return steptest.Case{New: func(testing.TB) steptest.World {
		p := &printer{defect: defect, points: &steptest.Points{}}
		return steptest.World{
			Spec:  commitstep.NewSpec("page.print", struct{}{}),
			Kinds: func() *commitstep.Registry { return commitstep.NewRegistry(p.kind()) },
			Snapshot: func() (string, error) {
				p.mu.Lock()
				defer p.mu.Unlock()
				return fmt.Sprint(p.pages, p.told), nil
			},
			Effects: func() (int, error) {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.pages, nil
			},
			Points:       p.points,
			SharesEffect: true,
			MayPark:      true,
		}
	}}
}

func TestAGoodIrreversibleKindPasses(t *testing.T) {
	t.Parallel()
	steptest.Run(t, printerCase(""))
}
