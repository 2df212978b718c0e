// Command hive measures what a publish by hive.stage_and_swap costs beside what
// HiveServer2 takes for it: the time in which no call to it was outstanding. It
// runs a real HiveServer2 beside a real HDFS, or takes the one that
// COMMITSTEP_HIVE_DIR names. For information, a bare client sends the same
// statements in turn with it. It prints a table and writes bench/out/hive.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/commitstep/engine/bench/figures"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/hive:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	publishes := flag.Int("publishes", 15, "publishes of one partition, each followed by a bare client's")
	partitions := flag.Int("partitions", 200, "partitions in one plan; 0 leaves it out")
	out := flag.String("out", filepath.Join("bench", "out", "hive.json"), "result file")
	flag.Parse()
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "commitstep-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, stop, err := server(dir)
	if err != nil {
		return err
	}
	defer stop()
	b, err := open(ctx, s, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.singly(ctx, *publishes); err != nil {
		return err
	}
	if err := b.together(ctx, *partitions); err != nil {
		return err
	}
	return figures.Report(b.rows, *out)
}

// server takes the one that runs, or starts one with a Hadoop of its own.
func server(dir string) (*hivekit.Server, func(), error) {
	if running := os.Getenv(hivekit.DirEnv); running != "" {
		s, err := hivekit.Attach(running)
		return s, func() {}, err
	}
	fmt.Fprintln(os.Stderr, "starting Hadoop and HiveServer2")
	c, err := hadoopkit.Start(filepath.Join(dir, "hadoop"), hadoopkit.Options{})
	if err != nil {
		return nil, nil, err
	}
	s, err := hivekit.Start(filepath.Join(dir, "hive"), hivekit.Options{Hadoop: c, Heap: "1500m"})
	if err != nil {
		c.Stop()
		return nil, nil, err
	}
	return s, func() { s.Stop(); c.Stop() }, nil
}
