package hivepublish

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

func stageParams() Stage {
	return Stage{Target: facts(), Query: "SELECT id, name FROM src", Under: "hdfs://nn:8020/data/facts", Rows: rows(3)}
}

func TestKitStageAndSwap(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]bool{"swap": true, "first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
				cfg, dir := onDisk(t)
				cfg.Quiet = 1 // nobody waits
				w := newWarehouse()
				w.disk = dir
				world := steptest.World{
					Spec:     StageAndSwap(stageParams()),
					Kinds:    func() *commitstep.Registry { return commitstep.NewRegistry(Kinds(w.server(t, cfg))...) },
					Snapshot: w.visible,
					Effects: func() (int, error) {
						if !strings.Contains(w.location(), "/attempt=") {
							return 0, nil
						}
						return 1, nil
					},
					Points: w.points,
					Foreign: map[string]func() error{
						"another location": w.move("hdfs://nn:8020/data/elsewhere"),
						"no table":         w.dropTable,
					},
					MovedOn: w.move("hdfs://nn:8020/data/facts/dt=2024-01-01/token=another"),
				}
				if there {
					world.Foreign["no partition"] = w.drop
				} else {
					require.NoError(t, w.drop())
				}
				return world
			}})
		})
	}
}

func stageBench(t *testing.T, p Stage, tune func(*warehouse)) *stepBench {
	t.Helper()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	w.disk = dir
	if tune != nil {
		tune(w)
	}
	b := &stepBench{t: t, w: w, server: w.server(t, cfg)}
	planned, err := steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "d").Step(StageAndSwap(p)))
	require.NoError(t, err)
	b.planned = planned
	return b
}

// onStage scripts the n-th query into a directory, from 1.
func onStage(nth int, op func() *fakeOp) func(*warehouse) {
	return func(w *warehouse) {
		n := 0
		w.script = func(sql string) *fakeOp {
			if !strings.Contains(sql, "INSERT OVERWRITE DIRECTORY") {
				return nil
			}
			if n++; n != nth {
				return nil
			}
			return op()
		}
	}
}

func (w *warehouse) sent(part string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, sql := range w.log {
		if strings.Contains(sql, part) {
			out = append(out, sql)
		}
	}
	return out
}

// Whatever became of a query, the next attempt writes elsewhere, and no person is
// needed.
func TestAnAttemptNeverReusesADirectory(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]func() *fakeOp{
		"answer lost": func() *fakeOp { return &fakeOp{lost: true} },
		"refused":     func() *fakeOp { return &fakeOp{refuse: semantic("no")} },
		"failed":      func() *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Error, Message: "Vertex failed"}} },
		"cancelled":   func() *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Canceled}} },
		"full pool": func() *fakeOp {
			return &fakeOp{refuse: &hs2.ServerError{Message: "The background threadpool cannot accept"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stageBench(t, stageParams(), onStage(1, op))
			v, err := b.process().Finish(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.Done, v.Outcome, "%s", v)
			require.True(t, strings.HasSuffix(b.w.location(), "/token="+b.process().Attempt.Token.String()+"/attempt=2"), b.w.location())
			require.Len(t, b.w.sent("SET LOCATION"), 1)
		})
	}
}

// A process died after it noted a directory, or one without a claim wrote into the
// next: both are left alone.
func TestATakenDirectoryIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	p := b.process()
	token := "token=" + p.Attempt.Token.String()
	require.NoError(t, p.Attempt.Note(t.Context(), stageNote{Last: 1, Tries: []stageTry{{N: 1, Location: "hdfs://nn:8020/data/facts/sales.facts/dt=2024-01-01/" + token + "/attempt=1"}}}))
	mkdir(t, b.w.disk, "data/facts/sales.facts/dt=2024-01-01", token, "attempt=2")
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.True(t, strings.HasSuffix(b.w.location(), "/attempt=3"), b.w.location())
}

