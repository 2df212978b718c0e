package hdfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/stretchr/testify/require"
)

// single is a plan of one rename below the world's directory.
func (w *world) single(dataset, from, to string, length int, opts ...fsrename.Option) *commitstep.Plan {
	return commitstep.NewPlan(job, dataset).Step(fsrename.Move(w.address(w.dir+"/"+from), w.address(w.dir+"/"+to), append(opts, fsrename.Length(int64(length)))...))
}

func (w *world) put(t testing.TB, name, content string) {
	t.Helper()
	require.NoError(t, hadoopkit.Put(w.client, w.dir+"/"+name, content))
}

func (w *world) read(t testing.TB, name string) string {
	t.Helper()
	b, err := w.client.ReadFile(w.dir + "/" + name)
	require.NoError(t, err)
	return string(b)
}

// refused wants a plan-time error that says all of these, and nothing stored.
func (w *world) refused(t testing.TB, e *engine, p *commitstep.Plan, says ...string) {
	t.Helper()
	res, err := e.Publish(t.Context(), p)
	require.Error(t, err)
	require.Empty(t, res.Status, "something was promised: %v", err)
	var pe *commitstep.PlanError
	require.ErrorAs(t, err, &pe)
	for _, s := range says {
		require.Contains(t, err.Error(), s)
	}
}

// parked wants a promise that waits for a person, with these words.
func (w *world) parked(t testing.TB, e *engine, p *commitstep.Plan, reason commitstep.ParkReason, says ...string) driver.Result {
	t.Helper()
	res, err := e.Publish(t.Context(), p)
	require.Equal(t, driver.StatusParked, res.Status, "%+v %v", res, err)
	require.Equal(t, reason, res.Reason, res.Message)
	for _, s := range says {
		require.Contains(t, res.Message, s)
	}
	return res
}

// before runs fn once, before the first call of op on a path that ends in
// suffix; after runs it once that call has been made.
func hookOn(op, suffix string, before, after func()) func(filesys.FS) filesys.FS {
	var one, two sync.Once
	return func(f filesys.FS) filesys.FS {
		return fstest.Hooked(f, func(got string, p commitstep.Address, do func() error) error {
			meant := got == op && strings.HasSuffix(p.Path, suffix)
			if meant && before != nil {
				one.Do(before)
			}
			err := do()
			if meant && after != nil {
				two.Do(after)
			}
			return err
		})
	}
}

// TestPlanTimeRefusals are faults that are found before anything is promised.
func TestPlanTimeRefusals(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		e := w.open(t, settings{})
		w.put(t, "in/a", "four")
		w.put(t, "in/empty", "")
		w.put(t, "out/taken", "four")
		w.put(t, "out/file", "x")
		// C11: a writer that did not get to write.
		w.refused(t, e, w.single("d", "in/empty", "out/a", 1234), "has 0 bytes, its writer wrote 1234")
		// C04, C08: the same length at the destination is another file.
		w.refused(t, e, w.single("d", "in/a", "out/taken", 4), "is taken by a file of 4 bytes", "never overwrites")
		w.refused(t, e, w.single("d", "in/none", "out/a", 4), "is missing")
		w.refused(t, e, w.single("d", "in/a", "out/file/a", 4), "is a file where a directory must be")
		w.refused(t, e, w.single("d", "in/a", "out/a:b", 4), "a colon")
		w.refused(t, e, w.single("d", "in/a", "out/"+strings.Repeat("가", 86), 4), "258 bytes")
		w.refused(t, e, w.single("d", "in/a", "out/"+strings.Repeat(strings.Repeat("x", 250)+"/", 33)+"a", 4), "characters", "HDFS allows 8000")
		w.refused(t, e, w.single("d", "in/a", "out/"+strings.Repeat("x/", 1000)+"a", 4), "HDFS allows 1000")
		w.refused(t, e, w.single("d", "in/.snapshot/s/a", "out/a", 4), "lies in a snapshot")
		w.refused(t, e, commitstep.NewPlan(job, "d").Step(fsrename.Move(w.address("/.reserved/.inodes/1"), w.address(w.dir+"/out/a"), fsrename.Length(4))), "reserved")
		// Two name services are two file systems.
		w.refused(t, e, commitstep.NewPlan(job, "d").Step(fsrename.Move(w.address(w.dir+"/in/a"), transport+"://other"+w.dir+"/out/a")), "no rename between two file systems")
		// A directory with snapshots.
		require.NoError(t, w.client.MkdirAll(w.dir+"/in/snapped", 0o755))
		require.NoError(t, w.client.AllowSnapshots(w.dir+"/in/snapped"))
		_, err := w.client.CreateSnapshot(w.dir+"/in/snapped", "s0")
		require.NoError(t, err)
		w.refused(t, e, w.single("d", "in/snapped", "out/snapped", 0), "1 snapshots", "s0")
		require.NoError(t, w.client.DeleteSnapshot(w.dir+"/in/snapped", "s0"))
		// A file that is still being written.
		f, err := w.client.Create(w.dir + "/in/open")
		require.NoError(t, err)
		_, err = f.Write([]byte("half"))
		require.NoError(t, err)
		require.NoError(t, f.Flush())
		if transport == "webhdfs" {
			w.refused(t, e, w.single("d", "in/open", "out/a", 0), "still being written")
			require.NoError(t, w.client.Mkdir(w.dir+"/in/dir", 0o755))
			require.NoError(t, w.client.Rename(w.dir+"/in/open", w.dir+"/in/dir/open"))
			w.refused(t, e, w.single("d", "in/dir", "out/dir", 4), "dir/open", "still being written")
		} else {
			w.refused(t, e, commitstep.NewPlan(job, "d").Step(fsrename.Move(w.address(w.dir+"/in/a"), w.address(w.dir+"/out/a"))), "needs its length")
			w.refused(t, e, w.single("d", "in/open", "out/a", 8), "its writer wrote 8")
		}
		require.NoError(t, hadoopkit.Finish(f))
		require.Equal(t, "four", w.read(t, "in/a"))
		require.Equal(t, "four", w.read(t, "out/taken"))
	})
}

