package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

// hiveFake is a HiveServer2 for scripts, which run the commands as processes of
// their own. It executes no SQL: a script says what the table holds.
type hiveFake struct {
	*hs2test.Server
	proxy *faultproxy.Proxy
	// where the partition lies; changed in the proxy by the ALTERs that pass.
	mu       sync.Mutex
	location string
	rows     int64
}

var setLocation = regexp.MustCompile(`SET LOCATION '([^']*)'`)

// follow lets the partition lie where ALTERs put it.
func (f *hiveFake) follow() {
	f.proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool {
		if found := setLocation.FindSubmatch(m.Data); found != nil && faultproxy.ThriftMethod(m.Data) == "ExecuteStatement" {
			f.mu.Lock()
			f.location = string(found[1])
			f.mu.Unlock()
			f.table()
		}
		return false
	}})
}

// TestHiveScripts runs the transcripts in testdata/hive: what becomes of a
// statement about which nobody knows, from the publish to the decision.
func TestHiveScripts(t *testing.T) {
	t.Parallel()
	p := scripts("testdata/hive")
	setup := p.Setup
	p.Setup = func(e *testscript.Env) error {
		if err := setup(e); err != nil {
			return err
		}
		f, err := newHiveFake(e.Getenv("WORK"))
		if err != nil {
			return err
		}
		e.Defer(f.end)
		e.Values["hive"] = f
		e.Setenv("COMMITSTEP_CONFIG", e.Getenv("WORK")+"/config.yaml")
		e.Setenv("DW_PASSWORD", fakePassword)
		return nil
	}
	p.Cmds["hive"] = hiveCmd
	testscript.Run(t, p)
}

// newHiveFake starts one, with dir/config.yaml to reach it and dir/wh as its
// warehouse.
func newHiveFake(dir string) (*hiveFake, error) {
	s, err := hs2test.Start(hs2test.Options{Login: func(user, password string) string {
		if user == "etl" && password != fakePassword {
			return "Error validating the login"
		}
		return ""
	}})
	if err != nil {
		return nil, err
	}
	proxy, err := faultproxy.Listen(s.Addr(), faultproxy.SASLPlain)
	if err != nil {
		s.Close()
		return nil, err
	}
	f := &hiveFake{Server: s, proxy: proxy, location: "file:/wh/facts/dt=2024-01-01", rows: 2}
	f.table()
	f.follow()
	f.answer("SELECT version()", []string{"4.0.1 r1", "etl"})
	f.answer("SET hive.server2.async", []string{"hive.server2.async.exec.async.compile=false"})
	conf := fmt.Sprintf("hive:\n  dw:\n    address: %s\n    user: etl\n    password_env: DW_PASSWORD\n    web_ui: %s\n    warehouse: {'file:///wh': %s/wh/}\n    call_timeout: 60s\n", proxy.Addr(), s.WebUI(), dir)
	if err := os.WriteFile(dir+"/config.yaml", []byte(conf), 0o600); err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

func (f *hiveFake) end() {
	_ = f.proxy.Close()
	f.Close()
}

// TestASweepOnATerminal: the person sees what would be removed, and types the
// table's name; anything else removes nothing.
func TestASweepOnATerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := newHiveFake(dir)
	require.NoError(t, err)
	t.Cleanup(f.end)
	st := newStore(t)
	token, err := stagedBefore(t.Context(), strings.TrimPrefix(st, "bolt:"), "sales.facts", 1)
	require.NoError(t, err)
	old := filepath.Join(dir, "wh/stage/sales.facts/dt=2024-01-01/token="+token+"/attempt=1")
	writeFile(t, old, "part-0", "1,a")
	past := time.Now().Add(-72 * time.Hour)
	require.NoError(t, os.Chtimes(old, past, past))
	sweep := func(answer string) outcomeOfRun {
		app := terminal(answer)
		app.Env = func(k string) string {
			return map[string]string{"COMMITSTEP_CONFIG": dir + "/config.yaml", "DW_PASSWORD": fakePassword}[k]
		}
		return run(t, app, "hive", "sweep", "sales.facts", "--under", "file:///wh/stage", "--reason", "only a test", "--store", st)
	}
	for _, answer := range []string{"", "y\n", "facts\n"} {
		r := sweep(answer)
		require.Equal(t, ExitError, r.code, "%q: %s", answer, r.errOut)
		require.Contains(t, r.errOut, "would remove")
		require.Contains(t, r.errOut, "nothing was done")
		require.DirExists(t, old)
	}
	require.Contains(t, must(t, App{}, "audit", "list", "--store", st).out, "nobody has decided anything yet")
	r := sweep("sales.facts\n")
	require.Equal(t, ExitOK, r.code, r.errOut)
	require.NoDirExists(t, old)
	require.Contains(t, must(t, App{}, "audit", "list", "--store", st).out, "hive.swept")
}

