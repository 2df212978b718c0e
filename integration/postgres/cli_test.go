package postgres_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/stretchr/testify/require"
)

// command runs the command line in this process.
type command struct {
	t        *testing.T
	out, err bytes.Buffer
	env      map[string]string
}

func (c *command) run(args ...string) int {
	c.out.Reset()
	c.err.Reset()
	app := &cli.App{Stdin: strings.NewReader(""), Stdout: &c.out, Stderr: &c.err, Env: func(k string) string { return c.env[k] }, Now: time.Now,
		Terminal: func() bool { return false }, Program: "commitstep"}
	return app.Run(c.t.Context(), args)
}

func (c *command) exits(code int, args ...string) string {
	c.t.Helper()
	got := c.run(args...)
	require.Equal(c.t, code, got, "commitstep %s\n%s%s", strings.Join(args, " "), &c.out, &c.err)
	return c.out.String()
}

// The command line on a store in PostgreSQL, from its first migration to its
// copy, as an operator would use it.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	cluster := kit.Cluster(t)
	name := kit.Name()
	require.NoError(t, cluster.Exec(t.Context(), "CREATE DATABASE "+name))
	require.NoError(t, cluster.Exec(t.Context(), "CREATE ROLE "+name+"_u LOGIN PASSWORD 'geheim'"))
	owner := cluster.URL(name)
	user := strings.Replace(owner, "postgres://pg@", "postgres://"+name+"_u:geheim@", 1)
	dir := t.TempDir()
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": user, "COMMITSTEP_BY": "alice", "HOME": dir}}

	c.exits(cli.ExitStore, "pending", "list")
	require.Contains(t, c.err.String(), "run `commitstep store migrate --store 'postgres://"+name+"_u@127.0.0.1:", "to be copied")
	require.NotContains(t, c.err.String(), "geheim")
	printed := c.exits(cli.ExitOK, "store", "migrate", "--print", "--store", owner)
	require.Contains(t, printed, `CREATE TABLE "commitstep".sequences`)
	c.exits(cli.ExitStore, "pending", "list", "--store", owner)
	require.Contains(t, c.err.String(), "commitstep store migrate")
	require.Contains(t, c.exits(cli.ExitOK, "store", "migrate", "--store", owner), "applied 0001_store")
	require.Contains(t, c.exits(cli.ExitOK, "store", "migrate", "--store", owner), "nothing to do")
	c.exits(cli.ExitStore, "pending", "list") // the user has no role yet
	require.Contains(t, c.err.String(), "commitstep_runtime")
	require.NoError(t, cluster.Exec(t.Context(), "GRANT commitstep_runtime TO "+name+"_u"))
	require.Contains(t, c.exits(cli.ExitOK, "pending", "list", "-o", "json"), `"items": []`)
	require.NotContains(t, c.err.String(), "geheim")
	require.Contains(t, c.err.String(), "/"+name)

	require.NoError(t, os.MkdirAll(filepath.Join(dir, "task-output", "run-1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "task-output", "run-1", "1.avro"), []byte("x"), 0o644))
	plan := filepath.Join(dir, "plan.yaml")
	require.NoError(t, os.WriteFile(plan, []byte(`apiVersion: commitstep/v1
kind: Plan
id: run-1
job: kafka-hdfs
dataset: MyTopic
stages:
  - steps:
      - kind: fs.rename
        params: {from: task-output/run-1/1.avro, to: job-output/1.avro}
  - steps:
      - kind: watermark.set
        params: {source: "MyTopic:0", from: null, to: 100}
`), 0o644))
	c.exits(cli.ExitOK, "publish", "-f", plan)
	c.exits(cli.ExitOK, "publish", "-f", plan) // the id is known
	_, err := os.Stat(filepath.Join(dir, "job-output", "1.avro"))
	require.NoError(t, err)
	require.Contains(t, c.exits(cli.ExitOK, "watermark", "list"), "MyTopic:0")
	c.exits(cli.ExitOK, "recover", "--job", "kafka-hdfs")
	c.exits(cli.ExitOK, "history", "list")
	c.exits(cli.ExitOK, "store", "check")
	c.exits(cli.ExitOK, "watermark", "set", "--job", "kafka-hdfs", "--source", "MyTopic:1", "--from", "none", "--to", "5", "--reason", "by hand", "--yes")
	require.Contains(t, c.exits(cli.ExitOK, "audit", "list"), "watermark.set")
	c.exits(cli.ExitUsage, "store", "prune", "--history-older-than", "90x", "--yes")
	for _, as := range []string{"table", "json"} {
		require.Empty(t, c.exits(cli.ExitStore, "store", "prune", "--history-older-than", "90d", "--yes", "-o", as), "it did nothing")
	}
	require.Contains(t, c.err.String(), "owns the tables")
	require.Contains(t, c.exits(cli.ExitOK, "store", "prune", "--history-older-than", "90d", "--yes", "--store", owner), "0 sequences")

	// Into a file, and from there into another schema.
	file := "bolt:" + filepath.Join(dir, "copy.db")
	c.exits(cli.ExitOK, "store", "init", "--store", file)
	c.exits(cli.ExitUsage, "store", "copy", "--from", owner, "--to", file, "--reason", "moves house")
	out := c.exits(cli.ExitOK, "store", "copy", "--from", owner, "--to", file, "--reason", "moves house", "--yes", "-o", "json")
	var rep struct {
		Watermarks, History int
	}
	require.NoError(t, json.Unmarshal([]byte(out), &rep))
	require.Equal(t, 2, rep.Watermarks)
	require.Equal(t, 1, rep.History)
	c.exits(cli.ExitOK, "store", "copy", "--from", owner, "--to", file, "--reason", "moves house", "--yes")
	c.exits(cli.ExitStore, "watermark", "set", "--job", "kafka-hdfs", "--source", "MyTopic:1", "--from", "5", "--to", "6", "--reason", "by hand", "--yes")
	require.Contains(t, c.err.String(), "copy.db")
	other := fmt.Sprintf("%s&schema=other", owner)
	require.Contains(t, c.exits(cli.ExitOK, "store", "init", "--store", other), "made store")
	c.exits(cli.ExitStore, "store", "init", "--store", other)
	c.exits(cli.ExitOK, "store", "copy", "--from", file, "--to", other, "--reason", "and back again", "--yes")
	require.Contains(t, c.exits(cli.ExitOK, "watermark", "list", "--store", other), "MyTopic:0")
	c.exits(cli.ExitOK, "publish", "-f", plan, "--store", other) // its id came along

	// A backup is the database's; what came back with its server is stamped.
	c.exits(cli.ExitError, "store", "backup", filepath.Join(dir, "backup"), "--store", other)
	require.Contains(t, c.err.String(), "pg_dump --schema=other")
	require.NoFileExists(t, filepath.Join(dir, "backup"))
	require.Contains(t, c.exits(cli.ExitOK, "store", "stamp", "--reason", "restored from a snapshot", "--yes", "--store", other), "runs nothing")
	c.exits(cli.ExitDecision, "recover", "--job", "kafka-hdfs", "--store", other)
	require.Contains(t, c.err.String(), "restored from a snapshot")
	c.exits(cli.ExitOK, "store", "adopt", "--reason", "the original is gone", "--yes", "--store", other)

	c.exits(cli.ExitUsage, "store", "migrate", "--down", "--store", other)
	c.exits(cli.ExitUsage, "store", "migrate", "--down", "--to", "0", "--store", other)
	require.Contains(t, c.exits(cli.ExitOK, "store", "migrate", "--down", "--to", "0", "--yes", "--store", other), "took back 0001_store")
	c.exits(cli.ExitStore, "pending", "list", "--store", other)
	c.exits(cli.ExitUsage, "store", "migrate", "--store", file)
}

// Several that make a store at once do it once between them, and those that
// waited say what is there now.
func TestManyMigrateAtOnce(t *testing.T) {
	t.Parallel()
	store := kit.Cluster(t).URL("postgres") + "&schema=" + kit.Name()
	all := make([]*command, 5)
	codes := make([]int, len(all))
	var wg sync.WaitGroup
	for i := range all {
		all[i] = &command{t: t, env: map[string]string{"COMMITSTEP_STORE": store, "HOME": t.TempDir()}}
		wg.Go(func() { codes[i] = all[i].run("store", "migrate") })
	}
	wg.Wait()
	applied := 0
	for i, c := range all {
		require.Equal(t, cli.ExitOK, codes[i], c.err.String())
		n := strings.Count(c.out.String(), "applied ")
		if applied += n; n == 0 {
			require.Contains(t, c.out.String(), fmt.Sprintf("is at version %d\n", pgstore.SchemaVersion))
		}
	}
	require.Equal(t, pgstore.SchemaVersion, applied)
}

// What the user or the server does not allow is a store that cannot be used, also
// in the middle of a run; what is pending was not looked at, and nobody says that
// there is nothing.
func TestExitCodesOfAServerThatRefuses(t *testing.T) {
	t.Parallel()
	cluster := kit.Cluster(t)
	name := kit.Name()
	in := func(sql string) { require.NoError(t, cluster.Exec(t.Context(), sql)) }
	in("CREATE ROLE " + name + "_u LOGIN PASSWORD 'geheim'")
	owner := cluster.URL("postgres") + "&schema=" + name
	user := strings.Replace(owner, "postgres://pg@", "postgres://"+name+"_u:geheim@", 1) + "&give_up=1s&statement_timeout=500ms&lock_timeout=500ms"
	dir := t.TempDir()
	plan := filepath.Join(dir, "plan.json")
	require.NoError(t, os.WriteFile(plan, []byte(`{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","stages":[{"steps":[{"kind":"watermark.set","params":{"source":"s","from":null,"to":5}}]}]}`), 0o600))
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": user, "COMMITSTEP_BY": "alice", "HOME": dir}}
	c.exits(cli.ExitOK, "store", "migrate", "--store", owner)
	in("GRANT " + name + "_runtime TO " + name + "_u")
	c.exits(cli.ExitOK, "recover", "--job", "j")

	in("REVOKE UPDATE ON " + name + ".sequences FROM " + name + "_runtime")
	out := c.exits(cli.ExitStore, "recover", "--job", "j")
	require.Contains(t, c.err.String(), "grant the user the role "+name+"_runtime")
	require.NotContains(t, c.err.String(), "run recover again")
	require.NotContains(t, out, "nothing was pending")
	in("GRANT UPDATE ON " + name + ".sequences TO " + name + "_runtime; REVOKE INSERT ON " + name + ".sequences FROM " + name + "_runtime")
	c.exits(cli.ExitStore, "publish", "-f", plan)
	in("GRANT INSERT ON " + name + ".sequences TO " + name + "_runtime")

	in("ALTER ROLE " + name + "_u SET default_transaction_read_only = on") // as a standby does
	c.exits(cli.ExitStore, "recover", "--job", "j")
	require.Contains(t, c.err.String(), "this server only reads")
	in("ALTER ROLE " + name + "_u RESET default_transaction_read_only")
	c.exits(cli.ExitOK, "publish", "-f", plan)
}

// A server that takes connections and never answers is a store out of reach, after
// the time that the address sets.
func TestExitCodeOfAServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts: the kernel does
	require.NoError(t, err)
	defer l.Close()
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": "postgres://u@" + l.Addr().String() + "/db?give_up=1s", "HOME": t.TempDir()}}
	started := time.Now()
	c.exits(cli.ExitStore, "recover", "--job", "j")
	require.Contains(t, c.err.String(), "within 1s")
	require.Less(t, time.Since(started), time.Minute)
}

// A table of the user's own keeps the watermarks of a plan that names it.
func TestWatermarksInATableOfTheUsers(t *testing.T) {
	t.Parallel()
	cluster := kit.Cluster(t)
	schema := kit.Name()
	require.NoError(t, cluster.Exec(t.Context(), "CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".positions (topic text PRIMARY KEY, pos bigint, token uuid)"))
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`watermark_tables:
  positions:
    dsn: %q
    table: %s.positions
    columns: {source: topic, value: pos, token: token}
`, cluster.URL("postgres"), schema)), 0o644))
	plan := filepath.Join(dir, "plan.yaml")
	require.NoError(t, os.WriteFile(plan, []byte(`apiVersion: commitstep/v1
kind: Plan
id: one
job: j
dataset: d
stages:
  - steps:
      - kind: watermark.set
        params: {source: "MyTopic:0", from: null, to: 100, target: positions}
`), 0o644))
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": "bolt:" + filepath.Join(dir, "commit.db"), "COMMITSTEP_CONFIG": config, "HOME": dir}}
	c.exits(cli.ExitOK, "store", "init")
	c.exits(cli.ExitOK, "publish", "-f", plan)
	c.exits(cli.ExitOK, "publish", "-f", plan)
	// It is read like any other; who set it, and when, the table does not keep.
	for _, args := range [][]string{{}, {"--job", "j"}} {
		out := c.exits(cli.ExitOK, append([]string{"watermark", "list", "--target", "positions"}, args...)...)
		require.Regexp(t, `MyTopic:0 +100 +- +-`, out)
	}
	require.Equal(t, "100\n", c.exits(cli.ExitOK, "watermark", "get", "--job", "j", "--source", "MyTopic:0", "--target", "positions"))
	require.Equal(t, "none\n", c.exits(cli.ExitOK, "watermark", "get", "--job", "j", "--source", "MyTopic:1", "--target", "positions"))
	c.exits(cli.ExitUsage, "watermark", "set", "--job", "j", "--source", "MyTopic:0", "--target", "positions", "--from", "100", "--to", "5", "--reason", "by hand", "--yes")
	require.Contains(t, c.err.String(), "change it with SQL")
	late := filepath.Join(dir, "late.yaml")
	text, err := os.ReadFile(plan)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(late, []byte(strings.Replace(string(text), "id: one", "id: two", 1)), 0o600))
	c.exits(cli.ExitStale, "publish", "-f", late)
	require.NotContains(t, c.err.String(), "by hand")
	require.NotContains(t, c.err.String(), "0001-01-01")
	require.NoError(t, cluster.Exec(t.Context(), "DO $$ BEGIN ASSERT (SELECT pos = 100 AND token IS NOT NULL FROM "+schema+".positions); END $$"))
}

