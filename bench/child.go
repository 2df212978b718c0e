package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
)

// child runs one measurement in a process of its own, since memory is measured
// per process.
func child(what, dir string, scale float64) error {
	_, err := childFigures(what, dir, scale)
	return err
}

func childFigures(what, dir string, scale float64) (figures.Child, error) {
	var f figures.Child
	self, err := os.Executable()
	if err != nil {
		return f, err
	}
	cmd := exec.Command(self, "-child", what, "-dir", dir, "-scale", fmt.Sprint(scale))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("%s in a child process: %w", what, err)
	}
	if len(out) == 0 {
		return f, nil
	}
	return f, json.Unmarshal(out, &f)
}

func runChild(ctx context.Context, what, path string, scale float64) error {
	switch what {
	case "pending":
		return makePending(ctx, path, int(scale))
	case "recover":
		return figures.Measure(func() (int, error) { return recoverAll(ctx, path) })
	case "long":
		return figures.Measure(func() (int, error) { return longPlan(ctx, path, int(1_000_000*scale)) })
	}
	return fmt.Errorf("no measurement is called %q", what)
}

// makePending makes a store with n sequences that are stored and not begun:
// the context of every publish ends at its put.
func makePending(ctx context.Context, path string, n int) error {
	st, err := boltstore.Init(path, nil)
	if err != nil {
		return err
	}
	e, err := driver.New(driver.Config{Store: stopping{st}, Kinds: commitstep.NewRegistry(noopKind())})
	if err != nil {
		return err
	}
	_, err = figures.InFlight(n, 64, func(i int) error {
		c, cancel := context.WithCancel(ctx)
		defer cancel()
		res, err := e.Publish(context.WithValue(c, cancelKey{}, cancel), fiveSteps("bench", i))
		if res.Status != driver.StatusStopped {
			return fmt.Errorf("dataset %d is %q, not stopped: %w", i, res.Status, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := e.Close(ctx); err != nil {
		return err
	}
	return st.Close()
}

type cancelKey struct{}

// stopping is a store that ends the caller's context once its put is stored.
type stopping struct{ store.Full }

func (s stopping) Put(ctx context.Context, d store.Draft, owner uuid.UUID) (commitstep.Live, error) {
	live, err := s.Full.Put(ctx, d, owner)
	ctx.Value(cancelKey{}).(context.CancelFunc)()
	return live, err
}

func recoverAll(ctx context.Context, path string) (int, error) {
	st, err := boltstore.Open(path, nil)
	if err != nil {
		return 0, err
	}
	m, err := start(st)
	if err != nil {
		return 0, err
	}
	rep, err := m.e.Recover(ctx, "bench")
	if err != nil {
		return 0, err
	}
	if len(rep.Counts) != 1 {
		return 0, fmt.Errorf("not all were completed: %v", rep.Counts)
	}
	return rep.Counts[driver.StatusCompleted], m.close(ctx)
}

func longPlan(ctx context.Context, path string, n int) (int, error) {
	m, err := newMachine("", path)
	if err != nil {
		return 0, err
	}
	p := commitstep.NewPlan("bench", "long")
	p.Stream = func(yield func(commitstep.StagedSpec, error) bool) {
		for i := range n {
			s := commitstep.StagedSpec{StepSpec: commitstep.StepSpec{Kind: "bench.noop", Params: fmt.Appendf(nil,
				`{"from":"file:///data/task-output/run-17/long/%09d.avro","to":"file:///data/job-output/long/%09d.avro"}`, i, i)}}
			if !yield(s, nil) {
				return
			}
		}
	}
	res, err := m.e.Publish(ctx, p)
	if err != nil {
		return 0, err
	}
	if res.Executed != n {
		return 0, fmt.Errorf("executed %d of %d steps", res.Executed, n)
	}
	return n, m.close(ctx)
}
