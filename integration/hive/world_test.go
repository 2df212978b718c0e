package hive_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

const (
	job, dataset = "load-facts", "facts/2024-01-01"
	day          = "2024-01-01"
	source       = "facts:0"
)

// world is a database of its own on a server, with a partitioned table `facts`
// to publish into, tables to publish from, and a store.
type world struct {
	server *hivekit.Server
	sql    *hivesql.DB
	db     string
	client *clib.Client // of HDFS, as the superuser
	root   string       // local, of the store
	addr   string       // of HiveServer2 as the engine sees it
	webUI  string
}

// newWorld makes it, with one old version in the partition: version 0.
func newWorld(t testing.TB, s *hivekit.Server) *world {
	t.Helper()
	w := &world{server: s, sql: hivesql.Open(t, s), client: s.Hadoop.Client(t, "root"), root: t.TempDir(), addr: s.Address(), webUI: s.WebUI()}
	w.db = w.sql.Database(t)
	w.sql.Exec(t,
		"CREATE EXTERNAL TABLE "+w.table()+" (id INT, version INT) PARTITIONED BY (dt STRING) STORED AS ORC")
	w.stage(t, 0, oldRows)
	w.sql.Exec(t, "INSERT OVERWRITE TABLE "+w.table()+" PARTITION (dt='"+day+"') SELECT id, version FROM "+w.staged(0))
	st, err := boltstore.Init(w.storeFile(), nil)
	require.NoError(t, err)
	require.NoError(t, st.Close())
	return w
}

// Rows of the versions: that they differ shows a mixture in every count.
const (
	oldRows = 5
	newRows = 7
)

func (w *world) storeFile() string { return filepath.Join(w.root, "commit.db") }

func (w *world) table() string { return w.db + ".facts" }

// staged is the table that a version's rows are read from.
func (w *world) staged(version int) string { return fmt.Sprintf("%s.staged_%d", w.db, version) }

// stage makes the table of a version.
func (w *world) stage(t testing.TB, version, rows int) {
	t.Helper()
	var values []string
	for id := range rows {
		values = append(values, fmt.Sprintf("(%d, %d)", id, version))
	}
	w.sql.Exec(t, "CREATE EXTERNAL TABLE "+w.staged(version)+" (id INT, version INT) STORED AS ORC",
		"INSERT INTO "+w.staged(version)+" VALUES "+strings.Join(values, ", "))
}

// want is what the partition reads as when it holds one version.
func want(version, rows int) []string {
	var out []string
	for id := range rows {
		out = append(out, fmt.Sprintf("%d|%d", id, version))
	}
	return out
}

const readRows = "SELECT id, version FROM %s WHERE dt='" + day + "' ORDER BY id, version"

// rows are those that the partition holds now, read as anybody reads them.
func (w *world) rows(t testing.TB) []string {
	t.Helper()
	return w.sql.Rows(t, fmt.Sprintf(readRows, w.table()))
}

// target is the partition.
func (w *world) target() hivepublish.Target {
	return hivepublish.Target{Hive: "dw", Table: w.table(), Partition: map[string]string{"dt": day}}
}

// plan publishes a version by one step, and moves the watermark.
func (w *world) plan(step commitstep.StepSpec) *commitstep.Plan {
	return commitstep.NewPlan(job, dataset).Step(step).
		Then(watermark.Set(source, commitstep.None(), commitstep.Int(100)))
}

// overwrite is an INSERT OVERWRITE of a version that was staged.
func (w *world) overwrite(version, rows int) commitstep.StepSpec {
	n := int64(rows)
	return hivepublish.InsertOverwrite(hivepublish.Insert{
		Target:    w.target(),
		Bindings:  hivepublish.Bindings{Stage: w.staged(version)},
		Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT id, version FROM ${stage}",
		Rows:      &n,
	})
}

// behind puts a proxy between the engine and HiveServer2.
func (w *world) behind(t testing.TB) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Listen(w.server.Address(), faultproxy.SASLPlain)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	w.addr = p.Addr()
	return p
}

// calls selects the messages of one method whose request holds a text.
func calls(method, holding string) func(faultproxy.Message) bool {
	return func(m faultproxy.Message) bool {
		return faultproxy.ThriftMethod(m.Data) == method && strings.Contains(string(m.Data), holding)
	}
}

