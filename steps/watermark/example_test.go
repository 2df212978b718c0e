package watermark_test

import (
	"context"
	"fmt"
	"os"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/watermark"
)

// A plan moves the watermark from what the job read before it opened its
// source to what is true once the plan's data is published.
func ExampleSet() {
	from := commitstep.Int(100) // eng.Watermark(ctx, "kafka-hdfs", "MyTopic:0")
	plan := commitstep.NewPlan("kafka-hdfs", "MyTopic").
		Then(watermark.Set("MyTopic:0", from, from.Next(200)))
	for s, err := range plan.Steps() {
		fmt.Println(s.Stage, s.Kind, string(s.Params), err)
	}
	// Output:
	// 0 watermark.set {"source":"MyTopic:0","from":{"value":100},"to":{"value":200}} <nil>
}

// Watermarks in files can be read by other programs, and set by hand.
func ExampleFiles() {
	dir, err := os.MkdirTemp("", "marks")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, key := context.Background(), commitstep.WatermarkKey{Job: "kafka-hdfs", Source: "MyTopic:0"}

	if _, err := watermark.Files("marks", dir+"/not-mounted"); err != nil {
		fmt.Println("a missing directory is an error, not a source that was never read")
	}
	files, err := watermark.Files("marks", dir, watermark.Create()) // at deployment
	if err != nil {
		fmt.Println(err)
		return
	}
	now, err := files.Read(ctx, key)
	fmt.Println(now, err)
	fmt.Println(files.Set(ctx, key, now, commitstep.Int(100)))
	now, err = files.Read(ctx, key)
	fmt.Println(now, err)
	// Output:
	// a missing directory is an error, not a source that was never read
	// none <nil>
	// <nil>
	// 100 <nil>
}
