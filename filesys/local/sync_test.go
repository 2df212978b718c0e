//go:build linux

package local_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
)

// recorder keeps what succeeded, with paths below root.
type recorder struct {
	mu   sync.Mutex
	root string
	ops  []string
}

func (r *recorder) trace(op local.Op) {
	if !op.After {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := string(op.Kind) + " " + r.rel(op.Path)
	if op.To != "" {
		s += " " + r.rel(op.To)
	}
	if op.Inode == 0 {
		s += " (no inode)"
	}
	r.ops = append(r.ops, s)
}

func (r *recorder) rel(p string) string {
	if s := strings.TrimPrefix(p, r.root); s != "" {
		return s
	}
	return "/"
}

// take gives what was recorded since the last call.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.ops, "\n")
	r.ops = nil
	return s
}

func (r *recorder) want(t *testing.T, what string, ops ...string) {
	t.Helper()
	if got, want := r.take(), strings.Join(ops, "\n"); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func traced(t *testing.T, opts ...local.Option) (*local.Files, string, *recorder) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{root: root}
	return open(t, root, append(opts, local.WithTrace(r.trace))...), root, r
}

// Every ancestor whose entry this process has not synced is synced, whoever
// made it; the others are not synced again.
func TestSyncDirGoesUpToTheRootOnce(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t)
	sync := func(dir string) {
		t.Helper()
		if err := f.SyncDir(t.Context(), at(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.MkdirAll(t.Context(), at(root, "a/b/c")); err != nil {
		t.Fatal(err)
	}
	r.want(t, "mkdir", "mkdir /a", "mkdir /a/b", "mkdir /a/b/c", "syncdir /a/b", "syncdir /a", "syncdir /")
	sync("a/b/c")
	r.want(t, "first sync", "syncdir /a/b/c")
	sync("a/b/c")
	r.want(t, "second sync", "syncdir /a/b/c")
	// Made by somebody else, who may not have settled yet.
	if err := os.MkdirAll(filepath.Join(root, "a/b/x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	sync("a/b/x/y")
	r.want(t, "a new branch", "syncdir /a/b/x/y", "syncdir /a/b/x", "syncdir /a/b")
	// Removed and made again: another directory, and another entry.
	if err := os.RemoveAll(filepath.Join(root, "a/b")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	sync("a/b/c")
	r.want(t, "replaced directories", "syncdir /a/b/c", "syncdir /a/b", "syncdir /a")
	// Moved: a known directory under another name is another entry.
	if err := os.Rename(filepath.Join(root, "a/b"), filepath.Join(root, "a/z")); err != nil {
		t.Fatal(err)
	}
	sync("a/z/c")
	r.want(t, "moved directories", "syncdir /a/z/c", "syncdir /a/z", "syncdir /a")
	// Another process knows nothing.
	r2 := &recorder{root: root}
	if err := open(t, root, local.WithTrace(r2.trace)).SyncDir(t.Context(), at(root, "a")); err != nil {
		t.Fatal(err)
	}
	r2.want(t, "another process", "syncdir /a", "syncdir /")
}

// The names of a destination's directories are durable before anything is moved
// into them, also of directories that somebody else made.
func TestMkdirAllMakesTheNamesDurable(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t)
	mkdir := func(dir string) {
		t.Helper()
		if err := f.MkdirAll(t.Context(), at(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	mkdir("a/b")
	r.want(t, "made by another", "syncdir /a", "syncdir /")
	mkdir("a/b")
	r.want(t, "seen to")
	mkdir("a/b/c")
	r.want(t, "one more", "mkdir /a/b/c", "syncdir /a/b")
	if err := os.RemoveAll(filepath.Join(root, "a/b")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	mkdir("a/b/c")
	r.want(t, "replaced", "syncdir /a/b", "syncdir /a")
}

func TestWithoutIdentityNothingIsTakenForDurable(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t, local.WithoutIDs())
	if err := f.MkdirAll(t.Context(), at(root, "a/b")); err != nil {
		t.Fatal(err)
	}
	r.take()
	for range 2 {
		if err := f.SyncDir(t.Context(), at(root, "a/b")); err != nil {
			t.Fatal(err)
		}
		r.want(t, "sync", "syncdir /a/b", "syncdir /a", "syncdir /")
	}
}

func TestSyncFollowsLinksToWhereTheEntryIs(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t)
	write(t, filepath.Join(root, "real/dir/f"), "x")
	if err := os.Symlink("real", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := f.SyncDir(t.Context(), at(root, "link/dir")); err != nil {
		t.Fatal(err)
	}
	r.want(t, "sync", "syncdir /real/dir", "syncdir /real", "syncdir /")
	if err := f.SyncFile(t.Context(), at(root, "link/dir/f")); err != nil {
		t.Fatal(err)
	}
	r.want(t, "sync", "syncfile /real/dir/f")
}

// The order of a rename without RENAME_NOREPLACE: the new name is durable
// before the old one goes.
func TestOrderOfARenameByLink(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t, local.WithoutNoReplace())
	write(t, filepath.Join(root, "in/f"), "x")
	write(t, filepath.Join(root, "out/other"), "x")
	if err := f.Rename(t.Context(), at(root, "in/f"), at(root, "out/f")); err != nil {
		t.Fatal(err)
	}
	ops := strings.Split(r.take(), "\n")
	if len(ops) < 3 || ops[0] != "link /in/f /out/f" || ops[1] != "syncdir /out" {
		t.Fatalf("%q", ops)
	}
	for _, op := range ops[:2] {
		if strings.HasPrefix(op, "unlink") {
			t.Fatalf("the old name goes first: %q", ops)
		}
	}
}

func TestConcurrentSyncs(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t)
	var wg sync.WaitGroup
	for i := range 8 {
		dir := fmt.Sprintf("a/b/%d", i)
		wg.Go(func() {
			for range 3 {
				if err := f.MkdirAll(t.Context(), at(root, dir)); err != nil {
					t.Error(err)
				}
				if err := f.SyncDir(t.Context(), at(root, dir)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r.take()
	for i := range 8 {
		if err := f.SyncDir(t.Context(), at(root, fmt.Sprintf("a/b/%d", i))); err != nil {
			t.Fatal(err)
		}
		r.want(t, "all entries are known", fmt.Sprintf("syncdir /a/b/%d", i))
	}
}

func TestAttributesAreSetOwnerFirst(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t)
	write(t, filepath.Join(root, "f"), "x")
	want := filesys.Attributes{Mode: "4750"}
	ops := []string{"chmod /f"}
	if os.Getuid() == 0 { // only root may give files away
		want.Owner, want.Group = "12345", "54321"
		ops = []string{"chown /f", "chmod /f"}
	}
	if err := f.SetAttributes(t.Context(), at(root, "f"), want); err != nil {
		t.Fatal(err)
	}
	r.want(t, "set", ops...)
	// The operating system's own answer: the setuid bit has survived.
	i, err := os.Stat(filepath.Join(root, "f"))
	if err != nil || i.Mode() != 0o750|os.ModeSetuid {
		t.Fatalf("mode %s, %v", i.Mode(), err)
	}
	got := stat(t, f, root, "f")
	if ok, err := f.HasAttributes(got, want); err != nil || !ok {
		t.Fatalf("%+v: %v, %v", got, ok, err)
	}
	if ok, err := f.HasAttributes(got, filesys.Attributes{Group: "54322"}); err != nil || ok {
		t.Fatalf("another group: %v, %v", ok, err)
	}
	if _, err := f.HasAttributes(got, filesys.Attributes{Owner: "no such user"}); err == nil {
		t.Fatal("an unknown user is accepted")
	}
}

// Steps of one stage make one directory at the same moment; its names need to
// be made durable only once.
func TestDirectoryMadeByManyIsSyncedOnce(t *testing.T) {
	t.Parallel()
	f, root, r := traced(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := f.MkdirAll(t.Context(), at(root, "out/topic")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.want(t, "16 at once", "mkdir /out", "mkdir /out/topic", "syncdir /out", "syncdir /")
}
