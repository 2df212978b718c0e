package hivepublish

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// engine runs whole plans on a server, in a hurry.
func engine(t *testing.T, server *Server, more ...commitstep.Kind) (*driver.Engine, *boltstore.Store) {
	t.Helper()
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(append(Kinds(server), more...)...),
		Policy: driver.Policy{FirstPause: time.Millisecond, MaxPause: time.Millisecond, UnknownBudget: 10 * time.Millisecond}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close(context.Background()))
		require.NoError(t, st.Close())
	})
	return e, st
}

// decide takes a person's decision on what is live of d.
func decide(t *testing.T, e *driver.Engine, st *boltstore.Store, as store.DecisionKind) {
	t.Helper()
	key := commitstep.Key{Job: "j", Dataset: "d"}
	live, err := st.Get(t.Context(), key)
	require.NoError(t, err)
	_, err = e.Resolve(t.Context(), driver.Resolution{Key: key, Decision: as, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "looked at the table"}})
	require.NoError(t, err)
}

// onMetrics makes the plan's questions go as told, whoever asks; statements behind
// EXPLAIN are only compiled.
func onMetrics(op func(sql string) *fakeOp) func(string) *fakeOp {
	return func(sql string) *fakeOp {
		if strings.HasPrefix(sql, "/* commitstep metric */") {
			return op(sql)
		}
		return nil
	}
}

func wrongColumn(string) *fakeOp {
	return &fakeOp{refuse: semantic("Invalid table alias or column reference 'amount'")}
}

// A column was dropped while the statement ran, and no metric can be asked: it is
// not waited for. A person decides, or mends it and says retry.
func TestAMetricThatFailsForGoodIsDecidedByAPerson(t *testing.T) {
	t.Parallel()
	two := &hs2.Table{Rows: [][]any{{int64(1)}, {int64(2)}}}
	for name, c := range map[string]struct {
		metric func(sql string) *fakeOp
		says   string
	}{
		"a column that is gone": {wrongColumn, "amount"},
		"it always fails":       {func(string) *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Error, Message: "a UDF failed"}} }, "a UDF failed"},
		"two rows":              {func(string) *fakeOp { return &fakeOp{apply: func() (*hs2.Table, error) { return two, nil }} }, "gives 2 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarehouse()
			w.script = func(sql string) *fakeOp {
				if strings.Contains(sql, "INSERT OVERWRITE TABLE") {
					w.script = onMetrics(c.metric) // from now on
				}
				return nil
			}
			e, st := engine(t, w.server(t, Config{}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(insertSpec()))
			require.Error(t, err)
			require.Equal(t, commitstep.PublishUnknown, res.Reason, "%s: %s", res.Status, res.Message)
			require.Contains(t, res.Message, c.says)
			insp, err := e.Inspect(t.Context(), res.Key, false)
			require.NoError(t, err)
			var n insertNote
			require.NoError(t, json.Unmarshal(insp.StepViews[0].Progress.Note, &n))
			require.NotNil(t, n.Evidence)
			require.Equal(t, "ended as FINISHED", n.Evidence.Phase)
			require.Contains(t, strings.Join(n.Evidence.Missing, "\n"), c.says)
			require.Contains(t, n.Evidence.Suggestion.Why, "metrics")
			require.Contains(t, insp.Decisions, store.DecidePublished)

			w.mu.Lock()
			w.script = nil // mended
			w.mu.Unlock()
			decide(t, e, st, store.DecideRetry)
			rep, err := e.Recover(t.Context(), "j")
			require.NoError(t, err)
			require.Equal(t, driver.StatusCompleted, rep.Results[0].Status, rep.Results[0].Message)
			require.Equal(t, 1, w.submissions())
		})
	}
}

// A server that cannot be reached is waited for all the same.
func TestAMetricThatNobodyCouldAskIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWarehouse()
	w.script = func(sql string) *fakeOp {
		if strings.Contains(sql, "INSERT OVERWRITE TABLE") {
			w.script = onMetrics(func(string) *fakeOp {
				return &fakeOp{refuse: &hs2.TransportError{RPC: "ExecuteStatement", Err: errDown}}
			})
		}
		return nil
	}
	e, _ := engine(t, w.server(t, Config{}))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // twenty times the budget of what is unknown
	defer cancel()
	res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(insertSpec()))
	require.Error(t, err)
	require.Equal(t, driver.StatusStopped, res.Status, "%s: %s", res.Reason, res.Message)
}

// What can be known when it is planned is refused then.
func TestMetricsThatCannotBeAskedAreRefused(t *testing.T) {
	t.Parallel()
	metric := []Metric{{Name: "sum", Query: "SELECT sum(amount) FROM ${table} WHERE ${partition_filter}", Want: new(Text)}}
	in := Insert{Target: facts(), Statement: factsInsert, Metrics: metric}
	st := stageParams()
	st.Metrics = metric
	for name, spec := range map[string]commitstep.StepSpec{"insert": InsertOverwrite(in), "stage": StageAndSwap(st)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := onDisk(t)
			w := newWarehouse()
			w.script = onMetrics(func(sql string) *fakeOp {
				if strings.Contains(sql, "sum(amount)") {
					return wrongColumn(sql)
				}
				return nil
			})
			plan := commitstep.NewPlan("j", "d").Step(spec)
			_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), plan)
			var pe *commitstep.PlanError
			require.ErrorAs(t, err, &pe)
			require.ErrorContains(t, err, `metric "sum": `)
			require.ErrorContains(t, err, "amount")
			require.ErrorContains(t, err, "correct the query")
			w.down = true
			_, err = steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), plan)
			require.Error(t, err)
			require.False(t, errorIsPlan(err), "a server that is down says nothing about the plan: %v", err)
		})
	}
}

