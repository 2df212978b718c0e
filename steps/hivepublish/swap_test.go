package hivepublish

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// onDisk binds the warehouse's HDFS to a directory of this machine.
func onDisk(t testing.TB) (Config, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := local.New(dir)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return Config{Volumes: []Volume{{URI: "hdfs://nn:8020", Files: f, At: commitstep.Address{Resource: "file", Path: dir}}}}, dir
}

func mkdir(t testing.TB, dir string, elem ...string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(append([]string{dir}, elem...)...), 0o755))
}

const newPlace = "hdfs://nn:8020/data/facts/dt=2024-01-01/token=run-7"

func swapSpec() commitstep.StepSpec {
	return SwapLocation(Swap{Target: facts(), Location: newPlace})
}

func addSpec() commitstep.StepSpec {
	return AddPartition(Swap{Target: facts(), Location: newPlace})
}

func (w *warehouse) move(to string) func() error {
	return func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.facts().parts["(`dt`='2024-01-01')"] = &fakePart{to}
		return nil
	}
}

func (w *warehouse) drop() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.facts().parts)
	return nil
}

func (w *warehouse) dropTable() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.tables)
	return nil
}

func TestKitSwapLocation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec  commitstep.StepSpec
		there bool
	}{
		"swap": {swapSpec(), true},
		"add":  {addSpec(), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
				w := newWarehouse()
				cfg, dir := onDisk(t)
				cfg.Quiet = 1 // nobody waits
				mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
				world := steptest.World{
					Spec:     c.spec,
					Kinds:    func() *commitstep.Registry { return commitstep.NewRegistry(Kinds(w.server(t, cfg))...) },
					Snapshot: w.snapshot,
					Effects: func() (int, error) {
						w.mu.Lock()
						defer w.mu.Unlock()
						return min(w.alters, 1), nil // repeating it is harmless
					},
					Points:       w.points,
					SharesEffect: true,
					Foreign: map[string]func() error{
						"another location":   w.move("hdfs://nn:8020/data/facts/dt=2024-01-01/token=run-8"),
						"a similar location": w.move(newPlace + "0"),
						"a deeper location":  w.move(newPlace + "/x"),
						"no table":           w.dropTable,
					},
					MovedOn: w.move("hdfs://nn:8020/data/facts/dt=2024-01-01/token=run-9"),
				}
				if c.there {
					world.Foreign["no partition"] = w.drop
				} else {
					require.NoError(t, w.drop())
				}
				return world
			}})
		})
	}
}

func swapBench(t *testing.T) (*stepBench, string) {
	t.Helper()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	b := &stepBench{t: t, w: w, server: w.server(t, cfg)}
	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	p, err := steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "d").Step(swapSpec()))
	require.NoError(t, err)
	b.planned = p
	return b, dir
}

// A partition is never pointed at a directory that is not there.
func TestSwapWantsItsDirectory(t *testing.T) {
	t.Parallel()
	b, dir := swapBench(t)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "data")))
	p := b.process()
	err := p.Execute(t.Context())
	require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err))
	require.ErrorContains(t, err, "is not there")
	b.want(commitstep.NotDone)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data/facts/dt=2024-01-01"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data/facts/dt=2024-01-01/token=run-7"), []byte("x"), 0o644))
	require.Error(t, b.process().Execute(t.Context()), "a file is no directory")
	require.NoError(t, os.Remove(filepath.Join(dir, "data/facts/dt=2024-01-01/token=run-7")))
	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Equal(t, newPlace, b.w.location())
}

func hold(match string) func(string) *fakeOp {
	return func(sql string) *fakeOp {
		if strings.Contains(sql, match) {
			return &fakeOp{held: true}
		}
		return nil
	}
}

// The answer to a SET LOCATION is cut and the statement held back: it never
// undoes what a later publish did.
func TestADelayedSwapNeverLands(t *testing.T) {
	t.Parallel()
	for name, lateProcess := range map[string]bool{"the same process": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, dir := swapBench(t)
			mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
			b.w.script = hold("SET LOCATION")
			if lateProcess {
				// The process dies over the call: nothing but the note is left.
				b.w.points = nil
				p := b.process()
				n := swapNote{Alters: alters{{Server: b.w.Address(), Open: true}}}
				ref, err := b.w.OpenSession(t.Context(), nil)
				require.NoError(t, err)
				n.Alters[0].Session = ref
				require.NoError(t, p.Attempt.Note(t.Context(), n))
				_, err = b.w.Submit(t.Context(), ref, b.swapSQL(t), nil)
				require.True(t, transport(err))
			} else {
				require.Error(t, b.process().Execute(t.Context()))
			}
			b.w.script = nil
			v, err := b.process().Finish(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.Done, v.Outcome)
			require.Equal(t, newPlace, b.w.location())
			require.NoError(t, b.w.move("hdfs://nn:8020/later")())
			require.Zero(t, b.w.letGo(), "its session is closed")
			require.Equal(t, "hdfs://nn:8020/later", b.w.location())
		})
	}
}

