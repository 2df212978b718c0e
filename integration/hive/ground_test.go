package hive_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// ground is a database for many publishes. Its partitions are text files that are
// put there, which costs no query, and one engine publishes them one after another
// in the sessions that it has, since a new one costs seconds.
type ground struct {
	*world
	hive *clib.Client // of HDFS, as Hive: what it makes, Hive may replace
}

func newGround(t testing.TB, s *hivekit.Server) *ground {
	t.Helper()
	g := &ground{world: newBase(t, s), hive: s.Hadoop.Client(t, hivekit.User)}
	require.NoError(t, g.hive.MkdirAll(s.Root+"/"+g.DB+"/facts", 0o755))
	g.sql.Exec(t, "CREATE EXTERNAL TABLE "+g.table()+" (id INT, version INT) PARTITIONED BY (dt STRING) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' LOCATION '"+g.dir("")+"'")
	return g
}

// dir is the location of the table, or of a partition's directory.
func (w *world) dir(day string) string {
	d := w.FS + w.server.Root + "/" + w.DB + "/facts"
	if day != "" {
		d += "/dt=" + day
	}
	return d
}

// path is the same without the file system's name.
func (w *world) path(day string) string { return strings.TrimPrefix(w.dir(day), w.FS) }

// lane is an engine behind a proxy of its own, with a store of its own.
type lane struct {
	*ground
	at    where
	proxy *faultproxy.Proxy
	e     *engine
	with  settings
}

func (g *ground) lane(t testing.TB, s settings) *lane {
	t.Helper()
	l := &lane{ground: g, at: g.where, with: s}
	var err error
	l.proxy, err = faultproxy.Listen(g.server.Address(), faultproxy.SASLPlain)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.proxy.Close()) })
	l.at.Addr = l.proxy.Addr()
	l.at.ownStore(t)
	l.reopen(t)
	t.Cleanup(func() { _ = l.e.close() })
	return l
}

// reopen goes on as another run of the job does.
func (l *lane) reopen(t testing.TB) {
	t.Helper()
	if l.e != nil {
		l.e.shut(t)
	}
	var err error
	l.e, err = l.at.openEngine(l.with)
	require.NoError(t, err)
}

// part is a new partition with version 0.
func (l *lane) part(t testing.TB) *world {
	t.Helper()
	w := l.parts(t, 1)
	return w[0]
}

// parts are several, registered by one statement.
func (l *lane) parts(t testing.TB, n int) []*world {
	t.Helper()
	var out []*world
	sql := "ALTER TABLE " + l.table() + " ADD"
	for range n {
		w := *l.world
		w.where = l.at
		w.nextDay()
		l.put(t, &w, 0, oldRows)
		sql += " PARTITION (dt='" + w.Day + "')"
		out = append(out, &w)
	}
	l.sql.Exec(t, sql)
	return out
}

// put writes a version's rows as a file into a partition's directory.
func (g *ground) put(t testing.TB, w *world, version, rows int) {
	t.Helper()
	require.NoError(t, hadoopkit.Put(g.hive, fmt.Sprintf("%s/v%d", w.path(w.Day), version), strings.ReplaceAll(strings.Join(want(version, rows), "\n"), "|", ",")+"\n"))
}

// alone is a new partition with version 0 and a store of its own.
func (g *ground) alone(t testing.TB) *world {
	t.Helper()
	w := *g.world
	w.ownStore(t)
	w.nextDay()
	g.put(t, &w, 0, oldRows)
	w.sql.Exec(t, "ALTER TABLE "+w.table()+" ADD PARTITION (dt='"+w.Day+"')")
	return &w
}

// holds are the partition's rows, read without starting a job.
func (w *world) holds(t testing.TB) []string {
	t.Helper()
	rows := w.sql.Rows(t, "SELECT id, version FROM "+w.table()+" WHERE dt='"+w.Day+"'")
	slices.Sort(rows) // ids have one digit
	return rows
}

// mark is the watermark that a partition's plan moves.
func (w where) mark() string { return "facts:" + w.Day }

// publishing is the plan of a partition.
func (w where) publishing(step commitstep.StepSpec) *commitstep.Plan {
	return commitstep.NewPlan(job, w.dataset()).Step(step).
		Then(watermark.Set(w.mark(), commitstep.None(), commitstep.Int(100)))
}

// selecting is an INSERT OVERWRITE of what a query gives; wanted are its rows.
func (w where) selecting(query string, wanted int, settings map[string]string) commitstep.StepSpec {
	n := int64(wanted)
	return hivepublish.InsertOverwrite(hivepublish.Insert{
		Target:    w.target(),
		Bindings:  hivepublish.Bindings{Stage: w.staged(1)},
		Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} " + query,
		Rows:      &n,
		Settings:  settings,
	})
}

