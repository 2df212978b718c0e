package postgres_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/stretchr/testify/require"
)

// slowStep is in the middle of its effect until it is told to end.
type slowStep struct {
	begun, end chan struct{}
	done       bool
}

func (s *slowStep) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	if s.done {
		return commitstep.IsDone("it has ended"), nil
	}
	return commitstep.IsNotDone("it has not begun"), nil
}

func (s *slowStep) Execute(context.Context, *commitstep.Attempt) error {
	close(s.begun)
	<-s.end
	s.done = true
	return nil
}

// Whoever meets a dataset that a driver holds hears who that is and until when,
// from every command.
func TestCommandsTellUntilWhenADatasetIsHeld(t *testing.T) {
	t.Parallel()
	cluster := kit.Cluster(t)
	address := cluster.URL("postgres") + "&schema=" + kit.Name()
	dir := t.TempDir()
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": address, "HOME": dir}}
	c.exits(cli.ExitOK, "store", "init")

	st, err := pgstore.Open(t.Context(), address, nil)
	require.NoError(t, err)
	defer st.Close()
	step := &slowStep{begun: make(chan struct{}), end: make(chan struct{})}
	e, err := driver.New(driver.Config{Store: st, Owner: "loader", Kinds: commitstep.NewRegistry(
		commitstep.Kind{Name: "test.slow", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return step, nil }})})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := e.Publish(context.Background(), commitstep.NewPlan("j", "d").WithID("one").Step(commitstep.NewSpec("test.slow", nil)))
		ended <- err
	}()
	<-step.begun

	until := regexp.MustCompile(`loader on \S+( \(pid \d+\))? until 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	for _, args := range [][]string{{"recover", "--job", "j"}, {"recover", "--job", "j", "--dataset", "d"}} {
		require.Regexp(t, until, c.exits(cli.ExitLocked, args...))
		require.Contains(t, c.exits(cli.ExitLocked, append(args, "-o", "json")...), `"heldUntil": "20`)
	}
	require.Regexp(t, until, c.exits(cli.ExitOK, "pending", "list"))
	plan := filepath.Join(dir, "plan.json")
	require.NoError(t, os.WriteFile(plan, []byte(`{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","stages":[{"steps":[{"kind":"watermark.set","params":{"source":"s","from":null,"to":5}}]}]}`), 0o600))
	c.exits(cli.ExitLocked, "publish", "-f", plan)
	require.Regexp(t, until, c.err.String())
	c.exits(cli.ExitOK, "pending", "show", "d", "--job", "j")
	require.Regexp(t, until, c.out.String())

	// The same plan in another process: it is the one that runs.
	st2, err := pgstore.Open(t.Context(), address, nil)
	require.NoError(t, err)
	defer st2.Close()
	e2, err := driver.New(driver.Config{Store: st2, Kinds: commitstep.NewRegistry(
		commitstep.Kind{Name: "test.slow", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return step, nil }})})
	require.NoError(t, err)
	res, err := e2.Publish(t.Context(), commitstep.NewPlan("j", "d").WithID("one").Step(commitstep.NewSpec("test.slow", nil)))
	require.Equal(t, driver.StatusBusy, res.Status)
	require.False(t, res.HeldUntil.IsZero())
	require.Regexp(t, until, err.Error())
	require.NoError(t, e2.Close(t.Context()))

	close(step.end)
	require.NoError(t, <-ended)
	require.NoError(t, e.Close(t.Context()))
	c.exits(cli.ExitOK, "recover", "--job", "j")
}
