package driver_test

import (
	"errors"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/stretchr/testify/require"
)

func source(name string) commitstep.StepSpec {
	return commitstep.NewSpec("test.source", map[string]string{"name": name})
}

// Two processes publish one plan. The slower one finds, while it prepares, that
// the source is gone and the watermark has moved: because the other one has
// published the plan. That is no failure.
func TestPlanPublishedByAnotherWhileThisOnePrepares(t *testing.T) {
	t.Parallel()
	missing := errors.New("the source is missing")
	for name, c := range map[string]struct {
		refuse error
		stream bool
	}{
		"source gone":               {refuse: missing},
		"watermark moved":           {},
		"streamed, source gone":     {refuse: missing, stream: true},
		"streamed, read to its end": {stream: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, nil)
			fresh := func() *commitstep.Plan {
				p := plan(source("a")).WithID("run-1")
				if !c.stream {
					p.Then(move("s", commitstep.None(), commitstep.Int(100)))
				}
				return p
			}
			first := true
			b.w.prepare = func() error {
				if !first {
					return nil
				}
				first = false
				res, err := b.e.Publish(ctx, fresh())
				require.NoError(t, err)
				require.Equal(t, driver.StatusCompleted, res.Status)
				return c.refuse
			}
			slow := fresh()
			if c.stream {
				slow.Stream = slow.Steps()
			}
			res, err := b.e.Publish(ctx, slow)
			require.Equal(t, 1, b.w.count("a"))
			if c.stream && c.refuse != nil {
				// It cannot be read again, so nobody knows whether it is the same.
				require.ErrorIs(t, err, missing)
				require.ErrorContains(t, err, "is completed: publish the same plan again")
				return
			}
			require.NoError(t, err)
			require.Equal(t, driver.StatusCompleted, res.Status)
			require.True(t, res.Already)
			require.Len(t, b.history(key), 1)
		})
	}
}

// What refuses a plan still does when its id is known with another content, or
// not at all.
func TestRefusalStandsWhenThePlanIsNotKnown(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	missing := errors.New("the source is missing")
	b.w.prepare = func() error { return missing }
	_, err := b.e.Publish(ctx, plan(source("a")).WithID("run-1"))
	require.ErrorIs(t, err, missing)
	first := true
	b.w.prepare = func() error {
		if !first {
			return nil
		}
		first = false
		_, err := b.e.Publish(ctx, plan(source("b")).WithID("run-1"))
		require.NoError(t, err)
		return missing
	}
	_, err = b.e.Publish(ctx, plan(source("a")).WithID("run-1"))
	require.ErrorIs(t, err, missing)
	require.Zero(t, b.w.count("a"))
}
