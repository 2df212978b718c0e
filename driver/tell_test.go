package driver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// gathering is a step that notes how often it was told, and that cannot be looked
// at while its server is away.
type gathering struct {
	remoteStep
	w *gathered
}

type gathered struct {
	remote
	told atomic.Int32
	lost atomic.Bool
	fail atomic.Bool
}

func (s *gathering) Verify(ctx context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	if s.w.lost.Load() {
		return commitstep.Verdict{}, errors.New("no route to host")
	}
	return s.remoteStep.Verify(ctx, a)
}

func (s *gathering) OnPark(ctx context.Context, a *commitstep.Attempt, reason commitstep.ParkReason, _ string) error {
	if s.w.fail.Load() {
		return errors.New("the table cannot be asked")
	}
	return a.Note(ctx, map[string]string{"evidence": fmt.Sprint(reason, " ", s.w.told.Add(1))})
}

func gatheringBed(t *testing.T, w *gathered) (*driver.Engine, *boltstore.Store, driver.Inspection) {
	t.Helper()
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	kind := commitstep.Kind{Name: "test.gathering", Version: 1, WantsPark: true, New: func(commitstep.Step) (commitstep.CommitStep, error) {
		return &gathering{remoteStep{&w.remote}, w}, nil
	}}
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(kind), Clock: &clock{now: time.Now()}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close(context.Background()))
		require.NoError(t, st.Close())
	})
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.gathering", nil)))
	require.Error(t, err)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	insp, err := e.Inspect(t.Context(), res.Key, false)
	require.NoError(t, err)
	return e, st, insp
}

func noteOf(t *testing.T, e *driver.Engine, key commitstep.Key) string {
	t.Helper()
	insp, err := e.Inspect(t.Context(), key, false)
	require.NoError(t, err)
	var m map[string]string
	require.NoError(t, json.Unmarshal(insp.StepViews[0].Progress.Note, &m))
	return m["evidence"]
}

// TestAParkedSequenceIsToldAgain: what was gathered is gathered anew, and nothing
// else changes, so that a person's decision about what they saw still counts.
func TestAParkedSequenceIsToldAgain(t *testing.T) {
	t.Parallel()
	w := &gathered{}
	e, st, insp := gatheringBed(t, w)
	require.Equal(t, "PUBLISH_UNKNOWN 1", noteOf(t, e, insp.Key))
	require.NoError(t, e.TellParked(t.Context(), insp.Key))
	require.Equal(t, "PUBLISH_UNKNOWN 2", noteOf(t, e, insp.Key))
	live, err := st.Get(t.Context(), insp.Key)
	require.NoError(t, err)
	require.Equal(t, insp.Version, live.Version)
	require.Equal(t, commitstep.Parked, live.State)
	_, _, held, err := st.Holder(t.Context(), live)
	require.NoError(t, err)
	require.False(t, held)
	require.Equal(t, 1, w.calls, "nothing is executed")

	// One that cannot be told keeps what it had.
	w.fail.Store(true)
	require.ErrorContains(t, e.TellParked(t.Context(), insp.Key), "the table cannot be asked")
	require.Equal(t, "PUBLISH_UNKNOWN 2", noteOf(t, e, insp.Key))
	_, _, held, err = st.Holder(t.Context(), live)
	require.NoError(t, err)
	require.False(t, held)

	// Nobody is disturbed who holds it.
	other := commitstep.Instance{ID: uuid.New(), Name: "other"}
	_, err = st.Join(t.Context(), other)
	require.NoError(t, err)
	claim, err := st.ClaimOne(t.Context(), other.ID, insp.Key)
	require.NoError(t, err)
	require.ErrorIs(t, e.TellParked(t.Context(), insp.Key), commitstep.ErrBusy)
	require.NoError(t, st.Release(t.Context(), store.Fence{ID: claim.ID, Epoch: claim.Epoch}))

	w.fail.Store(false)
	_, err = e.Resolve(t.Context(), driver.Resolution{Key: insp.Key, Decision: store.DecideRetry, Step: -1, Version: insp.Version, Person: store.Person{Name: "ann", Reason: "look again"}})
	require.NoError(t, err)
	require.ErrorIs(t, e.TellParked(t.Context(), insp.Key), commitstep.ErrDecision, "it is pending")
	require.ErrorIs(t, e.TellParked(t.Context(), commitstep.Key{Job: "j", Dataset: "none"}), commitstep.ErrNotFound)
}

// TestAServerThatIsGoneIsNotAskedFor: a step that cannot be looked at keeps a
// sequence from being abandoned only until a person says that its server is gone
// for good, and the audit keeps their word.
func TestAServerThatIsGoneIsNotAskedFor(t *testing.T) {
	t.Parallel()
	w := &gathered{}
	w.open = true
	e, st, insp := gatheringBed(t, w)
	w.lost.Store(true)
	q := driver.Resolution{Key: insp.Key, Decision: store.DecideNotPublished, Step: -1, Version: insp.Version, Person: store.Person{Name: "ann", Reason: "disk lost"}}
	for _, dry := range []bool{true, false} {
		q.DryRun = dry
		_, err := e.Resolve(t.Context(), q)
		require.ErrorContains(t, err, "no route to host")
	}
	q.ServerGone = true
	_, err := e.Resolve(t.Context(), q)
	require.NoError(t, err)
	for entry, err := range st.ListAudit(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "disk lost (said that the server is gone for good)", entry.Reason)
	}
	_, err = st.Get(t.Context(), insp.Key)
	require.ErrorIs(t, err, commitstep.ErrNotFound)
}

// TestNotesOfAStepThatCannotBeBuilt: whether a note holds a credential only its
// step can say, so nothing of it is shown where the step cannot be built.
func TestNotesOfAStepThatCannotBeBuilt(t *testing.T) {
	t.Parallel()
	w := &gathered{}
	_, st, insp := gatheringBed(t, w)
	unbound := commitstep.Kind{Name: "test.gathering", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) {
		return nil, errors.New("its server is not bound here")
	}}
	for _, kinds := range []*commitstep.Registry{commitstep.NewRegistry(unbound), commitstep.NewRegistry()} {
		e, err := driver.New(driver.Config{Store: st, Kinds: kinds, Clock: &clock{now: time.Now()}})
		require.NoError(t, err)
		seen, err := e.Inspect(t.Context(), insp.Key, true)
		require.NoError(t, err)
		require.NotEmpty(t, seen.StepViews[0].Unsupported)
		require.JSONEq(t, `"not shown"`, string(seen.StepViews[0].Progress.Note))
		require.JSONEq(t, `"not shown"`, string(seen.StepViews[0].Progress.NoReturn))
		require.NoError(t, e.Close(context.Background()))
	}
}