// TestDoctorFindsOutAnotherServersList: it would show nothing of any publish.
func TestDoctorFindsOutAnotherServersList(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := newHiveFake(dir)
	require.NoError(t, err)
	t.Cleanup(f.end)
	other, err := hs2test.Start(hs2test.Options{})
	require.NoError(t, err)
	t.Cleanup(other.Close)
	conf, err := os.ReadFile(dir + "/config.yaml")
	require.NoError(t, err)
	writeFile(t, dir, "config.yaml", strings.ReplaceAll(string(conf), f.WebUI(), other.WebUI()))
	app := App{Env: func(k string) string {
		return map[string]string{"COMMITSTEP_CONFIG": dir + "/config.yaml", "DW_PASSWORD": fakePassword}[k]
	}}
	r := run(t, app, "doctor", "-o", "json")
	require.Equal(t, ExitPartial, r.code, r.errOut)
	require.Contains(t, r.out, "another server's")
	require.Contains(t, r.out, `"queryList": false`)
	require.Contains(t, r.out, `"sessionSurvives": true`)
	require.Empty(t, f.Sessions(), "nothing is left behind")
}

// stagedBefore puts a completed sequence into the history of an embedded store, whose
// steps staged rows for a table below file:///wh/stage. It gives the token of the
// first.
func stagedBefore(ctx context.Context, file, table string, steps int) (string, error) {
	st, err := boltstore.Open(file, nil)
	if err != nil {
		return "", err
	}
	defer st.Close()
	me := commitstep.Instance{ID: uuid.New(), Name: "earlier"}
	if _, err := st.Join(ctx, me); err != nil {
		return "", err
	}
	var page []commitstep.Step
	for i := range steps {
		params := fmt.Sprintf(`{"hive":"dw","table":%q,"partition":{"dt":"2024-01-01"},"query":"SELECT 1","under":"file:///wh/stage","rows":1}`, table)
		page = append(page, commitstep.Step{Index: i, Kind: hivepublish.StageAndSwapName, Version: 1, Params: json.RawMessage(params)})
	}
	id, key := uuid.New(), commitstep.Key{Job: "earlier", Dataset: table + fmt.Sprint(steps)}
	l, err := st.Put(ctx, store.Draft{ID: id, Key: key,
		Pages: func(yield func([]commitstep.Step, error) bool) { yield(page, nil) },
		Header: func() (commitstep.Header, error) {
			return commitstep.Header{ID: id, Key: key, PlanHash: "sha256:" + strings.Repeat("0", 64), Created: time.Now(), Steps: steps, Stages: 1, FirstWatermark: -1, Writer: "test"}, nil
		}}, me.ID)
	if err != nil {
		return "", err
	}
	fence := store.Fence{ID: l.ID, Epoch: l.Epoch}
	for i := range steps {
		if err := st.Record(ctx, fence, false, store.Event{Type: store.EventDone, Step: i}); err != nil {
			return "", err
		}
	}
	return commitstep.StepToken(id, 0).String(), errors.Join(st.Complete(ctx, fence, false, store.HistoryNotes{}), st.Leave(ctx, me.ID))
}

