package hadoopkit_test

import (
	"path"
	"sort"
	"strings"
	"testing"

	"github.com/commitstep/engine/internal/hadoopkit"
)

// TestYARN runs a job: its mappers are real containers, and what they wrote is
// in HDFS. A node manager that was killed registers again.
func TestYARN(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	w := c.Client(t, "root")
	dir := hadoopkit.TempDir(t, w)
	y := hadoopkit.StartYARN(t, c)
	if err := y.Kill(hadoopkit.NodeManager); err != nil {
		t.Fatal(err)
	}
	if y.Ready(hadoopkit.NodeManager) {
		t.Fatal("it is dead, and ready")
	}
	if err := y.StartRole(hadoopkit.NodeManager); err != nil {
		t.Fatal(err)
	}
	if err := hadoopkit.Put(w, dir+"/in/shards", "shard 0\nshard 1\n"); err != nil {
		t.Fatal(err)
	}
	out, err := y.Streaming("-D", "mapreduce.job.reduces=0", "-D", "stream.map.input.ignoreKey=true", "-D", "mapreduce.input.lineinputformat.linespermap=1",
		"-input", dir+"/in/shards", "-output", dir+"/out", "-inputformat", "org.apache.hadoop.mapred.lib.NLineInputFormat", "-mapper", "/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	files, err := w.ReadDir(dir + "/out")
	if err != nil {
		t.Fatal(err)
	}
	parts := 0
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "part-") {
			continue
		}
		parts++
		b, err := w.ReadFile(path.Join(dir, "out", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
			lines = append(lines, strings.TrimSuffix(l, "\t"))
		}
	}
	sort.Strings(lines)
	if parts != 2 || strings.Join(lines, "|") != "shard 0|shard 1" {
		t.Fatalf("%d parts, %q:\n%s", parts, lines, out)
	}
}
