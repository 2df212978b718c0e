package hivepublish

import (
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

func rows(n int64) *int64 { return &n }

func facts() Target {
	return Target{Hive: "dw", Table: "sales.facts", Partition: map[string]string{"dt": "2024-01-01"}}
}

const factsInsert = "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT id, name FROM src WHERE batch = '${token}'"

func TestKitInsertOverwrite(t *testing.T) {
	t.Parallel()
	steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
		w := newWarehouse()
		return steptest.World{
			Spec:     InsertOverwrite(Insert{Target: facts(), Statement: factsInsert, Rows: rows(3)}),
			Kinds:    func() *commitstep.Registry { return commitstep.NewRegistry(Kinds(w.server(t, Config{}))...) },
			Snapshot: w.snapshot,
			Effects: func() (int, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.inserts, nil
			},
			Points:       w.points,
			SharesEffect: true, // a newer load may overwrite an older one
			MayPark:      true,
		}
	}})
}

// bench is one planned step in a world of its own.
type stepBench struct {
	t       *testing.T
	w       *warehouse
	server  *Server
	planned *steptest.Planned
}

func newBench(t *testing.T, spec commitstep.StepSpec, tune func(*warehouse)) *stepBench {
	t.Helper()
	w := newWarehouse()
	if tune != nil {
		tune(w)
	}
	b := &stepBench{t: t, w: w, server: w.server(t, Config{})}
	p, err := steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "d").Step(spec))
	require.NoError(t, err)
	b.planned = p
	return b
}

func (b *stepBench) kinds() *commitstep.Registry { return commitstep.NewRegistry(Kinds(b.server)...) }

// process is a new driver process: it knows what is noted and nothing else.
func (b *stepBench) process() *steptest.Process {
	b.t.Helper()
	p, err := b.planned.Process(b.kinds(), 0)
	require.NoError(b.t, err)
	return p
}

func (b *stepBench) want(o commitstep.Outcome) commitstep.Verdict {
	b.t.Helper()
	v, err := b.process().Verify(b.t.Context())
	require.NoError(b.t, err)
	require.Equal(b.t, o, v.Outcome, "%s", v)
	return v
}

func insertSpec() commitstep.StepSpec {
	return InsertOverwrite(Insert{Target: facts(), Statement: factsInsert, Rows: rows(3)})
}

// scripted makes the INSERT go as told, other statements as ever.
func scripted(op func() *fakeOp) func(*warehouse) {
	return func(w *warehouse) {
		w.script = func(sql string) *fakeOp {
			if strings.Contains(sql, "INSERT OVERWRITE TABLE") {
				return op()
			}
			return nil
		}
	}
}

var (
	beforeMove = []hs2.Task{{ID: "Stage-1", Type: "MAPRED", State: "FINISHED", Begin: time.Unix(1, 0)}, {ID: "Stage-0", Type: "MOVE", State: "INITIALIZED"}}
	inMove     = []hs2.Task{{ID: "Stage-0", Type: "MOVE", State: "RUNNING", Begin: time.Unix(1, 0)}}
)

func TestInsertEndsInEveryWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		op   fakeOp
		want commitstep.Outcome
		// class of Execute's error; "" is none.
		class string
	}{
		"finished":                     {fakeOp{}, commitstep.Done, ""},
		"refused":                      {fakeOp{refuse: semantic("Table not found src")}, commitstep.NotDone, "refused"},
		"never sent":                   {fakeOp{refuse: &hs2.TransportError{RPC: "ExecuteStatement", Err: errDown}}, commitstep.NotDone, "not sent"},
		"answer lost":                  {fakeOp{lost: true}, commitstep.Unknown, "unknown"},
		"answer lost, not accepted":    {fakeOp{refuse: &hs2.TransportError{RPC: "ExecuteStatement", Sent: true, Err: hs2.ErrCallTimeout}}, commitstep.Unknown, "unknown"},
		"error before MOVE":            {fakeOp{status: hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 2, Message: "Vertex failed", Tasks: beforeMove, TasksKnown: true}}, commitstep.NotDone, "refused"},
		"compiled in the background":   {fakeOp{status: hs2.Status{State: hs2.Error, SQLState: "42000", Code: 40000, Message: "ParseException", TasksKnown: true}}, commitstep.NotDone, "refused"},
		"error in MOVE":                {fakeOp{status: hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 1, Tasks: inMove, TasksKnown: true}}, commitstep.Unknown, "unknown"},
		"error, tasks not told":        {fakeOp{status: hs2.Status{State: hs2.Error, SQLState: "42000", Code: 40000, Message: "ParseException"}}, commitstep.Unknown, "unknown"},
		"cancelled by an operator":     {fakeOp{status: hs2.Status{State: hs2.Canceled, Message: "User invoked KILL QUERY", Tasks: beforeMove, TasksKnown: true}}, commitstep.Unknown, "unknown"},
		"timed out":                    {fakeOp{status: hs2.Status{State: hs2.TimedOut, Tasks: beforeMove, TasksKnown: true}}, commitstep.Unknown, "unknown"},
		"closed":                       {fakeOp{status: hs2.Status{State: hs2.Closed}}, commitstep.Unknown, "unknown"},
		"finished with too many rows":  {fakeOp{apply: func() (*hs2.Table, error) { return nil, nil }}, commitstep.Conflict, ""},
		"error, yet the table changed": {fakeOp{}, commitstep.Unknown, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b *stepBench
			b = newBench(t, insertSpec(), scripted(func() *fakeOp {
				op := c.op
				switch name {
				case "finished with too many rows":
					// Files of a partition that was not registered stayed.
					b.w.files["hdfs://nn:8020/wh/facts/dt=2024-01-01"] = 5
				case "error, yet the table changed":
					b.w.files["hdfs://nn:8020/wh/facts/dt=2024-01-01"] = 1
					op.status = hs2.Status{State: hs2.Error, Tasks: beforeMove, TasksKnown: true}
				}
				return &op
			}))
			p := b.process()
			v, err := p.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.NotDone, v.Outcome)
			err = p.Execute(t.Context())
			if c.class == "" {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				require.Equal(t, c.class, commitstep.ClassOf(err).String(), "%v", err)
			}
			v, err = p.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.want, v.Outcome, "the same process: %s", v)
			b.want(c.want)
			b.server.now = func() time.Time { return time.Now().Add(time.Hour) }
			b.want(c.want)
			require.LessOrEqual(t, b.w.submissions(), 1)
			if c.want == commitstep.Done || c.want == commitstep.NotDone {
				// What is decided was noted: it outlives the server.
				b.w.restart()
				b.want(c.want)
			}
		})
	}
}

// The table was dropped while the statement ran: no metric can be asked any more,
// and that is an answer. A metric that fails for another reason tells nothing.
func TestATableThatIsGoneIsAnAnswer(t *testing.T) {
	t.Parallel()
	failed := hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 2, Message: "Vertex failed", Tasks: beforeMove, TasksKnown: true}
	for name, c := range map[string]struct {
		end  hs2.Status
		want commitstep.Outcome
	}{
		"finished":  {hs2.Status{State: hs2.Finished, Tasks: inMove, TasksKnown: true}, commitstep.Conflict},
		"untouched": {failed, commitstep.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			op := &fakeOp{status: hs2.Status{State: hs2.Running, Tasks: beforeMove, TasksKnown: true}}
			metric := error(nil)
			b := newBench(t, insertSpec(), func(w *warehouse) {
				w.script = func(sql string) *fakeOp {
					switch {
					case strings.Contains(sql, "INSERT OVERWRITE TABLE"):
						return op
					case metric != nil && strings.HasPrefix(sql, "/* commitstep metric */"):
						return &fakeOp{refuse: metric}
					}
					return nil
				}
			})
			start := time.Now()
			b.server.now = func() time.Time { start = start.Add(time.Minute); return start }
			require.NoError(t, b.process().Execute(t.Context()))
			b.w.mu.Lock()
			op.status = c.end
			metric = semantic("Invalid table alias or column reference 'amount'")
			b.w.mu.Unlock()
			v := b.want(commitstep.Unknown)
			require.Contains(t, v.Evidence, "amount", "the table is there, and nobody can tell what it holds")
			b.w.mu.Lock()
			metric = nil
			gone := b.w.tables["`sales`.`facts`"]
			delete(b.w.tables, "`sales`.`facts`")
			b.w.mu.Unlock()
			for range 2 {
				v = b.want(c.want)
				require.Contains(t, v.Evidence, "sales.facts: the table is not there")
				require.Equal(t, c.want == commitstep.Conflict, v.Visible, "a statement that finished took effect")
			}
			b.w.mu.Lock()
			b.w.down = true
			b.w.mu.Unlock()
			_, err := b.process().Verify(t.Context())
			require.Error(t, err, "a server that is down is no answer")
			b.w.mu.Lock()
			b.w.down, b.w.tables["`sales`.`facts`"] = false, gone
			b.w.mu.Unlock()
			v, err = b.process().Verify(t.Context())
			require.NoError(t, err)
			require.NotContains(t, v.Evidence, "not there", "it is looked at anew every time")
			require.Equal(t, 1, b.w.submissions())
		})
	}
}