// TestStickyDirectories: in one like /tmp everybody may write, and only the owner
// of a file may move it.
func TestStickyDirectories(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		w.put(t, "shared/a", "four")
		w.put(t, "shared/hers", "four")
		require.NoError(t, w.client.Chmod(w.dir, 0o777))
		require.NoError(t, w.client.Chmod(w.dir+"/shared", 0o1777))
		require.NoError(t, w.client.Chown(w.dir+"/shared/hers", "alice", ""))
		e := w.open(t, settings{user: "alice"})
		w.refused(t, e, w.single("d", "shared/a", "mine", 4), "sticky bit", "belongs to root")
		res, err := e.Publish(t.Context(), w.single("d", "shared/hers", "hers", 4))
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
		// One step of two, so that the files are told apart by their owners.
		w.put(t, "shared/hers2", "four")
		require.NoError(t, w.client.Chown(w.dir+"/shared/hers2", "alice", ""))
		length := fsrename.Length(4)
		w.refused(t, e, commitstep.NewPlan(job, "two").Step(fsrename.Move(w.address(w.dir+"/shared/hers2"), w.address(w.dir+"/hers2"), length),
			fsrename.Move(w.address(w.dir+"/shared/a"), w.address(w.dir+"/mine"), length)), "sticky bit")
		e.shut(t)
		e = w.open(t, settings{})
		res, err = e.Publish(t.Context(), w.single("root", "shared/a", "mine", 4))
		require.NoError(t, err, "a superuser may")
		require.Equal(t, driver.StatusCompleted, res.Status)
	})
}