// A long query outlives its driver, which is found again and waited for, not run
// a second time.
func TestALongQueryIsTakenUp(t *testing.T) {
	t.Parallel()
	op := &fakeOp{status: hs2.Status{State: hs2.Running}}
	b := stageBench(t, stageParams(), onStage(1, func() *fakeOp { return op }))
	at := time.Now()
	b.server.now = func() time.Time { at = at.Add(time.Minute); return at }
	require.ErrorIs(t, b.process().Execute(t.Context()), commitstep.ErrInProgress)
	for range 2 {
		_, err := b.process().Verify(t.Context())
		require.ErrorIs(t, err, commitstep.ErrInProgress)
	}
	b.w.mu.Lock()
	b.w.down = true
	b.w.mu.Unlock()
	_, err := b.process().Verify(t.Context())
	require.Error(t, err)
	b.w.mu.Lock()
	b.w.down = false
	_, _ = op.apply()
	op.status = hs2.Status{State: hs2.Finished}
	b.w.mu.Unlock()
	b.want(commitstep.NotDone)
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Len(t, b.w.sent("INSERT OVERWRITE DIRECTORY"), 1)
	require.True(t, strings.HasSuffix(b.w.location(), "/attempt=1"))
}

// Its rows are counted in one session, whatever other sessions wait for work: the
// table over them is seen in no other.
func TestRowsAreCountedInOneSession(t *testing.T) {
	t.Parallel()
	op := &fakeOp{status: hs2.Status{State: hs2.Running}}
	b := stageBench(t, stageParams(), onStage(1, func() *fakeOp { return op }))
	at := time.Now()
	b.server.now = func() time.Time { at = at.Add(time.Minute); return at }
	require.ErrorIs(t, b.process().Execute(t.Context()), commitstep.ErrInProgress)
	b.server.slots = make(chan struct{}, 1)
	another := &signalling{Context: context.Background(), asked: make(chan struct{})}
	counted := make(chan int, 1) // how many tables were dropped when the other step got its session
	b.w.mu.Lock()
	_, _ = op.apply()
	op.status = hs2.Status{State: hs2.Finished}
	script := b.w.script
	b.w.script = func(sql string) *fakeOp {
		if strings.HasPrefix(sql, "CREATE TEMPORARY") {
			// Another step wants a session, and ends the one that it gets.
			go func() {
				_, done, err := b.server.work(another)
				dropped := len(b.w.sent("DROP TABLE IF EXISTS"))
				if err == nil {
					done(lendDrop)
				}
				counted <- dropped
			}()
			<-another.asked // it waits for its turn
		}
		return script(sql)
	}
	b.w.mu.Unlock()
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Len(t, b.w.sent("INSERT OVERWRITE DIRECTORY"), 1)
	require.Equal(t, 1, <-counted, "the session was lent to another step in the middle")
}

// signalling tells when somebody begins to wait with it.
type signalling struct {
	context.Context
	once  sync.Once
	asked chan struct{}
}

func (s *signalling) Done() <-chan struct{} {
	s.once.Do(func() { close(s.asked) })
	return s.Context.Done()
}

// The same, and the server forgot it: a new attempt, no question.
func TestAForgottenQueryIsRunAnew(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), onStage(1, func() *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Running}} }))
	at := time.Now()
	b.server.now = func() time.Time { at = at.Add(time.Minute); return at }
	require.ErrorIs(t, b.process().Execute(t.Context()), commitstep.ErrInProgress)
	b.w.restart()
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.True(t, strings.HasSuffix(b.w.location(), "/attempt=2"))
}