// submissions counts the INSERTs that were accepted.
func (w *warehouse) submissions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, sql := range w.log {
		if strings.Contains(sql, "INSERT OVERWRITE TABLE") {
			n++
		}
	}
	return n
}

// A driver that died over a running statement is followed by one that finds the
// result by itself, through the noted handle.
func TestALaterDriverFindsTheResult(t *testing.T) {
	t.Parallel()
	op := &fakeOp{status: hs2.Status{State: hs2.Running, Tasks: beforeMove, TasksKnown: true}}
	b := newBench(t, insertSpec(), scripted(func() *fakeOp { return op }))
	start := time.Now()
	b.server.now = func() time.Time { start = start.Add(time.Minute); return start } // nobody waits
	require.NoError(t, b.process().Execute(t.Context()))
	for range 3 {
		_, err := b.process().Verify(t.Context())
		require.ErrorIs(t, err, commitstep.ErrInProgress)
	}
	// A person looks meanwhile: that takes nothing up and ends nothing.
	step, err := b.planned.Step(0)
	require.NoError(t, err)
	_, err = b.kinds().Build(step)
	require.NoError(t, err)
	b.w.mu.Lock()
	b.w.down = true
	b.w.mu.Unlock()
	_, err = b.process().Verify(t.Context())
	require.Error(t, err, "a server that is down is no answer")
	require.NotErrorIs(t, err, commitstep.ErrInProgress)
	b.w.mu.Lock()
	b.w.down = false
	_, _ = op.apply()
	op.status = hs2.Status{State: hs2.Finished, Tasks: inMove, TasksKnown: true}
	b.w.mu.Unlock()
	v := b.want(commitstep.Done)
	require.Contains(t, v.Evidence, "rows=3")
	b.want(commitstep.Done)
	require.Equal(t, 1, b.w.submissions())
	require.Empty(t, b.w.ops, "what is decided is forgotten by the server")
}

// The server was restarted while the statement ran.
func TestAnUnknownHandleIsUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Running}} }))
	start := time.Now()
	b.server.now = func() time.Time { start = start.Add(time.Minute); return start }
	require.NoError(t, b.process().Execute(t.Context()))
	b.w.restart()
	v := b.want(commitstep.Unknown)
	require.Contains(t, v.Evidence, "does not say any more")
	// Nothing found is no proof: it is not sent again, however often one looks.
	for range 5 {
		b.want(commitstep.Unknown)
	}
	require.Equal(t, 1, b.w.submissions())
}

// A refused statement is sent again by the next attempt, under a mark of its own;
// a crash between that mark and its outcome is not taken for the old refusal.
func TestANoteBelongsToItsMark(t *testing.T) {
	t.Parallel()
	n := 0
	b := newBench(t, insertSpec(), scripted(func() *fakeOp {
		if n++; n == 1 {
			return &fakeOp{refuse: semantic("Table not found src")}
		}
		return &fakeOp{lost: true}
	}))
	require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(b.process().Execute(t.Context())))
	b.want(commitstep.NotDone)
	require.Error(t, b.process().Execute(t.Context()))
	b.want(commitstep.Unknown)
	require.Equal(t, 1, b.w.inserts)
}

func TestInsertWaitsForAServerThatIsDown(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), nil)
	b.w.down = true
	v, err := b.process().Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.NotDone, v.Outcome, "no mark is enough of a proof")
	err = b.process().Execute(t.Context())
	require.Equal(t, commitstep.ClassNotSent, commitstep.ClassOf(err), "%v", err)
	passed, err := b.process().Attempt.NoReturn(nil)
	require.NoError(t, err)
	require.False(t, passed)
	b.w.down = false
	v, err = b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
}

