package jvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Once is a server that all tests of a process use. Fill in its fields; its
// methods are safe for concurrent use.
type Once[S any] struct {
	What   string // for people
	Prefix string // of the directory of a server that this process starts
	// Absent is the error of a machine without the server's programs, where
	// tests are skipped.
	Absent error

	mu     sync.Mutex
	tried  bool
	server S
	err    error
	dir    string // of a server that this process started
}

// Get gives the server, which open finds or starts at the first call. The test is
// skipped where there is none, and fails with open.
func (o *Once[S]) Get(t testing.TB, open func() (S, error)) S {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.tried {
		o.server, o.err = open() // does not return where it skips the test
		o.tried = true
	}
	return Usable(t, o.server, o.err, o.Absent)
}

// Start starts a server in a new directory, which End removes. It is for open.
func (o *Once[S]) Start(start func(dir string) (S, error)) (S, error) {
	dir, err := os.MkdirTemp("", o.Prefix)
	if err != nil {
		var none S
		return none, err
	}
	o.dir = dir
	return start(dir)
}

// End stops the server by stop, if this process started it; the logs stay when
// tests have failed, or the start had.
func (o *Once[S]) End(failed bool, stop func(S)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dir == "" {
		return
	}
	if o.err == nil {
		stop(o.server)
	}
	CleanUp(o.What, o.dir, failed || o.err != nil && !errors.Is(o.err, o.Absent), func(s string) { fmt.Fprintln(os.Stderr, s) })
}

// Running finds the server that the environment names, or else the one that
// stays; ok is false where there is neither, and one has to be started.
func Running[S any](dirEnv string, defaultDir func() (string, error), attach func(dir string) (S, error)) (server S, ok bool, err error) {
	if dir := os.Getenv(dirEnv); dir != "" {
		server, err = attach(dir)
		return server, true, err
	}
	if dir, err := defaultDir(); err == nil {
		if server, err := attach(dir); err == nil {
			return server, true, nil
		}
	}
	return server, false, nil
}

// Usable gives s, unless it could not be had: then the test is skipped where err
// is absent, and fails otherwise.
func Usable[S any](t testing.TB, s S, err, absent error) S {
	t.Helper()
	if errors.Is(err, absent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// CleanUp removes a server's directory; of one that failed it leaves the logs and
// the configuration.
func CleanUp(what, dir string, failed bool, say func(string)) {
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
	say(fmt.Sprintf("the logs of %s are kept in %s", what, filepath.Join(dir, "logs")))
}
