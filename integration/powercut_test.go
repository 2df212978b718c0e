package integration_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/powercut"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// recorded is one undisturbed publish as strace saw it.
type recorded struct {
	*world
	rec *powercut.Recording
	ids map[string]filesys.ID // of what was staged, by path
}

// needStrace skips only where the set-up did not run.
func needStrace(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed; scripts/setup.sh does it, on Debian: apt-get install strace")
	}
}

// quickDir is a directory in memory where there is one: the states are made
// and thrown away by the thousand, and nothing of them needs a disk.
func quickDir(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/dev/shm"); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "commitstep-powercut-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func recordPublish(t *testing.T, text string) *recorded {
	t.Helper()
	r := &recorded{world: newWorld(t, quickDir(t), text), ids: map[string]filesys.ID{}}
	files, err := local.New(r.data())
	require.NoError(t, err)
	defer files.Close()
	before, err := powercut.Scan(r.root)
	require.NoError(t, err)
	for _, p := range before.Below(r.data()) {
		info, err := files.Stat(t.Context(), commitstep.Address{Resource: commitstep.LocalResource, Path: p})
		require.NoError(t, err)
		require.False(t, info.ID.IsZero())
		r.ids[p] = info.ID
	}
	// The job that staged the files synced nothing of them. Of the leftovers
	// that it forgot, one that comes back with other bytes is another file, and
	// rightly stays.
	staging := before.Below(r.data())
	for _, s := range r.strays {
		staging = slices.DeleteFunc(staging, func(p string) bool { return p == filepath.Join(r.data(), s.path) })
	}
	out := filepath.Join(t.TempDir(), "trace")
	p := testkit.StartWith(t, "run", []string{r.root, text, "publish", filepath.Join(t.TempDir(), "journal"), "0", "marks"}, powercut.Under(out))
	code, by := p.Exit()
	require.Zero(t, by)
	require.Zero(t, code, p.Output())
	r.rec, err = powercut.ReadFile(out, r.root, before, staging...)
	require.NoError(t, err)
	require.Greater(t, r.rec.Syncs(), 10)
	require.Greater(t, r.rec.Changes(), 15)
	return r
}

// TestPowerCut recovers from every state that a power cut during a publish may
// leave, of the file tree and of the store, and holds it to the same promises
// as a crash.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for _, text := range []string{"mytopic", "shared", "random:" + fmt.Sprint(variedSeed(t))} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			r := recordPublish(t, text)
			var tally tally
			for s := range r.rec.States(powercut.Options{Samples: 1000}) {
				if complaint := r.judge(t, s, &tally); complaint != "" {
					t.Fatalf("%s\n%s", s.Lost, complaint)
				}
			}
			t.Logf("%d states: %d with nothing promised, %d recovered, %d completed before", tally.nothing+tally.live+tally.ended, tally.nothing, tally.live, tally.ended)
			require.Greater(t, tally.live, 50, "states with a promise to keep")
			require.Positive(t, tally.nothing)
			require.Positive(t, tally.ended)
		})
	}
}

// TestPowerCutNoticesMissingSyncs shows that the test above can fail: a
// publish that forgets one kind of sync loses data in some state.
func TestPowerCutNoticesMissingSyncs(t *testing.T) {
	t.Parallel()
	needStrace(t)
	r := recordPublish(t, "mytopic")
	data := r.data() + "/"
	for name, forgets := range map[string]func(path string, dir bool) bool{
		"the store's":                       func(p string, _ bool) bool { return p == r.db() },
		"the destination directories'":      func(p string, dir bool) bool { return dir && strings.HasPrefix(p, data+"job-output") },
		"the destination's new parents'":    func(p string, dir bool) bool { return dir && p == data+"job-output" },
		"the sources' directories'":         func(p string, dir bool) bool { return dir && strings.HasPrefix(p, data+"task-output") },
		"the staged files'":                 func(p string, dir bool) bool { return !dir && strings.HasPrefix(p, data+"task-output") },
		"all directories', but no file's,":  func(_ string, dir bool) bool { return dir },
		"every file's, but no directory's,": func(_ string, dir bool) bool { return !dir },
	} {
		caught := ""
		n := 0
		for s := range r.rec.Without(forgets).States(powercut.Options{Exhaustive: 256, Samples: 2000}) {
			n++
			if caught = r.judge(t, s, new(tally)); caught != "" {
				caught = s.Lost + ": " + caught
				break
			}
		}
		t.Logf("without %s sync, state %d: %s", name, n, caught)
		require.NotEmpty(t, caught, "a publish without %s sync survives all %d states", name, n)
	}
}

// variedSeed is the first random plan with a directory, attributes, and
// leftovers to delete.
func variedSeed(t *testing.T) int {
	t.Helper()
	for seed := range 1000 {
		l := layoutOf(fmt.Sprint("random:", seed))
		dirs, modes := 0, 0
		for _, st := range l.stages {
			for _, m := range st {
				if m.dir {
					dirs++
				}
				if m.mode != "" && !m.dir {
					modes++
				}
			}
		}
		if dirs == 1 && modes == 1 && len(l.strays) == 2 && l.steps() < 8 {
			return seed
		}
	}
	t.Fatal("no such plan")
	return 0
}

type tally struct{ nothing, live, ended int }

