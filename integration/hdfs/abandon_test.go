package hdfs_test

import (
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// abandonVisible gives the dataset up, and wants it refused at first because of what is
// visible.
func (e *engine) abandonVisible(t testing.TB, dataset, says string) {
	t.Helper()
	key := commitstep.Key{Job: job, Dataset: dataset}
	live, err := e.store.Get(t.Context(), key)
	require.NoError(t, err)
	q := driver.Resolution{Key: key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "sent again by hand"}}
	_, err = e.Resolve(t.Context(), q)
	var pe *driver.PartialError
	require.ErrorAs(t, err, &pe)
	require.Len(t, pe.Visible, 1)
	require.Contains(t, pe.Visible[0], says)
	rep, err := e.Recover(t.Context(), job)
	require.NoError(t, err)
	require.False(t, rep.MayIngest(dataset), "nothing was decided")
	q.AcceptPartial = true
	_, err = e.Resolve(t.Context(), q)
	require.NoError(t, err)
}

// What was published is not abandoned unawares, also when the step is not done:
// its group could not be set, or a consumer changed the directory.
func TestVisibleIsNotAbandonedUnawares(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		t.Run("group", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c, transport, "files")
			require.NoError(t, w.client.MkdirAll(w.dir+"/hers", 0o755))
			w.put(t, "hers/a", "four")
			require.NoError(t, w.client.Chown(w.dir+"/hers", "alice", "alice"))
			require.NoError(t, w.client.Chown(w.dir+"/hers/a", "alice", "alice"))
			e := w.open(t, settings{user: "alice"})
			p := w.single("group", "hers/a", "hers/b", 4, fsrename.Group("finance")).Then(watermark.Set("t:0", commitstep.None(), commitstep.Int(100)))
			w.parked(t, e, p, commitstep.AttemptsExhausted, "the rename is done, its attributes are not")
			require.Equal(t, "four", w.read(t, "hers/b"))
			e.abandonVisible(t, "group", "only the attributes are missing")
			e.shut(t)
		})
		t.Run("directory", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c, transport, "files")
			w.put(t, "in/a/x", "four")
			e := w.open(t, settings{wrap: hookOn("Rename", "in/a", nil, func() { w.put(t, "out/a/_SUCCESS", "") })})
			w.parked(t, e, w.single("directory", "in/a", "out/a", 4), commitstep.ConflictFound, "list of files has changed")
			e.abandonVisible(t, "directory", "list of files has changed")
			e.shut(t)
		})
	})
}

// A consumer adds to a published file before the look at it, and cuts it: it is
// the file that was published, so the load is.
func TestPublishedFileIsChangedByConsumer(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		for name, change := range map[string]func(t *testing.T, w *world){
			"appended": func(t *testing.T, w *world) {
				f, err := w.client.Append(w.dir + "/out/a")
				require.NoError(t, err)
				_, err = f.Write([]byte(" and more"))
				require.NoError(t, err)
				require.NoError(t, hadoopkit.Finish(f))
			},
			"cut": func(t *testing.T, w *world) {
				_, err := w.client.Truncate(w.dir+"/out/a", 0)
				require.NoError(t, err)
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, c, transport, "files")
				w.put(t, "in/a", "four")
				e := w.open(t, settings{wrap: hookOn("Rename", "in/a", nil, func() { change(t, w) })})
				res, err := e.Publish(t.Context(), w.single(name, "in/a", "out/a", 4).Then(watermark.Set("t:0", commitstep.None(), commitstep.Int(100))))
				require.NoError(t, err)
				require.Equal(t, driver.StatusCompleted, res.Status)
				e.shut(t)
			})
		}
	})
}
