package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// frozen is a store file of format 1, kept for ever: every later program must
// read it and finish what it promises. It was made by
//
//	go test -c -o freeze ./integration
//	sleep 10 | COMMITSTEP_TEST_ROLE=freeze ./freeze integration/testdata/store-format-1.db
//
// and is never made again; a new format gets a file of its own.
const frozen = "testdata/store-format-1.db"

// freezeChild makes such a file at its last argument.
func freezeChild(c *testkit.Child) int {
	root, err := os.MkdirTemp("", "commitstep-freeze-")
	if err != nil {
		return c.Fail("%v", err)
	}
	defer os.RemoveAll(root)
	if err := freeze(root, c.Args[len(c.Args)-1]); err != nil {
		return c.Fail("%v", err)
	}
	return 0
}

func freeze(root, name string) error {
	if err := os.Mkdir(filepath.Join(root, "data"), 0o755); err != nil {
		return err
	}
	st, err := initAt(filepath.Join(root, "commit.db"))
	if err != nil {
		return err
	}
	if err := st.Close(); err != nil {
		return err
	}
	stuck := kindOf("test.stuck", &scripted{
		verify: func(*commitstep.Attempt) (commitstep.Verdict, error) { return commitstep.IsNotDone("stuck"), nil },
		execute: func(context.Context, *commitstep.Attempt) error {
			return commitstep.Permanent(errors.New("it is stuck"))
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s := settings{kinds: []commitstep.Kind{noopKind(), stuck}}
	s.conf.KillPoint = func(p string) {
		if p == "record.after#599" {
			stop()
		}
	}
	e, err := openEngine(root, s)
	if err != nil {
		return err
	}
	mark := func(source string, n int64) commitstep.StepSpec {
		return watermark.Set(source, commitstep.None(), commitstep.Int(n))
	}
	if _, err := e.Publish(ctx, commitstep.NewPlan("frozen", "done/é").WithID("load 1").Lock("table").Step(specOf("test.noop")).Then(mark("done:0", 42))); err != nil {
		return err
	}
	res, err := e.Publish(ctx, commitstep.NewPlan("frozen", "parked").Step(specOf("test.stuck")).Then(mark("parked:0", 1)))
	if res.Status != driver.StatusParked {
		return fmt.Errorf("not parked: %w", err)
	}
	res, err = e.Publish(ctx, commitstep.NewPlan("frozen", "given up").Step(specOf("test.stuck")))
	if res.Status != driver.StatusParked {
		return fmt.Errorf("not parked: %w", err)
	}
	live, err := e.store.Get(ctx, res.Key)
	if err != nil {
		return err
	}
	if _, err := e.Resolve(ctx, driver.Resolution{Key: live.Key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: person("frozen for ever")}); err != nil {
		return err
	}
	// Half-way through a sequence of several pages.
	long := commitstep.NewPlan("frozen", "pending")
	for i := range 1200 {
		if i == 600 {
			long.Then()
		}
		long.Step(specOf("test.noop"))
	}
	long.Then(mark("pending:0", 7))
	if res, err = e.Publish(ctx, long); res.Status != driver.StatusStopped {
		return fmt.Errorf("not stopped: %w", err)
	}
	if err := e.close(); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(root, "commit.db"))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// A log that an older program wrote is read, and what it promised is finished.
func TestCaseC25OldFormatIsRead(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "data"), 0o755))
	b, err := os.ReadFile(frozen)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "commit.db"), b, 0o600))
	stuck := kindOf("test.stuck", &scripted{
		verify: func(*commitstep.Attempt) (commitstep.Verdict, error) {
			return commitstep.IsDone("no longer stuck"), nil
		},
		execute: func(context.Context, *commitstep.Attempt) error { return errLost },
	})
	e, err := openEngine(root, settings{kinds: []commitstep.Kind{noopKind(), stuck}})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.close()) }()
	ctx := t.Context()
	for problem, err := range e.store.Check(ctx) {
		require.NoError(t, err)
		require.Fail(t, problem)
	}
	ended := map[string]commitstep.State{}
	for h, err := range e.store.ListHistory(ctx, historyOf("frozen")) {
		require.NoError(t, err)
		ended[h.Dataset] = h.State
	}
	require.Equal(t, map[string]commitstep.State{"done/é": commitstep.Completed, "given up": commitstep.Abandoned}, ended)
	v, err := e.Watermark(ctx, "frozen", "done:0")
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(42), v)
	// The same plan id is known.
	res, err := e.Publish(ctx, commitstep.NewPlan("frozen", "done/é").WithID("load 1").Lock("table").Step(specOf("test.noop")).
		Then(watermark.Set("done:0", commitstep.None(), commitstep.Int(42))))
	require.NoError(t, err)
	require.True(t, res.Already)
	n := 0
	for a, err := range e.store.ListAudit(ctx) {
		require.NoError(t, err)
		require.Equal(t, "frozen for ever", a.Reason)
		n++
	}
	require.Equal(t, 1, n)
	live, err := e.store.Get(ctx, commitstep.Key{Job: "frozen", Dataset: "parked"})
	require.NoError(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, live.Reason)
	_, err = e.Resolve(ctx, driver.Resolution{Key: live.Key, Decision: store.DecideRetry, Step: -1, Version: live.Version, Person: person("works again")})
	require.NoError(t, err)
	rep, err := e.Recover(ctx, "frozen")
	require.NoError(t, err)
	require.Equal(t, 2, rep.Counts[driver.StatusCompleted], "%+v", rep)
	for _, r := range rep.Results {
		if r.Key.Dataset == "pending" {
			require.Equal(t, 600, r.Recorded)
			require.Equal(t, 601, r.Executed)
		}
	}
	v, err = e.Watermark(ctx, "frozen", "pending:0")
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(7), v)
}
