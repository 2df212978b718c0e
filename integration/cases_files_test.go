package integration_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/stretchr/testify/require"
)

// A file system that answers success and did nothing is not believed, and the
// watermark waits.
func TestCaseC01RenameAnsweredFalse(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	var calls atomic.Int32
	var e *engine
	s := faulty{onRename: func(_, _ commitstep.Address, next func() error) error {
		w, err := e.Watermark(t.Context(), "j", "w/d")
		require.NoError(t, err)
		require.True(t, w.IsNone(), "the watermark moved before the data")
		switch calls.Add(1) {
		case 1:
			return nil // "false", which somebody forgot to look at
		case 2:
			return commitstep.Refused(errLost)
		}
		return next()
	}}.with()
	e = b.open(s)
	res, err := e.Publish(t.Context(), b.move("d", "in", "out/f"))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.EqualValues(t, 3, calls.Load())
	e.shut(t)
	require.Equal(t, "data", b.get("out/f"))
	require.Equal(t, commitstep.Int(100), b.mark("d"))
}

// The same for ever: parked, the source in place, the watermark where it was.
func TestCaseC01RenameNeverWorks(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	e := b.open(faulty{onRename: func(_, _ commitstep.Address, _ func() error) error { return nil }}.with())
	res, err := e.Publish(t.Context(), b.move("d", "in", "out/f"))
	require.Error(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
	e.shut(t)
	require.Equal(t, "data", b.get("in"))
	require.Equal(t, none, b.get("out/f"))
	require.True(t, b.mark("d").IsNone())
}

func TestCaseC02MkdirsAnsweredFalse(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for i, answer := range []error{nil, commitstep.Refused(fs.ErrPermission)} {
		dataset, in := fmt.Sprint(answer), fmt.Sprintf("staging/in-%d", i)
		b.put(in, "data")
		e := b.open(faulty{onMkdir: func(commitstep.Address, func() error) error { return answer }}.with())
		res, err := e.Publish(t.Context(), b.move(dataset, in, "out/"+dataset+"/f"))
		require.Error(t, err)
		require.Equal(t, driver.StatusParked, res.Status)
		require.Contains(t, err.Error(), b.path(in), "the error names the source")
		require.Contains(t, err.Error(), b.path("out/"+dataset+"/f"), "and the destination")
		e.shut(t)
		require.True(t, b.mark(dataset).IsNone())
		require.Equal(t, "data", b.get(in))
	}
}

// A foreign file of the same name: refused when it is there in time, a conflict
// when it comes later, at once and again at every restart; others go on.
func TestCaseC04DestinationTakenByAnother(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "ours")
	b.put("out/f", "theirs")
	e := b.open(settings{})
	_, err := e.Publish(t.Context(), b.move("d", "in", "out/f"))
	var refused *commitstep.PlanError
	require.ErrorAs(t, err, &refused)
	require.ErrorIs(t, err, fs.ErrExist)
	require.NoError(t, os.Remove(b.path("out/f")))
	e.shut(t)
	b.promise(b.move("d", "in", "out/f"))
	b.put("out/f", "theirs")
	for run := range 3 {
		other := fmt.Sprint("other ", run)
		b.put(other, "fine")
		b.promise(b.move(other, other, "out/"+other))
		e := b.open(settings{})
		rep, err := e.Recover(t.Context(), "j")
		require.NoError(t, err)
		require.False(t, rep.MayIngest("d"))
		require.True(t, rep.MayIngest(other))
		live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "d"})
		require.NoError(t, err)
		require.Equal(t, commitstep.Parked, live.State)
		require.Equal(t, commitstep.ConflictFound, live.Reason)
		page, err := e.store.Steps(t.Context(), live.ID, 0)
		require.NoError(t, err)
		require.Zero(t, page.Progress[0].Count, "no attempt is burned on what is plain to see")
		e.shut(t)
		require.Equal(t, "fine", b.get("out/"+other))
	}
	require.Equal(t, "theirs", b.get("out/f"))
	require.Equal(t, "ours", b.get("in"))
	require.True(t, b.mark("d").IsNone())
}

// The rename is done, the process ends before the mode is set: the replay sets
// it.
func TestCaseC06AttributesAreSetInTheReplay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	s := faulty{onAttrs: func(commitstep.Address, func() error) error { return errLost }}.with()
	b.publishUntil("execute.after#0", b.move("d", "in", "out/f", fsrename.Mode("0604")), s)
	require.Equal(t, "data", b.get("out/f"))
	res, free := b.recover("d", settings{})
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	info, err := os.Stat(b.path("out/f"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o604), info.Mode().Perm())
}