// TestALiveSwapKeepsWhatItPointsAt: a rollback that is pending points at what an
// earlier publish staged, and the token there is not its own.
func TestALiveSwapKeepsWhatItPointsAt(t *testing.T) {
	t.Parallel()
	f := sweepables{server: "dw", table: "sales.facts", tokens: map[string]bool{}, needed: map[string]bool{}, old: map[string]bool{}, pointed: map[string][]string{}}
	step := func(table string) commitstep.Step {
		return commitstep.Step{Kind: hivepublish.SwapLocationName, Version: 1, Params: json.RawMessage(fmt.Sprintf(
			`{"hive":"dw","table":%q,"partition":{"dt":"x"},"location":"hdfs://nn/stage/dt=x/token=%s/attempt=1","back":true}`, table, table))}
	}
	f.add(step("sales.facts"), uuid.New(), false, false)
	f.add(step("sales.tw"), uuid.New(), true, true)
	require.True(t, f.live("sales.facts"))
	require.False(t, f.live("sales.tw"), "it ended")
	require.Equal(t, []string{"sales.tw"}, f.others("hdfs://NN/stage/"))
	require.Empty(t, f.others("hdfs://nn/elsewhere"))
	require.Equal(t, []string{"sales.tw"}, f.others(""))

	// One that goes back to where the partition first lay has no token there.
	f.add(commitstep.Step{Kind: hivepublish.SwapLocationName, Version: 1, Params: json.RawMessage(
		`{"hive":"dw","table":"sales.facts","partition":{"dt":"x"},"location":"hdfs://nn/wh/facts/dt=x","from":"hdfs://nn/stage","back":true}`)}, uuid.New(), false, false)
	f.old["hdfs://NN/wh/facts/dt=x"], f.old["hdfs://nn/wh/facts/dt=y"] = true, true
	free, stays := f.olds()
	require.Equal(t, []string{"hdfs://nn/wh/facts/dt=y"}, free)
	require.Len(t, stays, 1)
	require.Equal(t, "hdfs://NN/wh/facts/dt=x", stays[0].Path)
}

// fakePassword must never be printed.
const fakePassword = "k33p-me-s3cret"

// hive rows N: so many rows does the table hold.
// hive insert ended|running|fails: how an INSERT ends from now on.
// hive lose: the next INSERT is accepted, and its answer lost.
// hive submit TOKEN: a statement with this token arrives late, and runs.
// hive staged TABLE STEPS VAR: history knows of a publish into this table, and VAR is
// the token of its first step.
// hive finish: statements that run finish.
// hive restart: it forgets everything. hive stop: it is gone.
// hive count N TEXT: so many statements with this text were submitted.
func hiveCmd(ts *testscript.TestScript, neg bool, args []string) {
	f, ok := ts.Value("hive").(*hiveFake)
	if neg || !ok || len(args) == 0 {
		ts.Fatalf("usage: hive WHAT ARG...")
	}
	arg := func(i int) string {
		if i >= len(args) {
			ts.Fatalf("hive %s wants more words", args[0])
		}
		return args[i]
	}
	switch args[0] {
	case "rows":
		f.mu.Lock()
		_, err := fmt.Sscan(arg(1), &f.rows)
		f.mu.Unlock()
		ts.Check(err)
		f.table()
	case "insert":
		runs := map[string][]hs2test.Step{
			"cancelled": {hs2test.Running(), hs2test.Canceled()},
			"running":   {hs2test.Running()},
			"fails":     {hs2test.FailedMap()},
			"finished":  {hs2test.Finished(3)},
		}
		steps, ok := runs[arg(1)]
		if !ok {
			ts.Fatalf("no such end: %s", arg(1))
		}
		f.Statement("INSERT OVERWRITE", hs2test.Run{Steps: steps, Logs: []string{"INFO  : Map 1: 0/1", "ERROR : it was told to stop"}})
	case "lose":
		f.proxy.On(faultproxy.Rule{Nth: 1, Do: faultproxy.DropReply, Match: func(m faultproxy.Message) bool {
			return faultproxy.ThriftMethod(m.Data) == "ExecuteStatement" && strings.Contains(string(m.Data), "INSERT OVERWRITE")
		}})
	case "submit":
		f.Statement("arrives late", hs2test.Run{Steps: []hs2test.Step{hs2test.Running(), hs2test.Finished(3)}})
		c, err := hs2.New(hs2.Config{Address: f.Addr(), User: "other"})
		ts.Check(err)
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s, err := c.OpenSession(ctx, nil)
		ts.Check(err)
		_, err = s.Execute(ctx, "/* arrives late: commitstep token="+arg(1)+" attempt=1 */ INSERT OVERWRITE TABLE t SELECT 1", nil)
		ts.Check(err)
	case "staged":
		steps, err := strconv.Atoi(arg(2))
		ts.Check(err)
		token, err := stagedBefore(context.Background(), ts.MkAbs("commit.db"), arg(1), steps)
		ts.Check(err)
		ts.Setenv(arg(3), token)
	case "finish":
		f.Advance("INSERT OVERWRITE")
	case "restart":
		f.Forget()
	case "stop":
		f.Close()
	case "count":
		if got := fmt.Sprint(f.Count(arg(2))); got != arg(1) {
			ts.Fatalf("%s statements contain %q, want %s", got, arg(2), arg(1))
		}
	default:
		ts.Fatalf("hive %s is not known", args[0])
	}
}

