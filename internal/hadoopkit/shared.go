package hadoopkit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/internal/testkit/jvm"
)

// DirEnv names the directory of a running cluster that tests share.
const DirEnv = "COMMITSTEP_HADOOP_DIR"

// DefaultDir is where `make hadoop` keeps its cluster.
func DefaultDir() (string, error) {
	dir, err := jvm.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "hadoop-run"), nil
}

var shared = jvm.Once[*Cluster]{What: "Hadoop", Prefix: tempPrefix, Absent: ErrAbsent}

const tempPrefix = "commitstep-hadoop-"

// Shared gives a cluster that other tests use at the same time: make a
// directory of your own in it, and never signal its processes.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	return shared.Get(t, func() (*Cluster, error) {
		if c, ok, err := jvm.Running(DirEnv, DefaultDir, Attach); ok {
			return c, err
		}
		return shared.Start(func(dir string) (*Cluster, error) { return Start(dir, Options{}) })
	})
}

func usable(t testing.TB, c *Cluster, err error) *Cluster {
	t.Helper()
	return jvm.Usable(t, c, err, ErrAbsent)
}

// Private starts a cluster for one test, which may do with it what it wants.
// It is stopped when the test ends; its logs are kept if the test failed.
func Private(t testing.TB, o Options) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(dir, o)
	t.Cleanup(func() {
		if c != nil {
			c.Stop()
		}
		cleanUp(dir, t.Failed(), func(s string) { t.Log(s) })
	})
	return usable(t, c, err)
}

func cleanUp(dir string, failed bool, say func(string)) { jvm.CleanUp("Hadoop", dir, failed, say) }

// M is what a test main needs; *testing.M is one.
type M interface{ Run() int }

// Main wraps a test main: the cluster that [Shared] started in this process
// ends with it.
func Main(m M) M { return main{m} }

type main struct{ m M }

func (w main) Run() int {
	code := w.m.Run()
	shared.End(code != 0, (*Cluster).Stop)
	return code
}
