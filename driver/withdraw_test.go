package driver_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// waryStep refuses its first withdrawal, and knows by its note that it did.
type waryStep struct{ remoteStep }

func (s *waryStep) Withdraw(ctx context.Context, a *commitstep.Attempt, _ bool) error {
	var n map[string]string
	if _, err := a.LastNote(&n); err != nil {
		return err
	}
	if n["seen"] == "running" {
		return nil
	}
	if err := a.PointOfNoReturn(ctx, "again"); !errors.Is(err, commitstep.ErrReadOnly) {
		return errors.New("a parked sequence passes a point of no return")
	}
	if err := a.Note(ctx, map[string]string{"seen": "running"}); err != nil {
		return err
	}
	return errors.New("it is running; repeat this")
}

// TestARefusedDecisionLeavesWhatItSaw: the note of a step that refuses counts for the
// next decision, which is about the same version, and the sequence stays free.
func TestARefusedDecisionLeavesWhatItSaw(t *testing.T) {
	t.Parallel()
	r := &remote{}
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	kind := commitstep.Kind{Name: "test.wary", Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) {
		return &waryStep{remoteStep{r}}, nil
	}}
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(kind), Clock: &clock{now: time.Now()}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close(context.Background()))
		require.NoError(t, st.Close())
	})
	r.open = true
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.wary", nil)))
	require.Error(t, err)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	insp, err := e.Inspect(t.Context(), res.Key, false)
	require.NoError(t, err)
	q := driver.Resolution{Key: res.Key, Decision: store.DecideNotPublished, Step: -1, Version: insp.Version, Person: store.Person{Name: "ann", Reason: "looked at the table"}}

	// Whoever holds it is not disturbed.
	other := commitstep.Instance{ID: uuid.New(), Name: "other"}
	_, err = st.Join(t.Context(), other)
	require.NoError(t, err)
	held, err := st.ClaimOne(t.Context(), other.ID, res.Key)
	require.NoError(t, err)
	_, err = e.Resolve(t.Context(), q)
	require.ErrorIs(t, err, commitstep.ErrBusy)
	require.NoError(t, st.Release(t.Context(), store.Fence{ID: held.ID, Epoch: held.Epoch}))

	_, err = e.Resolve(t.Context(), q)
	require.ErrorIs(t, err, commitstep.ErrDecision)
	require.ErrorContains(t, err, "it is running; repeat this")
	live, err := st.Get(t.Context(), res.Key)
	require.NoError(t, err)
	require.Equal(t, commitstep.Parked, live.State)
	_, _, busy, err := st.Holder(t.Context(), live)
	require.NoError(t, err)
	require.False(t, busy)

	out, err := e.Resolve(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, commitstep.Abandoned, out.After.State)
}