// The rename took place and its answer was lost: done, and counted. If another
// file is there then, it is a conflict.
func TestCaseC07AnswerOfTheRenameLost(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	e := b.open(faulty{onRename: func(_, _ commitstep.Address, next func() error) error {
		require.NoError(t, next())
		return errLost
	}}.with())
	res, err := e.Publish(t.Context(), b.move("d", "in", "out/f"))
	require.NoError(t, err)
	require.Equal(t, 1, res.Recovered)
	require.Equal(t, "data", b.get("out/f"))
	require.Equal(t, 1, e.outcomes(t)["d"].Notes.Already, "the history counts it too")
	e.shut(t)

	b.put("in2", "data")
	e = b.open(faulty{onRename: func(_, _ commitstep.Address, next func() error) error {
		require.NoError(t, next())
		b.put("foreign", "DATA")
		b.rename("foreign", "out/f2")
		return errLost
	}}.with())
	res, err = e.Publish(t.Context(), b.move("d2", "in2", "out/f2"))
	require.Error(t, err)
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	require.Equal(t, "DATA", b.get("out/f2"))
	e.shut(t)
}

// Same name, same length, same time, other bytes: not ours, with the source
// there and without.
func TestCaseC08LookAlikeIsNotDone(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		b := newBox(t)
		b.put("in", "data")
		b.promise(b.move("d", "in", "out/f"))
		info, err := os.Stat(b.path("in"))
		require.NoError(t, err)
		b.put("out/f", "atad")
		require.NoError(t, os.Chtimes(b.path("out/f"), info.ModTime(), info.ModTime()))
		if gone {
			b.rename("in", "elsewhere")
		}
		res, free := b.recover("d", settings{})
		require.Equal(t, commitstep.ConflictFound, res.Reason)
		require.False(t, free)
		require.Equal(t, "atad", b.get("out/f"))
		require.True(t, b.mark("d").IsNone())
	}
}

// A file that its writer did not finish is never published.
func TestCaseC11TornSource(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, content := range []string{"", "Obj\x01"} {
		b.put("in", content)
		e := b.open(settings{})
		_, err := e.Publish(t.Context(), b.move("d", "in", "out/f", fsrename.Length(1234)))
		e.shut(t)
		var refused *commitstep.PlanError
		require.ErrorAs(t, err, &refused)
		require.Contains(t, err.Error(), "1234")
		require.Contains(t, err.Error(), fmt.Sprint(len(content), " bytes"))
		require.Equal(t, none, b.get("out/f"))
	}
	// Torn after it was planned: a conflict, parked.
	b.put("in", "whole")
	b.promise(b.move("d", "in", "out/f", fsrename.Length(5)))
	require.NoError(t, os.Truncate(b.path("in"), 0))
	res, free := b.recover("d", settings{})
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	require.Contains(t, res.Message, "0 bytes now")
	require.False(t, free)
	require.Equal(t, none, b.get("out/f"))
}

// A consumer took the published file away. What was recorded as done stays
// done; what was not is neither success nor done again, a person decides.
func TestCaseC12PublishedAndConsumed(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("a", "1")
	b.put("b", "2")
	two := commitstep.NewPlan("j", "d").Step(fsrename.Move("a", "out/a")).Then(fsrename.Move("b", "out/b"))
	b.publishUntil("record.after#0", two, settings{})
	b.rename("out/a", "consumed/a")
	res, free := b.recover("d", settings{})
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	require.Equal(t, 1, res.Recorded)
	require.Equal(t, none, b.get("out/a"))
	require.Equal(t, "2", b.get("out/b"))

	b.put("c", "3")
	b.promise(b.move("e", "c", "out/c"))
	b.rename("c", "consumed/c")
	res, free = b.recover("e", settings{})
	require.Equal(t, driver.StatusParked, res.Status)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	require.False(t, free)
	require.True(t, b.mark("e").IsNone())
}

// A foreign file appears between the look and the rename: it is not
// overwritten.
func TestCaseC15ForeignFileBetweenLookAndRename(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "ours")
	e := b.open(faulty{onRename: func(_, _ commitstep.Address, next func() error) error {
		b.put("out/f", "theirs")
		return next()
	}}.with())
	res, err := e.Publish(t.Context(), b.move("d", "in", "out/f"))
	require.Error(t, err)
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	e.shut(t)
	require.Equal(t, "theirs", b.get("out/f"))
	require.Equal(t, "ours", b.get("in"))
}

