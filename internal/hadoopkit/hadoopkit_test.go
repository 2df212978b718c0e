package hadoopkit_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/commitstep/engine/internal/hadoopkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hadoopkit.Main(m)) }

// TestItIsARealHadoop looks from outside: the name node answers with its
// version, and another process attaches to it.
func TestItIsARealHadoop(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	resp, err := http.Get("http://" + c.HTTP() + "/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil || !strings.Contains(string(b), `"SoftwareVersion" : "`+hadoopkit.Version) {
		t.Fatalf("%v %s", err, b)
	}
	again, err := hadoopkit.Attach(c.Dir)
	if err != nil || again.RPC() != c.RPC() {
		t.Fatalf("attach: %v, %v", again, err)
	}
}

const orphanEnv = "COMMITSTEP_TEST_ORPHAN"

// TestProcessesEndWithTheTest kills a test binary that has a cluster.
func TestProcessesEndWithTheTest(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(orphanEnv); dir != "" {
		c, err := hadoopkit.Start(dir, hadoopkit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 { // read by the parent, which kills this process then
			os.Stdout.WriteString("pid " + c.RPC() + "\n")
		}
		select {}
	}
	hadoopkit.Shared(t) // skips where there is none
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestProcessesEndWithTheTest$")
	cmd.Env = append(os.Environ(), orphanEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := out.Read(b); err != nil {
		t.Fatalf("the child started no cluster: %v", err)
	}
	orphan, err := hadoopkit.Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed
	for _, pid := range orphan.Pids {
		hadoopkit.AwaitEnd(t, pid)
	}
}
