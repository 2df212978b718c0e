package integration_test

import (
	"os"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// A plan publishes exactly the files it lists, whatever else lies beside them,
// and two plans made in one instant are two.
func TestCaseC45OnlyListedFilesArePublished(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("staging/_temporary/0/a", "listed")
	b.put("staging/_temporary/0/b", "left over by a killed run")
	e := b.open(settings{})
	res, err := e.Publish(t.Context(), b.move("d", "staging/_temporary/0/a", "out/a"))
	require.NoError(t, err)
	require.Equal(t, "left over by a killed run", b.get("staging/_temporary/0/b"))
	entries, err := os.ReadDir(b.path("out"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	b.put("staging/_temporary/0/a", "listed again")
	again, err := e.Publish(t.Context(), b.move("d2", "staging/_temporary/0/a", "out/a2"))
	require.NoError(t, err)
	require.NotEqual(t, res.ID, again.ID)
}

// What an interrupted task left behind is not taken for the next one's output:
// a cleanup that would remove it unasked is refused.
func TestCaseC64LeftoversAreNobodysOutput(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("staging/a", "1")
	b.put("staging/attempt-0/a", "another task's")
	e := b.open(settings{})
	defer e.shut(t)
	_, err := e.Publish(t.Context(), b.move("d", "staging/a", "out/a").Cleanup("staging"))
	var refused *commitstep.PlanError
	require.ErrorAs(t, err, &refused)
	require.Contains(t, err.Error(), "attempt-0/a")
	require.Equal(t, "1", b.get("staging/a"))
	_, err = e.Publish(t.Context(), b.move("d", "staging/a", "out/a").CleanupWith(commitstep.CleanupParams{Path: "staging", Leftovers: "delete"}))
	require.NoError(t, err)
	eventually(t, "the leftovers are removed", func() bool { return b.get("staging/attempt-0/a") == none })
	require.Equal(t, "1", b.get("out/a"))
}

// Staging of a parked sequence stays as it is, however often the job runs, and
// is there when a person has decided.
func TestCaseC61StagingOfTheUnfinishedIsKept(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("staging/run-1/a", "1")
	b.put("staging/run-1/b", "2")
	plan := commitstep.NewPlan("j", "d").Step(fsrename.Move("staging/run-1/a", "out/a"), fsrename.Move("staging/run-1/b", "out/b")).Cleanup("staging/run-1")
	b.promise(plan)
	b.put("out/b", "foreign")
	for range 2 {
		res, _ := b.recover("d", settings{})
		require.Equal(t, driver.StatusParked, res.Status)
		require.Equal(t, "2", b.get("staging/run-1/b"))
	}
	// Once the way is free and a person says so, it goes on to its end.
	require.NoError(t, os.Remove(b.path("out/b")))
	e := b.open(settings{})
	live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "d"})
	require.NoError(t, err)
	_, err = e.Resolve(t.Context(), driver.Resolution{Key: live.Key, Decision: store.DecideRetry, Step: -1, Version: live.Version, Person: person("moved it away")})
	require.NoError(t, err)
	e.shut(t)
	res, free := b.recover("d", settings{})
	require.Equal(t, driver.StatusCompleted, res.Status, "%+v", res)
	require.True(t, free)
	require.Equal(t, "2", b.get("out/b"))
	require.NoDirExists(t, b.path("staging/run-1"))
}

// Another plan's cleanup reaches over the staging of one that is not finished,
// and says that it deletes what it finds there: not what the other promised.
func TestCaseC61CleanupOfAnotherPlan(t *testing.T) {
	t.Parallel()
	for _, state := range []commitstep.State{commitstep.Pending, commitstep.Parked} {
		b := newBox(t)
		b.put("staging/run-1/a", "1")
		b.put("staging/run-1/dir/b", "2")
		b.put("staging/run-1/_temporary", "rubbish")
		b.promise(commitstep.NewPlan("j", "d").Step(fsrename.Move("staging/run-1/a", "out/a"), fsrename.Move("staging/run-1/dir", "out/dir")))
		if state == commitstep.Parked {
			b.put("out/a", "foreign")
			res, _ := b.recover("d", settings{})
			require.Equal(t, commitstep.ConflictFound, res.Reason)
		}
		b.put("staging/run-2/c", "3")
		e := b.open(settings{})
		_, err := e.Publish(t.Context(), commitstep.NewPlan("j", "other").Step(fsrename.Move("staging/run-2/c", "out/c")).
			CleanupWith(commitstep.CleanupParams{Path: "staging", Leftovers: "delete"}))
		require.NoError(t, err)
		e.shut(t) // waits for the cleanup
		require.Equal(t, "1", b.get("staging/run-1/a"))
		require.Equal(t, "2", b.get("staging/run-1/dir/b"))
		require.Equal(t, none, b.get("staging/run-1/_temporary"))
		require.NoDirExists(t, b.path("staging/run-2"))
		e = b.open(settings{})
		report := e.outcomes(t)["other"].CleanupReport
		require.Contains(t, report, "staging/run-1/a")
		if state == commitstep.Parked {
			require.NoError(t, os.Remove(b.path("out/a")))
			live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "d"})
			require.NoError(t, err)
			_, err = e.Resolve(t.Context(), driver.Resolution{Key: live.Key, Decision: store.DecideRetry, Step: -1, Version: live.Version, Person: person("moved it away")})
			require.NoError(t, err)
		}
		e.shut(t)
		res, free := b.recover("d", settings{})
		require.Equal(t, driver.StatusCompleted, res.Status, "%+v", res)
		require.True(t, free)
		require.Equal(t, "1", b.get("out/a"))
		require.Equal(t, "2", b.get("out/dir/b"))
	}
}

// What another sequence staged cannot be told from rubbish while its record
// cannot be read: then nothing is deleted that the plan itself did not stage.
func TestCaseC61CleanupWhileSomethingIsUnreadable(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("staging/run-1/a", "1")
	b.promise(b.move("victim", "staging/run-1/a", "out/a"))
	require.Equal(t, 1, rewrite(t, b.db(), "live", func(_, r []byte) []byte { return r[:9] }))
	b.put("staging/run-2/c", "3")
	e := b.open(settings{})
	_, err := e.Publish(t.Context(), commitstep.NewPlan("j", "other").Step(fsrename.Move("staging/run-2/c", "out/c")).
		CleanupWith(commitstep.CleanupParams{Path: "staging", Leftovers: "delete"}))
	require.NoError(t, err)
	e.shut(t)
	for range 2 {
		_, free := b.recover("other", settings{})
		require.True(t, free, "the cleanup is behind, it holds up nobody")
		require.Equal(t, "1", b.get("staging/run-1/a"))
	}
}