// TestRefusalsOfTheNameNode are faults that it tells only when it is asked to
// rename: they are permanent, so no attempts are burned, and the message is the
// server's.
func TestRefusalsOfTheNameNode(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		w.put(t, "in/a", "four")
		t.Run("quota", func(t *testing.T) {
			require.NoError(t, w.client.MkdirAll(w.dir+"/full", 0o755))
			_, err := c.DFSAdmin("-setQuota", "1", w.dir+"/full")
			require.NoError(t, err)
			e := w.open(t, settings{})
			w.parked(t, e, w.single("quota", "in/a", "full/a", 4), commitstep.AttemptsExhausted, "cannot succeed", "NSQuotaExceededException", "quota=1")
			e.shut(t)
			// Where it is known that there is one, it is looked at in time.
			known := *w
			known.quotas = []string{w.dir + "/full", w.dir + "/not-there"}
			e = known.open(t, settings{})
			defer e.shut(t)
			w.refused(t, e, w.single("quota 2", "in/a", "full/sub/a", 4), "has no room", "/full holds 1 names of 1, and 2 more are needed")
			_, err = c.DFSAdmin("-clrQuota", w.dir+"/full")
			require.NoError(t, err)
			_, err = c.DFSAdmin("-setSpaceQuota", "3", w.dir+"/full")
			require.NoError(t, err)
			w.refused(t, e, w.single("quota 2", "in/a", "full/a", 4), "has no room", "/full holds 0 bytes of 3, and at least 4 more are needed")
			_, err = c.DFSAdmin("-setSpaceQuota", "1m", w.dir+"/full")
			require.NoError(t, err)
			w.put(t, "in/b", "four")
			_, err = e.Publish(t.Context(), w.single("quota 2", "in/b", "full/b", 4))
			require.NoError(t, err)
		})
		t.Run("snapshot below the source", func(t *testing.T) {
			require.NoError(t, w.client.MkdirAll(w.dir+"/tree/sub", 0o755))
			require.NoError(t, w.client.AllowSnapshots(w.dir+"/tree/sub"))
			_, err := w.client.CreateSnapshot(w.dir+"/tree/sub", "s0")
			require.NoError(t, err)
			defer func() { require.NoError(t, w.client.DeleteSnapshot(w.dir+"/tree/sub", "s0")) }()
			e := w.open(t, settings{})
			defer e.shut(t)
			w.parked(t, e, w.single("snapshot", "tree", "out/tree", 0), commitstep.AttemptsExhausted, "cannot succeed", "SnapshotException")
		})
		t.Run("another user", func(t *testing.T) {
			// One may read everything, the other nothing be moved from or to.
			require.NoError(t, w.client.MkdirAll(w.dir+"/mine", 0o755))
			require.NoError(t, w.client.MkdirAll(w.dir+"/hers", 0o755))
			require.NoError(t, w.client.Chown(w.dir+"/hers", "alice", "alice"))
			w.put(t, "hers/b", "four")
			w.put(t, "hers/c", "four")
			e := w.open(t, settings{user: "alice"})
			w.refused(t, e, w.single("permission", "in/a", "hers/a", 4), "may not move", "user=alice", "/in")
			w.refused(t, e, w.single("permission", "hers/b", "mine/b", 4), "may not move", "user=alice", "/mine")
			w.refused(t, e, w.single("permission", "hers/b", "mine/new/dir/b", 4), "may not move", "user=alice", "/mine")
			_, err := e.Publish(t.Context(), w.single("permission", "hers/b", "hers/sub/b", 4))
			require.NoError(t, err)
			e.shut(t)
			// Taken away after the plan was made.
			e = w.open(t, settings{user: "alice", wrap: hookOn("MkdirAll", "hers/new", func() {
				require.NoError(t, w.client.Chown(w.dir+"/hers", "bob", "bob"))
			}, nil)})
			defer e.shut(t)
			w.parked(t, e, w.single("taken", "hers/c", "hers/new/c", 4), commitstep.AttemptsExhausted, "AccessControlException", "user=alice")
			require.Equal(t, "four", w.read(t, "hers/c"))
		})
		require.Equal(t, "four", w.read(t, "in/a"), "staged data of a parked sequence are untouchable")
	})
}

