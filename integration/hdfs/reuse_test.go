package hdfs_test

import (
	"context"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// withheld is a rename that its sender believes lost, and that comes later.
type withheld struct {
	filesys.FS
	sent chan func() error
}

func (w *withheld) Rename(_ context.Context, from, to commitstep.Address) error {
	w.sent <- func() error { return w.FS.Rename(context.Background(), from, to) }
	return context.DeadlineExceeded
}

// TestAPathIsNotUsedTwice: a rename that was given up comes late, when the next
// run has staged its file. On a path that was used again it would take away the
// newer file; the plan that would let it is refused.
func TestAPathIsNotUsedTwice(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		w := newWorld(t, c, transport, "files")
		w.put(t, "in/run-1/a", "one")
		late := &withheld{sent: make(chan func() error, 16)}
		e := w.open(t, settings{wrap: func(f filesys.FS) filesys.FS { late.FS = f; return late }})
		// The first try is given up without an answer, and so are the others.
		res, err := e.Publish(t.Context(), w.single("d", "in/run-1/a", "out/a", 3))
		require.Error(t, err)
		require.NotEmpty(t, res.Status)
		e.shut(t)
		require.NotEmpty(t, late.sent)
		e = w.open(t, settings{})
		defer e.shut(t)
		live, err := e.store.Find(t.Context(), res.ID)
		require.NoError(t, err)
		_, err = e.store.Decide(t.Context(), store.Decision{Key: live.Key, ID: live.ID, Kind: store.DecideAbandon, Version: live.Version, State: commitstep.Abandoned,
			Person: store.Person{Name: "op", Reason: "publish it anew"}})
		require.NoError(t, err)

		// The next run stages at the same path.
		require.NoError(t, w.client.Remove(w.dir+"/in/run-1/a"))
		w.put(t, "in/run-1/a", "two")
		w.refused(t, e, w.single("d", "in/run-1/a", "out/b", 3), res.ID.String(), "abandoned", "acceptReusedPaths", "may still arrive")
		// Nor does the other transport, nor the directory, nor a cleanup of it, nor a
		// restart, make it another path.
		other := "web" + transport
		if transport == "webhdfs" {
			other = "hdfs"
		}
		q := commitstep.NewPlan(job, "d").Step(fsrename.Move(w.address(w.dir+"/in/run-1"), w.address(w.dir+"/out/dir"), fsrename.Length(3)))
		w.refused(t, e, q, "used something below it")
		require.Equal(t, commitstep.DigestPath(parsed(t, other+"://test"+w.dir+"/in/run-1/a")), commitstep.DigestPath(parsed(t, w.address(w.dir+"/in/run-1/a"))))
		e.shut(t)
		e = w.open(t, settings{})
		w.refused(t, e, w.single("d", "in/run-1/a", "out/b", 3), res.ID.String())

		// A path of its own is published, and the late rename of the first run takes
		// nothing of it: what it finds is what nobody promised anything about.
		w.put(t, "in/run-2/a", "two")
		_, err = e.Publish(t.Context(), w.single("d", "in/run-2/a", "out/b", 3))
		require.NoError(t, err)
		f, err := w.where.open(ordinary, "root")
		require.NoError(t, err)
		defer f.Close()
		late.FS = f
		require.NoError(t, (<-late.sent)())
		require.Equal(t, "two", w.read(t, "out/b"))
		// This is what would have happened to the refused plan's file.
		require.Zero(t, hadoopkit.FileID(w.client, w.dir+"/in/run-1/a"))
		require.Equal(t, "two", w.read(t, "out/a"), "the late rename moved the newer file to the older name")

		// A person may know better.
		w.put(t, "in/run-1/a", "six")
		p := w.single("e", "in/run-1/a", "out/c", 3)
		p.AcceptReusedPaths = "the late rename has come"
		_, err = e.Publish(t.Context(), p)
		require.NoError(t, err)
		n := 0
		for a, err := range e.store.ListAudit(t.Context()) {
			require.NoError(t, err)
			if a.Action == "paths.accept" {
				n++
				require.Equal(t, p.AcceptReusedPaths, a.Reason)
			}
		}
		require.Equal(t, 1, n)
	})
}

func parsed(t *testing.T, text string) commitstep.Address {
	t.Helper()
	a, err := commitstep.ParseAddress(text, "")
	require.NoError(t, err)
	return a
}
