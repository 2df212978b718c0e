package hadoopkit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

var shared struct {
	sync.Mutex
	tried   bool
	cluster *Cluster
	err     error
	dir     string // of a cluster that this process started
}

// Shared gives a cluster that other tests use at the same time: make a
// directory of your own in it, and never signal its processes.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.tried {
		shared.tried = true
		shared.cluster, shared.err = openShared()
	}
	return usable(t, shared.cluster, shared.err)
}

func usable(t testing.TB, c *Cluster, err error) *Cluster {
	t.Helper()
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openShared() (*Cluster, error) {
	if dir := os.Getenv(DirEnv); dir != "" {
		return Attach(dir)
	}
	if dir, err := DefaultDir(); err == nil {
		if c, err := Attach(dir); err == nil {
			return c, nil
		}
	}
	dir, err := os.MkdirTemp("", "commitstep-hadoop-")
	if err != nil {
		return nil, err
	}
	shared.dir = dir
	return Start(dir, Options{})
}

// Private starts a cluster for one test, which may do with it what it wants.
// It is stopped when the test ends; its logs are kept if the test failed.
func Private(t testing.TB, o Options) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "commitstep-hadoop-")
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

// cleanUp removes a cluster's directory; of one that failed it leaves the logs.
func cleanUp(dir string, failed bool, say func(string)) {
	if !failed {
		_ = os.RemoveAll(dir)
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != "logs" && !strings.HasPrefix(e.Name(), "conf") {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	say(fmt.Sprintf("the logs of Hadoop are kept in %s", filepath.Join(dir, "logs")))
}

// M is what a test main needs; *testing.M is one.
type M interface{ Run() int }

// Main wraps a test main: the cluster that [Shared] started in this process
// ends with it.
func Main(m M) M { return main{m} }

type main struct{ m M }

func (w main) Run() int {
	code := w.m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		shared.cluster.Stop()
	}
	if shared.dir != "" {
		cleanUp(shared.dir, code != 0 || shared.err != nil && !errors.Is(shared.err, ErrAbsent), func(s string) { fmt.Fprintln(os.Stderr, s) })
	}
	return code
}
