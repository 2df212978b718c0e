package postgres_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// copier copies a store, as the command line does. Arguments: from, to.
func copier(c *testkit.Child) int {
	app := &cli.App{Stdin: strings.NewReader(""), Stdout: os.Stderr, Stderr: os.Stderr, Env: func(string) string { return "" }, Now: time.Now,
		Terminal: func() bool { return false }, Program: "commitstep"}
	return app.Run(context.Background(), []string{"store", "copy", "--from", c.Args[0], "--to", c.Args[1], "--reason", "moves to a server", "--by", "op", "--yes"})
}

// madeStores are a file with a watermark, and an empty store in PostgreSQL.
func madeStores(t *testing.T) (c *command, file, server string) {
	t.Helper()
	dir := t.TempDir()
	c = &command{t: t, env: map[string]string{"COMMITSTEP_BY": "alice", "HOME": dir}}
	file = "bolt:" + filepath.Join(dir, "commit.db")
	server = kit.Cluster(t).URL("postgres") + "&schema=" + kit.Name()
	c.exits(cli.ExitOK, "store", "init", "--store", file)
	c.exits(cli.ExitOK, "store", "migrate", "--store", server)
	c.set(file, "none", "100")
	return c, file, server
}

func (c *command) set(st, from, to string) {
	c.t.Helper()
	c.exits(cli.ExitOK, "watermark", "set", "--job", "j", "--source", "s", "--from", from, "--to", to, "--reason", "by hand", "--yes", "--store", st)
}

// A copy whose process is killed leaves a store that lets nobody ingest, until
// the same copy is made again.
func TestACopyThatIsKilled(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, file, server := madeStores(t)
	plan := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(plan, []byte(`{"apiVersion":"commitstep/v1","kind":"Plan","id":"one","job":"j","dataset":"d","stages":[{"steps":[
		{"kind":"watermark.set","params":{"source":"t","from":null,"to":5}}]}]}`), 0o644))
	c.exits(cli.ExitOK, "publish", "-f", plan, "--store", file)
	_, schema, _ := strings.Cut(server, "&schema=")
	conn, err := pgx.Connect(ctx, kit.Cluster(t).URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	// The copy gets as far as the first outcome.
	_, err = tx.Exec(ctx, "LOCK TABLE "+schema+".history IN ACCESS SHARE MODE; LOCK TABLE "+schema+".documents IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	p := testkit.Start(t, "copier", file, server+"&lock_timeout=10m&statement_timeout=10m")
	require.Eventually(t, func() bool {
		var waits bool
		require.NoError(t, tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = ($1 || '.documents')::regclass)`, schema).Scan(&waits))
		return waits
	}, time.Minute, 20*time.Millisecond, p.Output())
	p.Kill()
	p.Exit()
	require.NoError(t, tx.Rollback(ctx))

	c.exits(cli.ExitDecision, "recover", "--job", "j", "-o", "json", "--store", server)
	require.Contains(t, c.out.String(), `"blocked": "the store is an unfinished copy of`)
	require.Contains(t, c.out.String(), `"complete": false`)
	require.NotContains(t, c.out.String()+c.err.String(), "store adopt")
	require.Contains(t, c.err.String(), "store copy")
	c.exits(cli.ExitDecision, "publish", "-f", plan, "--store", server)
	c.exits(cli.ExitDecision, "watermark", "get", "--job", "j", "--source", "s", "--store", server)
	c.exits(cli.ExitStore, "recover", "--job", "j", "--store", file)
	require.Contains(t, c.err.String(), "repeat it first")

	c.exits(cli.ExitOK, "store", "copy", "--from", file, "--to", server+"&lease=45s", "--reason", "once more", "--yes")
	c.exits(cli.ExitOK, "store", "copy", "--from", file, "--to", server, "--reason", "once more", "--yes")
	require.Contains(t, c.out.String(), "before")
	require.Contains(t, c.exits(cli.ExitOK, "watermark", "get", "--job", "j", "--source", "s", "--store", server), "100")
	c.exits(cli.ExitOK, "recover", "--job", "j", "--store", server)
	require.Contains(t, c.exits(cli.ExitOK, "publish", "-f", plan, "-o", "json", "--store", server), `"already": true`)
}

// A refused copy leaves the first store as it is, and another one is made.
func TestACopyThatIsRefused(t *testing.T) {
	t.Parallel()
	c, file, server := madeStores(t)
	c.set(server, "none", "7")
	c.exits(cli.ExitError, "store", "copy", "--from", file, "--to", server, "--reason", "moves to a server", "--yes")
	require.Contains(t, c.err.String(), "name a new store")
	c.set(file, "100", "200")
	other := kit.Cluster(t).URL("postgres") + "&schema=" + kit.Name()
	c.exits(cli.ExitOK, "store", "init", "--store", other)
	c.exits(cli.ExitOK, "store", "copy", "--from", file, "--to", other, "--reason", "moves to a server", "--yes")
	require.Contains(t, c.exits(cli.ExitOK, "watermark", "get", "--job", "j", "--source", "s", "--store", other), "200")
}

// Taking a migration back says what it loses, and asks.
func TestTakingBackWhichPathsWereUsed(t *testing.T) {
	t.Parallel()
	c, _, server := madeStores(t)
	c.exits(cli.ExitUsage, "store", "migrate", "--down", "--to", "1", "--store", server)
	require.Contains(t, c.err.String(), "paths were used is forgotten")
	require.Contains(t, c.err.String(), "postgres://pg@127.0.0.1", "as it can be given again")
	require.Contains(t, c.exits(cli.ExitOK, "store", "migrate", "--down", "--to", "1", "--yes", "--store", server), "paths were used is forgotten")
	require.Contains(t, c.exits(cli.ExitOK, "store", "migrate", "--down", "--to", "1", "--yes", "--store", server), "nothing to do")
	c.exits(cli.ExitOK, "store", "migrate", "--store", server)
}

// Nothing is taken back below a driver, and who it is is said.
func TestTakingBackBelowADriver(t *testing.T) {
	t.Parallel()
	c, _, server := madeStores(t)
	st, err := pgstore.Open(t.Context(), server, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	in := commitstep.Instance{ID: uuid.New(), Name: "ingest", Host: "worker-7", PID: 4711}
	until, err := st.Join(t.Context(), in)
	require.NoError(t, err)
	down := []string{"store", "migrate", "--down", "--to", "2", "--yes", "--store", server}
	require.NotContains(t, c.exits(cli.ExitLocked, down...), "took back")
	said := c.err.String()
	require.Contains(t, said, "nothing was changed: ingest on worker-7 (pid 4711) holds a lease until "+until.UTC().Format(time.RFC3339)+"; stop")
	for _, not := range []string{"partial migration", "this sequence", "type:go"} {
		require.NotContains(t, said, not)
	}
	require.NoError(t, st.Leave(t.Context(), in.ID))
	require.Contains(t, c.exits(cli.ExitOK, down...), "took back 0003")
}
