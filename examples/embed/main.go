// Command embed is an ingestion job that embeds the publisher: it recovers,
// asks whether it may ingest, reads its source from the watermark on, stages
// what it read, and publishes file and watermark exactly once.
//
//	go run ./cmd/commitstep store init --store bolt:DIR/commit.db
//	go run ./examples/embed DIR
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: embed DIR")
		os.Exit(2)
	}
	if err := ingest(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func ingest(ctx context.Context, dir string) (err error) {
	st, err := boltstore.Open(filepath.Join(dir, "commit.db"), nil) // never makes one
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	files, err := local.New(dir)
	if err != nil {
		return err
	}
	eng, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(
		fsrename.Kind(files), fsremove.Kind(files), watermark.Kind(st))})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close(ctx)) }()

	// First thing a job does: finish or park what an earlier run left.
	report, err := eng.Recover(ctx, "kafka-hdfs")
	if err != nil {
		return err
	}
	if !report.MayIngest("MyTopic") {
		return fmt.Errorf("MyTopic is not free: %v %s", report.NotFree(), report.Blocked)
	}
	from, err := eng.Watermark(ctx, "kafka-hdfs", "MyTopic:0")
	if err != nil {
		return err // a watermark that cannot be read is never "none"
	}
	name, next, err := readSource(dir, from)
	if err != nil {
		return err
	}
	plan := commitstep.NewPlan("kafka-hdfs", "MyTopic").
		Step(fsrename.Move("task-output/"+name, "job-output/"+name)).
		Then(watermark.Set("MyTopic:0", from, from.Next(next)))
	result, err := eng.Publish(ctx, plan)
	if err != nil {
		return err // once stored, the next run's Recover goes on with it
	}
	fmt.Printf("%s: job-output/%s, MyTopic:0 from %s to %d\n", result.Status, name, from, next)
	return nil
}

// readSource stands for reading a Kafka partition: it stages the next hundred
// records below task-output and says where the next read begins. Whatever a
// killed run staged under the same name was never published: it is replaced.
func readSource(dir string, from commitstep.Watermark) (name string, next int64, err error) {
	start, _ := from.Int64() // 0 when the source was never read
	next = start + 100
	name = fmt.Sprintf("MyTopic-0-%d-%d.txt", start, next)
	if err := os.MkdirAll(filepath.Join(dir, "task-output"), 0o755); err != nil {
		return "", 0, err
	}
	var data []byte
	for offset := start; offset < next; offset++ {
		data = fmt.Appendf(data, "record %d\n", offset)
	}
	return name, next, os.WriteFile(filepath.Join(dir, "task-output", name), data, 0o644)
}
