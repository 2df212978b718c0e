package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/cli"
	"github.com/stretchr/testify/require"
)

// TestHadoopConfProblemsAreTold: what HADOOP_CONF_DIR names and cannot be used is
// no secret of the program, and harms no plan that needs none of it.
func TestHadoopConfProblemsAreTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kerberos := filepath.Join(dir, "kerberos")
	require.NoError(t, os.Mkdir(kerberos, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(kerberos, "core-site.xml"), []byte(`<configuration>
<property><name>fs.defaultFS</name><value>hdfs://ns</value></property>
<property><name>hadoop.security.authentication</name><value>kerberos</value></property></configuration>`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(kerberos, "hdfs-site.xml"), []byte(`<configuration>
<property><name>dfs.nameservices</name><value>ns</value></property>
<property><name>dfs.namenode.rpc-address.ns</name><value>nn1.example:8020</value></property>
<property><name>dfs.namenode.http-address.ns</name><value>nn1.example:9870</value></property></configuration>`), 0o600))
	plan := filepath.Join(dir, "plan.yaml")
	require.NoError(t, os.WriteFile(plan, []byte(`apiVersion: commitstep/v1
kind: Plan
job: j
dataset: d
stages:
- steps:
  - {kind: fs.rename, params: {from: "hdfs://ns/a", to: "hdfs://ns/b", length: 1}}
`), 0o600))
	run := func(conf string, code int, args ...string) (string, string) {
		t.Helper()
		env := map[string]string{"HADOOP_CONF_DIR": conf, "HOME": dir, "COMMITSTEP_STORE": "bolt:" + filepath.Join(dir, "commit.db")}
		var out, errs bytes.Buffer
		app := &cli.App{Stdin: bytes.NewReader(nil), Stdout: &out, Stderr: &errs, Env: func(k string) string { return env[k] }, Terminal: func() bool { return false }}
		require.Equal(t, code, app.Run(t.Context(), args), "%v\n%s\n%s", args, out.String(), errs.String())
		return out.String(), errs.String()
	}
	run(kerberos, cli.ExitOK, "store", "init")

	nowhere := filepath.Join(dir, "nowhere")
	out, errs := run(nowhere, cli.ExitPartial, "doctor")
	require.Contains(t, out, "neither core-site.xml nor hdfs-site.xml is in "+nowhere)
	require.Contains(t, errs, "1 of 2 ")
	_, errs = run(nowhere, cli.ExitError, "publish", "-f", plan)
	require.Contains(t, errs, "no file system is configured for hdfs://ns")
	require.Contains(t, errs, "neither core-site.xml nor hdfs-site.xml is in "+nowhere)

	out, _ = run(kerberos, cli.ExitPartial, "doctor")
	require.Contains(t, out, "hdfs://ns: ")
	require.Contains(t, out, "webhdfs://ns: ")
	require.Contains(t, out, "Kerberos")
	_, errs = run(kerberos, cli.ExitError, "publish", "-f", plan)
	require.Contains(t, errs, "the cluster wants Kerberos")
	require.Equal(t, 1, bytes.Count([]byte(errs), []byte("stage 1 step 1")), errs)
	_, errs = run(kerberos, cli.ExitError, "fs", "ls", "webhdfs://ns/x")
	require.Contains(t, errs, "the cluster wants Kerberos")
}
