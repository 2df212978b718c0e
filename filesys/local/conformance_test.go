//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/local"
)

// subject gives the suite a directory below root; root "" is a new one.
func subject(t testing.TB, root, base string, opts ...local.Option) fstest.Subject {
	if base == "" {
		base = t.TempDir()
	}
	if root == "" {
		root = base
	}
	open := func() filesys.FS {
		f, err := local.New(root, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	return fstest.Subject{
		FS:  open(),
		Dir: commitstep.Address{Resource: commitstep.LocalResource, Path: base},
		Write: func(a commitstep.Address, content string) error {
			if err := os.MkdirAll(filepath.Dir(a.Path), 0o755); err != nil {
				return err
			}
			return os.WriteFile(a.Path, []byte(content), 0o644)
		},
		Read:    func(a commitstep.Address) (string, error) { b, err := os.ReadFile(a.Path); return string(b), err },
		Link:    func(name, existing commitstep.Address) error { return os.Link(existing.Path, name.Path) },
		Symlink: func(name commitstep.Address, target string) error { return os.Symlink(target, name.Path) },
		Delete:  func(a commitstep.Address) error { return os.RemoveAll(a.Path) },
		Again:   open,
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]local.Option{
		"as it is":          nil,
		"without noreplace": {local.WithoutNoReplace()},
		"without openat2":   {local.WithoutOpenat2()},
		"birth times only":  {local.WithoutHandles()},
		"no identity":       {local.WithoutIDs(), local.WithoutNoReplace()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fstest.Exercise(t, func(t testing.TB) fstest.Subject { return subject(t, "", "", opts...) })
		})
	}
	t.Run("root of the machine", func(t *testing.T) {
		t.Parallel()
		fstest.Exercise(t, func(t testing.TB) fstest.Subject { return subject(t, "/", "") })
	})
	t.Run("tmpfs", func(t *testing.T) {
		t.Parallel()
		fstest.Exercise(t, func(t testing.TB) fstest.Subject { return subject(t, "", shm(t)) })
	})
}

// shm is a directory in memory, which every Linux machine has.
func shm(t testing.TB) string {
	d, err := os.MkdirTemp("/dev/shm", strings.ReplaceAll(filepath.Base(t.Name()), " ", "-")+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// Other file systems are tested where somebody has mounted them: a list of
// empty directories, separated by colons. The conformance suite and the
// fallback tests above need none.
func TestConformanceElsewhere(t *testing.T) {
	t.Parallel()
	for _, dir := range filepath.SplitList(os.Getenv("COMMITSTEP_TEST_DIRS")) {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			fstest.Exercise(t, func(t testing.TB) fstest.Subject {
				d, err := os.MkdirTemp(dir, "x")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { os.RemoveAll(d) })
				return subject(t, dir, d)
			})
		})
	}
}

func BenchmarkFiles(b *testing.B) {
	b.Run("as it is", func(b *testing.B) {
		fstest.Benchmark(b, func(t testing.TB) fstest.Subject { return subject(t, "", "") })
	})
	b.Run("without noreplace", func(b *testing.B) {
		fstest.Benchmark(b, func(t testing.TB) fstest.Subject { return subject(t, "", "", local.WithoutNoReplace()) })
	})
}
