package hdfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
)

// TestUnreadableConnections: where requests cannot be read on the way out,
// files are not renamed unless the operator accepts the risk. Directories are:
// an overwrite could only replace an empty one.
func TestUnreadableConnections(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	open := func(t *testing.T, mode hdfs.NoClobber) fstest.Subject {
		o := options(c)
		hdfs.Opaque(&o)
		o.NoClobber = mode
		return subject(t, c, o)
	}
	at := func(s fstest.Subject, name string) commitstep.Address {
		return commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/" + name}
	}
	t.Run("atomic", func(t *testing.T) {
		t.Parallel()
		s := open(t, hdfs.Atomic)
		for _, n := range []string{"file", "dir/file"} {
			if err := s.Write(at(s, n), "x"); err != nil {
				t.Fatal(err)
			}
		}
		err := s.FS.Rename(t.Context(), at(s, "file"), at(s, "to"))
		if !errors.Is(err, filesys.ErrNoClobberUnsupported) || commitstep.ClassOf(err) != commitstep.ClassRefused || !strings.Contains(err.Error(), "no_clobber: best-effort") {
			t.Fatalf("%v (%s)", err, commitstep.ClassOf(err))
		}
		if s.FS.Capabilities().NoClobber {
			t.Error("it still says that nothing is overwritten")
		}
		if err := s.FS.(filesys.PlanChecker).CheckMove(t.Context(), at(s, "file"), at(s, "to")); !errors.Is(err, filesys.ErrNoClobberUnsupported) {
			t.Errorf("when it is planned: %v", err)
		}
		if err := s.FS.Rename(t.Context(), at(s, "dir"), at(s, "moved")); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(at(s, "moved/file")); err != nil || got != "x" {
			t.Fatal(got, err)
		}
	})
	t.Run("best effort", func(t *testing.T) {
		t.Parallel()
		s := open(t, hdfs.BestEffort)
		for _, n := range []string{"file", "taken"} {
			if err := s.Write(at(s, n), n); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.FS.Rename(t.Context(), at(s, "file"), at(s, "taken")); !errors.Is(err, fs.ErrExist) || commitstep.ClassOf(err) != commitstep.ClassRefused {
			t.Fatalf("%v (%s)", err, commitstep.ClassOf(err))
		}
		if err := s.FS.Rename(t.Context(), at(s, "file"), at(s, "to")); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read(at(s, "to")); err != nil || got != "file" {
			t.Fatal(got, err)
		}
	})
}

// dialer counts connections and knows which are open.
type dialer struct {
	opened, open, most atomic.Int64
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.opened.Add(1)
	n := d.open.Add(1)
	for m := d.most.Load(); n > m && !d.most.CompareAndSwap(m, n); m = d.most.Load() {
	}
	return &counted{Conn: c, d: d}, nil
}

type counted struct {
	net.Conn
	d    *dialer
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.d.open.Add(-1) })
	return c.Conn.Close()
}

