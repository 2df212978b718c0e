// Command bench measures the engine beside its floor, in the same run: what
// the same bytes and syncs cost without an engine. It prints a table and
// writes bench/out/engine.json. It must not be tuned to look good: floors and
// engine run interleaved, in pairs, and the median of the ratios counts.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one line of the result. Ratio is engine to floor where more is
// better, and engine to floor where less is better; Ok is nil where no bar
// applies.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Floor float64 `json:"floor"`
	Ratio float64 `json:"ratio"`
	Bar   string  `json:"bar"`
	Ok    *bool   `json:"ok"`
}

type bench struct {
	ctx   context.Context
	dir   string
	pairs int
	scale float64
	rows  []row
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
	b.print()
	data, err := json.MarshalIndent(b.rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(*out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return errors.Join(failed...)
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WORK\tVALUE\tUNIT\tFLOOR\tRATIO\tBAR\tOK")
	for _, r := range b.rows {
		ok, floor, ratio := "-", "-", "-"
		if r.Ok != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.Ok]
		}
		if r.Floor != 0 {
			floor, ratio = number(r.Floor), fmt.Sprintf("%.2f", r.Ratio)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, number(r.Value), r.Unit, floor, ratio, r.Bar, ok)
	}
	w.Flush()
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func (b *bench) add(r row) { b.rows = append(b.rows, r) }

// absolute judges an absolute bar only on a disk that is quick enough.
func (b *bench) absolute(ok bool) *bool {
	if !b.steady {
		return nil
	}
	return &ok
}

func judged(ok bool) *bool { return &ok }

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}

// pair runs floor and engine in turn and returns their medians and the median
// of the ratios engine/floor.
func (b *bench) pair(floor, engine func(round int) (float64, error)) (f, e, ratio float64, err error) {
	var fs, es, rs []float64
	for i := range b.pairs {
		a, err := floor(i)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("floor: %w", err)
		}
		c, err := engine(i)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("engine: %w", err)
		}
		fs, es, rs = append(fs, a), append(es, c), append(rs, c/a)
	}
	return median(fs), median(es), median(rs), nil
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
	p50 := median(took)
	b.steady = p50 <= 0.5
	b.add(row{Name: "bare 200-byte fdatasync, p50", Value: p50, Unit: "ms", Bar: "absolute bars apply at <= 0.5"})
	return nil
}
