package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
	"golang.org/x/sync/errgroup"
)

// engine on a cluster and a store.
type engine struct {
	*driver.Engine
	store *boltstore.Store
	files *hdfs.FS
}

func open(rpc, web []string, db string, wrap func(filesys.FS) filesys.FS, conf driver.Config) (*engine, error) {
	if _, err := os.Stat(db); err != nil {
		st, err := boltstore.Init(db, nil)
		if err != nil {
			return nil, err
		}
		if err := st.Close(); err != nil {
			return nil, err
		}
	}
	st, err := boltstore.Open(db, nil)
	if err != nil {
		return nil, err
	}
	f, err := hdfs.New(hdfs.Options{Name: "bench", Addresses: rpc, HTTPAddresses: web, User: "root", Clients: connections})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	var fsys filesys.FS = f
	if wrap != nil {
		fsys = wrap(f)
	}
	conf.Store, conf.Kinds = st, commitstep.NewRegistry(fsrename.Kind(fsys), watermark.Kind(st))
	e, err := driver.New(conf)
	if err != nil {
		return nil, errors.Join(err, st.Close(), f.Close())
	}
	return &engine{e, st, f}, nil
}

func (e *engine) close() error {
	return errors.Join(e.Engine.Close(context.Background()), e.store.Close(), e.files.Close())
}

func address(p string) string { return "hdfs://bench" + p }

func move(from, to string) commitstep.StepSpec {
	return fsrename.Move(address(from), address(to), fsrename.Length(0))
}

const perDataset = 3

// publishes measures datasets of 3 renames and 2 watermarks, 16 in flight.
func (b *bench) publishes(ctx context.Context) error {
	var floors, engines, ratios []float64
	var calls map[string]int64
	n := b.scale.datasets * perDataset
	for round := range b.pairs {
		top := fmt.Sprintf("/publish-%d", round)
		var dirs []string
		for d := range b.scale.datasets {
			dirs = append(dirs, fmt.Sprintf("%s/in/%d", top, d), fmt.Sprintf("%s/floor/%d", top, d), fmt.Sprintf("%s/out/%d", top, d))
		}
		at := func(what string, i int) string {
			return fmt.Sprintf("%s/%s/%d/%d", top, what, i/perDataset, i%perDataset)
		}
		if err := stage(b.cluster, dirs, n, func(i int) string { return at("in", i) }); err != nil {
			return err
		}
		pool, err := newBare(b.cluster, connections)
		if err != nil {
			return err
		}
		floor, err := pool.each(n, func(c *clib.Client, i int) error { return c.Rename(at("in", i), at("floor", i)) })
		if err == nil {
			_, err = pool.each(n, func(c *clib.Client, i int) error { return c.Rename(at("floor", i), at("in", i)) })
		}
		pool.close()
		if err != nil {
			return err
		}
		e, err := open(b.cluster.RPCs(), b.cluster.HTTPs(), filepath.Join(b.dir, fmt.Sprintf("publish-%d.db", round)), nil, driver.Config{})
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(16)
		start := time.Now()
		for d := range b.scale.datasets {
			g.Go(func() error {
				plan := commitstep.NewPlan("bench", fmt.Sprint(d))
				var specs []commitstep.StepSpec
				for f := range perDataset {
					specs = append(specs, move(at("in", d*perDataset+f), at("out", d*perDataset+f)))
				}
				plan.Step(specs...).Then(watermark.Set(fmt.Sprintf("%d:0", d), commitstep.None(), commitstep.Int(1)), watermark.Set(fmt.Sprintf("%d:1", d), commitstep.None(), commitstep.Int(1)))
				_, err := e.Publish(gctx, plan)
				return err
			})
		}
		err = g.Wait()
		took := time.Since(start)
		calls = e.files.Calls()
		if err := errors.Join(err, e.close()); err != nil {
			return err
		}
		floors = append(floors, float64(n)/floor.Seconds())
		engines = append(engines, float64(n)/took.Seconds())
		ratios = append(ratios, floor.Seconds()/took.Seconds())
	}
	r := figures.Median(ratios)
	b.rows = append(b.rows, figures.Row{Name: "publish 3 renames + 2 watermarks, 16 in flight", Value: figures.Median(engines), Unit: "renames/s", Floor: figures.Median(floors), Ratio: r, Bar: ">= 0.5 of the floor", Ok: figures.Judged(r >= 0.5)})
	var sum int64
	for _, c := range calls {
		sum += c
	}
	b.rows = append(b.rows, figures.Row{Name: fmt.Sprintf("  calls per rename (%s)", callText(calls, n)), Value: float64(sum) / float64(n), Unit: "calls", Floor: 2})
	return nil
}

