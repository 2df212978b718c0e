package hdfs_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/filesys/webhdfs"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsremove"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// transports to the same name node; the first part of addresses says which.
var transports = []string{"hdfs", "webhdfs"}

// files is a file system that can be closed.
type files interface {
	filesys.FS
	Close() error
}

// where a file system is reached; tests put proxies in between.
type where struct {
	transport string
	rpc, http []string
	// jmx answers which namespace it is; the web servers by default.
	jmx []string
	// quotas are directories whose quotas are looked at.
	quotas []string
}

func whereIs(c *hadoopkit.Cluster, transport string) where {
	return where{transport: transport, rpc: c.RPCs(), http: c.HTTPs(), jmx: c.HTTPs()}
}

// patience of a file system in a test.
type patience struct{ call, wait time.Duration }

func (w where) open(p patience, user string) (files, error) {
	if w.transport == "hdfs" {
		return hdfs.New(hdfs.Options{Name: "test", Addresses: w.rpc, HTTPAddresses: w.jmx, User: user, CallTimeout: p.call, Wait: p.wait, QuotaDirs: w.quotas})
	}
	o := webhdfs.Options{Name: "test", User: user, CallTimeout: p.call, Wait: p.wait, QuotaDirs: w.quotas}
	for _, a := range w.http {
		o.URLs = append(o.URLs, "http://"+a)
	}
	return webhdfs.New(o)
}

var ordinary = patience{call: 20 * time.Second, wait: 20 * time.Second}

// world is a directory of a name node with a store, and what must be true of
// both in the end.
type world struct {
	where
	client *clib.Client
	dir    string // on the name node
	root   string // local, of the store
	shape  string // "files" or "dirs"
}

const job, dataset = "kafka-hdfs", "MyTopic"

func newWorld(t testing.TB, c *hadoopkit.Cluster, transport, shape string) *world {
	t.Helper()
	cl := c.Client(t, "root")
	w := &world{where: whereIs(c, transport), client: cl, dir: hadoopkit.TempDir(t, cl), root: t.TempDir(), shape: shape}
	for name, content := range contents() {
		require.NoError(t, hadoopkit.Put(cl, w.staged()+"/"+name, content))
	}
	st, err := boltstore.Init(w.db(), nil)
	require.NoError(t, err)
	require.NoError(t, st.Close())
	return w
}

func (w *world) db() string     { return filepath.Join(w.root, "commit.db") }
func (w *world) staged() string { return w.dir + "/task-output/run-17/MyTopic" }
func (w *world) final() string  { return w.dir + "/job-output/MyTopic" }
func (w *world) key() commitstep.Key {
	return commitstep.Key{Job: job, Dataset: dataset}
}

// contents are 300 records, all different, in three files.
func contents() map[string]string {
	out := map[string]string{}
	n := 0
	for _, name := range []string{"2015-12-09/1.avro", "2015-12-09/2.avro", "2015-12-10/1.avro"} {
		var b strings.Builder
		for range 100 {
			n++
			fmt.Fprintf(&b, "record %d\n", n)
		}
		out[name] = b.String()
	}
	return out
}

func (w *world) address(p string) string { return w.transport + "://test" + p }

// plan publishes the three files, or the two directories that they are in.
func (w *world) plan() *commitstep.Plan {
	p := commitstep.NewPlan(job, dataset)
	c := contents()
	move := func(name string, bytes int, opts ...fsrename.Option) commitstep.StepSpec {
		return fsrename.Move(w.address(w.staged()+"/"+name), w.address(w.final()+"/"+name), append(opts, fsrename.Length(int64(bytes)))...)
	}
	if w.shape == "dirs" {
		p.Step(move("2015-12-09", len(c["2015-12-09/1.avro"])+len(c["2015-12-09/2.avro"]), fsrename.Mode("0750")),
			move("2015-12-10", len(c["2015-12-10/1.avro"])))
	} else {
		p.Step(move("2015-12-09/1.avro", len(c["2015-12-09/1.avro"]), fsrename.Mode("0640"), fsrename.Group("alice")),
			move("2015-12-09/2.avro", len(c["2015-12-09/2.avro"])), move("2015-12-10/1.avro", len(c["2015-12-10/1.avro"])))
	}
	return p.Then(watermark.Set("MyTopic:0", commitstep.None(), commitstep.Int(100)), watermark.Set("MyTopic:1", commitstep.None(), commitstep.Int(200))).
		Cleanup(w.address(w.staged()))
}

// impatient ends what would wait for minutes.
var impatient = driver.Policy{FirstPause: time.Millisecond, MaxPause: 50 * time.Millisecond, UnknownBudget: 300 * time.Millisecond, WaitBudget: 20 * time.Second, RecoverBudget: 60 * time.Second}

type engine struct {
	*driver.Engine
	store *boltstore.Store
	files files
}

// settings of open; the zero value opens an ordinary engine.
type settings struct {
	conf     driver.Config
	patience patience
	wrap     func(filesys.FS) filesys.FS
	user     string
}