func TestInsertIsFoundByItsToken(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), nil)
	p := b.process()
	require.NoError(t, p.Execute(t.Context()))
	var sent []string
	for _, sql := range b.w.log {
		if strings.Contains(sql, marker(p.Attempt.Token.String())) {
			sent = append(sent, sql)
		}
	}
	require.Len(t, sent, 1, "metrics do not carry it")
	require.True(t, strings.HasPrefix(sent[0], "/* commitstep token="+p.Attempt.Token.String()+" attempt="), sent[0])
	require.Contains(t, sent[0], "batch = '"+p.Attempt.Token.String()+"'")
}

func TestInsertPlansThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   Insert
		says string
	}{
		"no server":          {Insert{Target: Target{Table: "sales.facts"}, Statement: factsInsert, Rows: rows(1)}, "names no server"},
		"unbound server":     {Insert{Target: Target{Hive: "x", Table: "sales.facts"}, Statement: factsInsert, Rows: rows(1)}, "has not bound"},
		"no expectation":     {Insert{Target: facts(), Statement: factsInsert}, "expects nothing"},
		"no table":           {Insert{Target: Target{Hive: "dw", Table: "sales.gone", Partition: facts().Partition}, Statement: factsInsert, Rows: rows(1)}, "not there"},
		"no partition":       {Insert{Target: Target{Hive: "dw", Table: "sales.facts"}, Statement: "INSERT OVERWRITE TABLE ${table} SELECT 1", Rows: rows(1)}, "partition columns (dt)"},
		"another column":     {Insert{Target: Target{Hive: "dw", Table: "sales.facts", Partition: map[string]string{"day": "1"}}, Statement: factsInsert, Rows: rows(1)}, `no partition column "day"`},
		"two statements":     {Insert{Target: facts(), Statement: factsInsert + "; DROP TABLE src", Rows: rows(1)}, "second statement"},
		"a metric that does": {Insert{Target: facts(), Statement: factsInsert, Metrics: []Metric{{Name: "x", Query: "DROP TABLE t", Want: new(Text)}}}, "write a SELECT"},
		"a metric twice":     {Insert{Target: facts(), Statement: factsInsert, Metrics: []Metric{{Name: "rows", Query: "SELECT 1", Want: new(Text)}}}, "given already"},
		"two wants":          {Insert{Target: facts(), Statement: factsInsert, Metrics: []Metric{{Name: "x", Query: "SELECT 1", Want: new(Text), Source: &Source{"SELECT 1"}}}}, "both"},
		"negative rows":      {Insert{Target: facts(), Statement: factsInsert, Rows: rows(-1)}, "-1 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarehouse()
			_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, Config{}))...), commitstep.NewPlan("j", "d").Step(InsertOverwrite(c.in)))
			var pe *commitstep.PlanError
			require.ErrorAs(t, err, &pe)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestInsertTakesThePartitionsLock(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), nil)
	require.Equal(t, []string{"hive:dw/sales.facts/dt=2024-01-01"}, b.planned.Locks)
	_, err := steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "d").Step(insertSpec()).Then(insertSpec()))
	require.ErrorContains(t, err, "another step of the plan needs too")
}

func TestASourceSaysWhatIsWanted(t *testing.T) {
	t.Parallel()
	w := newWarehouse()
	w.tables["`sales`.`stage`"] = &fakeTable{location: "hdfs://nn:8020/wh/stage", parts: map[string]*fakePart{"": {"hdfs://nn:8020/wh/stage"}}}
	w.files["hdfs://nn:8020/wh/stage"] = 3
	in := Insert{Target: facts(), Bindings: Bindings{Stage: "sales.stage"}, Statement: strings.ReplaceAll(factsInsert, "src", "${stage}"),
		Metrics: []Metric{{Name: "as staged", Query: rowsQuery, Source: &Source{"SELECT count(*) FROM ${stage} WHERE (1 = 1)"}}}}
	kinds := commitstep.NewRegistry(Kinds(w.server(t, Config{}))...)
	p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(InsertOverwrite(in)))
	require.NoError(t, err)
	w.files["hdfs://nn:8020/wh/stage"] = 0 // the stage is gone by then
	pr, err := p.Process(kinds, 0)
	require.NoError(t, err)
	v, err := pr.Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome, "%s", v)
}