// A query that Execute left running counts as a failure if it fails, and only then,
// however early the next look comes.
func TestAQueryThatEndsAfterItsExecute(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends hs2.Status
		want driver.Status
		sent int
	}{
		"well":  {hs2.Status{State: hs2.Finished}, driver.StatusCompleted, 1},
		"badly": {hs2.Status{State: hs2.Error, Message: "Vertex failed"}, driver.StatusParked, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, dir := onDisk(t)
			w := newWarehouse()
			w.disk = dir
			var op *fakeOp
			w.script = func(sql string) *fakeOp {
				if !strings.Contains(sql, "INSERT OVERWRITE DIRECTORY") {
					return nil
				}
				op = &fakeOp{status: hs2.Status{State: hs2.Running}}
				return op
			}
			server := w.server(t, cfg)
			var mu sync.Mutex
			at := time.Now()
			server.now = func() time.Time { // nobody waits for long
				mu.Lock()
				defer mu.Unlock()
				at = at.Add(time.Minute)
				return at
			}
			st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
			require.NoError(t, err)
			defer st.Close()
			e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(Kinds(server)...),
				Policy: driver.Policy{MaxAttempts: c.sent, FirstPause: time.Millisecond, MaxPause: time.Millisecond},
				Observer: driver.ObserverFunc(func(_ context.Context, ev driver.Event) {
					w.mu.Lock()
					defer w.mu.Unlock()
					if ev.Type != driver.EventExecuted || op == nil || op.status.State != hs2.Running {
						return
					}
					if c.ends.State == hs2.Finished {
						_, _ = op.apply()
					}
					op.status = c.ends
				})})
			require.NoError(t, err)
			defer func() { require.NoError(t, e.Close(context.Background())) }()
			res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(StageAndSwap(stageParams())))
			require.Equal(t, c.want, res.Status, "%s: %v", res.Message, err)
			if c.want == driver.StatusParked {
				require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
				require.ErrorContains(t, err, "Vertex failed")
			}
			require.Len(t, w.sent("INSERT OVERWRITE DIRECTORY"), c.sent)
		})
	}
}

// Rows that are not what was planned are seen where nobody reads them.
func TestWrongRowsAreNeverPublished(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), func(w *warehouse) { w.rows = 7 })
	before, err := b.w.visible()
	require.NoError(t, err)
	p := b.process()
	err = p.Execute(t.Context())
	require.True(t, commitstep.IsPermanent(err), "%v", err)
	require.ErrorContains(t, err, "rows is 7, expected 3")
	after, err := b.w.visible()
	require.NoError(t, err)
	require.Equal(t, before, after)
	v, err := p.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Conflict, v.Outcome)
	require.Contains(t, v.Evidence, "are not what was planned: rows is 7, expected 3")
	b.want(commitstep.NotDone)
	// A person corrected the source and says retry.
	b.w.mu.Lock()
	b.w.rows = 3
	b.w.mu.Unlock()
	v, err = b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
}

// A query that wrote nothing at all is not swapped to.
func TestAMissingDirectoryIsNeverPublished(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), onStage(1, func() *fakeOp { return &fakeOp{apply: func() (*hs2.Table, error) { return nil, nil }} }))
	err := b.process().Execute(t.Context())
	require.ErrorContains(t, err, "its directory is not there")
	require.Equal(t, "hdfs://nn:8020/wh/facts/dt=2024-01-01", b.w.location())

	// Removed between the count and the swap.
	b = stageBench(t, stageParams(), nil)
	b.w.script = func(sql string) *fakeOp {
		if strings.HasPrefix(sql, "DROP TABLE IF EXISTS") {
			require.NoError(t, os.RemoveAll(filepath.Join(b.w.disk, "data")))
		}
		return nil
	}
	err = b.process().Execute(t.Context())
	require.ErrorContains(t, err, "never pointed at a directory that is missing")
	require.Equal(t, "hdfs://nn:8020/wh/facts/dt=2024-01-01", b.w.location())
}

func TestADelayedFirstSwapNeverUndoesALaterOne(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	b.w.script = hold("SET LOCATION")
	require.Error(t, b.process().Execute(t.Context()))
	b.w.script = nil
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.NoError(t, b.w.move("hdfs://nn:8020/later")())
	require.Zero(t, b.w.letGo())
	require.Equal(t, "hdfs://nn:8020/later", b.w.location())
}

// Somebody registers the partition between the look and the ADD: theirs stays.
func TestAStrangersPartitionStays(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), func(w *warehouse) { _ = w.drop() })
	b.w.script = func(sql string) *fakeOp {
		if strings.Contains(sql, "ADD IF NOT EXISTS") {
			b.w.facts().parts["(`dt`='2024-01-01')"] = &fakePart{"hdfs://nn:8020/theirs"}
		}
		return nil
	}
	require.NoError(t, b.process().Execute(t.Context()))
	b.want(commitstep.Conflict)
	require.Equal(t, "hdfs://nn:8020/theirs", b.w.location())
}

