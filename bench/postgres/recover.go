package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
)

// child starts this program again to run one measurement; its figures come
// from wait.
func child(job, dsn string, scale float64) (wait func() (figures.Child, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-child", job, "-dsn", dsn, "-scale", fmt.Sprint(scale))
	cmd.Stderr = os.Stderr
	out := new(strings.Builder)
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() (figures.Child, error) {
		var f figures.Child
		if err := cmd.Wait(); err != nil {
			return f, fmt.Errorf("%s in a child process: %w", job, err)
		}
		return f, json.Unmarshal([]byte(out.String()), &f)
	}, nil
}

func runChild(ctx context.Context, job, dsn string, scale float64) error {
	var work func() (int, error)
	switch job {
	case "recover":
		work = func() (int, error) { return recoverAll(ctx, dsn, 64) }
	case "recover16":
		work = func() (int, error) { return recoverAll(ctx, dsn, 16) }
	case "long":
		work = func() (int, error) { return longPlan(ctx, dsn, int(1_000_000*scale)) }
	default:
		return fmt.Errorf("no measurement is called %q", job)
	}
	return figures.Measure(work)
}

// makePending stores n sequences and begins none: the context of every publish
// ends at its put.
func makePending(ctx context.Context, dsn string, n int, kind string, sequential bool) error {
	st, err := pgstore.Open(ctx, dsn, nil)
	if err != nil {
		return err
	}
	e, err := driver.New(driver.Config{Store: stopping{st}, Kinds: kinds()})
	if err != nil {
		return err
	}
	_, err = figures.InFlight(n, 64, func(i int) error {
		c, cancel := context.WithCancel(ctx)
		defer cancel()
		res, err := e.Publish(context.WithValue(c, cancelKey{}, cancel), fiveSteps(i, kind, sequential))
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

func recoverAll(ctx context.Context, dsn string, concurrency int) (int, error) {
	m, err := start(ctx, dsn, concurrency)
	if err != nil {
		return 0, err
	}
	rep, err := m.e.Recover(ctx, "bench")
	if err != nil {
		return 0, err
	}
	for status, n := range rep.Counts {
		// Several at once see each other's work.
		if status != driver.StatusCompleted && status != driver.StatusBusy {
			return 0, fmt.Errorf("%d are %s", n, status)
		}
	}
	return rep.Counts[driver.StatusCompleted], m.close(ctx)
}

func longPlan(ctx context.Context, dsn string, n int) (int, error) {
	m, err := start(ctx, dsn, 1)
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

func (b *bench) recover() error {
	n := int(10_000 * b.scale)
	var secs []float64
	for range b.pairs {
		dsn, err := b.store()
		if err != nil {
			return err
		}
		if err := makePending(b.ctx, dsn, n, "bench.noop", false); err != nil {
			return err
		}
		wait, err := child("recover", dsn, 1)
		if err != nil {
			return err
		}
		f, err := wait()
		if err != nil {
			return err
		}
		if f.Count != n {
			return fmt.Errorf("recovered %d of %d", f.Count, n)
		}
		secs = append(secs, f.Seconds)
		if err := b.drop(); err != nil {
			return err
		}
	}
	s := figures.Median(secs)
	b.add(figures.Row{Name: fmt.Sprintf("recover %d pending, one driver, open included", n), Value: s, Unit: "s", Bar: "<= 2 s", Ok: figures.Judged(s <= 2)})
	return nil
}

// processes compares four driver processes with one on the same work.
func (b *bench) processes() error {
	n := int(2000 * b.scale)
	var ratios, one, four []float64
	for range min(3, b.pairs) {
		var took [2]float64
		for k, drivers := range []int{1, 4} {
			dsn, err := b.store()
			if err != nil {
				return err
			}
			if err := makePending(b.ctx, dsn, n, "bench.remote", true); err != nil {
				return err
			}
			started := time.Now()
			var waits []func() (figures.Child, error)
			for range drivers {
				w, err := child("recover16", dsn, 1)
				if err != nil {
					return err
				}
				waits = append(waits, w)
			}
			total := 0
			for _, w := range waits {
				f, err := w()
				if err != nil {
					return err
				}
				total += f.Count
			}
			took[k] = time.Since(started).Seconds()
			if total != n {
				return fmt.Errorf("%d drivers recovered %d of %d", drivers, total, n)
			}
			if err := b.drop(); err != nil {
				return err
			}
		}
		one, four, ratios = append(one, took[0]), append(four, took[1]), append(ratios, took[0]/took[1])
	}
	r := figures.Median(ratios)
	b.add(figures.Row{Name: fmt.Sprintf("recover %d pending of 5 sequential steps of 10 ms, 4 processes of 16", n), Value: figures.Median(four), Unit: "s", Floor: figures.Median(one), Ratio: r, Bar: ">= 3x one process", Ok: figures.Judged(r >= 3)})
	return nil
}

func (b *bench) long() error {
	dsn, err := b.store()
	if err != nil {
		return err
	}
	wait, err := child("long", dsn, b.scale)
	if err != nil {
		return err
	}
	f, err := wait()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("one sequence of %d steps: put, run, complete", f.Count)
	b.add(figures.Row{Name: name, Value: float64(f.Count) / f.Seconds, Unit: "steps/s", Bar: "none"})
	b.add(figures.Row{Name: name + ", peak RssAnon", Value: f.PeakAnon, Unit: "MiB", Bar: "<= 160 MiB", Ok: figures.Judged(f.PeakAnon <= 160)})
	return b.drop()
}
