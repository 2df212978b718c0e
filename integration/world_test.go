package integration_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// world is one data directory with its store, and what must be true of both in
// the end. Everything is below root: the data in root/data, the store in
// root/commit.db.
type world struct {
	layout
	text string
	root string
	want map[string][]byte // content by final name, relative to the data
}

// newWorld stages the files of a layout and makes an empty store.
func newWorld(t testing.TB, root, text string) *world {
	t.Helper()
	w := &world{layout: layoutOf(text), text: text, root: root}
	require.NoError(t, os.MkdirAll(w.data(), 0o755))
	w.want = w.stage(t, w.data())
	initStore(t, w.db())
	return w
}

func initAt(path string) (*boltstore.Store, error) { return boltstore.Init(path, nil) }

func initStore(t testing.TB, path string) {
	t.Helper()
	st, err := initAt(path)
	require.NoError(t, err)
	require.NoError(t, st.Close())
}

func (w *world) data() string { return filepath.Join(w.root, "data") }
func (w *world) db() string   { return filepath.Join(w.root, "commit.db") }

// engine is one process's way to a world.
type engine struct {
	*driver.Engine
	store *boltstore.Store
	files *local.Files
}

// impatient ends what would wait for minutes.
var impatient = driver.Policy{FirstPause: time.Millisecond, MaxPause: 20 * time.Millisecond, UnknownBudget: 200 * time.Millisecond, WaitBudget: time.Second, RecoverBudget: 30 * time.Second}

// settings of openEngine; the zero value opens an ordinary one.
type settings struct {
	bolt  boltstore.Options
	local []local.Option
	conf  driver.Config
	wrap  func(*local.Files) filesys.FS
	kinds []commitstep.Kind
	// target keeps watermarks outside the commit store.
	target watermark.Target
}

func openEngine(root string, s settings) (*engine, error) {
	st, err := boltstore.Open(filepath.Join(root, "commit.db"), &s.bolt)
	if err != nil {
		return nil, err
	}
	e, err := engineOn(st, root, s)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return e, nil
}

// engineOn is a further engine on an open store.
func engineOn(st *boltstore.Store, root string, s settings) (*engine, error) {
	files, err := local.New(filepath.Join(root, "data"), s.local...)
	if err != nil {
		return nil, err
	}
	var fsys filesys.FS = files
	if s.wrap != nil {
		fsys = s.wrap(files)
	}
	c := s.conf
	c.Store, c.Owner = st, "integration test"
	var targets []watermark.Target
	if s.target != nil {
		targets = append(targets, s.target)
	}
	kinds := []commitstep.Kind{fsrename.Kind(fsys), fsremove.Kind(fsys), watermark.Kind(st, targets...)}
	c.Kinds = commitstep.NewRegistry(append(kinds, s.kinds...)...)
	if c.Policy == (driver.Policy{}) {
		c.Policy = impatient
	}
	e, err := driver.New(c)
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return &engine{e, st, files}, nil
}

func (e *engine) close() error {
	return errors.Join(e.Engine.Close(context.Background()), e.store.Close(), e.files.Close())
}

// open opens a world in this process until the test or shut ends it.
func (w *world) open(t testing.TB, s settings) *engine {
	t.Helper()
	e, err := openEngine(w.root, s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.close() })
	return e
}

func (e *engine) shut(t testing.TB) {
	t.Helper()
	require.NoError(t, e.close())
}

// recoverAll finishes whatever the store holds, and publishes the plan when
// nothing of it was ever promised.
func (w *world) recoverAll(t testing.TB, s settings) {
	t.Helper()
	ctx := t.Context()
	e := w.open(t, s)
	defer e.shut(t)
	rep, err := e.Recover(ctx, w.job)
	require.NoError(t, err)
	require.True(t, rep.MayIngest(w.dataset), "not free after recover: %+v", rep)
	if w.historyEntries(t, e) == 0 {
		w.checkUntouched(t, e)
		res, err := e.Publish(ctx, w.plan())
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
	}
}

func (w *world) historyEntries(t testing.TB, e *engine) int {
	t.Helper()
	n := 0
	for h, err := range e.store.ListHistory(t.Context(), historyOf(w.job)) {
		require.NoError(t, err)
		require.Equal(t, w.key(), h.Key)
		require.Equal(t, commitstep.Completed, h.State)
		require.Equal(t, w.steps(), h.Steps)
		n++
	}
	return n
}

