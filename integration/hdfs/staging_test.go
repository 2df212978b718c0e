package hdfs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// retry takes up a parked dataset on behalf of a person.
func (e *engine) retry(t testing.TB, dataset string) {
	t.Helper()
	live, err := e.store.Get(t.Context(), commitstep.Key{Job: job, Dataset: dataset})
	require.NoError(t, err)
	_, err = e.Resolve(t.Context(), driver.Resolution{Key: live.Key, Decision: store.DecideRetry, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "moved it away"}})
	require.NoError(t, err)
}

// TestStagingOfTheUnfinishedIsKept is C61: neither recoveries nor another plan's
// cleanup touch what a parked sequence has staged. A plan whose cleanup would
// reach over it is refused, also one that deletes whatever else it finds.
func TestStagingOfTheUnfinishedIsKept(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		w.put(t, "staging/run-1/a", "1")
		w.put(t, "staging/run-1/b", "2")
		w.put(t, "staging/run-1/dir/c", "3")
		w.put(t, "staging/run-1/_temporary", "rubbish")
		w.put(t, "staging/run-2/d", "4")
		e := w.open(t, settings{wrap: hookOn("Rename", "run-1/b", func() { w.put(t, "out/b", "foreign") }, nil)})
		move := func(from, to string, length int64) commitstep.StepSpec {
			return fsrename.Move(w.address(w.dir+"/staging/"+from), w.address(w.dir+"/out/"+to), fsrename.Length(length))
		}
		w.parked(t, e, commitstep.NewPlan(job, "parked").Step(move("run-1/a", "a", 1)).Then(move("run-1/b", "b", 1)).Then(move("run-1/dir", "dir", 1)),
			commitstep.ConflictFound, "is not what was planned")
		e.shut(t)
		for range 2 {
			e := w.open(t, settings{})
			rep, err := e.Recover(t.Context(), job)
			require.NoError(t, err)
			require.False(t, rep.MayIngest("parked"))
			e.shut(t)
		}
		e = w.open(t, settings{})
		over := func(path string) *commitstep.Plan {
			return commitstep.NewPlan(job, "other").Step(move("run-2/d", "d", 1)).
				CleanupWith(commitstep.CleanupParams{Path: w.address(w.dir + "/" + path), Leftovers: "delete"})
		}
		before := w.tree(t)
		for _, path := range []string{"staging", "staging/run-1"} {
			res, err := e.Publish(t.Context(), over(path))
			require.Error(t, err, "a cleanup that reaches over what another staged")
			require.Empty(t, res.Status, "%v", err)
		}
		require.Equal(t, before, w.tree(t))
		_, err := e.Publish(t.Context(), over("staging/run-2"))
		require.NoError(t, err)
		e.shut(t) // waits for the cleanup
		for name, want := range map[string]string{"b": "2", "dir/c": "3", "_temporary": "rubbish"} {
			require.Equal(t, want, w.read(t, "staging/run-1/"+name))
		}
		require.NotContains(t, strings.Join(w.tree(t), " "), "run-2")
		// A person makes way, and it goes on to its end.
		require.NoError(t, w.client.Remove(w.dir+"/out/b"))
		e = w.open(t, settings{})
		defer e.shut(t)
		e.retry(t, "parked")
		rep, err := e.Recover(t.Context(), job)
		require.NoError(t, err)
		require.True(t, rep.MayIngest("parked"), "%+v", rep)
		for name, want := range map[string]string{"a": "1", "b": "2", "dir/c": "3", "d": "4"} {
			require.Equal(t, want, w.read(t, "out/"+name))
		}
	})
}

// TestNames publishes files, and directories that hold them, under names that
// careless handling makes one or loses: C59 and C60, from the plan to the name
// node and back.
func TestNames(t *testing.T) {
	t.Parallel()
	names := []string{
		"a b", "a%20b", "a+b", "a%2Fb", "100%", "a#b", "a?b", "a&b=c", `a\b`, `a"b`, "part=a%20b", "part=a b", "part=a+b",
		".hidden", "_hidden", "NAME", "name", "e\u0301", "\u00e9", // two spellings of one letter
		strings.Repeat("가", 85), strings.Repeat("x", 255),
	}
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		e := w.open(t, settings{})
		defer e.shut(t)
		ids := map[string]uint64{}
		for i, n := range names {
			w.put(t, "in/files/"+n, fmt.Sprint(i))
			w.put(t, "in/dirs/"+n+"/"+n, fmt.Sprint(i))
			ids["files/"+n] = hadoopkit.FileID(w.client, w.dir+"/in/files/"+n)
			ids["dirs/"+n+"/"+n] = hadoopkit.FileID(w.client, w.dir+"/in/dirs/"+n+"/"+n)
		}
		for _, shape := range []string{"files", "dirs"} {
			// A dataset of each name, too: they are all different ones.
			for i, n := range names {
				res, err := e.Publish(t.Context(), w.single(shape+n, "in/"+shape+"/"+n, "out/"+shape+"/"+n, len(fmt.Sprint(i))))
				require.NoError(t, err, n)
				require.Equal(t, driver.StatusCompleted, res.Status)
			}
			listed, err := w.client.ReadDir(w.dir + "/out/" + shape)
			require.NoError(t, err)
			require.Len(t, listed, len(names))
			left, err := w.client.ReadDir(w.dir + "/in/" + shape)
			require.NoError(t, err)
			require.Empty(t, left)
		}
		for p, id := range ids {
			require.Equal(t, id, hadoopkit.FileID(w.client, w.dir+"/out/"+p), p)
		}
		// One more byte is one too many, and said in time.
		w.put(t, "in/long", "x")
		w.refused(t, e, w.single("long", "in/long", "out/"+strings.Repeat("x", 256), 1), "256 bytes")
	})
}
