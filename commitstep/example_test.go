package commitstep_test

import (
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
)

// A document with a mistake is refused in one line that says where, what and
// what to do.
func ExampleParsePlan() {
	_, err := commitstep.ParsePlan([]byte(`{"apiVersion": "commitstep/v1", "kind": "Plan", "job": "kafka-hdfs", "dataset": "MyTopic",
		"stages": [{"steps": [{"params": {"from": "a", "to": "b"}}]}]}`))
	var refusal *commitstep.PlanError
	fmt.Println(errors.As(err, &refusal))
	fmt.Println(err)
	// Output:
	// true
	// plan: stage 1 step 1 () has no kind; see docs/formats.md for the plan document
}

// Names become paths that are safe in every file system, and come back.
func ExampleEncodeName() {
	for _, name := range []string{"2015-12-09", "a/b", "..", "MyTopic"} {
		p := commitstep.EncodeName(name)
		back, err := commitstep.DecodeName(p)
		fmt.Println(p, back == name, err)
	}
	// Output:
	// 2015-12-09 true <nil>
	// a%2Fb true <nil>
	// %2E%2E true <nil>
	// %4Dy%54opic true <nil>
}
