// Command hdfs measures the engine on a real name node against its floor, a
// bare pool of the same clients that makes the same renames, in the same run
// and interleaved. It prints a table and writes bench/out/hdfs.json. It must
// not be tuned to look good: floors and engine get the same cluster, files and
// number of connections.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/internal/hadoopkit"
)

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
	return figures.Report(b.rows, *out)
}

type scale struct{ datasets, pending, long int }

type bench struct {
	cluster *hadoopkit.Cluster
	scale   scale
	dir     string
	pairs   int
	rows    []figures.Row
}
