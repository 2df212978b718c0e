package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/hamba/avro/v2/ocf"
	"github.com/stretchr/testify/require"
)

// TestEveryPointIsListedAndReached: --crash-at list prints exactly the points
// that the driver passes in the quickstart's job.
func TestEveryPointIsListedAndReached(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := (&App{Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer), Env: func(string) string { return "" }}).invocation()
	require.NoError(t, in.setUp(t.Context(), dir, dir))
	in.location = "bolt:" + filepath.Join(dir, quickstartStore)
	var mu sync.Mutex
	reached := map[string]int{}
	src := planSource{file: filepath.Join(dir, quickstartPlan)}
	err := src.with(t.Context(), in, func(p *commitstep.Plan) error {
		return in.withStore(t.Context(), func(s *session) error {
			return in.publish(t.Context(), s, p, policyFlags{}, func(point string) {
				mu.Lock()
				defer mu.Unlock()
				reached[point]++
			})
		})
	})
	require.NoError(t, err)
	var got []string
	for p, n := range reached {
		require.Equal(t, 1, n, "%s: without a count, the point must be one moment", p)
		got = append(got, p)
	}
	require.ElementsMatch(t, quickstartPoints(), got)
}

// TestCrashAtEveryPoint kills a real process at every point and lets the next
// one recover: all 300 records are there once, whoever counts them.
func TestCrashAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, point := range quickstartPoints() {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "q")
			out, err := command(t, "quickstart", dir, "--crash-at", point).CombinedOutput()
			require.Error(t, err, "%s", out)
			require.Contains(t, err.Error(), "killed", "%s", out)
			st := "bolt:" + filepath.Join(dir, quickstartStore)
			// Before the put nothing is promised: the job comes with its plan again.
			out, err = command(t, "recover", "--job", quickstartJob, "--store", st).CombinedOutput()
			require.NoError(t, err, "%s", out)
			if point == "put.before" {
				require.Contains(t, string(out), "nothing was pending")
				out, err = command(t, "publish", "-f", filepath.Join(dir, quickstartPlan), "--store", st).CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			requireOnce(t, dir, readHamba)
			out, err = command(t, "watermark", "list", "--store", st, "-o", "json", "-q").Output()
			require.NoError(t, err)
			require.Regexp(t, `(?s)"source": "MyTopic:0",\s+"watermark": {\s+"value": 100\s.*"source": "MyTopic:1",\s+"watermark": {\s+"value": 200\s`, string(out))
			require.NoDirExists(t, filepath.Join(dir, "task-output", quickstartDataset))
		})
	}
}

// TestAnotherReaderCountsTheSame reads the published files with Python's avro,
// which shares no code with the writer.
func TestAnotherReaderCountsTheSame(t *testing.T) {
	t.Parallel()
	python := pythonAvro(t)
	dir := filepath.Join(t.TempDir(), "q")
	must(t, App{}, "quickstart", dir)
	requireOnce(t, dir, readHamba)
	requireOnce(t, dir, func(t *testing.T, path string) []string {
		out, err := exec.Command(python, "-c", `
import sys
from avro.datafile import DataFileReader
from avro.io import DatumReader
with DataFileReader(open(sys.argv[1], "rb"), DatumReader()) as r:
    for m in r:
        print("%d %d %s %s" % (m["partition"], m["offset"], m["key"], m["value"]))
`, path).Output()
		require.NoError(t, err)
		return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	})
}

// pythonAvro is the interpreter that scripts/setup.sh installs.
func pythonAvro(t *testing.T) string {
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	python := filepath.Join(cache, "commitstep", "python-avro-1.12.0", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("the second Avro reader, Python's avro, is absent; scripts/setup.sh installs it")
	}
	return python
}

// requireOnce demands each of the 300 records exactly once below job-output,
// and none anywhere else.
func requireOnce(t *testing.T, dir string, read func(*testing.T, string) []string) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".avro") {
			require.True(t, strings.HasPrefix(p, filepath.Join(dir, "job-output")+"/"), "%s is not published", p)
			got = append(got, read(t, p)...)
		}
		return err
	})
	require.NoError(t, err)
	var want []string
	for partition, n := range []int{100, 200} {
		for offset := range n {
			want = append(want, fmt.Sprintf("%d %d user-%d-%03d order %d of partition %d", partition, offset, partition, offset, offset, partition))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, 300, len(got))
	require.Equal(t, want, got)
}

func readHamba(t *testing.T, path string) []string {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	dec, err := ocf.NewDecoder(f)
	require.NoError(t, err)
	var out []string
	for dec.HasNext() {
		var m message
		require.NoError(t, dec.Decode(&m))
		out = append(out, fmt.Sprintf("%d %d %s %s", m.Partition, m.Offset, m.Key, m.Value))
	}
	require.NoError(t, dec.Error())
	return out
}

// TestSetUpCutShort: a quickstart whose set-up failed half way says so, and
// leaves nothing that can be taken for a finished one.
func TestSetUpCutShort(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "q")
	in := (&App{Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer), Env: func(string) string { return "" }}).invocation()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Contains(t, hintOf(in.setUp(ended, dir, dir)), "rm -r")
	r := run(t, App{}, "quickstart", dir)
	require.Equal(t, ExitError, r.code)
	require.Contains(t, r.errOut, "nothing was published")
	require.Contains(t, r.errOut, "rm -r "+dir)
	// The advice works.
	require.NoError(t, os.RemoveAll(dir))
	must(t, App{}, "quickstart", dir)
}

// TestOnlyOneSetsUp: of many that start in one directory one wins, and the
// others touch nothing.
func TestOnlyOneSetsUp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "q")
	const n = 8
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			in := (&App{Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer), Env: func(string) string { return "" }}).invocation()
			errs[i] = in.setUp(context.Background(), dir, dir)
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		}
	}
	require.Equal(t, 1, won, "%v", errs)
}

func TestQuickstartPlanIsWhatItSays(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "q")
	r := must(t, App{}, "quickstart", dir, "-o", "json")
	var res resultView
	require.NoError(t, json.Unmarshal([]byte(r.out), &res))
	require.Equal(t, "kafka-hdfs", res.Job)
	require.Equal(t, "MyTopic", res.Dataset)
	require.Equal(t, countsView{Total: 5, Executed: 5}, res.Counts)
	require.Equal(t, "done", res.Cleanup)
}
