package fsrename_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
)

// place is a directory with a staged file or directory in it.
type place struct {
	t    testing.TB
	root string
}

func newPlace(t testing.TB) place { return place{t, t.TempDir()} }

func (p place) path(name string) string { return filepath.Join(p.root, name) }

func (p place) write(name, content string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func (p place) exists(name string) bool {
	_, err := os.Lstat(p.path(name))
	return err == nil
}

func (p place) files(opts ...local.Option) *local.Files {
	p.t.Helper()
	f, err := local.New(p.root, opts...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { f.Close() })
	return f
}

// snapshot describes names, kinds, modes, times and contents.
func (p place) snapshot() (string, error) {
	out := ""
	err := filepath.WalkDir(p.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %s", path[len(p.root):], i.Mode())
		if i.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %q", i.ModTime().UnixNano(), b)
		}
		out += line + "\n"
		return nil
	})
	return out, err
}

func world(t testing.TB, stage func(place), published, inside string, opts ...fsrename.Option) steptest.World {
	p := newPlace(t)
	stage(p)
	points := &steptest.Points{}
	return steptest.World{
		Spec:    fsrename.Move("task-output/run-1/data", published, opts...),
		BaseDir: p.root,
		Kinds: func() *commitstep.Registry {
			f := fstest.Hooked(p.files(), func(op string, a commitstep.Address, do func() error) error {
				return points.Do(op+" "+a.Base(), do)
			})
			return commitstep.NewRegistry(fsrename.Kind(f))
		},
		Snapshot: p.snapshot,
		Effects: func() (int, error) {
			if !p.exists(published) || p.exists("task-output/run-1/data") {
				return 0, nil
			}
			if got := p.read(filepath.Join(published, inside)); got != "ours" {
				return 0, nil
			}
			return 1, nil
		},
		Points: points,
		Foreign: map[string]func() error{
			"a file of equal length": func() error {
				p.write(published, "ther")
				return nil
			},
			"an equal file": func() error {
				p.write(published, "ours")
				return nil
			},
			"an empty file":      func() error { p.write(published, ""); return nil },
			"an empty directory": func() error { return os.MkdirAll(p.path(published), 0o755) },
			"a full directory":   func() error { p.write(published+"/x", "ours"); return nil },
			"a link to the source": func() error {
				if err := os.MkdirAll(filepath.Dir(p.path(published)), 0o755); err != nil {
					return err
				}
				return os.Symlink(p.path("task-output/run-1/data"), p.path(published))
			},
			"a file where the directory must be": func() error { p.write("job-output", "x"); return nil },
		},
		MovedOn: func() error {
			// Consumed, and the next run stages under the same name.
			if err := os.RemoveAll(p.path(published)); err != nil {
				return err
			}
			stage(p)
			return nil
		},
		SharesEffect: true,
	}
}

func TestKit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage  func(place)
		inside string
		opts   []fsrename.Option
	}{
		"file":       {func(p place) { p.write("task-output/run-1/data", "ours") }, "", nil},
		"attributes": {func(p place) { p.write("task-output/run-1/data", "ours") }, "", []fsrename.Option{fsrename.Mode("0600"), fsrename.Length(4)}},
		"directory": {func(p place) {
			p.write("task-output/run-1/data/a/1.avro", "ours")
			p.write("task-output/run-1/data/2.avro", "more")
		}, "a/1.avro", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steptest.Run(t, steptest.Case{New: func(t testing.TB) steptest.World {
				return world(t, c.stage, "job-output/MyTopic/2015-12-09/1", c.inside, c.opts...)
			}})
		})
	}
}

var _ filesys.FS = (*local.Files)(nil)