func TestStageWritesAsTheTableReads(t *testing.T) {
	t.Parallel()
	p := stageParams()
	p.Metrics = []Metric{{Name: "by cte", Query: "-- a comment\nWITH x AS (SELECT * FROM ${table}) SELECT count(*) FROM x WHERE ${partition_filter}", Want: new(Text)}}
	b := stageBench(t, p, nil)
	_ = b.process().Execute(t.Context())
	sent := b.w.sent("INSERT OVERWRITE DIRECTORY")
	require.Len(t, sent, 1)
	require.Contains(t, sent[0], "SELECT CAST(q.`id` AS int) AS `id`, CAST(q.`name` AS string) AS `name` FROM (SELECT id, name FROM src\n) q")
	require.Contains(t, sent[0], "'columns'='id,name'", "files carry the table's names, or formats that go by name read NULL")
	counted := b.w.sent("/* commitstep metric */")
	require.Contains(t, counted[len(counted)-1], "WITH commitstep_staged AS (SELECT t.*, '2024-01-01' AS `dt` FROM ")
	require.Contains(t, counted[len(counted)-1], "), x AS (SELECT * FROM commitstep_staged)")
}

func TestStagePlansThatCannotBe(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	with := func(f func(*Stage)) commitstep.StepSpec {
		p := stageParams()
		f(&p)
		return StageAndSwap(p)
	}
	for name, c := range map[string]struct {
		spec commitstep.StepSpec
		tune func(*warehouse)
		says string
	}{
		"no expectation":  {with(func(p *Stage) { p.Rows = nil }), nil, "expects nothing"},
		"no scheme":       {with(func(p *Stage) { p.Under = "/data" }), nil, "has no scheme"},
		"unbound":         {with(func(p *Stage) { p.Under = "hdfs://other/data" }), nil, "begins with hdfs://nn:8020/,"},
		"not a query":     {with(func(p *Stage) { p.Query = "DROP TABLE x" }), nil, "write a SELECT"},
		"no partition":    {with(func(p *Stage) { p.Partition = nil }), nil, "names no partition"},
		"where it reads":  {with(func(p *Stage) { p.Under = "hdfs://nn:8020/wh/facts" }), nil, "is read now"},
		"around it":       {with(func(*Stage) {}), func(w *warehouse) { _ = w.move("hdfs://nn:8020/data")() }, "is read now"},
		"managed":         {with(func(*Stage) {}), func(w *warehouse) { w.facts().kind = "MANAGED_TABLE" }, "MANAGED_TABLE"},
		"columns missing": {with(func(*Stage) {}), func(w *warehouse) { w.facts().columns = append(w.facts().columns, column{"more", "int"}) }, "2 columns (id, name)"},
		"other format":    {with(func(*Stage) {}), func(w *warehouse) { w.facts().serde = "org.example.Odd" }, "org.example.Odd"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarehouse()
			if c.tune != nil {
				c.tune(w)
			}
			_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), commitstep.NewPlan("j", "d").Step(c.spec))
			var pe *commitstep.PlanError
			require.ErrorAs(t, err, &pe)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestSessionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Len(t, b.w.sessions, 1, "one for the work; that of the ALTER is closed")
	b.w.restart()
	b.want(commitstep.Done) // with a new session
	require.NoError(t, b.server.Close())
	require.Empty(t, b.w.sessions)
}

// Many partitions of one table in one plan ask for the table once.
func TestPartitionsShareTheirTable(t *testing.T) {
	t.Parallel()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	w.disk = dir
	server := w.server(t, cfg)
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	defer st.Close()
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(Kinds(server)...)})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(context.Background())) }()
	plan := commitstep.NewPlan("j", "d")
	const n = 30
	for i := range n {
		p := stageParams()
		p.Partition = map[string]string{"dt": fmt.Sprintf("2030-01-%02d", i+1)}
		plan.Step(StageAndSwap(p))
	}
	res, err := e.Publish(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, n, res.Executed)
	require.Len(t, w.facts().parts, n+1)
	whole := 0
	for _, sql := range w.sent("DESCRIBE FORMATTED `sales`.`facts`") {
		if !strings.Contains(sql, "PARTITION") {
			whole++
		}
	}
	require.Equal(t, 1+n, whole, "once for the plan, and right before every ALTER")
	require.LessOrEqual(t, len(w.sessions), DefaultSessions)
}