func TestThePoolIsBoundedAndClosesWhatIsIdle(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	d := &dialer{}
	o := options(c)
	o.Dial, o.Clients, o.IdleTimeout = d.dial, 3, 300*time.Millisecond
	s := subject(t, c, o)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if err := s.FS.MkdirAll(t.Context(), commitstep.Address{Resource: s.Dir.Resource, Path: fmt.Sprintf("%s/%d", s.Dir.Path, i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most := d.most.Load(); most < 1 || most > 3 {
		t.Errorf("%d connections at once, allowed are 3", most)
	}
	for limit := time.Now().Add(20 * time.Second); d.open.Load() > 0; time.Sleep(10 * time.Millisecond) { // the timer is the pool's
		if time.Now().After(limit) {
			t.Fatalf("%d connections stay open", d.open.Load())
		}
	}
	// It opens new ones, and closing twice does no harm.
	if _, err := s.FS.Stat(t.Context(), s.Dir); err != nil {
		t.Fatal(err)
	}
	f := s.FS.(*hdfs.FS)
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Stat(t.Context(), s.Dir); !errors.Is(err, hdfs.ErrClosed) {
		t.Fatal(err)
	}
	if d.open.Load() != 0 {
		t.Error("a connection outlives the file system")
	}
}

// TestACallEndsWithItsContext also while the name node says nothing.
func TestACallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	p, err := faultproxy.Listen(c.RPC(), faultproxy.Raw)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	o := options(c)
	o.Addresses, o.Wait = []string{p.Addr()}, 50*time.Millisecond
	s := subject(t, c, o)
	if _, err := s.FS.Stat(t.Context(), s.Dir); err != nil {
		t.Fatal(err)
	}
	hole := p.On(faultproxy.Rule{Do: faultproxy.BlackHole})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hole.Fired(); cancel() }()
	start := time.Now()
	err = s.FS.MkdirAll(ctx, commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/x"})
	if !errors.Is(err, context.Canceled) || time.Since(start) > o.CallTimeout/2 {
		t.Fatalf("%v after %s", err, time.Since(start))
	}
	p.Clear()
	// The connection that saw this is not used again.
	if _, err := s.FS.Stat(t.Context(), s.Dir); err != nil {
		t.Fatal(err)
	}
	// A rename that was sent and not answered has an unknown outcome.
	if err := s.Write(commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/f"}, "x"); err != nil {
		t.Fatal(err)
	}
	p.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return strings.Contains(string(m.Data), "rename2") }, Do: faultproxy.DropReply})
	err = s.FS.Rename(t.Context(), commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/f"}, commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/g"})
	if err == nil || commitstep.ClassOf(err) != commitstep.ClassUnknown {
		t.Fatalf("%v (%s)", err, commitstep.ClassOf(err))
	}
	p.Refuse(true)
	err = s.FS.Rename(t.Context(), commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/g"}, commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/h"})
	if commitstep.ClassOf(err) != commitstep.ClassNotSent && commitstep.ClassOf(err) != commitstep.ClassUnknown {
		t.Fatalf("with nobody there: %v (%s)", err, commitstep.ClassOf(err))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]hdfs.Options{
		"no name":        {Addresses: []string{"a:1"}},
		"odd name":       {Name: "a/b", Addresses: []string{"a:1"}},
		"no address":     {Name: "a"},
		"no port":        {Name: "a", Addresses: []string{"host"}},
		"odd web server": {Name: "a", Addresses: []string{"a:1"}, HTTPAddresses: []string{"http://a:1"}},
		"odd mode":       {Name: "a", Addresses: []string{"a:1"}, NoClobber: "perhaps"},
		"many clients":   {Name: "a", Addresses: []string{"a:1"}, Clients: 1000},
		"negative":       {Name: "a", Addresses: []string{"a:1"}, Wait: -1},
		"relative root":  {Name: "a", Addresses: []string{"a:1"}, Root: "x"},
	} {
		if f, err := hdfs.New(o); err == nil {
			_ = f.Close()
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestFromConf: of two name services in the same files only the named one is
// used, each file of the other's has the same path.
func TestFromConf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, props map[string]string) {
		text := "<configuration>"
		for k, v := range props {
			text += "<property><name>" + k + "</name><value>" + v + "</value></property>"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"</configuration>"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("core-site.xml", map[string]string{"fs.defaultFS": "hdfs://prod"})
	write("hdfs-site.xml", map[string]string{
		"dfs.nameservices": "prod, other", "the.host": "nn1.prod",
		"dfs.ha.namenodes.prod": "a,b", "dfs.ha.namenodes.other": "a",
		"dfs.namenode.rpc-address.prod.a": "${the.host}:8020", "dfs.namenode.rpc-address.prod.b": "nn2.prod:8020",
		"dfs.namenode.http-address.prod.a": "${the.host}:9870", "dfs.namenode.http-address.prod.b": "nn2.prod:9870",
		"dfs.namenode.rpc-address.other.a": "nn1.other:8020",
	})
	o, err := hdfs.FromConf(dir, "prod")
	want := hdfs.Options{Name: "prod", Addresses: []string{"nn1.prod:8020", "nn2.prod:8020"}, HTTPAddresses: []string{"nn1.prod:9870", "nn2.prod:9870"}}
	if err != nil || !reflect.DeepEqual(o, want) {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := hdfs.FromConf(dir, "other"); err != nil || !reflect.DeepEqual(o.Addresses, []string{"nn1.other:8020"}) || o.HTTPAddresses != nil {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := hdfs.FromConf(dir, "nobody"); err == nil || !strings.Contains(err.Error(), "prod, other") {
		t.Error(err)
	}
	if s, err := hdfs.Services(dir); err != nil || !reflect.DeepEqual(s, []string{"prod", "other"}) {
		t.Error(s, err)
	}
	if _, err := hdfs.FromConf(t.TempDir(), "prod"); err == nil {
		t.Error("an empty directory is accepted")
	}
	write("core-site.xml", map[string]string{"fs.defaultFS": "hdfs://host.example:9000", "hadoop.security.authentication": "kerberos"})
	write("hdfs-site.xml", nil)
	if _, err := hdfs.FromConf(dir, "host.example:9000"); err == nil || !strings.Contains(err.Error(), "Kerberos") {
		t.Error(err)
	}
}

// TestAccessIsAsked: the name node is asked what a user may do, with a call that
// the library lacks, unless the owner of a directory is known to be let in. A
// connection that cannot be read is not asked, and refuses nothing.
func TestAccessIsAsked(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	for name, tc := range map[string]struct {
		user    string
		opaque  bool
		refused bool
		asked   int64
	}{
		"the owner":      {user: "root"},
		"another":        {user: "alice", refused: true, asked: 1},
		"not to be read": {user: "alice", opaque: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(c)
			s := subject(t, c, o)
			at := func(p string) commitstep.Address {
				return commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/" + p}
			}
			w := c.Client(t, "root")
			for dir, mode := range map[string]os.FileMode{"in": 0o777, "out": 0o755} {
				if err := w.Mkdir(at(dir).Path, mode); err != nil {
					t.Fatal(err)
				}
				if err := w.Chmod(at(dir).Path, mode); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Write(at("in/f"), "x"); err != nil {
				t.Fatal(err)
			}
			o.User = tc.user
			if tc.opaque {
				hdfs.Opaque(&o)
				o.NoClobber = hdfs.BestEffort
			}
			f := open(t, o)
			err := f.CheckMove(t.Context(), at("in/f"), at("out/f"))
			if tc.refused != errors.Is(err, fs.ErrPermission) || !tc.refused && err != nil {
				t.Fatalf("%v", err)
			}
			got := f.Calls()["checkAccess"]
			if got < tc.asked || tc.asked == 0 && got != 0 {
				t.Fatalf("%d questions: %v", got, f.Calls())
			}
			// The connection is as good as before.
			if _, err := f.Stat(t.Context(), at("in/f")); err != nil {
				t.Fatal(err)
			}
		})
	}
}
