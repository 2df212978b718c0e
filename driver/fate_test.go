package driver_test

import (
	"context"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// fencedBed has a driver that loses its lease in the middle of step "a", which
// it has not carried out; meanwhile is what happens before it goes on.
func fencedBed(t *testing.T, meanwhile func(b *bed, other *driver.Engine)) *bed {
	b := newBed(t, nil)
	other, err := driver.New(driver.Config{Store: b.st, Kinds: b.registry(), Clock: b.clock, Owner: "helper"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close(context.Background())) })
	b.w.execute["a"] = func(n int, _ *commitstep.Attempt, do func()) error {
		if n > 1 {
			do()
			return nil
		}
		in, held, err := b.held()
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, b.st.Leave(ctx, in.ID))
		meanwhile(b, other)
		return nil
	}
	return b
}

func TestFencedAndCompletedByAnother(t *testing.T) {
	t.Parallel()
	var helped driver.Report
	b := fencedBed(t, func(b *bed, other *driver.Engine) {
		var err error
		helped, err = other.Recover(ctx, "j")
		require.NoError(t, err)
	})
	res, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Contains(t, res.EndedBy, "helper")
	require.Contains(t, res.Message, "completed by helper")
	require.Contains(t, res.Message, res.EndedAt.UTC().Format(time.RFC3339))
	require.Equal(t, 1, helped.Counts[driver.StatusCompleted])
	for _, name := range []string{"a", "b"} {
		require.Equal(t, 1, b.w.count(name), name)
	}
	require.Equal(t, 1, b.w.called("b"), "the fenced driver begins no further step")
	require.Len(t, b.history(key), 1)
}

func TestFencedAndHeldByAnother(t *testing.T) {
	t.Parallel()
	begun, end, helped := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b := fencedBed(t, func(b *bed, other *driver.Engine) {
		b.w.mu.Lock()
		b.w.execute["a"] = func(_ int, _ *commitstep.Attempt, do func()) error {
			close(begun)
			<-end
			do()
			return nil
		}
		b.w.mu.Unlock()
		go func() { _, err := other.Recover(ctx, "j"); helped <- err }()
		<-begun
		b.w.mu.Lock()
		b.w.owner["a"] = commitstep.StepToken(mustID(b), 0).String() // the owner's own look finds it done
		b.w.mu.Unlock()
	})
	res, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.Equal(t, driver.StatusFenced, res.Status)
	require.Contains(t, res.Holder, "helper")
	require.ErrorContains(t, err, "run by helper")
	require.Zero(t, b.w.called("b"), "the fenced driver begins no further step")
	close(end)
	require.NoError(t, <-helped)
	require.Equal(t, 1, b.w.count("b"))
}

func TestFencedAndHeldByNobody(t *testing.T) {
	t.Parallel()
	b := fencedBed(t, func(b *bed, _ *driver.Engine) {
		in := commitstep.Instance{ID: uuid.New(), Name: "passer-by"}
		_, err := b.st.Join(ctx, in)
		require.NoError(t, err)
		live, err := b.st.ClaimOne(ctx, in.ID, key)
		require.NoError(t, err)
		require.NoError(t, b.st.Release(ctx, store.Fence{ID: live.ID, Epoch: live.Epoch}))
	})
	res, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
	require.Error(t, err)
	require.Equal(t, driver.StatusFenced, res.Status)
	require.Empty(t, res.Holder)
	require.ErrorContains(t, err, "nobody holds it now")
	require.NotContains(t, err.Error(), "another driver")
}

func TestFencedAndAbandoned(t *testing.T) {
	t.Parallel()
	b := fencedBed(t, func(b *bed, _ *driver.Engine) {
		live, err := b.st.Get(ctx, key)
		require.NoError(t, err)
		_, err = b.st.Decide(ctx, store.Decision{Key: key, ID: live.ID, Kind: store.DecideAbandon, Step: -1, Version: live.Version, State: commitstep.Abandoned,
			Person: store.Person{Name: "ann", Reason: "the run was wrong"}})
		require.NoError(t, err)
	})
	res, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
	require.Equal(t, driver.StatusAbandoned, res.Status)
	require.ErrorIs(t, err, commitstep.ErrAbandoned)
	require.ErrorContains(t, err, "a person gave it up")
	require.NotContains(t, err.Error(), "goes on with it")
	require.Zero(t, b.w.called("b"))
}

func TestFencedAndParkedByAnother(t *testing.T) {
	t.Parallel()
	b := fencedBed(t, func(b *bed, other *driver.Engine) {
		b.w.mu.Lock()
		b.w.owner["a"] = "foreign"
		b.w.mu.Unlock()
		rep, err := other.Recover(ctx, "j")
		require.NoError(t, err)
		require.Equal(t, 1, rep.Counts[driver.StatusParked])
	})
	res, err := b.e.Publish(ctx, plan(put("a")).Then(put("b")))
	require.Error(t, err)
	require.Equal(t, driver.StatusParked, res.Status)
	require.Equal(t, commitstep.ConflictFound, res.Reason)
}

func mustID(b *bed) (id [16]byte) {
	live, err := b.st.Get(ctx, key)
	require.NoError(b.t, err)
	return live.ID
}
