package driver_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// patientStep waits for its effect, which runs elsewhere, as long as its caller
// lets it.
type patientStep struct{ waits chan<- string }

func (s patientStep) Reattach(ctx context.Context, a *commitstep.Attempt) error {
	if passed, err := a.NoReturn(nil); err != nil || !passed {
		return err
	}
	return s.wait(ctx, a, "reattach")
}

func (patientStep) Irreversible() {}

func (s patientStep) Verify(_ context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	if passed, err := a.NoReturn(nil); err != nil || !passed {
		return commitstep.IsNotDone("never sent"), err
	}
	return commitstep.Verdict{}, fmt.Errorf("it runs: %w", commitstep.ErrInProgress)
}

func (s patientStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := a.PointOfNoReturn(ctx, "sent"); err != nil {
		return err
	}
	return s.wait(ctx, a, "execute")
}

func (s patientStep) wait(ctx context.Context, a *commitstep.Attempt, what string) error {
	select {
	case s.waits <- what:
	default:
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("the call was cut off: %w", ctx.Err())
	case <-a.Patience:
		return nil
	}
}

// A step that waits for what runs elsewhere is told when the time for it is over,
// by the budget or by its caller; its calls are not cut off.
func TestWaitingStepsAreToldWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	waits := make(chan string, 1)
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	defer st.Close()
	kind := commitstep.Kind{Name: "test.patient", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return patientStep{waits}, nil }}
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(kind), Grace: time.Hour})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(context.Background())) }()

	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-waits; cancel() }()
	res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.patient", nil)))
	require.Error(t, err)
	require.Equal(t, driver.StatusStopped, res.Status, res.Message)

	rep, err := e.Recover(t.Context(), "j", driver.Budget(20*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, driver.StatusWaiting, rep.Results[0].Status)
	require.Contains(t, rep.Results[0].Message, "is still in progress")
	require.Equal(t, "reattach", <-waits)
}
