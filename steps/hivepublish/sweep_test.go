package hivepublish

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// sweepBed is a table whose partition lies in the second of three attempts.
func sweepBed(t *testing.T) (b *stepBench, params SweepParams) {
	t.Helper()
	cfg, dir := onDisk(t)
	w := newWarehouse()
	w.disk = dir
	b = &stepBench{t: t, w: w, server: w.server(t, cfg)}
	for _, d := range []string{"token=a/attempt=1", "token=b/attempt=1", "token=b/attempt=2", "token=c/attempt=1"} {
		d = filepath.Join(dir, "data/facts/dt=2024-01-01", d)
		mkdir(t, d, "sub")
		require.NoError(t, os.WriteFile(filepath.Join(d, "000000_0"), []byte("x"), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(d, "sub", "000001_0"), []byte("x"), 0o644))
	}
	mkdir(t, dir, "data/facts/unrelated")
	require.NoError(t, w.move("hdfs://nn:8020/data/facts/dt=2024-01-01/token=b/attempt=2")())
	w.facts().params["transient_lastDdlTime"] = fmt.Sprint(time.Now().Unix())
	b.server.now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	return b, SweepParams{Table: "sales.facts", Under: "hdfs://nn:8020/data/facts", Live: func(string) bool { return false }, Mine: func(token string, _ bool) bool { return token != "tw" }}
}

func (b *stepBench) exists(path string) bool {
	_, err := os.Stat(filepath.Join(b.w.disk, path))
	return err == nil
}

const factsDir = "data/facts/dt=2024-01-01/"

func TestSweepRemovesWhatNobodyNames(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	p.Live = func(token string) bool { return token == "c" }
	p.DryRun = true
	rep, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, rep.Removed, 2)
	require.True(t, b.exists(factsDir+"token=a/attempt=1/000000_0"), "a dry run removes nothing")

	p.DryRun = false
	rep, err = b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"hdfs://nn:8020/" + factsDir + "token=a/attempt=1", "hdfs://nn:8020/" + factsDir + "token=b/attempt=1"}, rep.Removed)
	require.Len(t, rep.Stays, 2)
	require.False(t, b.exists(factsDir+"token=a"), "nothing was left in it")
	require.False(t, b.exists(factsDir+"token=b/attempt=1"))
	require.True(t, b.exists(factsDir+"token=b/attempt=2/000000_0"), "the partition lies there")
	require.True(t, b.exists(factsDir+"token=c/attempt=1/000000_0"), "a live step may still use it")
	require.True(t, b.exists("data/facts/unrelated"))

	rep, err = b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, rep.Removed)
}

// Another table's directories lie below the same Under and look the same: only what
// is known to be of this table is touched, and what any table names stays.
func TestSweepLeavesOtherTablesAlone(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	at := func(dir string) string {
		mkdir(t, b.w.disk, dir)
		require.NoError(t, os.WriteFile(filepath.Join(b.w.disk, dir, "000000_0"), []byte("x"), 0o644))
		return dir
	}
	published := at("data/facts/dt=2024-02-02/token=tw/attempt=1")
	renamed := at("data/facts/dt=2024-02-02/token=tw/.removed-attempt=2")
	shared := at("data/facts/dt=2024-01-01/token=d/attempt=1")
	theirs := at("data/facts/sales.tw/dt=2024-01-01/token=a/attempt=1")
	mine := at("data/facts/sales.facts/dt=2024-01-01/token=a/attempt=1")
	b.w.tables["`sales`.`tw`"] = &fakeTable{
		columns: []column{{"id", "int"}}, partitions: []column{{"dt", "string"}}, location: "hdfs://nn:8020/wh/tw", kind: "EXTERNAL_TABLE", params: map[string]string{},
		parts: map[string]*fakePart{"(`dt`='2024-02-02')": {"hdfs://nn:8020/" + published}, "(`dt`='2024-02-03')": {"hdfs://nn:8020/" + shared}},
	}
	p.Others = []string{"sales.tw", "sales.gone"}
	var asked []string
	p.Mine = func(token string, byPath bool) bool {
		asked = append(asked, fmt.Sprint(token, byPath))
		return token != "tw"
	}
	rep, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Contains(t, rep.Removed, "hdfs://nn:8020/"+mine)
	require.Contains(t, rep.Stays, Stays{"hdfs://nn:8020/" + published, "the store knows of no publish into this table that made it"})
	require.Contains(t, rep.Stays, Stays{"hdfs://nn:8020/" + shared, "a partition lies there: hdfs://nn:8020/" + shared})
	for _, dir := range []string{published, renamed, shared, theirs} {
		require.True(t, b.exists(dir+"/000000_0"), dir)
	}
	require.Contains(t, asked, "atrue", "the path names the table")
	require.Contains(t, asked, "afalse", "as steps of earlier versions wrote it")

	p.Mine = nil
	_, err = b.server.Sweep(t.Context(), p)
	require.ErrorContains(t, err, "Mine")
}

// The last sweep was killed between its rename and its look, and somebody swapped back
// in between: the rows are still there.
func TestSweepKeepsWhatWasPointedAtAfterTheRename(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	at := filepath.Join(b.w.disk, factsDir)
	require.NoError(t, os.Rename(filepath.Join(at, "token=b/attempt=2"), filepath.Join(at, "token=b/.removed-attempt=2")))
	rep, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.True(t, b.exists(factsDir+"token=b/.removed-attempt=2/000000_0"))
	require.Contains(t, rep.Stays, Stays{"hdfs://nn:8020/" + factsDir + "token=b/.removed-attempt=2", "a partition lies there: hdfs://nn:8020/" + factsDir + "token=b/attempt=2"})
}