// What a HiveServer2 was seen to list of an ALTER whose session was closed while it
// ran: RUNNING for ever among the ended ones, and its task ends later.
func TestACutOffAlterHasEndedWithItsTask(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1796100720000)
	s := &Server{cfg: Config{Quiet: compileQuiet}, now: func() time.Time { return now }}
	at := func(before time.Duration) time.Time { return now.Add(-before) }
	cut := func(end time.Time, tasks ...hs2.Task) hs2.Query {
		return hs2.Query{State: hs2.Running, Begin: at(time.Hour), End: end, Tasks: tasks}
	}
	begun := hs2.Task{Begin: at(time.Hour)}
	ended := func(before time.Duration) hs2.Task { return hs2.Task{Begin: at(time.Hour), End: at(before)} }
	for name, c := range map[string]struct {
		q    hs2.Query
		want bool
	}{
		"active":                              {hs2.Query{State: hs2.Running, Running: true}, true},
		"active, ended by its tasks":          {hs2.Query{State: hs2.Running, Running: true, End: at(time.Hour), Tasks: []hs2.Task{ended(time.Hour)}}, true},
		"no end":                              {hs2.Query{State: hs2.Pending, Tasks: []hs2.Task{ended(time.Hour)}}, true},
		"finished":                            {hs2.Query{State: hs2.Finished, Running: true}, false},
		"cut off, its task runs":              {cut(at(time.Hour), begun), true},
		"cut off, its task has just ended":    {cut(at(time.Hour), ended(time.Second)), true},
		"cut off, its task ended":             {cut(at(time.Hour), ended(10*time.Second)), false},
		"cut off, one of two tasks ended":     {cut(at(time.Hour), ended(10*time.Second), begun), true},
		"cut off, the second was never begun": {cut(at(time.Hour), ended(10*time.Second), hs2.Task{}), false},
		"cut off while it was compiled":       {cut(at(10 * time.Second)), true},
		"the same, a while ago":               {cut(at(2 * time.Minute)), false},
	} {
		require.Equal(t, c.want, s.landing(c.q), name)
	}
}

// fixedList is a web UI whose list a test writes.
type fixedList []hs2.Query

func (l fixedList) Find(context.Context, string) ([]hs2.Query, error) { return slices.Clone(l), nil }

// deadList is a web UI that cannot be reached.
type deadList struct{}

func (deadList) Find(context.Context, string) ([]hs2.Query, error) { return nil, errDown }

// A running ALTER whose answer was lost is waited for, and not cut off.
func TestARunningAlterIsWaitedFor(t *testing.T) {
	t.Parallel()
	b, dir := swapBench(t)
	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	p := b.process()
	ref, err := b.w.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, p.Attempt.Note(t.Context(), swapNote{Alters: alters{{Server: b.w.Address(), Session: ref, Open: true}}}))
	// Others with the same token do not matter: queries write where nobody reads.
	list := fixedList{
		{State: hs2.Running, Running: true, Session: "another", Text: "INSERT OVERWRITE DIRECTORY"},
		{State: hs2.Running, Running: true, Session: ref.guid, Text: "ALTER TABLE"},
	}
	b.server.list = list
	r := func() error {
		p := b.process()
		return p.Step.(commitstep.Reattacher).Reattach(t.Context(), p.Attempt)
	}
	require.ErrorIs(t, r(), commitstep.ErrInProgress)
	alive, err := b.w.SessionAlive(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, alive, "it was cut off")
	list[1].State = hs2.Finished
	require.NoError(t, r())
	alive, err = b.w.SessionAlive(t.Context(), ref)
	require.NoError(t, err)
	require.False(t, alive)
}

func (b *stepBench) swapSQL(t *testing.T) string {
	t.Helper()
	tg, err := facts().check()
	require.NoError(t, err)
	loc, err := parseLocation(newPlace)
	require.NoError(t, err)
	return tg.setLocation(loc)
}

// While the session of an unanswered ALTER cannot be shown closed, the step is
// neither done nor not done, whatever the location is.
func TestAnUnansweredAlterIsNoAnswer(t *testing.T) {
	t.Parallel()
	b, dir := swapBench(t)
	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	p := b.process()
	require.NoError(t, p.Attempt.Note(t.Context(), swapNote{Alters: alters{{Server: "other:10000", Session: sessionRef{handle: "x", guid: "g"}, Open: true, At: time.Now()}}}))
	v := b.want(commitstep.Unknown)
	require.Contains(t, v.Evidence, "other:10000")
	require.NoError(t, b.w.move(newPlace)())
	b.want(commitstep.Unknown)
	require.NoError(t, b.w.move("hdfs://nn:8020/else")())
	b.want(commitstep.Conflict)
	p = b.process()
	w := p.Step.(commitstep.Withdrawer)
	require.ErrorContains(t, w.Withdraw(t.Context(), p.Attempt, false), "other:10000")
	require.NoError(t, w.Withdraw(t.Context(), p.Attempt, true))

	// A look by a person closes nothing.
	b, dir = swapBench(t)
	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	ref, err := b.w.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	note := swapNote{Alters: alters{{Server: b.w.Address(), Session: ref, Open: true}}}
	require.NoError(t, b.process().Attempt.Note(t.Context(), note))
	p = b.process()
	got, err := p.Step.Verify(t.Context(), p.Attempt) // without Reattach
	require.NoError(t, err)
	require.Equal(t, commitstep.Unknown, got.Outcome)
	require.NotEmpty(t, b.w.sessions)

	// The server lists it as running: that is waited for, and decides nothing.
	b.w.ops["1"] = &fakeOp{session: strings.TrimPrefix(ref.guid, "guid-"), sql: mark(p.Attempt.Token.String(), 1, "ALTER"), status: hs2.Status{State: hs2.Running}}
	_, err = b.process().Verify(t.Context())
	require.ErrorIs(t, err, commitstep.ErrInProgress)
	p = b.process()
	require.ErrorContains(t, p.Step.(commitstep.Withdrawer).Withdraw(t.Context(), p.Attempt, false), "RUNNING")
	delete(b.w.ops, "1")
	b.want(commitstep.NotDone)
}