// longTime makes a statement of version 1 long enough to be interrupted on a busy
// machine. Its rows are one batch, which takes so long once.
const longTime = time.Minute

// slow is a query of version 1 that takes its time.
func slow(lasting time.Duration) string {
	return fmt.Sprintf("SELECT id, version + 0 * length(nvl(reflect('java.lang.Thread', 'sleep', %dL), '')) FROM ${stage}", lasting.Milliseconds())
}

// publish runs a plan, and gives the result also of one that is not finished.
func (l *lane) publish(t testing.TB, p *commitstep.Plan) (driver.Result, error) {
	t.Helper()
	res, err := l.e.Publish(t.Context(), p)
	var unfinished *driver.NotFinishedError
	if errors.As(err, &unfinished) {
		return unfinished.Result, err
	}
	return res, err
}

// ended is the state in which the dataset's sequences ended.
func (l *lane) ended(t testing.TB, w *world) []commitstep.State {
	t.Helper()
	var out []commitstep.State
	for h, err := range l.e.store.ListHistory(t.Context(), store.HistoryFilter{Job: job}) {
		require.NoError(t, err)
		if h.Dataset == w.dataset() {
			out = append(out, h.State)
		}
	}
	return out
}

// moved is the watermark of a partition.
func (l *lane) moved(t testing.TB, w *world) commitstep.Watermark {
	t.Helper()
	m, err := l.e.Watermark(t.Context(), job, w.mark())
	require.NoError(t, err)
	return m
}

// done wants the new rows in the partition, by one statement, and the watermark
// moved.
func (l *lane) done(t testing.TB, w *world) {
	t.Helper()
	require.Equal(t, []commitstep.State{commitstep.Completed}, l.ended(t, w))
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Len(t, w.submitted(t), 1)
	require.Len(t, w.executed(t), 1)
	require.Equal(t, commitstep.Int(100), l.moved(t, w))
}

// untouched wants the old rows, and the watermark where it was.
func (l *lane) untouched(t testing.TB, w *world) {
	t.Helper()
	require.Equal(t, want(0, oldRows), w.holds(t))
	require.True(t, l.moved(t, w).IsNone())
}

var executing = regexp.MustCompile(`Executing command\(queryId=([^)]+)\): /\* commitstep token=`)

// executed are the ids of the publishing statements that the server's log says it
// began to execute. They are there also when its list has forgotten them.
func (w *world) executed(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile(w.server.Log())
	require.NoError(t, err)
	var ids []string
	for line := range bytes.Lines(b) {
		if !bytes.Contains(line, []byte(w.DB)) || !bytes.Contains(line, []byte(w.Day)) {
			continue
		}
		if m := executing.FindSubmatch(line); m != nil && !slices.Contains(ids, string(m[1])) {
			ids = append(ids, string(m[1]))
		}
	}
	return ids
}

var alterOfDay = regexp.MustCompile(`Executing command\(queryId=([^)]+)\): /\* commitstep token=.*ALTER TABLE .*='(\d{4}-\d\d-\d\d)'`)

// altersByDay are the ids of the publishing ALTERs that the server's log says it
// began to execute, by partition: its list is too short for hundreds.
func (g *ground) altersByDay(t testing.TB) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(g.server.Log())
	require.NoError(t, err)
	out := map[string][]string{}
	for line := range bytes.Lines(b) {
		if !bytes.Contains(line, []byte(g.DB)) {
			continue
		}
		if m := alterOfDay.FindSubmatch(line); m != nil && !slices.Contains(out[string(m[2])], string(m[1])) {
			out[string(m[2])] = append(out[string(m[2])], string(m[1]))
		}
	}
	return out
}

// listed waits until the server's list of statements has the partition's
// publishing one in a state.
func (w *world) listed(t testing.TB, state hs2.State) hs2.Query {
	t.Helper()
	var got hs2.Query
	soon(t, "no statement "+state.String(), func() bool {
		for _, q := range w.submitted(t) {
			if got = q; q.State == state {
				return true
			}
		}
		return false
	})
	return got
}

// patient bounds waits for something that a server on a busy machine does.
const patient = 5 * time.Minute

// soon waits for a condition that nobody signals.
func soon(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.NewTimer(patient)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-limit.C:
			t.Fatalf("%s within %s", what, patient)
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-tick.C:
		}
	}
}

// fired waits for a proxy's rule.
func fired(t testing.TB, h *faultproxy.Hook) {
	t.Helper()
	select {
	case <-h.Fired():
	case <-time.After(patient):
		t.Fatal("no message met the rule")
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// soaking reports that the long sweeps are wanted.
func soaking() bool { return os.Getenv("COMMITSTEP_SOAK") != "" }

// sorted sorts in place and returns it.
func sorted[T cmp.Ordered](list []T) []T {
	slices.Sort(list)
	return list
}
