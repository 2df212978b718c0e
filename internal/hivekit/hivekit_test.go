package hivekit_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hivesql.Main(m)) }

// page of a web server, without a connection that stays.
func page(t testing.TB, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", b)
	return string(b)
}

// TestItIsARealHive looks from outside: the server names its version, and
// another process attaches to it.
func TestItIsARealHive(t *testing.T) {
	t.Parallel()
	s := hivekit.Shared(t)
	require.Contains(t, page(t, s.WebUI()), hivekit.Version)
	again, err := hivekit.Attach(s.Dir)
	require.NoError(t, err)
	require.Equal(t, s.Address(), again.Address())
	require.Equal(t, s.Hadoop.RPC(), again.Hadoop.RPC())
}

// TestItKeepsItsDataWhenItIsKilled looks at both halves: rows on HDFS, tables in
// the metastore; what was in memory is gone, and the address is the old one.
func TestItKeepsItsDataWhenItIsKilled(t *testing.T) {
	t.Parallel()
	s := hivekit.Victim(t)
	db := hivesql.Open(t, s)
	name := db.Database(t)
	db.Exec(t, "CREATE TABLE "+name+".kept (id INT, name STRING) STORED AS ORC", "INSERT INTO "+name+".kept VALUES (1, 'a'), (2, NULL)")
	require.NotEmpty(t, db.Submitted(t, "INSERT INTO "+name))
	client, err := hs2.New(hivesql.Config(t, s))
	require.NoError(t, err)
	defer client.Close()
	session, err := client.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	address, before := s.Address(), s.Pid

	require.NoError(t, s.Kill())
	hivekit.AwaitEnd(t, before)
	require.Error(t, s.Kill(), "killed twice")
	_, err = client.OpenSession(t.Context(), nil)
	var te *hs2.TransportError
	require.ErrorAs(t, err, &te)
	require.NoError(t, s.Restart())
	require.Equal(t, address, s.Address())
	require.NotEqual(t, before, s.Pid)
	require.Equal(t, []string{"1|a", "2|NULL"}, db.Rows(t, "SELECT id, name FROM "+name+".kept ORDER BY id"))
	alive, err := session.Alive(t.Context())
	require.NoError(t, err)
	require.False(t, alive)
	require.Empty(t, db.Submitted(t, "INSERT INTO "+name))
}

// TestSessionsAreClosedSideBySide: a session that is closed takes nothing away from
// one that is open, or is being opened.
func TestSessionsAreClosedSideBySide(t *testing.T) {
	t.Parallel()
	s := hivekit.Shared(t)
	client, err := hs2.New(hivesql.Config(t, s))
	require.NoError(t, err)
	defer client.Close()
	closed, err := client.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	open, err := client.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, closed.Close(t.Context()))
	resources := func(of *hs2.Session) string {
		return filepath.Join(s.Dir, "tmp", of.Handle().GUID()+"_resources")
	}
	require.DirExists(t, resources(open))
	require.NoDirExists(t, resources(closed))
	require.NoError(t, open.Close(t.Context()))
}

// TestItGoesOnAfterAFreeze: the frozen server answers nothing, and what it was
// asked meanwhile is answered afterwards.
func TestItGoesOnAfterAFreeze(t *testing.T) {
	t.Parallel()
	s := hivekit.Victim(t)
	client, err := hs2.New(hivesql.Config(t, s))
	require.NoError(t, err)
	defer client.Close()
	session, err := client.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.Freeze())
	answered := make(chan error, 1)
	go func() { answered <- session.Close(t.Context()) }()
	require.False(t, s.Ready(), "frozen, and answers")
	require.Empty(t, answered)
	require.NoError(t, s.Thaw())
	require.NoError(t, <-answered)
}

// TestHTTPAndTLS: a server that is set up otherwise.
func TestHTTPAndTLS(t *testing.T) {
	t.Parallel()
	s := hivekit.Private(t, hivekit.Options{HTTP: true, TLS: true})
	require.Equal(t, "http", hivesql.Open(t, s).Setting(t, "hive.server2.transport.mode"))
	// Nobody else's certificate will do.
	c := hivesql.Config(t, s)
	c.TLS.RootCAs = x509.NewCertPool()
	client, err := hs2.New(c)
	require.NoError(t, err)
	defer client.Close()
	_, err = client.OpenSession(t.Context(), nil)
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown)
}

const orphanEnv = "COMMITSTEP_TEST_ORPHAN"

// TestProcessesEndWithTheTest kills a test binary that has a server.
func TestProcessesEndWithTheTest(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(orphanEnv); dir != "" {
		// Launched is enough: how it ends has nothing to do with how far it is.
		_, err := hivekit.Launch(dir, hivekit.Options{Hadoop: hadoopkit.Shared(t)})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("launched") // read by the parent, which kills this process then
		select {}
	}
	s := hivekit.Shared(t) // skips where there is none
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestProcessesEndWithTheTest$")
	cmd.Env = append(os.Environ(), orphanEnv+"="+dir, hadoopkit.DirEnv+"="+s.Hadoop.Dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	b := make([]byte, len("launched"))
	_, err = io.ReadFull(out, b)
	require.NoError(t, err)
	require.Equal(t, "launched", string(b), "%s", &said)
	pid := hivekit.PidIn(t, dir)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	hivekit.AwaitEnd(t, pid)
}
