//go:build linux

package local_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
)

func TestNewRefusesWhatIsNoDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "file"), "x")
	for _, bad := range []string{filepath.Join(root, "missing"), filepath.Join(root, "file")} {
		if f, err := local.New(bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v, %v", bad, f, err)
		}
	}
}

func TestARelativeRootIsMadeAbsolute(t *testing.T) {
	t.Parallel()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if got := open(t, ".").Root().Path; got != wd {
		t.Fatalf("root %q, want %q", got, wd)
	}
}

// Nothing leads out of the root: text, links, or links through links.
func TestNothingLeavesTheRoot(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]local.Option{"openat2": nil, "one by one": {local.WithoutOpenat2()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			root := filepath.Join(top, "root")
			write(t, filepath.Join(top, "outside/secret"), "x")
			write(t, filepath.Join(root, "f"), "x")
			for link, target := range map[string]string{
				"relative": "../outside", "absolute": filepath.Join(top, "outside"), "chain": "relative", "up": "..", "abs-up": "/",
				"proc": "/proc/self/root",
			} {
				if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
					t.Fatal(err)
				}
			}
			f := open(t, root, opts...)
			for _, p := range []string{"relative/secret", "absolute/secret", "chain/secret", "up/outside/secret", "abs-up/etc/passwd", "proc/etc/passwd"} {
				if _, err := f.Stat(t.Context(), at(root, p)); !errors.Is(err, filesys.ErrEscapes) {
					t.Errorf("stat %s: %v", p, err)
				}
				if err := f.Rename(t.Context(), at(root, "f"), at(root, p+"-new")); !errors.Is(err, filesys.ErrEscapes) {
					t.Errorf("rename to %s: %v", p, err)
				}
				if err := f.MkdirAll(t.Context(), at(root, p+"-new/x")); !errors.Is(err, filesys.ErrEscapes) {
					t.Errorf("mkdir %s: %v", p, err)
				}
				if err := f.Remove(t.Context(), filesys.Info{Path: at(root, p)}); !errors.Is(err, filesys.ErrEscapes) {
					t.Errorf("remove %s: %v", p, err)
				}
			}
			for _, a := range []commitstep.Address{
				at(top, "outside/secret"), at(top, "root-not"),
				{Resource: "hdfs://x", Path: root + "/f"},
				{Resource: "file", Path: root + "/../outside/secret"},
				{Resource: "file", Path: "f"}, {Resource: "file", Path: root + "/f\x00"}, {},
			} {
				if _, err := f.Stat(t.Context(), a); !errors.Is(err, filesys.ErrEscapes) {
					t.Errorf("%+v: %v", a, err)
				}
			}
			for _, text := range []string{"../outside/secret", "/etc/passwd", "file:///etc/passwd", "a/../../outside", "hdfs://prod/x"} {
				_, err := f.Resolve(text, "")
				var p *commitstep.PlanError
				if !errors.As(err, &p) || p.Hint == "" {
					t.Errorf("%s: %v", text, err)
				}
			}
			if got := entries(t, filepath.Join(top, "outside")); len(got) != 1 {
				t.Errorf("outside holds %q", got)
			}
		})
	}
}

// A directory that turns into a link out of the root and back, as fast as it
// can, never leads a rename outside.
func TestALinkThatChangesNeverLeadsOutside(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]local.Option{nil, {local.WithoutOpenat2()}} {
		top := t.TempDir()
		root := filepath.Join(top, "root")
		write(t, filepath.Join(root, "real/x"), "")
		if err := os.Mkdir(filepath.Join(top, "outside"), 0o755); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			d := filepath.Join(root, "d")
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = os.Symlink("real", d)
				_ = os.Remove(d)
				_ = os.Symlink("../outside", d)
				_ = os.Remove(d)
			}
		})
		f := open(t, root, opts...)
		for range 2000 {
			write(t, filepath.Join(root, "f"), "x")
			_ = f.Rename(t.Context(), at(root, "f"), at(root, "d/f"))
			_ = os.Remove(filepath.Join(root, "real/f"))
		}
		close(stop)
		wg.Wait()
		if got := entries(t, filepath.Join(top, "outside")); len(got) != 0 {
			t.Fatalf("outside holds %q", got)
		}
	}
}

// A store written by a process with one root is recovered by one with another.
func TestAddressesDoNotDependOnTheRoot(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, filepath.Join(top, "data/in/f"), "x")
	job := open(t, filepath.Join(top, "data"))
	a, err := job.Resolve("in/f", "")
	if err != nil {
		t.Fatal(err)
	}
	i, err := job.Stat(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	cli := open(t, "/")
	j, err := cli.Stat(t.Context(), a)
	if err != nil || i.ID != j.ID {
		t.Fatalf("%+v, %v; the other saw %+v", j, err, i)
	}
}

