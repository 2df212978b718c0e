package pgkit_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"starter": func(c *testkit.Child) int {
		cl, err := pgkit.Start(context.Background())
		if errors.Is(err, pgkit.ErrAbsent) {
			c.Say("absent %v", err)
			return 0
		}
		if err != nil {
			return c.Fail("%v", err)
		}
		c.Say("ready %s", cl.URL("postgres"))
		c.Hear()
		return 0
	}})
	os.Exit(m.Run())
}

func ask(url, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var v string
	err = conn.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

// A server does not outlive the process that started it, however that ends.
func TestTheServerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	p := testkit.Start(t, "starter")
	line := p.Line()
	if why, ok := strings.CutPrefix(line, "absent "); ok {
		t.Skip(why)
	}
	url, ok := strings.CutPrefix(line, "ready ")
	require.True(t, ok, line)
	v, err := ask(url, "SHOW fsync")
	require.NoError(t, err)
	require.Equal(t, "on", v)
	p.Kill()
	require.Eventually(t, func() bool { _, err := ask(url, "SELECT 'x'"); return err != nil }, 30*time.Second, 20*time.Millisecond)
}

// An immediate stop is a crash: what was committed is there after the restart,
// on the same port.
func TestImmediateStopAndRestart(t *testing.T) {
	t.Parallel()
	c, err := pgkit.Start(t.Context())
	if errors.Is(err, pgkit.ErrAbsent) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Exec(t.Context(), "CREATE TABLE x (v text); INSERT INTO x VALUES ('kept')"))
	port := c.Port()
	c.StopImmediate()
	_, err = ask(c.URL("postgres"), "SELECT v FROM x")
	require.Error(t, err)
	require.NoError(t, c.Restart(t.Context()))
	require.Equal(t, port, c.Port())
	v, err := ask(c.URL("postgres"), "SELECT v FROM x")
	require.NoError(t, err)
	require.Equal(t, "kept", v)

	standby, err := c.Standby(t.Context(), "second")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Close()) })
	require.NoError(t, c.Synchronous(t.Context(), "second"))
	require.NoError(t, c.Exec(t.Context(), "UPDATE x SET v = 'and copied'"))
	require.Error(t, standby.Exec(t.Context(), "UPDATE x SET v = 'here'"), "it only reads")
	require.Eventually(t, func() bool {
		v, err := ask(standby.URL("postgres"), "SELECT v FROM x")
		return err == nil && v == "and copied"
	}, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, c.Synchronous(t.Context(), ""))
	require.NoError(t, standby.Promote(t.Context()))
	require.NoError(t, standby.Exec(t.Context(), "UPDATE x SET v = 'here'"))
	require.NoError(t, c.Exec(t.Context(), "UPDATE x SET v = 'kept'"))

	b, err := c.StartBouncer(t.Context(), 2)
	if errors.Is(err, pgkit.ErrNoBouncer) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	v, err = ask(b.URL("postgres"), "SELECT v FROM x")
	require.NoError(t, err)
	require.Equal(t, "kept", v)
}
