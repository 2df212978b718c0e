package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/commitstep/engine/bench/figures"
)

func (b *bench) recover() error {
	n := int(10_000 * b.scale)
	var secs, anon []float64
	for i := range b.pairs {
		path := filepath.Join(b.dir, fmt.Sprintf("recover-%d.db", i))
		if err := child("pending", path, float64(n)); err != nil {
			return err
		}
		f, err := childFigures("recover", path, 1)
		if err != nil {
			return err
		}
		if f.Count != n {
			return fmt.Errorf("recovered %d of %d", f.Count, n)
		}
		secs, anon = append(secs, f.Seconds), append(anon, f.PeakAnon)
		os.Remove(path)
	}
	s, a := figures.Median(secs), figures.Median(anon)
	name := fmt.Sprintf("recover %d pending, nothing done yet, open included", n)
	b.add(figures.Row{Name: name, Value: s, Unit: "s", Bar: "<= 1 s", Ok: b.absolute(s <= 1)})
	b.add(figures.Row{Name: name + ", peak RssAnon", Value: a, Unit: "MiB", Bar: "<= 100 MiB", Ok: figures.Judged(a <= 100)})
	return nil
}

func (b *bench) long() error {
	var rates, anon []float64
	n := 0
	for i := range min(3, b.pairs) {
		path := filepath.Join(b.dir, fmt.Sprintf("long-%d.db", i))
		f, err := childFigures("long", path, b.scale)
		if err != nil {
			return err
		}
		n = f.Count
		rates, anon = append(rates, float64(f.Count)/f.Seconds), append(anon, f.PeakAnon)
		os.Remove(path)
	}
	r, a := figures.Median(rates), figures.Median(anon)
	name := fmt.Sprintf("one sequence of %d steps: put, run, complete", n)
	b.add(figures.Row{Name: name, Value: r, Unit: "steps/s", Bar: ">= 100000/s", Ok: b.absolute(r >= 100_000)})
	b.add(figures.Row{Name: name + ", peak RssAnon", Value: a, Unit: "MiB", Bar: "<= 128 MiB", Ok: figures.Judged(a <= 128)})
	return nil
}

// startup is the whole process of a small command on an empty store.
func (b *bench) startup() error {
	bin, db := filepath.Join(b.dir, "commitstep"), filepath.Join(b.dir, "startup.db")
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/commitstep").CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	if out, err := exec.Command(bin, "store", "init", "--store", "bolt:"+db).CombinedOutput(); err != nil {
		return fmt.Errorf("store init: %w: %s", err, out)
	}
	var took []float64
	for range 21 {
		start := time.Now()
		if out, err := exec.Command(bin, "pending", "list", "--store", "bolt:"+db).CombinedOutput(); err != nil {
			return fmt.Errorf("pending list: %w: %s", err, out)
		}
		took = append(took, time.Since(start).Seconds()*1000)
	}
	m := figures.Median(took)
	b.add(figures.Row{Name: "start-up of the command line, empty store", Value: m, Unit: "ms", Bar: "<= 50 ms", Ok: b.absolute(m <= 50)})
	return nil
}