func (w *world) openEngine(s settings) (*engine, error) {
	if s.patience == (patience{}) {
		s.patience = ordinary
	}
	if s.user == "" {
		s.user = "root"
	}
	st, err := boltstore.Open(w.db(), nil)
	if err != nil {
		return nil, err
	}
	f, err := w.where.open(s.patience, s.user)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	var fsys filesys.FS = f
	if s.wrap != nil {
		fsys = s.wrap(f)
	}
	c := s.conf
	c.Store, c.Owner = st, "integration test"
	c.Kinds = commitstep.NewRegistry(fsrename.Kind(fsys), fsremove.Kind(fsys), watermark.Kind(st))
	if c.Policy == (driver.Policy{}) {
		c.Policy = impatient
	}
	e, err := driver.New(c)
	if err != nil {
		return nil, errors.Join(err, st.Close(), f.Close())
	}
	return &engine{e, st, f}, nil
}

func (e *engine) close() error {
	return errors.Join(e.Engine.Close(context.Background()), e.store.Close(), e.files.Close())
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

// recoverAll finishes what the store holds, and publishes when nothing was
// promised.
func (w *world) recoverAll(t testing.TB) {
	t.Helper()
	e := w.open(t, settings{})
	defer e.shut(t)
	rep, err := e.Recover(t.Context(), job)
	require.NoError(t, err)
	require.True(t, rep.MayIngest(dataset), "not free after recover: %+v", rep)
	if w.history(t, e) == 0 {
		for name := range contents() {
			require.NotZero(t, hadoopkit.FileID(w.client, w.staged()+"/"+name), "staged data are gone, and nothing was promised")
		}
		res, err := e.Publish(t.Context(), w.plan())
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
	}
}

func (w *world) history(t testing.TB, e *engine) int {
	t.Helper()
	n := 0
	for h, err := range e.store.ListHistory(t.Context(), store.HistoryFilter{Job: job}) {
		require.NoError(t, err)
		require.Equal(t, commitstep.Completed, h.State)
		n++
	}
	return n
}

// check is what must hold once the plan is published and cleaned up.
func (w *world) check(t testing.TB) {
	t.Helper()
	w.checkFiles(t)
	e := w.open(t, settings{})
	defer e.shut(t)
	require.Equal(t, 1, w.history(t, e), "outcomes in the history")
	for live, err := range e.store.Scan(t.Context(), store.Filter{Job: job}) {
		require.NoError(t, err)
		require.Failf(t, "still live", "%+v", live)
	}
	for source, want := range map[string]int64{"MyTopic:0": 100, "MyTopic:1": 200} {
		v, err := e.Watermark(t.Context(), job, source)
		require.NoError(t, err)
		require.Equal(t, commitstep.Int(want), v)
	}
}

// tree lists the files below the world's directory, with directories that are
// empty.
func (w *world) tree(t testing.TB) []string {
	t.Helper()
	var out []string
	var walk func(string)
	walk = func(dir string) {
		list, err := w.client.ReadDir(dir)
		require.NoError(t, err)
		if len(list) == 0 && dir != w.dir {
			out = append(out, strings.TrimPrefix(dir, w.dir+"/")+"/")
		}
		for _, fi := range list {
			if p := path.Join(dir, fi.Name()); fi.IsDir() {
				walk(p)
			} else {
				out = append(out, strings.TrimPrefix(p, w.dir+"/"))
			}
		}
	}
	walk(w.dir)
	sort.Strings(out)
	return out
}

// checkFiles reads what a consumer would: every record once, and nothing else
// anywhere.
func (w *world) checkFiles(t testing.TB) {
	t.Helper()
	records := map[string]int{}
	for name, want := range contents() {
		got, err := w.client.ReadFile(w.final() + "/" + name)
		require.NoError(t, err, "not at its final name")
		require.Equal(t, want, string(got), name)
		for _, r := range strings.Split(strings.TrimSuffix(string(got), "\n"), "\n") {
			records[r]++
		}
	}
	require.Len(t, records, 300)
	for r, n := range records {
		require.Equal(t, 1, n, r)
	}
	require.Equal(t, []string{"job-output/MyTopic/2015-12-09/1.avro", "job-output/MyTopic/2015-12-09/2.avro", "job-output/MyTopic/2015-12-10/1.avro", "task-output/run-17/"}, w.tree(t))
	target, bits, group := "/2015-12-09/1.avro", uint32(0o640), "alice"
	if w.shape == "dirs" {
		target, bits, group = "/2015-12-09", 0o750, "supergroup"
	}
	fi, err := w.client.Stat(w.final() + target)
	require.NoError(t, err)
	st := fi.Sys().(*clib.FileStatus)
	require.Equal(t, bits, st.GetPermission().GetPerm(), "mode of %s", target)
	require.Equal(t, group, st.GetGroup())
	require.Equal(t, uint32(1), maxReplication(t, w), "replication")
}

func maxReplication(t testing.TB, w *world) (most uint32) {
	t.Helper()
	for name := range contents() {
		fi, err := w.client.Stat(w.final() + "/" + name)
		require.NoError(t, err)
		most = max(most, fi.Sys().(*clib.FileStatus).GetBlockReplication())
	}
	return most
}

func eachTransport(t *testing.T, fn func(t *testing.T, c *hadoopkit.Cluster, transport string)) {
	c := hadoopkit.Shared(t)
	for _, tr := range transports {
		t.Run(tr, func(t *testing.T) {
			t.Parallel()
			fn(t, c, tr)
		})
	}
}