func errorIsPlan(err error) bool {
	_, ok := err.(*commitstep.PlanError)
	return ok
}

// Nothing brought the directory about: it is refused at once, and never swapped to.
func TestASwapToWhatNobodyWroteIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	e, st := engine(t, w.server(t, cfg))
	other := facts()
	other.Partition = map[string]string{"dt": "2030-01-01"}
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").
		Step(InsertOverwrite(Insert{Target: other, Statement: factsInsert, Rows: rows(3)})).Then(swapSpec()))
	require.Error(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason, res.Message)
	require.Contains(t, res.Message, "never pointed at a directory that is missing")
	require.Equal(t, 1, res.Steps[len(res.Steps)-1].Attempts)
	require.Empty(t, w.sent("SET LOCATION"))

	mkdir(t, dir, "data/facts/dt=2024-01-01/token=run-7")
	decide(t, e, st, store.DecideRetry)
	rep, err := e.Recover(t.Context(), "j")
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, rep.Results[0].Status, rep.Results[0].Message)
	require.Equal(t, newPlace, w.location())
	require.Equal(t, 1, w.submissions())
}

// The counted rows were removed before the swap: the query writes them again.
func TestLostRowsAreWrittenAnew(t *testing.T) {
	t.Parallel()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	w.disk = dir
	once := true
	w.script = func(sql string) *fakeOp {
		if once && strings.HasPrefix(sql, "DROP TABLE IF EXISTS") {
			once = false
			if err := os.RemoveAll(filepath.Join(dir, "data")); err != nil {
				return &fakeOp{refuse: err}
			}
		}
		return nil
	}
	e, _ := engine(t, w.server(t, cfg))
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(StageAndSwap(stageParams())))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, strings.HasSuffix(w.location(), "/attempt=2"), w.location())
	require.Len(t, w.sent("SET LOCATION"), 1)
}

// What a person declared published is not cleaned up: the rows where the statement
// reads them may be the only ones.
func TestWhatWasDeclaredPublishedIsNotCleanedUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage string
		lost  bool
		stays []string
		says  string
	}{
		"published":              {"sales.stage", false, nil, ""},
		"declared":               {"sales.stage", true, []string{"run/part-0"}, "declared published"},
		"declared, stage a view": {"sales.view", true, []string{"other/part-0", "run/part-0"}, "nobody can tell where its data was staged"},
		"declared, no stage":     {"", true, []string{"other/part-0", "run/part-0"}, "nobody can tell where its data was staged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, f := range []string{"run/part-0", "other/part-0"} {
				mkdir(t, dir, "stage", filepath.Dir(f))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "stage", f), []byte("1,a"), 0o644))
			}
			files, err := local.New(dir)
			require.NoError(t, err)
			defer files.Close()
			w := newWarehouse()
			w.tables["`sales`.`stage`"] = &fakeTable{columns: w.facts().columns, location: "hdfs://nn:8020/stage/run"}
			w.tables["`sales`.`view`"] = &fakeTable{columns: w.facts().columns}
			w.script = func(sql string) *fakeOp {
				if strings.Contains(sql, "INSERT OVERWRITE TABLE") {
					return &fakeOp{lost: c.lost}
				}
				return nil
			}
			server := w.server(t, Config{Volumes: []Volume{{URI: "hdfs://nn:8020", Files: files, At: commitstep.Address{Resource: "file", Path: dir}}}})
			e, st := engine(t, server, fsremove.Kind(files))
			in := Insert{Target: facts(), Statement: factsInsert, Rows: rows(3), Bindings: Bindings{Stage: c.stage}}
			if c.stage != "" {
				in.Statement = strings.ReplaceAll(factsInsert, "src", "${stage}")
			}
			plan := commitstep.NewPlan("j", "d").Step(InsertOverwrite(in)).CleanupWith(commitstep.CleanupParams{Path: "file://" + dir + "/stage", Leftovers: "delete"})
			res, err := e.Publish(t.Context(), plan)
			if c.lost {
				require.Equal(t, commitstep.PublishUnknown, res.Reason, res.Message)
				decide(t, e, st, store.DecidePublished)
				rep, err := e.Recover(t.Context(), "j")
				require.NoError(t, err)
				res = rep.Results[0]
				require.Equal(t, driver.DidDeclared, res.Steps[0].Did)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, driver.StatusCompleted, res.Status, res.Message)
			if c.says == "declared published" {
				// Nor by a later plan that cleans up there.
				w.mu.Lock()
				w.script = nil
				w.mu.Unlock()
				other := facts()
				other.Partition = map[string]string{"dt": "2030-01-01"}
				_, err := e.Publish(t.Context(), commitstep.NewPlan("j", "later").Step(InsertOverwrite(Insert{Target: other, Statement: factsInsert, Rows: rows(3)})).CleanupWith(commitstep.CleanupParams{Path: "file://" + dir + "/stage", Leftovers: "delete"}))
				require.NoError(t, err)
			}
			require.NoError(t, e.Close(context.Background())) // cleanups have ended
			h, err := st.LookupHistory(t.Context(), res.ID)
			require.NoError(t, err)
			if c.lost {
				require.Contains(t, res.Cleanup, c.says)
				require.Equal(t, []int{0}, h.Notes.DeclaredPublished)
			}
			found, err := filepath.Glob(filepath.Join(dir, "stage/*/*"))
			require.NoError(t, err)
			for i := range found {
				found[i], _ = filepath.Rel(filepath.Join(dir, "stage"), found[i])
			}
			require.Equal(t, c.stays, found)
		})
	}
}
