package hdfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	clib "github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/google/uuid"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hadoopkit.Main(m)) }

// options of a file system on the cluster.
func options(c *hadoopkit.Cluster) hdfs.Options {
	return hdfs.Options{Name: "test", Addresses: c.RPCs(), HTTPAddresses: c.HTTPs(), User: "root", CallTimeout: 30 * time.Second}
}

func open(t testing.TB, o hdfs.Options) *hdfs.FS {
	t.Helper()
	f, err := hdfs.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// writer is a client that stages, reads and deletes files behind the file
// system's back.
func writer(t testing.TB, c *hadoopkit.Cluster, user string) *clib.Client {
	t.Helper()
	w, err := clib.NewClient(clib.ClientOptions{Addresses: []string{c.RPC()}, User: user})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// put makes a file, or replaces the content of the one that is there, which
// keeps its id.
func put(w *clib.Client, p, content string) error {
	f, err := w.Create(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := w.MkdirAll(path.Dir(p), 0o755); err != nil {
			return err
		}
		f, err = w.Create(p)
	case errors.Is(err, fs.ErrExist):
		// Right away only at a block's end, and so for nothing.
		if ok, err := w.Truncate(p, 0); err != nil || !ok {
			return fmt.Errorf("truncate %s: %v %w", p, ok, err)
		}
		f, err = w.Append(p)
	}
	if err != nil {
		return err
	}
	if content != "" {
		if _, err := f.Write([]byte(content)); err != nil {
			return err
		}
	}
	// The name node may not have heard of the last block yet.
	for err = f.Close(); clib.IsErrReplicating(err); err = f.Close() {
		time.Sleep(2 * time.Millisecond)
	}
	return err
}

func subject(t testing.TB, c *hadoopkit.Cluster, change func(*hdfs.Options)) fstest.Subject {
	o := options(c)
	if change != nil {
		change(&o)
	}
	w := writer(t, c, "root")
	dir := "/test-" + uuid.NewString()
	if err := w.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return fstest.Subject{
		FS:      open(t, o),
		Dir:     commitstep.Address{Resource: "hdfs://test", Path: dir},
		Write:   func(a commitstep.Address, content string) error { return put(w, a.Path, content) },
		Read:    func(a commitstep.Address) (string, error) { b, err := w.ReadFile(a.Path); return string(b), err },
		Delete:  func(a commitstep.Address) error { return w.RemoveAll(a.Path) },
		Again:   func() filesys.FS { return open(t, o) },
		Refuses: func(name string) bool { return strings.Contains(name, ":") },
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	fstest.Exercise(t, func(t testing.TB) fstest.Subject { return subject(t, hadoopkit.Shared(t), nil) })
}