func TestSwapPlansThatCannotBe(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	part := facts()
	absent := facts()
	absent.Partition = map[string]string{"dt": "2030-01-01"}
	for name, c := range map[string]struct {
		spec commitstep.StepSpec
		tune func(*warehouse)
		says string
	}{
		"no scheme":       {SwapLocation(Swap{Target: part, Location: "/data/token=1"}), nil, "has no scheme"},
		"no token":        {SwapLocation(Swap{Target: part, Location: "hdfs://nn:8020/data/x"}), nil, "token=TEXT"},
		"unbound":         {SwapLocation(Swap{Target: part, Location: "hdfs://other:8020/token=1"}), nil, "bound no file system"},
		"no partition":    {SwapLocation(Swap{Target: Target{Hive: "dw", Table: "sales.facts"}, Location: newPlace}), nil, "names no partition"},
		"absent":          {SwapLocation(Swap{Target: absent, Location: newPlace}), nil, "hive.add_partition"},
		"there":           {AddPartition(Swap{Target: part, Location: newPlace}), nil, "hive.swap_location"},
		"as it is":        {SwapLocation(Swap{Target: part, Location: newPlace}), func(w *warehouse) { _ = w.move(newPlace)() }, "already"},
		"around the old":  {SwapLocation(Swap{Target: part, Location: newPlace}), func(w *warehouse) { _ = w.move(newPlace + "/old")() }, "where the old rows are"},
		"managed":         {SwapLocation(Swap{Target: part, Location: newPlace}), func(w *warehouse) { w.facts().kind = "MANAGED_TABLE" }, "MANAGED_TABLE"},
		"transactional":   {SwapLocation(Swap{Target: part, Location: newPlace}), func(w *warehouse) { w.facts().params["transactional"] = "true" }, "transactional"},
		"no directory":    {SwapLocation(Swap{Target: part, Location: newPlace}), nil, "no earlier stage could bring it about"},
		"nor to add":      {AddPartition(Swap{Target: absent, Location: newPlace}), nil, "no earlier stage could bring it about"},
		"a blank":         {SwapLocation(Swap{Target: part, Location: "hdfs://nn:8020/hand made/token=1"}), nil, `Hive takes none with " " in it`},
		"a bracket":       {AddPartition(Swap{Target: absent, Location: "hdfs://nn:8020/data[1]/token=1"}), nil, `Hive takes none with "["`},
		"Hive's variable": {SwapLocation(Swap{Target: part, Location: newPlace + "/${hiveconf:x}"}), nil, "placeholder"},
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

// A step of an earlier stage may bring the directory about.
func TestASwapMayComeAfterItsRows(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	w := newWarehouse()
	other := facts()
	other.Partition = map[string]string{"dt": "2030-01-01"}
	_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), commitstep.NewPlan("j", "d").
		Step(InsertOverwrite(Insert{Target: other, Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 1", Rows: rows(1)})).Then(swapSpec()))
	require.NoError(t, err)
}

// The location may carry the step's own token.
func TestSwapBindsItsToken(t *testing.T) {
	t.Parallel()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	b := &stepBench{t: t, w: w, server: w.server(t, cfg)}
	p, err := steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "d").Step(SwapLocation(Swap{Target: facts(), Location: "hdfs://nn:8020/data/token=${token}"})))
	require.NoError(t, err)
	b.planned = p
	token := b.process().Attempt.Token.String()
	mkdir(t, dir, "data/token="+token)
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Equal(t, "hdfs://nn:8020/data/token="+token, w.location())
}

func TestEndedAltersAreForgotten(t *testing.T) {
	t.Parallel()
	var l alters
	for i := range 30 {
		l = append(l.trimmed(), alterRef{Attempt: i, Open: i == 3})
	}
	require.LessOrEqual(t, len(l), keptAlters+1)
	ref, ok := l.open()
	require.True(t, ok)
	require.Equal(t, 3, ref.Attempt, "one that may still land is never forgotten")
	require.Equal(t, 29, l[len(l)-1].Attempt)
}