func TestSweepKeepsForTheGraceTime(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	// The directories are old, and the partition was swapped a moment ago: readers
	// are still in the one that it lay in.
	b.w.facts().params["transient_lastDdlTime"] = fmt.Sprint(b.server.now().Add(-time.Hour).Unix())
	rep, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, rep.Removed)
	require.Contains(t, rep.Stays[0].Why, "grace time")
	// One that is being written now belongs to nobody's swap yet.
	b, p = sweepBed(t)
	b.server.now = time.Now
	rep, err = b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, rep.Removed)
	// A partition that does not say when it was changed counts as changed now.
	b, p = sweepBed(t)
	delete(b.w.facts().params, "transient_lastDdlTime")
	rep, err = b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, rep.Removed)
}

// Between the look and the removal somebody swaps back: the directory comes back.
func TestSweepLooksOnceMore(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	looks := 0
	b.w.script = func(sql string) *fakeOp {
		if strings.HasPrefix(sql, "DESCRIBE") && strings.Contains(sql, "PARTITION") {
			if looks++; looks == 2 {
				b.w.facts().parts["(`dt`='2024-01-01')"] = &fakePart{"hdfs://nn:8020/" + factsDir + "token=a/attempt=1"}
			}
		}
		return nil
	}
	rep, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.True(t, b.exists(factsDir+"token=a/attempt=1/000000_0"))
	require.Contains(t, rep.Stays[0].Why, "pointed at it")
}

func TestAnInterruptedSweepGoesOn(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	at := filepath.Join(b.w.disk, factsDir)
	require.NoError(t, os.Rename(filepath.Join(at, "token=a/attempt=1"), filepath.Join(at, "token=a/.removed-attempt=1")))
	_, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.False(t, b.exists(factsDir+"token=a"))
}

func TestSweepOfRecordedDirectories(t *testing.T) {
	t.Parallel()
	b, p := sweepBed(t)
	mkdir(t, b.w.disk, "wh/facts/dt=2024-01-01")
	mkdir(t, b.w.disk, "wh/facts/.removed-dt=2024-01-02", "x")
	p.Old = []string{"hdfs://nn:8020/wh/facts/dt=2024-01-01", "hdfs://nn:8020/wh/facts/dt=2024-01-02", "hdfs://nn:8020/wh/facts/gone", "hdfs://nn:8020/data", "hdfs://other/x/y", "hdfs://nn:8020/wh"}
	rep, err := b.server.Sweep(t.Context(), p)
	require.NoError(t, err)
	require.Contains(t, rep.Removed, "hdfs://nn:8020/wh/facts/dt=2024-01-01")
	require.False(t, b.exists("wh/facts/dt=2024-01-01"))
	require.False(t, b.exists("wh/facts/.removed-dt=2024-01-02"))
	require.True(t, b.exists("data"))
	require.True(t, b.exists("wh"))

	p.Live = nil
	_, err = b.server.Sweep(t.Context(), p)
	require.ErrorContains(t, err, "Live and Mine are required")
	b.w.down = true
	p.Live = func(string) bool { return false }
	_, err = b.server.Sweep(t.Context(), p)
	require.Error(t, err, "what cannot be asked is not removed")
}

// A rollback is a publish of its own: it swaps back, and only from where the
// publish had put the partition.
func TestRollback(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	mkdir(t, b.w.disk, "wh/facts/dt=2024-01-01")
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	published := b.w.location()
	step, err := b.planned.Step(0)
	require.NoError(t, err)
	spec, err := RollbackSpec(step)
	require.NoError(t, err)
	plan := func() (*steptest.Planned, error) {
		return steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "rollback").Step(spec))
	}

	require.NoError(t, b.w.move("hdfs://nn:8020/data/by/somebody/else")())
	_, err = plan()
	require.ErrorContains(t, err, "does not lie at")
	require.NoError(t, b.w.move(published)())

	p, err := plan()
	require.NoError(t, err)
	require.Equal(t, b.planned.Locks, p.Locks)
	pr, err := p.Process(b.kinds(), 0)
	require.NoError(t, err)
	v, err = pr.Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	require.Equal(t, "hdfs://nn:8020/wh/facts/dt=2024-01-01", b.w.location())

	// And back again from there.
	back, err := p.Step(0)
	require.NoError(t, err)
	again, err := RollbackSpec(back)
	require.NoError(t, err)
	p, err = steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "rollback").Step(again))
	require.NoError(t, err)
	pr, err = p.Process(b.kinds(), 0)
	require.NoError(t, err)
	_, err = pr.Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, published, b.w.location())
}

func TestWhatCannotBeRolledBack(t *testing.T) {
	t.Parallel()
	first := stageBench(t, stageParams(), func(w *warehouse) { _ = w.drop() })
	step, err := first.planned.Step(0)
	require.NoError(t, err)
	_, err = RollbackSpec(step)
	require.ErrorContains(t, err, "absent before")
	insert := newBench(t, insertSpec(), nil)
	step, err = insert.planned.Step(0)
	require.NoError(t, err)
	_, err = RollbackSpec(step)
	require.ErrorContains(t, err, "only a swapped location")
	step.Evidence = nil
	_, err = RollbackSpec(step)
	require.Error(t, err)
	// Without a place that it has to come from, nothing goes back.
	_, err = steptest.Plan(t.Context(), insert.kinds(), commitstep.NewPlan("j", "d").Step(SwapLocation(Swap{Target: facts(), Location: "hdfs://nn:8020/x", Back: true})))
	require.ErrorContains(t, err, "can go back")
}