// A table that the user's plan cannot be kept in is refused before its data
// moves; one that cannot be read is never a source that was never read.
func TestTablesOfTheUsersThatWillNotDo(t *testing.T) {
	t.Parallel()
	cluster := kit.Cluster(t)
	schema := kit.Name()
	in := func(sql string) {
		t.Helper()
		require.NoError(t, cluster.Exec(t.Context(), strings.ReplaceAll(sql, "~", schema)))
	}
	in(`CREATE SCHEMA ~; CREATE ROLE ~_etl LOGIN; GRANT USAGE ON SCHEMA ~ TO ~_etl;
		CREATE TABLE ~.positions (topic text PRIMARY KEY, pos int, token uuid); GRANT SELECT ON ~.positions TO ~_etl`)
	proxy, err := faultproxy.Listen(fmt.Sprintf("127.0.0.1:%d", cluster.Port()), faultproxy.PostgreSQL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`watermark_tables:
  positions:
    dsn: postgres://%[1]s_etl@%[2]s/postgres?sslmode=disable
    table: %[1]s.positions
    columns: {source: topic, value: pos, token: token}
`, schema, proxy.Addr())), 0o644))
	source, destination := filepath.Join(dir, "staging-1"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(source, []byte("data"), 0o644))
	plan := filepath.Join(dir, "plan.yaml")
	write := func(from, to string) {
		require.NoError(t, os.WriteFile(plan, []byte(fmt.Sprintf(`apiVersion: commitstep/v1
kind: Plan
job: j
dataset: d
stages:
  - steps:
      - {kind: fs.rename, params: {from: staging-1, to: out}}
  - steps:
      - kind: watermark.set
        params: {source: "hidden", from: %s, to: %s, target: positions}
`, from, to)), 0o644))
	}
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": "bolt:" + filepath.Join(dir, "commit.db"), "COMMITSTEP_CONFIG": config, "HOME": dir}}
	c.exits(cli.ExitOK, "store", "init")
	refused := func(wants ...string) {
		t.Helper()
		c.exits(cli.ExitError, "publish", "-f", plan, "--budget", "1s")
		for _, want := range append(wants, "stage 2 step 2 (watermark.set)") {
			require.Contains(t, c.err.String(), want)
		}
		require.FileExists(t, source)
		require.NoFileExists(t, destination)
		require.Contains(t, c.exits(cli.ExitOK, "pending", "list"), "nothing")
	}
	write("null", "100")
	refused("no privilege to UPDATE", "GRANT SELECT, INSERT, UPDATE")
	in("GRANT INSERT, UPDATE ON ~.positions TO ~_etl")
	write("null", "3000000000")
	refused("int4", "bigint")

	get := []string{"watermark", "get", "--job", "j", "--source", "hidden", "--target", "positions"}
	require.Equal(t, "none\n", c.exits(cli.ExitOK, get...))
	in(`INSERT INTO ~.positions VALUES ('hidden', 500); ALTER TABLE ~.positions ENABLE ROW LEVEL SECURITY;
		CREATE POLICY a ON ~.positions FOR SELECT TO ~_etl USING (false)`)
	require.Empty(t, c.exits(cli.ExitError, get...))
	require.Contains(t, c.err.String(), "row-level security")
	write("null", "100")
	refused("row-level security")

	in(`ALTER TABLE ~.positions DISABLE ROW LEVEL SECURITY`)
	require.Equal(t, "500\n", c.exits(cli.ExitOK, get...))
	write("500", "600")
	proxy.Refuse(true)
	refused("cannot be reached", "nothing was stored")
	proxy.Refuse(false)
	proxy.On(faultproxy.Rule{Nth: 2, Do: faultproxy.DropReply})
	c.exits(cli.ExitOK, "publish", "-f", plan)
	require.Equal(t, "600\n", c.exits(cli.ExitOK, get...))
	require.FileExists(t, destination)
}
