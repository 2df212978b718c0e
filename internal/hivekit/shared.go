package hivekit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// once is a server that all tests of a process use.
type once struct {
	sync.Mutex
	tried  bool
	server *Server
	err    error
	dir    string // of a server that this process started
}

// get opens it at the first call.
func (o *once) get(t testing.TB, open func(t testing.TB, o *once) (*Server, error)) *Server {
	t.Helper()
	o.Lock()
	defer o.Unlock()
	if !o.tried {
		o.tried = true
		o.server, o.err = open(t, o)
	}
	return usable(t, o.server, o.err)
}

func (o *once) end(failed bool) {
	o.Lock()
	defer o.Unlock()
	if o.dir == "" {
		return
	}
	if o.server != nil {
		o.server.Stop()
		_ = o.server.RemoveData() // its Hadoop may be ended with this process, too
	}
	cleanUp(o.dir, failed || o.err != nil && !errors.Is(o.err, ErrAbsent), func(s string) { fmt.Fprintln(os.Stderr, s) })
}

var shared, victim once

// turn is held by the test that has the victim.
var turn sync.Mutex

// Shared gives a server that other tests use at the same time: make a database
// of your own in it, and never signal its process.
func Shared(t testing.TB) *Server {
	t.Helper()
	return shared.get(t, openShared)
}

func usable(t testing.TB, s *Server, err error) *Server {
	t.Helper()
	if errors.Is(err, ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func openShared(t testing.TB, o *once) (*Server, error) {
	if dir := os.Getenv(DirEnv); dir != "" {
		return Attach(dir)
	}
	if dir, err := DefaultDir(); err == nil {
		if s, err := Attach(dir); err == nil {
			return s, nil
		}
	}
	return o.start(t)
}

func (o *once) start(t testing.TB) (*Server, error) {
	if _, err := findTools(); err != nil {
		return nil, err
	}
	c := hadoopkit.Shared(t)
	dir, err := os.MkdirTemp("", "commitstep-hive-")
	if err != nil {
		return nil, err
	}
	o.dir = dir
	return Start(dir, SharedOptions(c))
}

// Victim gives an ordinary server to one test after the other, which may do
// with its process what it wants: kill, freeze and restart it. The next test
// gets it running, with all that is stored in it: make a database of your own.
func Victim(t testing.TB) *Server {
	t.Helper()
	turn.Lock()
	t.Cleanup(turn.Unlock)
	s := victim.get(t, func(t testing.TB, o *once) (*Server, error) { return o.start(t) })
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
	dir, err := os.MkdirTemp("", "commitstep-hive-")
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
		cleanUp(dir, t.Failed(), func(s string) { t.Log(s) })
	})
	return usable(t, s, err)
}

// cleanUp removes a server's directory; of one that failed it leaves the logs.
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
	say(fmt.Sprintf("the logs of Hive are kept in %s", filepath.Join(dir, "logs")))
}

// Main wraps a test main: the servers that this process started end with it,
// those of hadoopkit too.
func Main(m hadoopkit.M) hadoopkit.M { return hadoopkit.Main(main{m}) }

type main struct{ m hadoopkit.M }

func (w main) Run() int {
	code := w.m.Run()
	victim.end(code != 0)
	shared.end(code != 0)
	return code
}
