package hive_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
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
	job    = "load-facts"
	source = "facts:0"
)

// where everything of a world is; a child process gets it as JSON.
type where struct {
	Addr, WebUI string // of HiveServer2 as the engine sees it
	FS          string // what Hive calls the file system
	RPC, HTTP   []string
	DB, Day     string // the database, and the partition dt=Day of its table facts
	Root        string // local, of the store
}

func (w where) dataset() string   { return "facts/" + w.Day }
func (w where) storeFile() string { return filepath.Join(w.Root, "commit.db") }
func (w where) table() string     { return w.DB + ".facts" }

// staged is the table that a version's rows are read from.
func (w where) staged(version int) string { return fmt.Sprintf("%s.staged_%d", w.DB, version) }

// world is a partition in a database of a server, with a store.
type world struct {
	where
	server *hivekit.Server
	sql    *hivesql.DB
	client *clib.Client // of HDFS, as the superuser
	days   *atomic.Int32
}

// Rows of the versions: that they differ shows a mixture in every count.
const (
	oldRows = 5
	newRows = 7
)

// newBase makes a database, with the rows of versions 0 and 1 in tables of their own.
func newBase(t testing.TB, s *hivekit.Server) *world {
	t.Helper()
	h := s.Hadoop
	w := &world{server: s, sql: hivesql.Open(t, s), client: h.Client(t, "root"), days: &atomic.Int32{}}
	t.Cleanup(func() { // once its database is dropped
		if w.DB == "" {
			return // it was not made, and without its name this is all that the server has
		}
		for _, dir := range []string{"/" + w.DB, "/published/" + w.DB, "/external/" + w.DB + ".db"} {
			require.NoError(t, w.client.RemoveAll(s.Root+dir))
		}
	})
	w.where = where{Addr: s.Address(), WebUI: s.WebUI(), FS: s.FS, RPC: h.RPCs(), HTTP: h.HTTPs(), DB: w.sql.Database(t)}
	// It belongs to Hive: what Hive is to replace lies in it.
	require.NoError(t, h.Client(t, hivekit.User).MkdirAll(s.Root+"/"+w.DB, 0o755))
	w.stage(t, 0, oldRows)
	w.stage(t, 1, newRows)
	return w
}

// newWorld has a table in Hive's own format, with version 0 in the partition to
// publish.
func newWorld(t testing.TB, s *hivekit.Server) *world {
	t.Helper()
	w := newBase(t, s)
	w.sql.Exec(t, "CREATE EXTERNAL TABLE "+w.table()+" (id INT, version INT) PARTITIONED BY (dt STRING) STORED AS ORC")
	w.nextDay()
	w.sql.Exec(t, "INSERT OVERWRITE TABLE "+w.table()+" PARTITION (dt='"+w.Day+"') SELECT id, version FROM "+w.staged(0))
	w.ownStore(t)
	return w
}

// nextDay goes on to a partition that nobody else of the database has.
func (w *world) nextDay() {
	w.Day = time.Date(2024, 1, int(w.days.Add(1)), 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}

// ownStore makes an empty store.
func (w *where) ownStore(t testing.TB) {
	t.Helper()
	w.Root = t.TempDir()
	st, err := boltstore.Init(w.storeFile(), nil)
	require.NoError(t, err)
	require.NoError(t, st.Close())
}

// stage makes the table of a version; its rows are put there as a file, which
// costs no query.
func (w *world) stage(t testing.TB, version, rows int) {
	t.Helper()
	dir := w.server.Root + "/" + w.DB + "/" + fmt.Sprint(version)
	require.NoError(t, hadoopkit.Put(w.client, dir+"/rows", strings.ReplaceAll(strings.Join(want(version, rows), "\n"), "|", ",")+"\n"))
	w.sql.Exec(t, "CREATE EXTERNAL TABLE "+w.staged(version)+" (id INT, version INT) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' LOCATION '"+w.FS+dir+"'")
}

// want is what the partition reads as when it holds one version.
func want(version, rows int) []string {
	var out []string
	for id := range rows {
		out = append(out, fmt.Sprintf("%d|%d", id, version))
	}
	return out
}

// location of the partition as Hive tells it.
func (w *world) location(t testing.TB) string {
	t.Helper()
	for _, row := range w.sql.Rows(t, "DESCRIBE FORMATTED "+w.table()+" PARTITION (dt='"+w.Day+"')") {
		if cells := strings.Split(row, "|"); strings.TrimSpace(cells[0]) == "Location:" {
			return strings.TrimSpace(cells[1])
		}
	}
	t.Fatal("no location")
	return ""
}

// target is the partition.
func (w where) target() hivepublish.Target {
	return hivepublish.Target{Hive: "dw", Table: w.table(), Partition: map[string]string{"dt": w.Day}}
}

// plan publishes a version by one step, and moves the watermark.
func (w where) plan(step commitstep.StepSpec) *commitstep.Plan {
	return commitstep.NewPlan(job, w.dataset()).Step(step).
		Then(watermark.Set(source, commitstep.None(), commitstep.Int(100)))
}

// overwrite is an INSERT OVERWRITE of version 1.
func (w where) overwrite() commitstep.StepSpec {
	n := int64(newRows)
	return hivepublish.InsertOverwrite(hivepublish.Insert{
		Target:    w.target(),
		Bindings:  hivepublish.Bindings{Stage: w.staged(1)},
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
	w.Addr = p.Addr()
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
	return slices.DeleteFunc(w.sql.Submitted(t, w.DB), func(q hs2.Query) bool {
		return !strings.Contains(q.Text, "commitstep token=") || !strings.Contains(q.Text, w.Day)
	})
}

// settings of open; the zero value opens an ordinary engine.
type settings struct {
	conf driver.Config
	hive hivepublish.Config
	// kinds changes those that are known, or adds some.
	kinds func([]commitstep.Kind) []commitstep.Kind
}

// impatient ends what would wait for minutes, and waits long for a server on a
// busy machine.
var impatient = driver.Policy{FirstPause: 10 * time.Millisecond, MaxPause: 200 * time.Millisecond, UnknownBudget: time.Second, WaitBudget: 10 * time.Minute, RecoverBudget: 10 * time.Minute}

type engine struct {
	*driver.Engine
	store *boltstore.Store
	hive  *hivepublish.Server
	files *hdfs.FS
}

func (w where) openEngine(s settings) (*engine, error) {
	e := &engine{}
	var err error
	if e.store, err = boltstore.Open(w.storeFile(), nil); err != nil {
		return nil, err
	}
	if e.files, err = hdfs.New(hdfs.Options{Name: "test", Addresses: w.RPC, HTTPAddresses: w.HTTP, User: hivekit.User}); err != nil {
		return nil, errors.Join(err, e.closeParts())
	}
	hc := s.hive
	hc.Address, hc.User, hc.WebUI = w.Addr, hivekit.User, w.WebUI
	hc.Volumes = []hivepublish.Volume{{URI: w.FS, Files: e.files}}
	hc.Quiet = 3 * time.Second // by default a minute, each time
	if e.hive, err = hivepublish.Connect("dw", hc); err != nil {
		return nil, errors.Join(err, e.closeParts())
	}
	c := s.conf
	c.Store, c.Owner = e.store, "integration test"
	known := append(hivepublish.Kinds(e.hive), watermark.Kind(e.store))
	if s.kinds != nil {
		known = s.kinds(known)
	}
	c.Kinds = commitstep.NewRegistry(known...)
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
