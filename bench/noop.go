package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store/boltstore"
)

// noop is a step without an effect outside of this process, so that all that
// is measured is the engine.
type noop struct{ done bool }

func (n *noop) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	if n.done {
		return commitstep.Verdict{Outcome: commitstep.Done}, nil
	}
	return commitstep.Verdict{Outcome: commitstep.NotDone}, nil
}

func (n *noop) Execute(context.Context, *commitstep.Attempt) error {
	n.done = true
	return nil
}

func noopKind() commitstep.Kind {
	return commitstep.Kind{Name: "bench.noop", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return &noop{}, nil }}
}

// fiveSteps is a plan whose steps are as large as those of a rename.
func fiveSteps(job string, n int) *commitstep.Plan {
	p := commitstep.NewPlan(job, fmt.Sprintf("dataset-%08d", n))
	for i := range 5 {
		p.Step(commitstep.StepSpec{Kind: "bench.noop", Params: fmt.Appendf(nil,
			`{"from":"file:///data/task-output/run-17/dataset-%08d/2015-12-09/%d.avro","to":"file:///data/job-output/dataset-%08d/2015-12-09/%d.avro","length":%d}`, n, i, n, i, 1<<20+i)})
	}
	return p
}

type machine struct {
	st *boltstore.Store
	e  *driver.Engine
}

func newMachine(dir, name string, kinds ...commitstep.Kind) (*machine, error) {
	st, err := boltstore.Init(filepath.Join(dir, name), nil)
	if err != nil {
		return nil, err
	}
	return start(st, kinds...)
}

func start(st *boltstore.Store, kinds ...commitstep.Kind) (*machine, error) {
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(append(kinds, noopKind())...)})
	if err != nil {
		st.Close()
		return nil, err
	}
	return &machine{st, e}, nil
}

func (m *machine) close(ctx context.Context) error {
	if err := m.e.Close(ctx); err != nil {
		return err
	}
	return m.st.Close()
}