// judge makes one state, recovers, and returns what is wrong with the result,
// "" if nothing is.
func (r *recorded) judge(t testing.TB, s powercut.State, n *tally) string {
	require.NoError(t, s.Tree.WriteTo(r.root))
	return complaintOf(t, func(t testing.TB) {
		ids := &identities{recorded: map[filesys.ID]filesys.ID{}, real: map[filesys.ID]filesys.ID{}}
		e, err := openEngine(r.root, settings{wrap: func(f *local.Files) filesys.FS { ids.Files = f; return ids }})
		require.NoError(t, err, "the store cannot be opened")
		defer func() { _ = e.close() }() // the one that is open then
		for _, p := range s.Tree.Below(r.data()) {
			if was, ok := r.ids[s.Tree[p].Initial]; ok {
				info, err := e.files.Stat(t.Context(), commitstep.Address{Resource: commitstep.LocalResource, Path: p})
				require.NoError(t, err)
				ids.recorded[info.ID], ids.real[was] = was, info.ID
			}
		}
		_, err = e.store.Get(t.Context(), r.key())
		ended := r.historyEntries(t, e) > 0
		switch {
		case s.Had("point complete.after") || s.Had("point published"):
			require.True(t, ended, "the caller was told that it is completed")
			n.ended++
		case ended:
			n.ended++
		case errors.Is(err, commitstep.ErrNotFound):
			require.False(t, s.Had("point put.after"), "the plan was a promise")
			for to := range r.want {
				_, err := os.Lstat(filepath.Join(r.data(), to))
				require.ErrorIs(t, err, fs.ErrNotExist, "an effect without a promise")
			}
			n.nothing++
			return
		default:
			require.NoError(t, err)
			n.live++
		}
		rep, err := e.Recover(t.Context(), r.job)
		require.NoError(t, err)
		require.True(t, rep.MayIngest(r.dataset), "not finished: %+v", rep)
		require.NoError(t, e.close())
		r.checkFiles(t)
		e, err = openEngine(r.root, settings{})
		require.NoError(t, err)
		r.checkRecords(t, e)
	})
}

// identities gives the copies of staged files and directories the identities
// that the originals had: after a power cut they would still have them, but
// nobody can make a file with a chosen inode.
type identities struct {
	*local.Files
	recorded map[filesys.ID]filesys.ID // by that of the copy
	real     map[filesys.ID]filesys.ID // the other way
}

func swap(m map[filesys.ID]filesys.ID, i filesys.Info) filesys.Info {
	if id, ok := m[i.ID]; ok {
		i.ID = id
	}
	return i
}

func (f *identities) Stat(ctx context.Context, p commitstep.Address) (filesys.Info, error) {
	i, err := f.Files.Stat(ctx, p)
	return swap(f.recorded, i), err
}

func (f *identities) List(ctx context.Context, dir commitstep.Address) iter.Seq2[filesys.Info, error] {
	return func(yield func(filesys.Info, error) bool) {
		for i, err := range f.Files.List(ctx, dir) {
			if !yield(swap(f.recorded, i), err) {
				return
			}
		}
	}
}

func (f *identities) Remove(ctx context.Context, want filesys.Info) error {
	return f.Files.Remove(ctx, swap(f.real, want))
}

func (f *identities) RemoveDir(ctx context.Context, want filesys.Info) error {
	return f.Files.RemoveDir(ctx, swap(f.real, want))
}

func (f *identities) Sweep(ctx context.Context, dir commitstep.Address, ours func(filesys.Info) bool, look bool) (filesys.Swept, error) {
	return f.Files.Sweep(ctx, dir, func(i filesys.Info) bool { return ours(swap(f.recorded, i)) }, look)
}

// complaintOf runs checks that would end a test, and returns what they say.
func complaintOf(t testing.TB, checks func(testing.TB)) string {
	c := &complaints{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		checks(c)
	}()
	<-done
	return c.text.String()
}

type complaints struct {
	testing.TB
	text strings.Builder
}

func (c *complaints) Errorf(format string, a ...any) { fmt.Fprintf(&c.text, format+"\n", a...) }
func (c *complaints) FailNow()                       { runtime.Goexit() }
func (c *complaints) Helper()                        {}

// TestPowerCutDuringStoreInit: a store is there whole or not at all, and for
// good once Init has returned.
func TestPowerCutDuringStoreInit(t *testing.T) {
	t.Parallel()
	needStrace(t)
	root, out := quickDir(t), filepath.Join(t.TempDir(), "trace")
	before, err := powercut.Scan(root)
	require.NoError(t, err)
	p := testkit.StartWith(t, "init", []string{root}, powercut.Under(out))
	code, by := p.Exit()
	require.Zero(t, by)
	require.Zero(t, code, p.Output())
	rec, err := powercut.ReadFile(out, root, before)
	require.NoError(t, err)
	absent, whole := 0, 0
	for s := range rec.States(powercut.Options{}) {
		require.NoError(t, s.Tree.WriteTo(root))
		path := filepath.Join(root, "commit.db")
		st, err := boltstore.Open(path, nil)
		if err == nil {
			whole++
			require.NoError(t, st.Close())
			continue
		}
		absent++
		require.ErrorIs(t, err, boltstore.ErrAbsent, s.Lost)
		require.False(t, s.Had("initialised"), s.Lost)
		st, err = boltstore.Init(path, nil)
		require.NoError(t, err, "the rest of a dead Init is in the way: %s", s.Lost)
		require.NoError(t, st.Close())
	}
	require.Positive(t, absent)
	require.Positive(t, whole)
}

// initChild makes a store below ROOT.
func initChild(c *testkit.Child) int {
	st, err := boltstore.Init(filepath.Join(c.Args[0], "commit.db"), nil)
	if err != nil {
		return c.Fail("%v", err)
	}
	powercut.Mark(c.Args[0], "initialised")
	if err := st.Close(); err != nil {
		return c.Fail("%v", err)
	}
	return 0
}
