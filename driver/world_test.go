package driver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a target system in memory: effects by name, counted.
type world struct {
	mu      sync.Mutex
	effects map[string]int // how often each took place
	owner   map[string]string
	// verify and execute are scripts by step name; nil is the plain behaviour.
	verify   map[string]func(n int, a *commitstep.Attempt) (commitstep.Verdict, error)
	execute  map[string]func(n int, a *commitstep.Attempt, do func()) error
	looks    map[string]int
	calls    map[string]int
	settles  map[string]int
	parked   []string
	parkFail int
	guardErr error
	// prepare is called by the step test.source while its plan is prepared.
	prepare func() error
	renewed int
	order   []string
}

func newWorld() *world {
	return &world{effects: map[string]int{}, owner: map[string]string{}, looks: map[string]int{}, calls: map[string]int{}, settles: map[string]int{},
		verify:  map[string]func(int, *commitstep.Attempt) (commitstep.Verdict, error){},
		execute: map[string]func(int, *commitstep.Attempt, func()) error{}}
}

func (w *world) count(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.effects[name]
}

func (w *world) called(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[name]
}

type effect struct {
	w    *world
	Name string `json:"name"`
}

func (s *effect) Summary() string { return s.Name }

func (s *effect) Verify(_ context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	s.w.mu.Lock()
	s.w.looks[s.Name]++
	n, script, own := s.w.looks[s.Name], s.w.verify[s.Name], s.w.owner[s.Name]
	s.w.mu.Unlock()
	if script != nil {
		if v, err := script(n, a); err != nil || v.Evidence != "" {
			return v, err
		}
	}
	switch own {
	case "":
		return commitstep.IsNotDone("%s is free", s.Name), nil
	case a.Token.String():
		return commitstep.IsDone("%s is ours", s.Name), nil
	}
	return commitstep.InConflict("%s belongs to %s", s.Name, own), nil
}

func (s *effect) Execute(_ context.Context, a *commitstep.Attempt) error {
	s.w.mu.Lock()
	s.w.calls[s.Name]++
	n, script := s.w.calls[s.Name], s.w.execute[s.Name]
	s.w.mu.Unlock()
	do := func() {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		s.w.effects[s.Name]++
		s.w.owner[s.Name] = a.Token.String()
		s.w.order = append(s.w.order, s.Name)
	}
	if script != nil {
		return script(n, a, do)
	}
	do()
	return nil
}

func (s *effect) Settle(context.Context, *commitstep.Settling) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.settles[s.Name]++
	return nil
}

// sourceEffect looks at the world before its plan is stored, as steps do whose
// source may be gone.
type sourceEffect struct{ effect }

func (s *sourceEffect) Prepare(context.Context, *commitstep.Preparation) error {
	if s.w.prepare == nil {
		return nil
	}
	return s.w.prepare()
}

type finalEffect struct{ effect }

func (*finalEffect) Irreversible() {}

type claimEffect struct{ effect }

func (s *claimEffect) Check(context.Context, *commitstep.Attempt) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.guardErr
}

func (s *claimEffect) Renew(context.Context, *commitstep.Attempt) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.renewed++
	return nil
}

func (s *claimEffect) OnPark(_ context.Context, _ *commitstep.Attempt, reason commitstep.ParkReason, _ string) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.parkFail > 0 {
		s.w.parkFail--
		return errors.New("the ledger is away")
	}
	s.w.parked = append(s.w.parked, string(reason))
	return nil
}

func (w *world) kinds() []commitstep.Kind {
	build := func(wrap func(effect) commitstep.CommitStep) func(commitstep.Step) (commitstep.CommitStep, error) {
		return func(s commitstep.Step) (commitstep.CommitStep, error) {
			e := effect{w: w}
			if err := json.Unmarshal(s.Params, &e); err != nil {
				return nil, err
			}
			return wrap(e), nil
		}
	}
	return []commitstep.Kind{
		{Name: "test.put", Version: 1, New: build(func(e effect) commitstep.CommitStep { return &e })},
		{Name: "test.source", Version: 1, New: build(func(e effect) commitstep.CommitStep { return &sourceEffect{e} })},
		{Name: "test.final", Version: 1, New: build(func(e effect) commitstep.CommitStep { return &finalEffect{e} })},
		{Name: "test.claim", Version: 1, Class: commitstep.LedgerStep, Guards: true, WantsPark: true, New: build(func(e effect) commitstep.CommitStep { return &claimEffect{e} })},
	}
}

func put(name string) commitstep.StepSpec {
	return commitstep.NewSpec("test.put", map[string]string{"name": name})
}

