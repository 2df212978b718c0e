package pgkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// Kit starts one cluster for all tests of a package, when the first of them
// asks. The zero value is ready; methods are safe for concurrent use.
type Kit struct {
	mu      sync.Mutex
	cluster *Cluster
	bouncer *Bouncer
	err     error
	berr    error
	names   atomic.Int64
}

// Run runs the tests and ends the cluster; its result is for os.Exit.
func (k *Kit) Run(m *testing.M) int {
	code := m.Run()
	if err := k.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Close ends the cluster.
func (k *Kit) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	if k.bouncer != nil {
		err = k.bouncer.Close()
		k.bouncer = nil
	}
	if k.cluster != nil {
		err = errors.Join(err, k.cluster.Close())
		k.cluster = nil
	}
	return err
}

// Cluster is the package's cluster. The test is skipped where there is no
// server to start.
func (k *Kit) Cluster(t testing.TB) *Cluster {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cluster == nil && k.err == nil {
		k.cluster, k.err = Start(context.Background(), "max_connections=600")
	}
	check(t, k.err)
	return k.cluster
}

// Bouncer is the package's PgBouncer, in front of its cluster.
func (k *Kit) Bouncer(t testing.TB) *Bouncer {
	t.Helper()
	c := k.Cluster(t)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bouncer == nil && k.berr == nil {
		k.bouncer, k.berr = c.StartBouncer(context.Background(), 40)
	}
	check(t, k.berr)
	return k.bouncer
}

// Name is a new name, for a schema or database of a single test.
func (k *Kit) Name() string { return fmt.Sprintf("t%d_%d", os.Getpid(), k.names.Add(1)) }

func check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrAbsent) || errors.Is(err, ErrNoBouncer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