func TestARootThatIsALink(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, filepath.Join(top, "real/in/f"), "x")
	if err := os.Symlink("real", filepath.Join(top, "data")); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(top, "data")
	f := open(t, root)
	if err := f.MkdirAll(t.Context(), at(root, "out")); err != nil {
		t.Fatal(err)
	}
	if err := f.Rename(t.Context(), at(root, "in/f"), at(root, "out/f")); err != nil {
		t.Fatal(err)
	}
	if err := f.SyncDir(t.Context(), at(root, "out")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(top, "real/out/f")); got != "x" {
		t.Fatal(got)
	}
}

func TestTheRootItselfIsNeverTouched(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := open(t, root)
	info := stat(t, f, root, ".")
	for what, err := range map[string]error{
		"rename to":  f.Rename(t.Context(), at(root, "."), at(root, "x")),
		"remove dir": f.RemoveDir(t.Context(), info),
		"remove":     f.Remove(t.Context(), info),
	} {
		if commitstep.ClassOf(err) != commitstep.ClassRefused {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestNamesThatAreNotUTF8AreNamed(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "bad\xff"), "x")
	write(t, filepath.Join(root, "good"), "x")
	var good, bad int
	for info, err := range open(t, root).List(t.Context(), at(root, ".")) {
		switch {
		case err != nil && strings.Contains(err.Error(), `"bad\xff"`):
			bad++
		case err == nil && info.Path == at(root, "good"):
			good++
		default:
			t.Errorf("%+v, %v", info, err)
		}
	}
	if good != 1 || bad != 1 {
		t.Errorf("%d good and %d bad names", good, bad)
	}
}

func TestStatSaysWhatTheSystemSays(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "f"), "12345")
	want, err := os.Lstat(filepath.Join(root, "f"))
	if err != nil {
		t.Fatal(err)
	}
	got := stat(t, open(t, root), root, "f")
	if got.Size != want.Size() || !got.MTime.Equal(want.ModTime()) || got.Mode != want.Mode() {
		t.Errorf("%+v, the system says %v %v %v", got, want.Size(), want.ModTime(), want.Mode())
	}
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	if i := stat(t, open(t, root), root, "pipe"); !i.Other {
		t.Errorf("a pipe: %+v", i)
	}
	// Must not wait for somebody to write into the pipe.
	if _, err := open(t, root).Digest(t.Context(), at(root, "pipe")); err == nil {
		t.Error("a pipe has a digest")
	}
}

func TestOtherFileSystemsAreRefused(t *testing.T) {
	t.Parallel()
	disk, memory := t.TempDir(), shm(t)
	f := open(t, "/")
	a, b := at(disk, "f"), at(memory, "f")
	write(t, a.Path, "x")
	if stat(t, f, disk, "f").Device == stat(t, f, memory, ".").Device {
		t.Fatal("the temporary directory is in memory too: set TMPDIR to a disk")
	}
	err := f.Rename(t.Context(), a, b)
	if !errors.Is(err, filesys.ErrOtherFileSystem) || !commitstep.IsPermanent(err) {
		t.Errorf("rename: %v", err)
	}
	if err := f.CheckMove(t.Context(), a, at(memory, "no/such/dir/f")); !errors.Is(err, filesys.ErrOtherFileSystem) {
		t.Errorf("plan: %v", err)
	}
	if err := f.CheckMove(t.Context(), a, at(disk, "no/such/dir/f")); err != nil {
		t.Errorf("plan on one file system: %v", err)
	}
	// A link at the destination hides it from a look at the text.
	if err := os.Symlink(memory, filepath.Join(disk, "out")); err != nil {
		t.Fatal(err)
	}
	if err := f.CheckMove(t.Context(), a, at(disk, "out/f")); !errors.Is(err, filesys.ErrOtherFileSystem) {
		t.Errorf("plan through a link: %v", err)
	}
	if err := os.Symlink("nowhere", filepath.Join(disk, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := f.CheckMove(t.Context(), a, at(disk, "dangling/f")); !errors.Is(err, filesys.ErrNotDirectory) {
		t.Errorf("plan through a link to nowhere: %v", err)
	}
}

func TestWithoutLinksAFileIsNotMovedAtAll(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "f"), "x")
	write(t, filepath.Join(root, "d/x"), "x")
	f := open(t, root, local.WithoutNoReplace(), local.WithoutLinks())
	err := f.Rename(t.Context(), at(root, "f"), at(root, "g"))
	if !errors.Is(err, filesys.ErrNoClobberUnsupported) || !commitstep.IsPermanent(err) {
		t.Errorf("%v", err)
	}
	if got := read(t, filepath.Join(root, "f")); got != "x" {
		t.Error(got)
	}
	if err := f.Rename(t.Context(), at(root, "d"), at(root, "e")); err != nil {
		t.Errorf("a directory: %v", err)
	}
	if !f.Capabilities().ReplacesEmptyDir {
		t.Error("the capability does not say that empty directories may be replaced")
	}
	if _, err := os.Lstat(filepath.Join(root, "g")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