func final(name string) commitstep.StepSpec {
	return commitstep.NewSpec("test.final", map[string]string{"name": name})
}

func claim(name string) commitstep.StepSpec {
	return commitstep.NewSpec("test.claim", map[string]string{"name": name})
}

// clock runs as fast as the sleepers sleep: a sleep moves it on.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	if d == 10*time.Second {
		<-ctx.Done() // the heartbeat; a pause with jitter is never this exact
		return ctx.Err()
	}
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.mu.Unlock()
	return ctx.Err()
}

// Boot stands still, so that a lease of a test never ends by itself.
func (c *clock) Boot() time.Duration { return time.Hour }

type bed struct {
	t     *testing.T
	w     *world
	st    *boltstore.Store
	e     *driver.Engine
	clock *clock
	path  string
	cfg   driver.Config
}

func newBed(t *testing.T, tune func(*driver.Config)) *bed {
	t.Helper()
	b := &bed{t: t, w: newWorld(), path: filepath.Join(t.TempDir(), "commit.db"), clock: &clock{now: time.Now()}}
	st, err := boltstore.Init(b.path, nil)
	require.NoError(t, err)
	b.st = st
	b.cfg = driver.Config{Clock: b.clock}
	if tune != nil {
		tune(&b.cfg)
	}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bed) start() {
	b.t.Helper()
	cfg := b.cfg
	cfg.Store = b.st
	cfg.Kinds = commitstep.NewRegistry(append(b.w.kinds(), watermark.Kind(b.st))...)
	e, err := driver.New(cfg)
	require.NoError(b.t, err)
	b.e = e
}

func (b *bed) stop() {
	if b.e != nil {
		require.NoError(b.t, b.e.Close(context.Background()))
		b.e = nil
	}
	if b.st != nil {
		require.NoError(b.t, b.st.Close())
		b.st = nil
	}
}

func (b *bed) registry() *commitstep.Registry {
	return commitstep.NewRegistry(append(b.w.kinds(), watermark.Kind(b.st))...)
}

// reopen starts again after stop.
func (b *bed) reopen() {
	b.t.Helper()
	st, err := boltstore.Open(b.path, nil)
	require.NoError(b.t, err)
	b.st = st
	b.start()
}

// count is how many sequences of job j ended in the state.
func (b *bed) count(state commitstep.State) int {
	n := 0
	for h, err := range b.st.ListHistory(context.Background(), store.HistoryFilter{Job: "j"}) {
		if err == nil && h.State == state {
			n++
		}
	}
	return n
}

// held tells who holds the sequence of the usual key.
func (b *bed) held() (commitstep.Instance, bool, error) {
	live, err := b.st.Get(context.Background(), key)
	if err != nil {
		return commitstep.Instance{}, false, err
	}
	in, _, held, err := b.st.Holder(context.Background(), live)
	return in, held, err
}

// restart is a new process on the same store.
func (b *bed) restart() {
	b.t.Helper()
	b.stop()
	st, err := boltstore.Open(b.path, nil)
	require.NoError(b.t, err)
	b.st = st
	b.start()
}

func (b *bed) history(key commitstep.Key) []store.HistoryEntry {
	b.t.Helper()
	var out []store.HistoryEntry
	for h, err := range b.st.ListHistory(context.Background(), store.HistoryFilter{Job: key.Job}) {
		require.NoError(b.t, err)
		if h.Key == key {
			out = append(out, h)
		}
	}
	return out
}

func (b *bed) recover(job string) driver.Report {
	b.t.Helper()
	rep, err := b.e.Recover(context.Background(), job)
	require.NoError(b.t, err)
	return rep
}

// killed is a panic that stands for SIGKILL.
type killed struct{}

func (killed) Killed() {}

// killAt runs fn on a new engine whose run ends, like a killed process, at the
// named point: the goroutine never goes on.
func (b *bed) killAt(point string, fn func(e *driver.Engine)) {
	b.t.Helper()
	b.stop()
	st, err := boltstore.Open(b.path, nil)
	require.NoError(b.t, err)
	b.st = st
	cfg := b.cfg
	cfg.KillPoint = func(p string) {
		if p == point {
			panic(killed{})
		}
	}
	cfg.Store = b.st
	cfg.Kinds = commitstep.NewRegistry(append(b.w.kinds(), watermark.Kind(b.st))...)
	e, err := driver.New(cfg)
	require.NoError(b.t, err)
	func() {
		defer func() {
			r := recover()
			require.Equal(b.t, killed{}, r, fmt.Sprintf("point %s was not reached", point))
		}()
		fn(e)
	}()
	b.e = e
	b.restart()
}