// checkUntouched holds when nothing was promised: no effect, and all that was
// staged is there.
func (w *world) checkUntouched(t testing.TB, e *engine) {
	t.Helper()
	for to := range w.want {
		_, err := os.Lstat(filepath.Join(w.data(), to))
		require.ErrorIs(t, err, fs.ErrNotExist, "an effect without a promise")
	}
	for _, st := range w.stages {
		for _, m := range st {
			_, err := os.Lstat(filepath.Join(w.data(), m.from))
			require.NoError(t, err, "staged data are gone, and nothing was promised")
		}
	}
	for _, m := range w.marks {
		v, err := e.Watermark(t.Context(), w.job, m.source)
		require.NoError(t, err)
		require.Equal(t, m.from, v)
	}
}

// check is everything that must hold once a plan is published and cleaned up.
func (w *world) check(t testing.TB) {
	t.Helper()
	w.checkFiles(t)
	e := w.open(t, settings{})
	defer e.shut(t)
	w.checkRecords(t, e)
}

// checkFiles reads what a consumer would: every record once, at its final
// name, and nothing else.
func (w *world) checkFiles(t testing.TB) {
	t.Helper()
	dests := map[string]bool{}
	for to := range w.want {
		dests[strings.SplitN(to, "/", 2)[0]] = true
	}
	got := map[record]int{}
	for top := range dests {
		err := filepath.WalkDir(filepath.Join(w.data(), top), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(w.data(), p)
			require.NoError(t, err)
			want, ok := w.want[rel]
			require.True(t, ok, "%s is nobody's destination", rel)
			b, err := os.ReadFile(p)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, b), "%s has other bytes: %d, want %d", rel, len(b), len(want))
			for _, r := range readAvro(t, p) {
				got[r]++
			}
			return nil
		})
		require.NoError(t, err)
	}
	for to := range w.want {
		_, err := os.Lstat(filepath.Join(w.data(), to))
		require.NoError(t, err, "not at its final name")
	}
	want := w.records()
	require.Len(t, got, len(want))
	for r, n := range got {
		require.True(t, want[r], "a record that nobody wrote: %+v", r)
		require.Equal(t, 1, n, "record %+v", r)
	}
	for _, st := range w.stages {
		for _, m := range st {
			_, err := os.Lstat(filepath.Join(w.data(), m.from))
			require.ErrorIs(t, err, fs.ErrNotExist, "published, and still staged")
			w.checkAttributes(t, m)
		}
	}
	for _, c := range w.cleanup {
		_, err := os.Lstat(filepath.Join(w.data(), c.Path))
		require.ErrorIs(t, err, fs.ErrNotExist, "staging is still there")
	}
	require.NoError(t, filepath.WalkDir(w.data(), func(p string, d fs.DirEntry, err error) error {
		require.NotContains(t, d.Name(), ".commitstep-", "a private name was left behind: %s", p)
		return err
	}))
}

func (w *world) checkAttributes(t testing.TB, m move) {
	t.Helper()
	info, err := os.Lstat(filepath.Join(w.data(), m.to))
	require.NoError(t, err)
	require.Equal(t, m.dir, info.IsDir())
	if m.mode != "" {
		bits, err := strconv.ParseUint(m.mode, 8, 32)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(bits), info.Mode().Perm(), m.to)
	}
	if m.owner != "" {
		require.Equal(t, m.owner, strconv.FormatUint(uint64(info.Sys().(*syscall.Stat_t).Uid), 10), m.to)
	}
}

// checkRecords reads the log: one outcome, nothing live, watermarks where the
// plan put them, every record sound.
func (w *world) checkRecords(t testing.TB, e *engine) {
	t.Helper()
	ctx := t.Context()
	require.Equal(t, 1, w.historyEntries(t, e), "history entries")
	for live, err := range e.store.Scan(ctx, allOf(w.job)) {
		require.NoError(t, err)
		require.Failf(t, "still live", "%+v", live)
	}
	q, err := e.store.Quarantine(ctx)
	require.NoError(t, err)
	require.Empty(t, q)
	for _, m := range w.marks {
		v, err := e.Watermark(ctx, w.job, m.source)
		require.NoError(t, err)
		require.Equal(t, m.to, v)
	}
	for problem, err := range e.store.Check(ctx) {
		require.NoError(t, err)
		require.Fail(t, "store check", problem)
	}
	rep, err := e.Recover(ctx, w.job)
	require.NoError(t, err)
	require.Empty(t, rep.Results, "a recover after the end finds nothing to do")
	require.True(t, rep.MayIngest(w.dataset))
}
