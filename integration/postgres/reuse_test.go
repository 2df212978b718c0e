package postgres_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/cli"
	"github.com/stretchr/testify/require"
)

// In a store that many drivers share, a path is used once, also a local one.
func TestAPathIsNotUsedTwice(t *testing.T) {
	t.Parallel()
	cluster := kit.Cluster(t)
	name := kit.Name()
	require.NoError(t, cluster.Exec(t.Context(), "CREATE DATABASE "+name))
	dir := t.TempDir()
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": cluster.URL(name), "COMMITSTEP_BY": "alice", "HOME": dir}}
	c.exits(cli.ExitOK, "store", "migrate")
	plan := func(file, head, from, to string) string {
		p := filepath.Join(dir, file)
		require.NoError(t, os.WriteFile(p, []byte("apiVersion: commitstep/v1\nkind: Plan\njob: kafka-hdfs\ndataset: MyTopic\n"+head+
			"stages:\n  - steps: [{kind: fs.rename, params: {from: "+from+", to: "+to+"}}]\ncleanup: [{path: task-output/run-1}]\n"), 0o644))
		return p
	}
	stage := func(name string) {
		p := filepath.Join(dir, "task-output", "run-1", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte("x"), 0o644))
	}
	stage("1")
	first := plan("first.yaml", "id: run-1\n", "task-output/run-1/1", "out/1")
	c.exits(cli.ExitOK, "publish", "-f", first)
	c.exits(cli.ExitOK, "publish", "-f", first) // the same plan is no reuse

	stage("2") // another file, and the same directory
	second := plan("second.yaml", "", "task-output/run-1/2", "out/2")
	for _, args := range [][]string{{"plan", "validate", "-f", second}, {"publish", "-f", second}} {
		c.exits(cli.ExitStale, args...)
		for _, s := range []string{"task-output/run-1 cannot be a source or cleanup path", `dataset "kafka-hdfs"/"MyTopic", completed`, "acceptReusedPaths"} {
			require.Contains(t, c.err.String(), s)
		}
	}
	require.NotContains(t, c.exits(cli.ExitOK, "audit", "list"), "paths.accept")

	second = plan("second.yaml", "acceptReusedPaths: run 1 was checked by hand\n", "task-output/run-1/2", "out/2")
	require.Contains(t, c.exits(cli.ExitOK, "plan", "validate", "-f", second), "it accepts the earlier path")
	require.Contains(t, c.exits(cli.ExitOK, "plan", "validate", "-f", second, "-o", "json"), `"reason": "run 1 was checked by hand"`)
	c.exits(cli.ExitOK, "publish", "-f", second)
	audit := c.exits(cli.ExitOK, "audit", "list", "-o", "json")
	require.Equal(t, 1, strings.Count(audit, "paths.accept"), audit)
	require.Contains(t, audit, "run 1 was checked by hand")
	require.Contains(t, c.exits(cli.ExitOK, "history", "list", "-o", "json"), `"acceptReusedPaths": "run 1 was checked by hand"`)
	c.exits(cli.ExitOK, "store", "check")
}
