package integration_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// box is a data directory and a store for one small story.
type box struct {
	t    *testing.T
	root string
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{t, t.TempDir()}
	require.NoError(t, os.Mkdir(b.path(""), 0o755))
	initStore(t, b.db())
	return b
}

func (b *box) path(name string) string { return filepath.Join(b.root, "data", name) }
func (b *box) db() string              { return filepath.Join(b.root, "commit.db") }

func (b *box) put(name, content string) {
	b.t.Helper()
	require.NoError(b.t, os.MkdirAll(filepath.Dir(b.path(name)), 0o755))
	require.NoError(b.t, os.WriteFile(b.path(name), []byte(content), 0o644))
}

// none is what get returns for a file that is not there.
const none = "<none>"

func (b *box) get(name string) string {
	b.t.Helper()
	c, err := os.ReadFile(b.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return none
	}
	require.NoError(b.t, err)
	return string(c)
}

func (b *box) rename(from, to string) {
	b.t.Helper()
	require.NoError(b.t, os.MkdirAll(filepath.Dir(b.path(to)), 0o755))
	require.NoError(b.t, os.Rename(b.path(from), b.path(to)))
}

func (b *box) open(s settings) *engine {
	b.t.Helper()
	e, err := openEngine(b.root, s)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = e.close() })
	return e
}

// move is a plan of job "j": from -> to, then the watermark "w" from none to
// 100.
func (b *box) move(dataset, from, to string, opts ...fsrename.Option) *commitstep.Plan {
	return commitstep.NewPlan("j", dataset).Step(fsrename.Move(from, to, opts...)).
		Then(watermark.Set("w/"+dataset, commitstep.None(), commitstep.Int(100)))
}

// promise stores a plan and stops before the first of its steps, as a driver
// does that dies there.
func (b *box) promise(plan *commitstep.Plan) {
	b.t.Helper()
	b.publishUntil("put.after", plan, settings{})
}

// publishUntil stops the driver of a plan when it reaches a named point.
func (b *box) publishUntil(point string, plan *commitstep.Plan, s settings) {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	defer stop()
	s.conf.KillPoint = func(p string) {
		if p == point {
			stop()
		}
	}
	e := b.open(s)
	defer e.shut(b.t)
	res, err := e.Publish(ctx, plan)
	var unfinished *driver.NotFinishedError
	require.ErrorAs(b.t, err, &unfinished)
	require.Equal(b.t, driver.StatusStopped, res.Status, "%+v", res)
}

// recover is one later run of the job. It returns what became of the dataset
// and whether it may be ingested.
func (b *box) recover(dataset string, s settings) (driver.Result, bool) {
	b.t.Helper()
	e := b.open(s)
	defer e.shut(b.t)
	return e.recoverOne(b.t, dataset)
}

func (e *engine) recoverOne(t testing.TB, dataset string) (driver.Result, bool) {
	t.Helper()
	rep, err := e.Recover(t.Context(), "j")
	require.NoError(t, err)
	for _, r := range rep.Results {
		if r.Key.Dataset == dataset {
			return r, rep.MayIngest(dataset)
		}
	}
	return driver.Result{}, rep.MayIngest(dataset)
}

// mark is the watermark that move sets.
func (b *box) mark(dataset string) commitstep.Watermark {
	b.t.Helper()
	e := b.open(settings{})
	defer e.shut(b.t)
	v, err := e.Watermark(b.t.Context(), "j", "w/"+dataset)
	require.NoError(b.t, err)
	return v
}

// outcomes are the history of job "j" by dataset.
func (e *engine) outcomes(t testing.TB) map[string]store.HistoryEntry {
	t.Helper()
	out := map[string]store.HistoryEntry{}
	for h, err := range e.store.ListHistory(t.Context(), historyOf("j")) {
		require.NoError(t, err)
		out[h.Dataset] = h
	}
	return out
}

// faulty is a file system some of whose calls go wrong. next is the real call.
type faulty struct {
	*local.Files
	onRename func(from, to commitstep.Address, next func() error) error
	onMkdir  func(dir commitstep.Address, next func() error) error
	onAttrs  func(p commitstep.Address, next func() error) error
}

// with makes settings whose file system goes wrong as f says.
func (f faulty) with() settings {
	return settings{wrap: func(files *local.Files) filesys.FS { f.Files = files; return &f }}
}

func (f *faulty) Rename(ctx context.Context, from, to commitstep.Address) error {
	next := func() error { return f.Files.Rename(ctx, from, to) }
	if f.onRename == nil {
		return next()
	}
	return f.onRename(from, to, next)
}

func (f *faulty) MkdirAll(ctx context.Context, dir commitstep.Address) error {
	next := func() error { return f.Files.MkdirAll(ctx, dir) }
	if f.onMkdir == nil {
		return next()
	}
	return f.onMkdir(dir, next)
}

func (f *faulty) SetAttributes(ctx context.Context, p commitstep.Address, a filesys.Attributes) error {
	next := func() error { return f.Files.SetAttributes(ctx, p, a) }
	if f.onAttrs == nil {
		return next()
	}
	return f.onAttrs(p, next)
}

var errLost = errors.New("connection reset by peer")

// scripted is a kind of step whose target is a few functions.
type scripted struct {
	verify  func(a *commitstep.Attempt) (commitstep.Verdict, error)
	execute func(ctx context.Context, a *commitstep.Attempt) error
}

func (s *scripted) Verify(_ context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	return s.verify(a)
}
func (s *scripted) Execute(ctx context.Context, a *commitstep.Attempt) error {
	return s.execute(ctx, a)
}

type irreversible struct{ *scripted }

func (irreversible) Irreversible() {}

// kindOf registers a scripted step under a name.
func kindOf(name string, s commitstep.CommitStep) commitstep.Kind {
	return commitstep.Kind{Name: name, Version: 1, New: func(commitstep.Step) (commitstep.CommitStep, error) { return s, nil }}
}

func specOf(kind string) commitstep.StepSpec {
	return commitstep.NewSpec(kind, struct{}{})
}

// person decides in tests.
func person(reason string) store.Person { return store.Person{Name: "operator", Reason: reason} }

// eventually waits for something that happens behind, without a fixed pause.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}
