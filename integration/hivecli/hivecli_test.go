package hivecli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hivesql.Main(m)) }

// operator is a person with a configuration file and a store.
type operator struct {
	dir, config string
}

func (o operator) run(t testing.TB, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	vars := map[string]string{"COMMITSTEP_CONFIG": o.config, "COMMITSTEP_STORE": "bolt:" + filepath.Join(o.dir, "commit.db"), "COMMITSTEP_BY": "alice", "HIVE_PASSWORD": password}
	a := &cli.App{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Program: "commitstep", Env: func(k string) string { return vars[k] }, Terminal: func() bool { return false }}
	code = a.Run(t.Context(), args)
	require.NotContains(t, stdout.String()+stderr.String(), password)
	return code, stdout.String(), stderr.String()
}

func (o operator) must(t testing.TB, args ...string) string {
	t.Helper()
	code, out, errOut := o.run(t, args...)
	require.Equal(t, cli.ExitOK, code, "%v\n%s%s", args, out, errOut)
	return out
}

func (o operator) write(t testing.TB, name, text string) string {
	t.Helper()
	p := filepath.Join(o.dir, name)
	require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
	return p
}

const password = "an0ther-s3cret"

// configure writes a configuration with this address of HiveServer2.
func (o operator) configure(t testing.TB, s *hivekit.Server, address string) {
	t.Helper()
	quote := func(list []string) string { return `["` + strings.Join(list, `", "`) + `"]` }
	conf := fmt.Sprintf(`
resources:
  hdfs://test: {addresses: %s, http_addresses: %s, user: %s}
hive:
  dw:
    address: "%s"
    user: %s
    password_env: HIVE_PASSWORD
    web_ui: "%s"
    warehouse: {"%s": "hdfs://test/"}
`, quote(s.Hadoop.RPCs()), quote(s.Hadoop.HTTPs()), hivekit.User, address, hivekit.User, s.WebUI(), s.FS)
	require.NoError(t, os.WriteFile(o.config, []byte(conf), 0o600))
}

