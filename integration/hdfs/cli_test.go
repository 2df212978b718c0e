package hdfs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/stretchr/testify/require"
)

// commandLine is a person's shell with a configuration for the cluster.
type commandLine struct {
	t   *testing.T
	env map[string]string
}

func newCommandLine(t *testing.T, c *hadoopkit.Cluster) *commandLine {
	dir := t.TempDir()
	conf := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `resources:
  hdfs://test:
    addresses: [%q]
    http_addresses: [%q]
    user: root
  webhdfs://test:
    urls: [%q]
    user: root
  hdfs://down:
    addresses: ["127.0.0.1:1"]
    wait: 10ms
`, c.RPC(), c.HTTP(), "http://"+c.HTTP()), 0o600))
	return &commandLine{t, map[string]string{"COMMITSTEP_CONFIG": conf, "COMMITSTEP_STORE": "bolt:" + filepath.Join(dir, "commit.db"), "HADOOP_CONF_DIR": c.ConfDir(), "HOME": dir}}
}

func (c *commandLine) run(code int, args ...string) (stdout, stderr string) {
	c.t.Helper()
	var out, errs bytes.Buffer
	app := &cli.App{Stdin: bytes.NewReader(nil), Stdout: &out, Stderr: &errs, Env: func(k string) string { return c.env[k] }, Terminal: func() bool { return false }}
	got := app.Run(c.t.Context(), args)
	require.Equal(c.t, code, got, "%v\n%s\n%s", args, out.String(), errs.String())
	return out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		sh := newCommandLine(t, c)
		sh.run(cli.ExitOK, "store", "init")
		var steps []map[string]any
		for name, content := range contents() {
			steps = append(steps, map[string]any{"kind": "fs.rename", "params": map[string]any{"from": w.address(w.staged() + "/" + name), "to": w.address(w.final() + "/" + name), "length": len(content)}})
		}
		steps[0]["params"].(map[string]any)["mode"] = "0644"
		plan, err := json.Marshal(map[string]any{"apiVersion": "commitstep/v1", "kind": "Plan", "job": job, "dataset": dataset,
			"stages":  []any{map[string]any{"steps": steps}},
			"cleanup": []any{map[string]any{"path": w.address(w.staged())}}})
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "plan.json")
		require.NoError(t, os.WriteFile(file, plan, 0o600))

		sh.run(cli.ExitOK, "plan", "validate", "-f", file)
		sh.run(cli.ExitOK, "publish", "-f", file)
		for name, content := range contents() {
			got, err := w.client.ReadFile(w.final() + "/" + name)
			require.NoError(t, err)
			require.Equal(t, content, string(got))
		}
		require.NotContains(t, w.tree(t), "task-output/run-17/MyTopic/")

		// Looking, and moving by hand.
		out, _ := sh.run(cli.ExitOK, "fs", "ls", w.address(w.final()))
		require.Contains(t, out, "2015-12-09")
		out, _ = sh.run(cli.ExitOK, "fs", "stat", w.address(w.final()+"/2015-12-09/1.avro"), "-o", "json")
		require.Contains(t, out, fmt.Sprintf("/%d", hadoopkit.FileID(w.client, w.final()+"/2015-12-09/1.avro")))
		_, errs := sh.run(cli.ExitStale, "fs", "mv", "--no-clobber", w.address(w.final()+"/2015-12-09/1.avro"), w.address(w.final()+"/2015-12-09/2.avro"))
		require.Contains(t, errs, "never overwrites")
		sh.run(cli.ExitUsage, "fs", "mv", w.address(w.final()+"/2015-12-09/1.avro"), w.address(w.final()+"/3.avro"))
		sh.run(cli.ExitOK, "fs", "mv", "--no-clobber", w.address(w.final()+"/2015-12-09/1.avro"), w.address(w.final()+"/3.avro"))
		sh.run(cli.ExitNotFound, "fs", "stat", w.address(w.final()+"/2015-12-09/1.avro"))
		_, errs = sh.run(cli.ExitError, "fs", "ls", transport+"://nobody/x")
		require.Contains(t, errs, "no file system is configured")

		out, errs = sh.run(cli.ExitPartial, "doctor", "--probe", w.address(w.dir))
		require.Contains(t, out, "atomic no-clobber")
		require.Contains(t, out, "was refused, as it must be")
		require.Contains(t, out, "hdfs://"+c.RPC(), "the name service of HADOOP_CONF_DIR")
		require.Contains(t, errs, "1 of 6 ") // is down
		_, _ = sh.run(cli.ExitPartial, "doctor", "--probe", w.address(w.dir+"/never/was"))
		_, errs = sh.run(cli.ExitError, "fs", "ls", w.address(w.final()+"/3.avro"))
		require.Contains(t, errs, "is no directory")
		_, errs = sh.run(cli.ExitError, "fs", "ls", w.address(w.dir+"/a:b"))
		require.Contains(t, errs, "a colon")
		require.NotContains(t, errs, "plan:")
		for _, p := range w.tree(t) {
			require.NotContains(t, p, "never", "the probe made a directory")
			require.NotContains(t, p, "doctor", "the probe left something behind")
		}
	})
}