// TestConsumers move and delete what was published, at every moment.
func TestConsumers(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		consume := map[string]func(t *testing.T, w *world){
			"moves":   func(t *testing.T, w *world) { require.NoError(t, w.client.Rename(w.dir+"/out/a", w.dir+"/consumed")) },
			"deletes": func(t *testing.T, w *world) { require.NoError(t, w.client.Remove(w.dir+"/out/a")) },
		}
		words := map[string]string{"moves": "is now at %s", "deletes": "nothing has its file id"}
		for name, fn := range consume {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, c, transport, "files")
				w.put(t, "in/a", "four")
				word := words[name]
				if name == "moves" {
					word = fmt.Sprintf(word, w.address(w.dir+"/consumed"))
				}
				// Between the rename and the look at it: nobody can tell, and what
				// became of the file is said.
				e := w.open(t, settings{wrap: hookOn("Rename", "in/a", nil, func() { fn(t, w) })})
				res := w.parked(t, e, w.single("early", "in/a", "out/a", 4), commitstep.PublishUnknown, "neither the source", word)
				require.NotEqual(t, "", res.ID.String())
				rep, err := e.Recover(t.Context(), job)
				require.NoError(t, err)
				require.False(t, rep.MayIngest("early"), "a parked dataset is skipped")
				e.shut(t)

				// After completion it is none of our business.
				w = newWorld(t, c, transport, "files")
				w.put(t, "in/a", "four")
				e = w.open(t, settings{})
				_, err = e.Publish(t.Context(), w.single("late", "in/a", "out/a", 4))
				require.NoError(t, err)
				fn(t, w)
				rep, err = e.Recover(t.Context(), job)
				require.NoError(t, err)
				require.True(t, rep.MayIngest("late"))
				e.shut(t)

				// C12: done, recorded, and consumed before the next step failed
				// and a recovery went on: the record wins.
				w = newWorld(t, c, transport, "files")
				w.put(t, "in/a", "four")
				w.put(t, "in/b", "four")
				down := errors.New("out of reach")
				var cut sync.Mutex
				gone := true
				brief := impatient
				brief.WaitBudget = 10 * time.Millisecond
				e = w.open(t, settings{conf: driver.Config{Policy: brief}, wrap: func(f filesys.FS) filesys.FS {
					return fstest.Hooked(f, func(op string, p commitstep.Address, do func() error) error {
						cut.Lock()
						defer cut.Unlock()
						if op == "Rename" && strings.HasSuffix(p.Path, "in/b") && gone {
							return commitstep.NotSent(down)
						}
						return do()
					})
				}})
				plan := w.single("recorded", "in/a", "out/a", 4).Then(fsrename.Move(w.address(w.dir+"/in/b"), w.address(w.dir+"/out/b"), fsrename.Length(4)))
				res, err = e.Publish(t.Context(), plan)
				require.Equal(t, driver.StatusWaiting, res.Status, "%v", err)
				fn(t, w)
				cut.Lock()
				gone = false
				cut.Unlock()
				rep, err = e.Recover(t.Context(), job)
				require.NoError(t, err)
				require.True(t, rep.MayIngest("recorded"), "%+v", rep)
				require.Equal(t, 1, rep.Results[0].Recorded)
				e.shut(t)
			})
		}
	})
}

// TestOneBadDatasetStopsNoOther: C04 over restarts, C01 and C02.
func TestOneBadDatasetStopsNoOther(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		w.put(t, "in/a", "four")
		w.put(t, "in/b", "four")
		foreign := func() { w.put(t, "out/a", "them") }
		e := w.open(t, settings{wrap: hookOn("Rename", "in/a", foreign, nil)})
		w.parked(t, e, w.single("bad", "in/a", "out/a", 4), commitstep.ConflictFound, "is not what was planned")
		e.shut(t)
		for range 3 {
			e := w.open(t, settings{})
			rep, err := e.Recover(t.Context(), job)
			require.NoError(t, err)
			require.False(t, rep.MayIngest("bad"))
			require.True(t, rep.MayIngest("good"))
			e.shut(t)
		}
		require.Equal(t, "them", w.read(t, "out/a"))
		require.Equal(t, "four", w.read(t, "in/a"))
		// C01, C02: "done" is said and nothing was done. It is not believed.
		for _, op := range []string{"Rename", "MkdirAll"} {
			lies := 1
			var mu sync.Mutex
			e := w.open(t, settings{wrap: func(f filesys.FS) filesys.FS {
				return fstest.Hooked(f, func(got string, _ commitstep.Address, do func() error) error {
					mu.Lock()
					defer mu.Unlock()
					if got == op && lies > 0 {
						lies--
						return nil
					}
					return do()
				})
			}})
			w.put(t, "in/"+op, "four")
			res, err := e.Publish(t.Context(), w.single(op, "in/"+op, "new-"+op+"/x", 4))
			require.NoError(t, err)
			require.Equal(t, driver.StatusCompleted, res.Status)
			require.Equal(t, "four", w.read(t, "new-"+op+"/x"))
			e.shut(t)
		}
	})
}