func callText(calls map[string]int64, n int) string {
	var parts []string
	for _, m := range []string{"rename2", "getFileInfo", "getListing", "mkdirs"} {
		if c := calls[m]; c > 0 {
			parts = append(parts, fmt.Sprintf("%s %.2f", m, float64(c)/float64(n)))
		}
	}
	return strings.Join(parts, ", ")
}

// verifies measures a recovery that finds everything done.
func (b *bench) verifies(ctx context.Context) error {
	const perSequence = 5
	sequences := b.scale.pending / perSequence
	n := sequences * perSequence
	var floors, engines, ratios []float64
	for round := range b.pairs {
		top := fmt.Sprintf("/verify-%d", round)
		var dirs []string
		for d := range sequences {
			dirs = append(dirs, fmt.Sprintf("%s/in/%d", top, d), fmt.Sprintf("%s/out/%d", top, d))
		}
		at := func(what string, i int) string {
			return fmt.Sprintf("%s/%s/%d/%d", top, what, i/perSequence, i%perSequence)
		}
		if err := stage(b.cluster, dirs, n, func(i int) string { return at("in", i) }); err != nil {
			return err
		}
		db := filepath.Join(b.dir, fmt.Sprintf("verify-%d.db", round))
		if err := b.leavePending(ctx, db, sequences, func(d int) *commitstep.Plan {
			plan := commitstep.NewPlan("bench", fmt.Sprint(d))
			var specs []commitstep.StepSpec
			for f := range perSequence {
				specs = append(specs, move(at("in", d*perSequence+f), at("out", d*perSequence+f)))
			}
			return plan.Step(specs...)
		}); err != nil {
			return err
		}
		pool, err := newBare(b.cluster, connections)
		if err != nil {
			return err
		}
		floor, err := pool.each(n, func(c *clib.Client, i int) error { _, err := c.Stat(at("out", i)); return err })
		pool.close()
		if err != nil {
			return err
		}
		e, err := open(b.cluster.RPCs(), b.cluster.HTTPs(), db, nil, driver.Config{})
		if err != nil {
			return err
		}
		start := time.Now()
		rep, err := e.Recover(ctx, "bench")
		took := time.Since(start)
		if err := errors.Join(err, e.close()); err != nil {
			return err
		}
		done := 0
		for _, r := range rep.Results {
			if r.Status == driver.StatusCompleted {
				done += r.InPlace + r.Recovered + r.Recorded
			}
		}
		if len(rep.Results) > 0 && done == 0 {
			return fmt.Errorf("the recovery found nothing in place: %+v", rep.Results[0])
		}
		floors = append(floors, float64(n)/floor.Seconds())
		engines = append(engines, float64(n)/took.Seconds())
		ratios = append(ratios, floor.Seconds()/took.Seconds())
	}
	r := figures.Median(ratios)
	b.rows = append(b.rows, figures.Row{Name: fmt.Sprintf("verify %d pending renames, all done", n), Value: figures.Median(engines), Unit: "renames/s", Floor: figures.Median(floors), Ratio: r, Bar: ">= 0.8 of the floor's getFileInfo", Ok: figures.Judged(r >= 0.8)})
	return nil
}

// leavePending makes sequences whose renames are done and whose log does not
// know: the name node is out of reach from each rename's answer on.
func (b *bench) leavePending(ctx context.Context, db string, n int, plan func(int) *commitstep.Plan) error {
	var gone sync.Map
	e, err := open(b.cluster.RPCs(), b.cluster.HTTPs(), db, func(f filesys.FS) filesys.FS {
		return fstest.Hooked(f, func(op string, p commitstep.Address, do func() error) error {
			if _, ok := gone.Load(p.Dir()); ok && op == "Stat" {
				return errors.New("out of reach")
			}
			err := do()
			if op == "Rename" && err == nil {
				gone.Store(commitstep.Address{Resource: p.Resource, Path: strings.Replace(p.Dir().Path, "/in/", "/out/", 1)}, true)
			}
			return err
		})
	}, driver.Config{Policy: driver.Policy{WaitBudget: time.Millisecond, FirstPause: time.Millisecond, MaxPause: time.Millisecond}})
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	var pending atomic.Int64
	for d := range n {
		g.Go(func() error {
			_, err := e.Publish(gctx, plan(d))
			var nf *driver.NotFinishedError
			if errors.As(err, &nf) && nf.Result.Status == driver.StatusWaiting {
				pending.Add(1)
				return nil
			}
			return err
		})
	}
	if err := errors.Join(g.Wait(), e.close()); err != nil {
		return err
	}
	if pending.Load() != int64(n) {
		return fmt.Errorf("%d of %d sequences are pending", pending.Load(), n)
	}
	return nil
}