// submitted lists the publishing statements of the engine that the server was given,
// from its own list: only they carry a token.
func (w *world) submitted(t testing.TB) []hs2.Query {
	t.Helper()
	return slices.DeleteFunc(w.sql.Submitted(t, w.db), func(q hs2.Query) bool {
		return !strings.Contains(q.Text, "commitstep token=")
	})
}

// settings of open; the zero value opens an ordinary engine.
type settings struct {
	conf driver.Config
	hive hivepublish.Config
}

// impatient ends what would wait for minutes, and waits long for a server on a
// busy machine.
var impatient = driver.Policy{FirstPause: 10 * time.Millisecond, MaxPause: 200 * time.Millisecond, UnknownBudget: time.Second, WaitBudget: 3 * time.Minute, RecoverBudget: 5 * time.Minute}

type engine struct {
	*driver.Engine
	store *boltstore.Store
	hive  *hivepublish.Server
	files *hdfs.FS
}

func (w *world) openEngine(s settings) (*engine, error) {
	e := &engine{}
	var err error
	if e.store, err = boltstore.Open(w.storeFile(), nil); err != nil {
		return nil, err
	}
	h := w.server.Hadoop
	if e.files, err = hdfs.New(hdfs.Options{Name: "test", Addresses: h.RPCs(), HTTPAddresses: h.HTTPs(), User: hivekit.User}); err != nil {
		return nil, errors.Join(err, e.closeParts())
	}
	hc := s.hive
	hc.Address, hc.User, hc.WebUI = w.addr, hivekit.User, w.webUI
	hc.Volumes = []hivepublish.Volume{{URI: w.server.FS, Files: e.files}}
	if e.hive, err = hivepublish.Connect("dw", hc); err != nil {
		return nil, errors.Join(err, e.closeParts())
	}
	c := s.conf
	c.Store, c.Owner = e.store, "integration test"
	c.Kinds = commitstep.NewRegistry(append(hivepublish.Kinds(e.hive), watermark.Kind(e.store))...)
	if c.Policy == (driver.Policy{}) {
		c.Policy = impatient
	}
	if e.Engine, err = driver.New(c); err != nil {
		return nil, errors.Join(err, e.closeParts())
	}
	return e, nil
}

func (e *engine) closeParts() error {
	var errs []error
	if e.hive != nil {
		errs = append(errs, e.hive.Close())
	}
	if e.files != nil {
		errs = append(errs, e.files.Close())
	}
	return errors.Join(append(errs, e.store.Close())...)
}

func (e *engine) close() error {
	return errors.Join(e.Engine.Close(context.Background()), e.closeParts())
}

func (w *world) open(t testing.TB, s settings) *engine {
	t.Helper()
	e, err := w.openEngine(s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.close() })
	return e
}

func (e *engine) shut(t testing.TB) {
	t.Helper()
	require.NoError(t, e.close())
}

// recover goes on with the dataset by a new engine, as the next run of the job
// does.
func (w *world) recover(t testing.TB, s settings) driver.Result {
	t.Helper()
	e := w.open(t, s)
	defer e.shut(t)
	var got []driver.Result
	_, err := e.Recover(t.Context(), job, driver.Each(func(r driver.Result) { got = append(got, r) }))
	require.NoError(t, err)
	require.Len(t, got, 1)
	return got[0]
}

// outcomes are the states in which the sequences of the dataset ended.
func (w *world) outcomes(t testing.TB) []commitstep.State {
	t.Helper()
	st, err := boltstore.Open(w.storeFile(), nil)
	require.NoError(t, err)
	defer st.Close()
	var out []commitstep.State
	for h, err := range st.ListHistory(t.Context(), store.HistoryFilter{Job: job}) {
		require.NoError(t, err)
		out = append(out, h.State)
	}
	return out
}

// watermark of the source; none before the publish.
func (w *world) watermark(t testing.TB) commitstep.Watermark {
	t.Helper()
	e := w.open(t, settings{})
	defer e.shut(t)
	m, err := e.Watermark(t.Context(), job, source)
	require.NoError(t, err)
	return m
}