// Two engines publish two datasets to one name: one wins, the other's data stay
// where they are.
func TestCaseC17TwoPublishersOneDestination(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.open(settings{})
	other, err := engineOn(e.store, b.root, settings{})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Engine.Close(t.Context())); require.NoError(t, other.files.Close()) }()
	for round := range 20 {
		name := fmt.Sprint("out/", round)
		var wg sync.WaitGroup
		var won atomic.Int32
		for i, eng := range []*engine{e, other} {
			in := fmt.Sprintf("in-%d-%d", round, i)
			b.put(in, in)
			wg.Go(func() {
				if _, err := eng.Publish(t.Context(), b.move(in, in, name)); err == nil {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, won.Load())
		winner := b.get(name)
		for i := range 2 {
			if in := fmt.Sprintf("in-%d-%d", round, i); in != winner {
				require.Equal(t, in, b.get(in), "the loser's data")
			}
		}
	}
}

// A rename that is answered "failed" again and again although it took place:
// the good target is never cleaned away.
func TestCaseC36FailedRenameIsNeverCleanedUp(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("staging/in", "data")
	s := faulty{onRename: func(_, _ commitstep.Address, next func() error) error {
		_ = next()
		return commitstep.Refused(errLost)
	}}.with()
	plan := func() *commitstep.Plan { return b.move("d", "staging/in", "out/f").Cleanup("staging") }
	b.publishUntil("execute.after#0", plan(), s)
	require.Equal(t, "data", b.get("out/f"))
	res, free := b.recover("d", s)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	require.Equal(t, "data", b.get("out/f"))
	require.NoDirExists(t, b.path("staging"))
}

// A directory at the destination does not swallow the file.
func TestDestinationIsADirectory(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	require.NoError(t, os.MkdirAll(b.path("out/f"), 0o755))
	e := b.open(settings{})
	_, err := e.Publish(t.Context(), b.move("d", "in", "out/f"))
	e.shut(t)
	require.ErrorIs(t, err, fs.ErrExist)
	require.NoError(t, os.Remove(b.path("out/f")))
	b.promise(b.move("d", "in", "out/f"))
	require.NoError(t, os.MkdirAll(b.path("out/f"), 0o755))
	res, _ := b.recover("d", settings{})
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	entries, err := os.ReadDir(b.path("out/f"))
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Equal(t, "data", b.get("in"))
}

// A parent that is missing when the plan is replayed is made then, and a file
// where a directory must be is a conflict.
func TestMissingParentsAreMadeInTheReplay(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	require.NoError(t, os.MkdirAll(b.path("out/2015/12"), 0o755))
	b.promise(b.move("d", "in", "out/2015/12/f"))
	require.NoError(t, os.RemoveAll(b.path("out")))
	res, free := b.recover("d", settings{})
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	require.Equal(t, "data", b.get("out/2015/12/f"))

	b.put("in2", "data")
	b.promise(b.move("e", "in2", "out2/sub/f"))
	b.put("out2", "a file")
	res, _ = b.recover("e", settings{})
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	require.Equal(t, "data", b.get("in2"))
}

// No rename ever becomes a copy that a crash could cut: another file system is
// refused when the plan is made.
func TestOtherFileSystemIsRefusedNotCopied(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	shm, err := os.MkdirTemp("/dev/shm", "commitstep-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	require.NoError(t, os.WriteFile(filepath.Join(shm, "in"), []byte("data"), 0o644))
	require.NoError(t, os.Symlink(shm, b.path("link")))
	for _, from := range []string{filepath.Join(shm, "in"), "link/in"} {
		e := b.open(settings{})
		_, err := e.Publish(t.Context(), b.move("d", from, "out/f"))
		e.shut(t)
		var refused *commitstep.PlanError
		require.ErrorAs(t, err, &refused, "%v", err)
		require.Equal(t, none, b.get("out/f"))
	}
	// Outside the root is one reason; with a root that holds both it is the
	// file system.
	b2 := newBox(t)
	sub := b2.path("mnt")
	require.NoError(t, os.Mkdir(sub, 0o755))
	if err := mountTmpfs(sub); err != nil {
		require.NotZero(t, os.Getuid(), "root could not mount: %v", err)
		return
	}
	t.Cleanup(func() { unmount(sub) })
	b2.put("mnt/in", "data")
	e := b2.open(settings{})
	_, err = e.Publish(t.Context(), b2.move("d", "mnt/in", "out/f"))
	e.shut(t)
	require.ErrorIs(t, err, filesys.ErrOtherFileSystem)
	require.Equal(t, "data", b2.get("mnt/in"))
	require.Equal(t, none, b2.get("out/f"))
}

// Names are bytes: nothing is encoded or decoded on the way from the plan to
// the file system.
func TestCaseC60PercentAndBlankAreTwoNames(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	names := []string{"part=a%20b/f", "a b/f", "a+b/f", "a%2Fb/f", "a%252Fb/f", "a?b=c/f", "a#b/f", "100%/f", "%/f", "a:b/f", `a\b/f`, "ä/f", "a\u0308/f"}
	plan := commitstep.NewPlan("j", "d")
	for _, n := range names {
		b.put("staging/"+n, n)
		plan.Step(fsrename.Move("staging/"+n, "out/"+n))
	}
	b.promise(plan)
	res, free := b.recover("d", settings{})
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	for _, n := range names {
		require.Equal(t, n, b.get("out/"+n))
	}
	entries, err := os.ReadDir(b.path("out"))
	require.NoError(t, err)
	require.Len(t, entries, len(names))
	for _, e := range entries {
		require.True(t, strings.Contains(strings.Join(names, "\n"), e.Name()))
	}
}
