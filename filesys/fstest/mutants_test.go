//go:build linux

package fstest_test

import (
	"context"
	"iter"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/filesys/local"
)

const mutantEnv = "COMMITSTEP_TEST_MUTANT"

// mutants are file systems that break one promise each; the suite must notice.
var mutants = map[string]func(m mutant) filesys.FS{
	"none":                        func(m mutant) filesys.FS { return m },
	"rename overwrites":           func(m mutant) filesys.FS { return overwrites{m} },
	"rename looks first":          func(m mutant) filesys.FS { return looksFirst{m} },
	"rename moves into directory": func(m mutant) filesys.FS { return movesInto{m} },
	"ids are inode numbers": func(m mutant) filesys.FS {
		return ids{m, func(i filesys.ID) filesys.ID {
			// A handle's generation is its second half.
			return filesys.ID{Text: i.Text[:len(i.Text)-8]}
		}}
	},
	"ids are shared": func(m mutant) filesys.FS {
		return ids{m, func(filesys.ID) filesys.ID { return filesys.ID{Text: "x:1"} }}
	},
	"names are decoded":         func(m mutant) filesys.FS { return decodes{m} },
	"remove by path":            func(m mutant) filesys.FS { return removesByPath{m} },
	"remove dir recursively":    func(m mutant) filesys.FS { return removesAll{m} },
	"second name dropped blind": func(m mutant) filesys.FS { return dropsBlindly{m} },
	"links are followed":        func(m mutant) filesys.FS { return follows{m} },
	"context is not looked at":  func(m mutant) filesys.FS { return deaf{m} },
	"errors are not classified": func(m mutant) filesys.FS { return unclassified{m} },
	"mode is not set":           func(m mutant) filesys.FS { return modeless{m} },
}

type mutant struct{ filesys.FS }

type overwrites struct{ mutant }

func (overwrites) Rename(_ context.Context, from, to commitstep.Address) error {
	return os.Rename(from.Path, to.Path)
}

type looksFirst struct{ mutant }

func (m looksFirst) Rename(ctx context.Context, from, to commitstep.Address) error {
	if _, err := m.Stat(ctx, to); err == nil {
		return commitstep.Refused(os.ErrExist)
	}
	if _, err := m.Stat(ctx, from); err != nil {
		return commitstep.Refused(err)
	}
	return os.Rename(from.Path, to.Path)
}

type movesInto struct{ mutant }

func (m movesInto) Rename(ctx context.Context, from, to commitstep.Address) error {
	if i, err := m.Stat(ctx, to); err == nil && i.Dir {
		to.Path += "/" + from.Base()
	}
	return m.FS.Rename(ctx, from, to)
}

type ids struct {
	mutant
	change func(filesys.ID) filesys.ID
}

func (m ids) Stat(ctx context.Context, a commitstep.Address) (filesys.Info, error) {
	i, err := m.FS.Stat(ctx, a)
	if err == nil {
		i.ID = m.change(i.ID)
	}
	return i, err
}

type decodes struct{ mutant }

func (m decodes) Rename(ctx context.Context, from, to commitstep.Address) error {
	if p, err := url.PathUnescape(to.Path); err == nil {
		to.Path = filepath.Clean(p)
	}
	return m.FS.Rename(ctx, from, to)
}

type removesByPath struct{ mutant }

func (m removesByPath) Remove(ctx context.Context, want filesys.Info) error {
	if now, err := m.Stat(ctx, want.Path); err == nil {
		return m.FS.Remove(ctx, now)
	}
	return m.FS.Remove(ctx, want)
}

type removesAll struct{ mutant }

func (removesAll) RemoveDir(ctx context.Context, want filesys.Info) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	return os.RemoveAll(want.Path.Path)
}

type dropsBlindly struct{ mutant }

func (dropsBlindly) DropSecondName(ctx context.Context, from, _ commitstep.Address) error {
	if err := ctx.Err(); err != nil {
		return commitstep.NotSent(err)
	}
	_ = os.Remove(from.Path)
	return nil
}

type follows struct{ mutant }

func (m follows) Stat(ctx context.Context, a commitstep.Address) (filesys.Info, error) {
	if p, err := filepath.EvalSymlinks(a.Path); err == nil {
		a.Path = p
	}
	return m.FS.Stat(ctx, a)
}

type deaf struct{ mutant }

func (m deaf) MkdirAll(ctx context.Context, a commitstep.Address) error {
	return m.FS.MkdirAll(context.WithoutCancel(ctx), a)
}

type unclassified struct{ mutant }

func (m unclassified) Rename(ctx context.Context, from, to commitstep.Address) error {
	if err := m.FS.Rename(ctx, from, to); err != nil {
		return &os.PathError{Op: "rename", Path: from.Path, Err: os.ErrExist}
	}
	return nil
}

type modeless struct{ mutant }

func (modeless) SetAttributes(context.Context, commitstep.Address, filesys.Attributes) error {
	return nil
}

func (m mutant) List(ctx context.Context, a commitstep.Address) iter.Seq2[filesys.Info, error] {
	return m.FS.List(ctx, a)
}

func TestTheSuiteNoticesBrokenPromises(t *testing.T) {
	t.Parallel()
	for name := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A failing suite must fail, which only another process can show.
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestMutant$")
			cmd.Env = append(os.Environ(), mutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			switch passed := err == nil; {
			case name == "none" && !passed:
				t.Fatalf("the suite refuses a sound file system:\n%s", out)
			case name != "none" && passed:
				t.Fatal("the suite notices nothing")
			case name != "none" && !strings.Contains(string(out), "--- FAIL: TestMutant/"):
				t.Fatalf("it failed otherwise:\n%s", out)
			}
		})
	}
}

// TestMutant runs the suite on the mutant that the test above asks for.
func TestMutant(t *testing.T) {
	name, ok := os.LookupEnv(mutantEnv)
	if !ok {
		return // it is the test above that runs it
	}
	fstest.Exercise(t, func(t testing.TB) fstest.Subject {
		dir := t.TempDir()
		f, err := local.New(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return fstest.Subject{
			FS:  mutants[name](mutant{f}),
			Dir: f.Root(),
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
		}
	})
}
