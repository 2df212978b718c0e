package webhdfs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/webhdfs"
	"github.com/commitstep/engine/internal/hadoopkit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(hadoopkit.Main(m)) }

func options(c *hadoopkit.Cluster) webhdfs.Options {
	o := webhdfs.Options{Name: "test", User: "root", CallTimeout: 30 * time.Second}
	for _, a := range c.HTTPs() {
		o.URLs = append(o.URLs, "http://"+a)
	}
	return o
}

func open(t testing.TB, o webhdfs.Options) *webhdfs.FS {
	t.Helper()
	f, err := webhdfs.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func subject(t testing.TB, c *hadoopkit.Cluster, o webhdfs.Options) fstest.Subject {
	w := c.Client(t, "root")
	return fstest.Subject{
		FS:      open(t, o),
		Dir:     commitstep.Address{Resource: "webhdfs://test", Path: hadoopkit.TempDir(t, w)},
		Write:   func(a commitstep.Address, content string) error { return hadoopkit.Put(w, a.Path, content) },
		Read:    func(a commitstep.Address) (string, error) { b, err := w.ReadFile(a.Path); return string(b), err },
		Delete:  func(a commitstep.Address) error { return w.RemoveAll(a.Path) },
		Again:   func() filesys.FS { return open(t, o) },
		Refuses: func(name string) bool { return strings.Contains(name, ":") },
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	c := hadoopkit.Shared(t)
	fstest.Exercise(t, func(t testing.TB) fstest.Subject { return subject(t, c, options(c)) })
}
