// Command hdfs measures the engine on a real name node against its floor, a
// bare pool of the same clients that makes the same renames, in the same run
// and interleaved. It prints a table and writes bench/out/hdfs.json. It must
// not be tuned to look good: floors and engine get the same cluster, files and
// number of connections.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"text/tabwriter"

	"github.com/commitstep/engine/internal/hadoopkit"
)

// row is one line of the result. Ok is absent where there is no bar.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Floor float64 `json:"floor"`
	Ratio float64 `json:"ratio"`
	Bar   string  `json:"bar"`
	Ok    *bool   `json:"ok"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var s scale
	pairs := flag.Int("pairs", 5, "rounds, of which the median counts")
	flag.IntVar(&s.datasets, "datasets", 2000, "datasets of 3 renames and 2 watermarks")
	flag.IntVar(&s.pending, "pending", 10_000, "renames that are done and pending")
	flag.IntVar(&s.long, "long", 100_000, "renames in one plan; 0 leaves it out")
	out := flag.String("out", filepath.Join("bench", "out", "hdfs.json"), "result file")
	child := flag.String("child", "", "")
	addresses := flag.String("cluster", "", "")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process")
	flag.Parse()
	ctx := context.Background()
	if *child != "" {
		return longChild(ctx, *addresses, *child, s.long)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	dir, err := os.MkdirTemp("", "commitstep-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintln(os.Stderr, "starting Hadoop")
	c, err := hadoopkit.Start(filepath.Join(dir, "hadoop"), hadoopkit.Options{C2: true, Heap: "1g"})
	if err != nil {
		return err
	}
	defer c.Stop()
	b := &bench{cluster: c, scale: s, dir: dir, pairs: *pairs}
	err = errors.Join(b.publishes(ctx), b.verifies(ctx), b.longPlan(ctx))
	if err != nil {
		return err
	}
	return b.report(*out)
}

type scale struct{ datasets, pending, long int }

type bench struct {
	cluster *hadoopkit.Cluster
	scale   scale
	dir     string
	pairs   int
	rows    []row
}

func (b *bench) report(out string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "work\tvalue\tunit\tfloor\tratio\tbar\tok")
	failed := 0
	for _, r := range b.rows {
		ok := ""
		if r.Ok != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.Ok]
			if !*r.Ok {
				failed++
			}
		}
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%.1f\t%.2f\t%s\t%s\n", r.Name, r.Value, r.Unit, r.Floor, r.Ratio, r.Bar, ok)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(b.rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d bars are missed", failed)
	}
	return nil
}

func judged(ok bool) *bool { return &ok }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}