func (f *hiveFake) answer(part string, row []string) {
	run := hs2test.Run{}
	var cells []any
	for i, c := range row {
		run.Columns = append(run.Columns, hs2.Column{Name: fmt.Sprint("c", i), Type: "STRING"})
		cells = append(cells, c)
	}
	run.Rows = [][]any{cells}
	f.Statement(part, run)
}

// table answers for sales.facts with one partition, which nobody has changed for
// days. The form of the answer is the one that the package of the kinds holds
// against a real server.
func (f *hiveFake) table() {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := fmt.Sprint(time.Now().Add(-72 * time.Hour).Unix())
	describe := func(location, kind string) hs2test.Run {
		run := hs2test.Run{Columns: []hs2.Column{{Name: "col_name", Type: "STRING"}, {Name: "data_type", Type: "STRING"}, {Name: "comment", Type: "STRING"}}}
		for _, r := range [][3]string{
			{"# col_name", "data_type", "comment"}, {"id", "int"}, {"name", "string"}, {},
			{"# Partition Information"}, {"# col_name", "data_type", "comment"}, {"dt", "string"}, {},
			{"# Detailed Table Information"}, {"Database:", "sales"}, {"Location:", location}, {"Table Type:", "EXTERNAL_TABLE"},
			{kind + " Parameters:"}, {"", "numRows", fmt.Sprint(f.rows)}, {"", "transient_lastDdlTime", changed}, {},
			{"# Storage Information"}, {"SerDe Library:", "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"},
			{"InputFormat:", "org.apache.hadoop.mapred.TextInputFormat"}, {"OutputFormat:", "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"},
		} {
			row := make([]any, 3)
			for i, c := range r {
				if c != "" || i == 0 {
					row[i] = c + "   "
				}
			}
			run.Rows = append(run.Rows, row)
		}
		return run
	}
	f.Statement("DESCRIBE FORMATTED", describe("file:/wh/facts", "Table"))
	f.Statement("DESCRIBE FORMATTED `sales`.`facts` PARTITION (`dt`='2024-01-01')", describe(f.location, "Partition"))
	f.answer("SHOW PARTITIONS", []string{"dt=2024-01-01"})
	f.Statement("commitstep metric", hs2test.Run{Columns: []hs2.Column{{Name: "n", Type: "BIGINT"}}, Rows: [][]any{{f.rows}}})
}