// TestZonesAndSafeMode need a cluster of their own: safe mode stops everybody.
func TestZonesAndSafeMode(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Private(t, hadoopkit.Options{Key: true})
	setup := c.Client(t, "root")
	for _, z := range []string{"/zone1", "/zone2"} {
		require.NoError(t, setup.Mkdir(z, 0o755))
		_, err := c.Crypto("-createZone", "-keyName", "key", "-path", z)
		require.NoError(t, err)
	}
	for _, tr := range transports {
		t.Run("zones "+tr, func(t *testing.T) {
			// C14.
			w := newWorld(t, c, tr, "files")
			w.put(t, "plain", "")
			require.NoError(t, w.client.MkdirAll("/zone1/in-"+tr+"/dir", 0o755))
			e := w.open(t, settings{})
			defer e.shut(t)
			move := func(from, to string) *commitstep.Plan {
				return commitstep.NewPlan(job, "zone").Step(fsrename.Move(w.address(from), w.address(to), fsrename.Length(0)))
			}
			w.refused(t, e, move(w.dir+"/plain", "/zone1/plain"), "another file system", "encryption zone /zone1")
			w.refused(t, e, move("/zone1/in-"+tr+"/dir", w.dir+"/dir"), "another file system", "no encryption zone")
			w.refused(t, e, move("/zone1/in-"+tr+"/dir", "/zone2/dir"), "encryption zone /zone1", "encryption zone /zone2")
			_, err := e.Publish(t.Context(), move("/zone1/in-"+tr+"/dir", "/zone1/out-"+tr+"/dir"))
			require.NoError(t, err)
		})
	}
	t.Run("safe mode", func(t *testing.T) {
		for _, tr := range transports {
			w := newWorld(t, c, tr, "files")
			_, err := c.DFSAdmin("-safemode", "enter")
			require.NoError(t, err)
			waited := make(chan struct{})
			var seen sync.Once
			e := w.open(t, settings{patience: patience{call: 5 * time.Second, wait: 100 * time.Millisecond}, conf: driver.Config{Observer: driver.ObserverFunc(func(_ context.Context, ev driver.Event) {
				if ev.Type == driver.EventWaiting {
					seen.Do(func() { close(waited) })
				}
			})}})
			go func() {
				<-waited
				_, err := c.DFSAdmin("-safemode", "leave")
				check(t, err)
			}()
			res, err := e.Publish(t.Context(), w.plan())
			require.NoError(t, err)
			require.Equal(t, driver.StatusCompleted, res.Status)
			for _, s := range res.Steps {
				require.Zero(t, s.Attempts, "an attempt was burned on a name node in safe mode")
			}
			e.shut(t)
			w.check(t)
		}
	})
}

// TestLateRename: a rename is held up on its way, given up, and done again. The
// file is consumed and the next run stages; then the first one arrives. Staging
// paths of a run are its own, so it finds nothing. A path that is used again it
// does find, which is why that is refused.
func TestLateRename(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		p := w.behind(t)
		held := func(name string) *faultproxy.Hook {
			return p.On(faultproxy.Rule{Nth: 1, Do: faultproxy.Hold, Match: func(m faultproxy.Message) bool { return renames(m) && bytes.Contains(m.Data, []byte(name)) }})
		}
		own, shared := held("in/run-1/a"), held("in/again/a")
		w.put(t, "in/run-1/a", "one")
		w.put(t, "in/again/a", "one")
		f, err := w.where.open(hasty, "root")
		require.NoError(t, err)
		defer f.Close()
		at := func(p string) commitstep.Address {
			return commitstep.Address{Resource: f.Resource(), Path: w.dir + "/" + p}
		}
		e := w.open(t, settings{patience: hasty})
		defer e.shut(t)
		res, err := e.Publish(t.Context(), w.single("d", "in/run-1/a", "out/a", 3))
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
		require.Equal(t, 1, own.Count(), "nothing was held up")
		require.NoError(t, w.client.Rename(w.dir+"/out/a", w.dir+"/consumed"))
		w.put(t, "in/run-2/a", "two")
		// The same without an engine, on a path that is used again.
		err = f.Rename(t.Context(), at("in/again/a"), at("again"))
		require.Equal(t, commitstep.ClassUnknown, commitstep.ClassOf(err), "%v", err)
		require.Equal(t, 1, shared.Count())
		require.NoError(t, w.client.Remove(w.dir+"/in/again/a"))
		w.put(t, "in/again/a", "two")

		own.Release()
		shared.Release()
		require.Eventually(t, func() bool { return hadoopkit.FileID(w.client, w.dir+"/again") != 0 }, 60*time.Second, 10*time.Millisecond, "the late rename does not arrive")
		require.Equal(t, "two", w.read(t, "again"), "it took the newer file")
		require.Zero(t, hadoopkit.FileID(w.client, w.dir+"/out/a"), "something was published a second time")
		_, err = e.Publish(t.Context(), w.single("d", "in/run-2/a", "out/a", 3))
		require.NoError(t, err)
		require.Equal(t, "two", w.read(t, "out/a"))
		require.Equal(t, "one", w.read(t, "consumed"))
	})
}
