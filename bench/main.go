// Command bench measures the engine beside its floor, in the same run: what
// the same bytes and syncs cost without an engine. It prints a table and
// writes bench/out/engine.json. It must not be tuned to look good: floors and
// engine run interleaved, in pairs, and the median of the ratios counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/commitstep/engine/bench/figures"
)

type bench struct {
	ctx   context.Context
	dir   string
	pairs int
	scale float64
	rows  []figures.Row
	// steady: a bare fdatasync is quick enough for absolute bars.
	steady bool
}

// gcPercent is what a program sets that publishes thousands of datasets a
// second and has memory to spare: with the default, a heap of a few megabytes
// is collected hundreds of times a second. It holds for floors and engine.
const gcPercent = 400

func main() {
	debug.SetGCPercent(gcPercent)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	pairs := flag.Int("pairs", 5, "pairs of floor and engine runs")
	scale := flag.Float64("scale", 1, "factor on the amount of work")
	only := flag.String("only", "", "run the parts whose name contains this")
	dir := flag.String("dir", "", "where to work; default a new directory below the working directory's disk")
	child := flag.String("child", "", "internal: run one measurement in this process")
	out := flag.String("out", filepath.Join("bench", "out", "engine.json"), "result file")
	flag.Parse()
	ctx := context.Background()
	if *child != "" {
		return runChild(ctx, *child, *dir, *scale)
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		return err
	}
	if *dir == "" {
		// Not TMPDIR: that may be memory, where a sync costs nothing.
		d, err := os.MkdirTemp(filepath.Dir(*out), "work-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(d)
		*dir = d
	}
	abs, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	b := &bench{ctx: ctx, dir: abs, pairs: *pairs, scale: *scale}
	var failed []error
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"sync", b.syncs},
		{"publish", b.publish},
		{"recover", b.recover},
		{"renames", b.renames},
		{"long", b.long},
		{"startup", b.startup},
	} {
		if !strings.Contains(part.name, *only) && part.name != "sync" {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s …\n", part.name)
		if err := part.run(); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part.name, err))
		}
	}
	return errors.Join(append(failed, figures.Show(b.rows, *out))...)
}

func (b *bench) add(r figures.Row) { b.rows = append(b.rows, r) }

// absolute judges an absolute bar only on a disk that is quick enough.
func (b *bench) absolute(ok bool) *bool {
	if !b.steady {
		return nil
	}
	return &ok
}

// pair runs floor and engine in turn; see figures.Pair.
func (b *bench) pair(floor, engine func(round int) (float64, error)) (f, e, ratio float64, err error) {
	return figures.Pair(b.pairs, floor, engine)
}

// syncs prints what a bare 200-byte write with fdatasync takes here.
func (b *bench) syncs() error {
	path := filepath.Join(b.dir, "sync")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	// Allocated first: the bar is about syncs, not about growing a file.
	if _, err := f.Write(make([]byte, 1<<20)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	var took []float64
	buf := make([]byte, 200)
	for i := range 500 {
		start := time.Now()
		if _, err := f.WriteAt(buf, int64(i)*200); err != nil {
			return err
		}
		if err := fdatasync(f); err != nil {
			return err
		}
		took = append(took, time.Since(start).Seconds()*1000)
	}
	p50 := figures.Median(took)
	b.steady = p50 <= 0.5
	b.add(figures.Row{Name: "bare 200-byte fdatasync, p50", Value: p50, Unit: "ms", Bar: "absolute bars apply at <= 0.5"})
	return nil
}
