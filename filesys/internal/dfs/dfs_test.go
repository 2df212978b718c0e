package dfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOneQuestionForAll: many that ask at once wait for one question, and for
// no longer than their own contexts.
func TestOneQuestionForAll(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	answer := make(chan error)
	n := &Namespace{Ask: func(ctx context.Context) (string, error) {
		asked.Add(1)
		select {
		case err := <-answer:
			return "BP-1", err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Get(ctx); !errors.Is(err, context.Canceled) || asked.Load() != 0 {
		t.Fatal(err)
	}
	down := errors.New("down")
	for _, want := range []error{down, nil} {
		before := asked.Load()
		results := make(chan error)
		var started sync.WaitGroup
		for range 20 {
			started.Add(1)
			go func() {
				started.Done()
				ns, err := n.Get(t.Context())
				if err == nil && ns != "pool:BP-1" {
					err = fmt.Errorf("it is %q", ns)
				}
				results <- err
			}()
		}
		started.Wait()
		answer <- want
		got, late := 0, 0
		for got < 20 {
			select {
			case err := <-results:
				if !errors.Is(err, want) {
					t.Fatal(err)
				}
				got++
			case answer <- want: // for one that came after the answer
				late++
			}
		}
		if n := asked.Load() - before; int(n) != 1+late {
			t.Errorf("%d questions for 20, %d of them later", n, late)
		}
	}
	// Known from now on; in doubt it is asked again, and must be the same.
	if _, err := n.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Doubt()
	n.Ask = func(context.Context) (string, error) { return "BP-2", nil }
	if _, err := n.Get(t.Context()); !errors.Is(err, ErrOtherNamespace) {
		t.Fatal(err)
	}
	n.Close()
	if ns, err := (&Namespace{Fixed: "x"}).Get(t.Context()); err != nil || ns != "named:x" {
		t.Fatal(ns, err)
	}
}

func TestCloseEndsAQuestion(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	n := &Namespace{Ask: func(ctx context.Context) (string, error) { close(begun); <-ctx.Done(); return "", ctx.Err() }}
	done := make(chan error)
	go func() { _, err := n.Get(t.Context()); done <- err }()
	<-begun
	n.Close()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestFailover: what is tried again, and where.
func TestFailover(t *testing.T) {
	t.Parallel()
	standby := &RemoteError{Exception: "org.apache.hadoop.ipc.StandbyException"}
	safe := &RemoteError{Exception: "org.apache.hadoop.hdfs.server.namenode.SafeModeException"}
	no := &RemoteError{Exception: "java.io.FileNotFoundException"}
	gone := Lost(errors.New("EOF"))
	for name, c := range map[string]struct {
		read  bool
		says  map[string][]error // by address; the last one stays
		want  error              // nil is success
		calls string
	}{
		"the active one":           {false, map[string][]error{"a": {nil}}, nil, "a"},
		"a standby first":          {false, map[string][]error{"a": {standby}, "b": {nil}}, nil, "ab"},
		"refused":                  {false, map[string][]error{"a": {no}}, no, "a"},
		"lost is not repeated":     {false, map[string][]error{"a": {gone}}, gone, "a"},
		"a lost read is":           {true, map[string][]error{"a": {gone}, "b": {nil}}, nil, "ab"},
		"not reached":              {false, map[string][]error{"a": {NotExecuted(errors.New("refused")), nil}, "b": {standby}}, nil, "aba"},
		"safe mode waits for it":   {false, map[string][]error{"a": {safe, safe, nil}}, nil, "aaa"},
		"lost after another round": {false, map[string][]error{"a": {standby, gone}, "b": {standby}}, gone, "aba"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &Failover{Resource: "hdfs://x", Addresses: []string{"a", "b"}, Wait: time.Minute}
			calls := ""
			err := f.Do(t.Context(), c.read, func(_ context.Context, a string) error {
				calls += a
				l := c.says[a]
				if len(l) > 1 {
					c.says[a] = l[1:]
				}
				return l[0]
			})
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || calls != c.calls {
				t.Fatalf("%v after %q, want %v after %q", err, calls, c.want, c.calls)
			}
		})
	}
	// One that is not vouched for is asked nothing, and asked about again after a
	// call came to nothing.
	calls := ""
	v := &Failover{Resource: "hdfs://x", Addresses: []string{"a", "b"}, Wait: time.Millisecond, Vouch: func(_ context.Context, a string) error {
		calls += "?" + a
		if a == "b" {
			return ErrOtherNamespace
		}
		return nil
	}}
	answers := []error{nil, nil, NotExecuted(errors.New("refused"))}
	call := func(_ context.Context, a string) (err error) {
		calls += a
		err, answers = answers[0], append(answers[1:], answers[len(answers)-1])
		return err
	}
	for range 2 {
		if err := v.Do(t.Context(), false, call); err != nil {
			t.Fatal(err)
		}
	}
	verr := v.Do(t.Context(), false, call)
	if !errors.Is(verr, ErrOtherNamespace) || !wasNotExecuted(verr) || strings.ReplaceAll(strings.TrimPrefix(calls, "?aaaa?b"), "?aa?b", "") != "" {
		t.Fatalf("%q: %v", calls, verr)
	}
	// The time to wait is over, or the caller's.
	f := &Failover{Resource: "hdfs://x", Addresses: []string{"a"}, Wait: time.Millisecond}
	err := f.Do(t.Context(), true, func(context.Context, string) error { return standby })
	var u *UnavailableError
	if !errors.As(err, &u) || !wasNotExecuted(err) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = (&Failover{Addresses: []string{"a"}, Wait: time.Hour}).Do(ctx, true, func(context.Context, string) error { cancel(); return standby })
	if !errors.Is(err, context.Canceled) || !wasNotExecuted(err) {
		t.Fatal(err)
	}
}
