package hivekit

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit/jvm"
)

// DirEnv names the directory of a launched server that tests share.
const DirEnv = "COMMITSTEP_HIVE_DIR"

// DefaultDir is where `make hive` keeps its server.
func DefaultDir() (string, error) {
	dir, err := jvm.CacheDir()
	if err != nil {
		return "", fmt.Errorf("hivekit: %w", err)
	}
	return filepath.Join(dir, "hive-run"), nil
}

// SharedOptions are those of a server that tests share: room for a few dozen
// sessions, each of which has a Tez of its own, and what a killed test left
// open ends after a while.
func SharedOptions(c *hadoopkit.Cluster) Options {
	return Options{Hadoop: c, IdleSession: 15 * time.Minute, IdleOperation: 15 * time.Minute, Heap: "3g"}
}

const tempPrefix = "commitstep-hive-"

var (
	shared = jvm.Once[*Server]{What: "Hive", Prefix: tempPrefix, Absent: ErrAbsent}
	victim = jvm.Once[*Server]{What: "Hive", Prefix: tempPrefix, Absent: ErrAbsent}
)

// turn is held by the test that has the victim.
var turn sync.Mutex

// Shared gives a server that other tests use at the same time: make a database
// of your own in it, and never signal its process.
func Shared(t testing.TB) *Server {
	t.Helper()
	return shared.Get(t, func() (*Server, error) {
		if s, ok, err := jvm.Running(DirEnv, DefaultDir, Attach); ok {
			return s, err
		}
		return start(t, &shared)
	})
}

func usable(t testing.TB, s *Server, err error) *Server {
	t.Helper()
	return jvm.Usable(t, s, err, ErrAbsent)
}

func start(t testing.TB, o *jvm.Once[*Server]) (*Server, error) {
	if _, err := findTools(); err != nil {
		return nil, err
	}
	c := hadoopkit.Shared(t)
	return o.Start(func(dir string) (*Server, error) { return Start(dir, SharedOptions(c)) })
}

// end stops a server of this process.
func end(s *Server) {
	s.Stop()
	_ = s.RemoveData() // its Hadoop may be ended with this process, too
}

// Victim gives an ordinary server to one test after the other, which may do
// with its process what it wants: kill, freeze and restart it. The next test
// gets it running, with all that is stored in it: make a database of your own.
func Victim(t testing.TB) *Server {
	t.Helper()
	turn.Lock()
	t.Cleanup(turn.Unlock)
	s := victim.Get(t, func() (*Server, error) { return start(t, &victim) })
	t.Cleanup(func() {
		_ = s.Thaw() // fails when it has ended
	})
	if _, err := s.process(); err != nil {
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Private starts a server for one test. It is stopped when the test ends; its
// logs are kept if the test failed.
func Private(t testing.TB, o Options) *Server {
	t.Helper()
	if _, err := findTools(); err != nil {
		return usable(t, nil, err)
	}
	if o.Hadoop == nil {
		o.Hadoop = hadoopkit.Shared(t)
	}
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(dir, o)
	t.Cleanup(func() {
		if s != nil {
			s.Stop()
			if err := s.RemoveData(); err != nil {
				t.Log(err)
			}
		}
		jvm.CleanUp("Hive", dir, t.Failed(), func(s string) { t.Log(s) })
	})
	return usable(t, s, err)
}

// Main wraps a test main: the servers that this process started end with it,
// those of hadoopkit too.
func Main(m hadoopkit.M) hadoopkit.M { return hadoopkit.Main(main{m}) }

type main struct{ m hadoopkit.M }

func (w main) Run() int {
	code := w.m.Run()
	victim.End(code != 0, end)
	shared.End(code != 0, end)
	return code
}