// TestOperatorsDay goes through what docs/hive.md tells an operator to type.
func TestOperatorsDay(t *testing.T) {
	t.Parallel()
	s := hivekit.Shared(t)
	sql := hivesql.Open(t, s)
	db := sql.Database(t)
	root := s.Root + "/cli-" + db
	hdfs := s.Hadoop.Client(t, "root")
	t.Cleanup(func() {
		for _, dir := range []string{root, s.Root + "/external/" + db + ".db"} {
			require.NoError(t, hdfs.RemoveAll(dir))
		}
	})
	require.NoError(t, hdfs.MkdirAll(root+"/stage", 0o755))
	require.NoError(t, hdfs.Chown(root+"/stage", hivekit.User, hivekit.User))
	require.NoError(t, hadoopkit.Put(hdfs, root+"/old/rows", "1,old\n2,old\n"))
	require.NoError(t, hadoopkit.Put(hdfs, root+"/new/rows", "1,new\n2,new\n3,new\n"))
	csv := "ROW FORMAT DELIMITED FIELDS TERMINATED BY ','"
	sql.Exec(t,
		"CREATE EXTERNAL TABLE "+db+".facts (id INT, name STRING) PARTITIONED BY (dt STRING) "+csv,
		"CREATE EXTERNAL TABLE "+db+".loaded (id INT, name STRING) "+csv+" LOCATION '"+s.FS+root+"/new'",
		"ALTER TABLE "+db+".facts ADD PARTITION (dt='2024-01-01') LOCATION '"+s.FS+root+"/old'")
	rows := func(day string) []string {
		return sql.Rows(t, "SELECT id, name FROM "+db+".facts WHERE dt='"+day+"' ORDER BY id")
	}
	before, after := []string{"1|old", "2|old"}, []string{"1|new", "2|new", "3|new"}

	dir := t.TempDir()
	o := operator{dir, filepath.Join(dir, "config.yaml")}
	o.configure(t, s, s.Address())
	o.must(t, "store", "init")

	var health struct {
		Hive []struct {
			Version, RunsAs            string
			OK                         bool
			SessionSurvives, QueryList bool
			AsyncCompile               *bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(o.must(t, "doctor", "-o", "json")), &health))
	require.Len(t, health.Hive, 1)
	h := health.Hive[0]
	require.True(t, strings.HasPrefix(h.Version, hivekit.Version), h.Version)
	require.Equal(t, hivekit.User, h.RunsAs)
	require.True(t, h.OK && h.SessionSurvives && h.QueryList)
	require.NotNil(t, h.AsyncCompile)
	require.Equal(t, sql.Setting(t, "hive.server2.async.exec.async.compile") == "true", *h.AsyncCompile)

	// An overwrite that needs no person, and back.
	swap := o.write(t, "swap.json", fmt.Sprintf(`{"apiVersion":"commitstep/v1","kind":"Plan","job":"nightly","dataset":"facts","stages":[{"steps":[{"kind":"hive.stage_and_swap","params":{
		"hive":"dw","table":"%[1]s.facts","partition":{"dt":"2024-01-01"},"stage":"%[1]s.loaded","query":"SELECT id, name FROM ${stage}","under":"%[2]s/stage","rows":3}}]}]}`, db, s.FS+root))
	o.must(t, "plan", "validate", "-f", swap)
	o.must(t, "publish", "-f", swap)
	require.Equal(t, after, rows("2024-01-01"))
	back := filepath.Join(dir, "back.yaml")
	o.must(t, "hive", "rollback", "facts", "--job", "nightly", "--to", back)
	require.Equal(t, after, rows("2024-01-01"), "it only writes a plan")
	o.must(t, "publish", "-f", back)
	require.Equal(t, before, rows("2024-01-01"))
	out := o.must(t, "hive", "sweep", db+".facts", "--dry-run")
	require.Contains(t, out, "within the grace time")
	require.Contains(t, out, "nothing to remove")

	// An overwrite whose answer is lost: the statement runs, and nobody has its
	// handle.
	proxy, err := faultproxy.Listen(s.Address(), faultproxy.SASLPlain)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	proxy.On(faultproxy.Rule{Nth: 1, Do: faultproxy.DropReply, Match: func(m faultproxy.Message) bool {
		return faultproxy.ThriftMethod(m.Data) == "ExecuteStatement" && strings.Contains(string(m.Data), "INSERT OVERWRITE")
	}})
	o.configure(t, s, proxy.Addr())
	insert := o.write(t, "insert.json", fmt.Sprintf(`{"apiVersion":"commitstep/v1","kind":"Plan","job":"nightly","dataset":"facts 2","stages":[{"steps":[{"kind":"hive.insert_overwrite","params":{
		"hive":"dw","table":"%[1]s.facts","partition":{"dt":"2024-01-02"},"stage":"%[1]s.loaded","statement":"INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT id, name FROM ${stage}","rows":3}}]}]}`, db))
	code, out, errOut := o.run(t, "publish", "-f", insert, "--unknown-budget", "100ms")
	require.Equal(t, cli.ExitDecision, code, "%s%s", out, errOut)

	var seen struct {
		Version   int
		StepViews []struct {
			EvidencePack *hivepublish.Pack
		}
	}
	shown := o.must(t, "pending", "show", "facts 2", "--job", "nightly", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(shown), &seen))
	require.NotContains(t, shown, `"handle"`)
	pack := seen.StepViews[0].EvidencePack
	require.NotNil(t, pack, "%s", shown)
	require.Len(t, pack.Queries, 1, "the server has it in its list: %v", pack.Missing)
	require.Equal(t, proxy.Addr(), pack.Server)

	// It ends by itself; gathered again, the evidence says so.
	suggestion := func() string {
		var probed struct {
			Stored bool
			Steps  []struct{ EvidencePack *hivepublish.Pack }
		}
		require.NoError(t, json.Unmarshal([]byte(o.must(t, "hive", "probe", "-f", insert, "-o", "json")), &probed))
		require.True(t, probed.Stored)
		return probed.Steps[0].EvidencePack.Suggestion.As
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for suggestion() != "published" {
		select {
		case <-ctx.Done():
			t.Fatal("the statement did not end")
		case <-time.After(time.Second):
		}
	}
	table := o.must(t, "pending", "show", "facts 2", "--job", "nightly")
	require.Contains(t, table, "suggestion: published")
	require.Contains(t, table, "server lists")
	o.must(t, "resolve", "facts 2", "--job", "nightly", "--as", "published", "--step", "1", "--expect-version", fmt.Sprint(seen.Version), "--reason", "counted three rows", "--yes", "--continue")
	require.Equal(t, after, rows("2024-01-02"))
	require.Len(t, sql.Submitted(t, "commitstep token="+pack.Token), 1, "the statement was submitted once")
	require.Contains(t, o.must(t, "history", "list", "--job", "nightly"), "completed")
}
