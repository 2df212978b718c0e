package driver_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// gatherers are steps of which only the last is unknown. Each gathers when it is
// told of the parking, as gather says.
type gatherers struct {
	mu     sync.Mutex
	told   []int
	gather func(ctx context.Context, a *commitstep.Attempt) error
}

type gatherStep struct {
	g    *gatherers
	Last bool `json:"last"`
}

func (s *gatherStep) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	if s.Last {
		return commitstep.IsUnknown("nobody knows"), nil
	}
	return commitstep.IsDone("it is there"), nil
}

func (*gatherStep) Execute(context.Context, *commitstep.Attempt) error {
	return errors.New("not executed")
}

func (s *gatherStep) OnPark(ctx context.Context, a *commitstep.Attempt, _ commitstep.ParkReason, _ string) error {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	s.g.told = append(s.g.told, a.Index)
	if s.g.gather == nil {
		return nil
	}
	return s.g.gather(ctx, a)
}

func gatherBed(t *testing.T, g *gatherers, cfg driver.Config) *driver.Engine {
	t.Helper()
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	cfg.Store, cfg.Kinds = st, commitstep.NewRegistry(commitstep.Kind{Name: "test.gather", Version: 1, WantsPark: true, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
		b := &gatherStep{g: g}
		return b, commitstep.DecodeParams(s, b)
	}})
	e, err := driver.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close(context.Background()))
		require.NoError(t, st.Close())
	})
	return e
}

func gatherPlan() *commitstep.Plan {
	return commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.gather", map[string]bool{"last": false})).Then(commitstep.NewSpec("test.gather", map[string]bool{"last": true}))
}

// What steps gather over a parking ends with the budget of who waits for it: they are
// told when, and cut off if they do not mind. The parking stands, and who was cut off
// is told again.
func TestGatheringEndsWithTheBudget(t *testing.T) {
	t.Parallel()
	g := &gatherers{}
	patient := 0
	g.gather = func(ctx context.Context, a *commitstep.Attempt) error {
		if a.Patience == nil {
			return errors.New("nobody says when the time is over")
		}
		<-a.Patience
		if ctx.Err() == nil {
			patient++
		}
		<-ctx.Done()
		return ctx.Err()
	}
	e := gatherBed(t, g, driver.Config{Grace: 50 * time.Millisecond, Policy: driver.Policy{UnknownBudget: time.Millisecond, FirstPause: time.Millisecond, WaitBudget: 10 * time.Millisecond}})
	res, err := e.Publish(t.Context(), gatherPlan())
	require.Error(t, err)
	require.Equal(t, driver.StatusParked, res.Status, res.Message)
	require.Equal(t, []int{1}, g.told)
	require.Equal(t, 1, patient, "it had the time to note what it has")

	// A recover is bounded likewise.
	rep, err := e.Recover(t.Context(), "j", driver.Budget(10*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, driver.StatusParked, rep.Results[0].Status)
	require.Equal(t, []int{1, 1}, g.told)

	g.gather = nil
	for range 2 {
		_, err = e.Recover(t.Context(), "j")
		require.NoError(t, err)
		require.Equal(t, []int{1, 1, 1, 0}, g.told, "all were told, once")
	}
}

// The step over which a sequence is parked is told before all others.
func TestTheStepThatParkedIsToldFirst(t *testing.T) {
	t.Parallel()
	g := &gatherers{}
	e := gatherBed(t, g, driver.Config{Clock: &clock{now: time.Now()}})
	_, err := e.Publish(t.Context(), gatherPlan())
	require.Error(t, err)
	require.Equal(t, []int{1, 0}, g.told)
	require.NoError(t, e.TellParked(t.Context(), commitstep.Key{Job: "j", Dataset: "d"}))
	require.Equal(t, []int{1, 0, 1, 0}, g.told)
}
