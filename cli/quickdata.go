package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/hamba/avro/v2"
	"github.com/hamba/avro/v2/ocf"
)

const (
	quickstartJob     = "kafka-hdfs"
	quickstartDataset = "MyTopic"
	quickstartRecords = 100 // in each file
)

// quickFile is one staged file: where it lies, and which records it holds.
type quickFile struct {
	path      string // below task-output/MyTopic
	partition int
	offset    int64 // of the first record
}

func quickstartFiles() []quickFile {
	return []quickFile{
		{"2015-12-09/1.avro", 0, 0},
		{"2015-12-09/2.avro", 1, 0},
		{"2015-12-10/1.avro", 1, quickstartRecords},
	}
}

// quickstartMoves are how far the two Kafka partitions were read.
func quickstartMoves() []commitstep.WatermarkMove {
	move := func(source string, to int64) commitstep.WatermarkMove {
		return commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: quickstartJob, Source: source}, To: commitstep.Int(to)}
	}
	return []commitstep.WatermarkMove{move("MyTopic:0", 1*quickstartRecords), move("MyTopic:1", 2*quickstartRecords)}
}

const quickstartSchema = `{
  "type": "record", "name": "Message", "namespace": "commitstep.quickstart",
  "fields": [
    {"name": "partition", "type": "int"},
    {"name": "offset", "type": "long"},
    {"name": "key", "type": "string"},
    {"name": "value", "type": "string"},
    {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}}
  ]
}`

// message is one record; field names are those of the schema.
type message struct {
	Partition int    `avro:"partition"`
	Offset    int64  `avro:"offset"`
	Key       string `avro:"key"`
	Value     string `avro:"value"`
	Timestamp int64  `avro:"timestamp"`
}

// avroFile is an Avro container file with the records of f.
func (f quickFile) avroFile() ([]byte, error) {
	schema, err := avro.Parse(quickstartSchema)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc, err := ocf.NewEncoderWithSchema(schema, &b)
	if err != nil {
		return nil, err
	}
	const start = 1449619200000 // 2015-12-09T00:00:00Z
	for i := range int64(quickstartRecords) {
		n := f.offset + i
		m := message{Partition: f.partition, Offset: n, Key: fmt.Sprintf("user-%d-%03d", f.partition, n),
			Value: fmt.Sprintf("order %d of partition %d", n, f.partition), Timestamp: start + n*60_000}
		if err := enc.Encode(m); err != nil {
			return nil, err
		}
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// fill writes staged files, plan and store into an empty directory.
func (in *invocation) fill(ctx context.Context, abs string) error {
	for _, f := range quickstartFiles() {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := f.avroFile()
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		to := filepath.Join(abs, "task-output", quickstartDataset, filepath.FromSlash(f.path))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := writeSynced(to, data); err != nil {
			return err
		}
	}
	if err := writeSynced(filepath.Join(abs, quickstartPlan), []byte(quickstartPlanText())); err != nil {
		return err
	}
	st, err := boltstore.Init(filepath.Join(abs, quickstartStore), nil)
	if err != nil {
		return err
	}
	return st.Close()
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// quickstartPlanText is the plan as a person would write it.
func quickstartPlanText() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What this job publishes, in order. Relative paths start here.
apiVersion: %s
kind: Plan
id: quickstart-1 # the same plan again is known, and nothing happens twice
job: %s
dataset: %s
stages:
  # first the data, at its final names
  - steps:
`, commitstep.APIVersion, quickstartJob, quickstartDataset)
	for _, f := range quickstartFiles() {
		fmt.Fprintf(&b, `      - kind: fs.rename
        params:
          from: %s
          to: %s
`, path.Join("task-output", quickstartDataset, f.path), path.Join("job-output", quickstartDataset, f.path))
	}
	b.WriteString("  # then how far the source was read\n  - steps:\n")
	for _, m := range quickstartMoves() {
		to, _ := m.To.Int64()
		fmt.Fprintf(&b, `      - kind: watermark.set
        params: {source: "%s", from: null, to: %d}
`, m.Source, to)
	}
	fmt.Fprintf(&b, "# and at last the empty staging directories\ncleanup:\n  - path: %s\n", path.Join("task-output", quickstartDataset))
	return b.String()
}
