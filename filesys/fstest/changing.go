package fstest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

func mkdirs(t *testing.T, s *subject) {
	for range 2 {
		s.mkdir("a/b/c")
	}
	if !s.stat("a/b/c").Dir {
		t.Fatal("no directory was made")
	}
	s.ok(s.FS.MkdirAll(t.Context(), s.Dir))
	s.write("file", "x")
	for _, p := range []string{"file", "file/below"} {
		s.refused(s.FS.MkdirAll(t.Context(), s.at(p)), filesys.ErrNotDirectory)
	}
	s.holds("file", "x")
	var wg sync.WaitGroup
	for range 16 {
		f := s.Again()
		wg.Go(func() {
			if err := f.MkdirAll(t.Context(), s.at("r/a/c/e/r")); err != nil {
				t.Errorf("of many at once one failed: %v", err)
			}
		})
	}
	wg.Wait()
}

func renames(t *testing.T, s *subject) {
	s.write("a/file", "ours")
	s.mkdir("b")
	before := s.stat("a/file")
	s.ok(s.FS.Rename(t.Context(), s.at("a/file"), s.at("b/file")))
	s.free("a/file")
	s.holds("b/file", "ours")
	if after := s.stat("b/file"); !after.MTime.Equal(before.MTime) || after.Size != before.Size || after.Mode != before.Mode {
		t.Errorf("the rename changed %+v into %+v", before, after)
	}
}

func renamesNoClobber(t *testing.T, s *subject) {
	s.write("ours", "ours")
	s.write("theirs", "theirs")
	s.write("empty", "")
	s.mkdir("dir")
	s.write("full/file", "x")
	for _, taken := range []string{"theirs", "empty", "dir", "full"} {
		s.refused(s.FS.Rename(t.Context(), s.at("ours"), s.at(taken)), fs.ErrExist)
	}
	s.holds("ours", "ours")
	s.holds("theirs", "theirs")
	s.holds("empty", "")
	s.holds("full/file", "x")
	if n := len(s.list(s.at("dir"))); n != 0 {
		t.Errorf("something was moved into the directory at the destination")
	}
	if s.Symlink != nil {
		s.ok(s.Symlink(s.at("link"), "theirs"))
		s.ok(s.Symlink(s.at("nowhere"), "missing"))
		for _, taken := range []string{"link", "nowhere"} {
			s.refused(s.FS.Rename(t.Context(), s.at("ours"), s.at(taken)), fs.ErrExist)
		}
		s.free("missing")
		s.holds("theirs", "theirs")
	}
	if !s.FS.Capabilities().NoClobber {
		t.Log("this file system does not promise it atomically")
	}
}

func racers(t *testing.T, s *subject) {
	const n = 16
	for round := range 20 {
		to := s.at(fmt.Sprintf("to-%d", round))
		errs := make([]error, n)
		for i := range n {
			s.write(fmt.Sprintf("from-%d-%d", round, i), fmt.Sprint(i))
		}
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range n {
			f := s.Again()
			wg.Go(func() {
				<-start
				errs[i] = f.Rename(t.Context(), s.at(fmt.Sprintf("from-%d-%d", round, i)), to)
			})
		}
		close(start)
		wg.Wait()
		won := -1
		for i, err := range errs {
			switch {
			case err != nil:
				s.is(err, fs.ErrExist)
				s.holds(fmt.Sprintf("from-%d-%d", round, i), fmt.Sprint(i))
			case won >= 0:
				t.Fatalf("%d and %d both won the name", won, i)
			default:
				won = i
			}
		}
		if won < 0 {
			t.Fatal("nobody won the name")
		}
		s.holds(to.Base(), fmt.Sprint(won))
		s.free(fmt.Sprintf("from-%d-%d", round, won))
	}
}

func renameErrors(t *testing.T, s *subject) {
	s.write("file", "x")
	s.mkdir("dir/inside")
	s.refused(s.FS.Rename(t.Context(), s.at("missing"), s.at("to")), fs.ErrNotExist)
	s.refused(s.FS.Rename(t.Context(), s.at("file"), s.at("no/parent")), fs.ErrNotExist)
	s.refused(s.FS.Rename(t.Context(), s.at("file"), s.at("file2/../dir/inside")), filesys.ErrEscapes) // not clean
	err := s.FS.Rename(t.Context(), s.at("dir"), s.at("dir/inside/dir"))
	if c := commitstep.ClassOf(err); err == nil || c != commitstep.ClassRefused {
		t.Errorf("a directory into itself: %v (%s)", err, c)
	}
	s.write("blocker", "x")
	s.refused(s.FS.Rename(t.Context(), s.at("file"), s.at("blocker/below")), filesys.ErrNotDirectory)
	s.holds("file", "x")
}

func renamesDirs(t *testing.T, s *subject) {
	s.write("d/sub/1", "one")
	s.write("d/2", "two")
	s.mkdir("out")
	s.ok(s.FS.Rename(t.Context(), s.at("d"), s.at("out/d")))
	s.free("d")
	s.holds("out/d/sub/1", "one")
	s.holds("out/d/2", "two")
	// Over something: never into it, never over what holds anything.
	s.write("e/file", "e")
	s.write("taken/file", "t")
	s.write("a-file", "f")
	s.refused(s.FS.Rename(t.Context(), s.at("e"), s.at("taken")), fs.ErrExist)
	s.refused(s.FS.Rename(t.Context(), s.at("e"), s.at("a-file")), fs.ErrExist)
	s.holds("e/file", "e")
	s.holds("taken/file", "t")
	s.holds("a-file", "f")
	s.free("taken/e")
	s.mkdir("empty")
	err := s.FS.Rename(t.Context(), s.at("e"), s.at("empty"))
	if !s.FS.Capabilities().ReplacesEmptyDir {
		s.refused(err, fs.ErrExist)
		s.holds("e/file", "e")
	}
	s.free("empty/e") // never moved into it, whatever the answer
}

func secondNames(t *testing.T, s *subject) {
	drop := func(from, to string) {
		t.Helper()
		s.ok(s.FS.DropSecondName(t.Context(), s.at(from), s.at(to)))
	}
	s.write("a", "same")
	s.write("b", "same")
	drop("a", "b") // equal content is not the same file
	s.holds("a", "same")
	s.holds("b", "same")
	drop("a", "missing")
	drop("missing", "a")
	drop("no/parent", "a")
	s.holds("a", "same")
	if s.Link == nil {
		return // there are no second names
	}
	s.ok(s.Link(s.at("c"), s.at("a")))
	drop("a", "c")
	s.free("a")
	s.holds("c", "same")
	drop("a", "c")
	s.holds("c", "same")
	if err := s.FS.DropSecondName(t.Context(), s.at("c"), s.at("c")); err == nil {
		t.Error("the only name may be dropped")
	}
	s.holds("c", "same")
	if left := len(s.list(s.Dir)); left != 2 {
		t.Errorf("%d entries are left, want b and c", left)
	}
}

func attributes(t *testing.T, s *subject) {
	s.write("f", "x")
	has := func(a filesys.Attributes) bool {
		t.Helper()
		ok, err := s.FS.HasAttributes(s.stat("f"), a)
		s.ok(err)
		return ok
	}
	if !has(filesys.Attributes{}) {
		t.Error("nothing asked for is not there")
	}
	for _, mode := range []string{"0600", "640", "0444", "0644"} {
		a := filesys.Attributes{Mode: mode}
		s.ok(s.FS.SetAttributes(t.Context(), s.at("f"), a))
		s.ok(s.FS.SetAttributes(t.Context(), s.at("f"), a))
		if !has(a) {
			t.Errorf("mode %s was set, the file has %s", mode, s.stat("f").Mode)
		}
	}
	if has(filesys.Attributes{Mode: "0600"}) {
		t.Error("mode 0600 is seen where 0644 was set")
	}
	i := s.stat("f")
	own := filesys.Attributes{Owner: i.Owner, Group: i.Group}
	if !has(own) {
		t.Errorf("the file's own owner %q and group %q are not seen", i.Owner, i.Group)
	}
	s.ok(s.FS.SetAttributes(t.Context(), s.at("f"), own))
	for _, bad := range []filesys.Attributes{{Mode: "rw-r--r--"}, {Mode: "0888"}, {Mode: "17777"}, {Mode: "-1"}} {
		if _, err := s.FS.HasAttributes(i, bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
		if err := s.FS.SetAttributes(t.Context(), s.at("f"), bad); commitstep.ClassOf(err) != commitstep.ClassRefused {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	s.refused(s.FS.SetAttributes(t.Context(), s.at("missing"), filesys.Attributes{Mode: "0600"}), fs.ErrNotExist)
}

func removes(t *testing.T, s *subject) {
	s.write("f", "ours")
	want := s.stat("f")
	s.ok(s.FS.Remove(t.Context(), want))
	s.free("f")
	s.ok(s.FS.Remove(t.Context(), want)) // a missing file is success
	gone := want
	gone.Path = s.at("no/such/dir")
	s.ok(s.FS.Remove(t.Context(), gone))

	s.write("f", "another")
	s.refused(s.FS.Remove(t.Context(), want), filesys.ErrChanged)
	s.holds("f", "another")
	// Each of the facts counts alone.
	now := s.stat("f")
	for what, change := range map[string]func(*filesys.Info){
		"size": func(i *filesys.Info) { i.Size++ },
		"time": func(i *filesys.Info) { i.MTime = i.MTime.Add(-time.Second) },
	} {
		i := now
		change(&i)
		if err := s.FS.Remove(t.Context(), i); !errors.Is(err, filesys.ErrChanged) {
			t.Errorf("another %s: %v", what, err)
		}
	}
	if s.FS.Capabilities().StableIDs {
		i := now
		i.ID = want.ID
		s.refused(s.FS.Remove(t.Context(), i), filesys.ErrChanged)
	}
	s.holds("f", "another")
	s.ok(s.Delete(s.at("f")))
	s.write("f/inside", "x")
	s.refused(s.FS.Remove(t.Context(), want), filesys.ErrChanged)
	s.holds("f/inside", "x")
	if err := s.FS.Remove(t.Context(), s.stat("f")); err == nil {
		t.Error("a directory was removed as a file")
	}
	s.holds("f/inside", "x")
	if left := s.list(s.Dir); len(left) != 1 {
		t.Errorf("something is left besides f: %v", left)
	}
}

func removesDirs(t *testing.T, s *subject) {
	s.mkdir("d")
	want := s.stat("d")
	s.write("d/file", "x")
	s.refused(s.FS.RemoveDir(t.Context(), want), filesys.ErrNotEmpty)
	s.holds("d/file", "x")
	s.ok(s.Delete(s.at("d/file")))
	s.ok(s.FS.RemoveDir(t.Context(), want))
	s.free("d")
	s.ok(s.FS.RemoveDir(t.Context(), want))
	if s.FS.Capabilities().StableIDs {
		s.mkdir("d")
		s.refused(s.FS.RemoveDir(t.Context(), want), filesys.ErrChanged)
		if !s.stat("d").Dir {
			t.Error("another empty directory was removed")
		}
		s.ok(s.Delete(s.at("d")))
	}
	s.write("d", "a file")
	s.refused(s.FS.RemoveDir(t.Context(), want), filesys.ErrChanged)
	s.holds("d", "a file")
}

func syncs(t *testing.T, s *subject) {
	s.write("a/b/f", "x")
	s.ok(s.FS.SyncFile(t.Context(), s.at("a/b/f")))
	for range 2 {
		s.ok(s.FS.SyncDir(t.Context(), s.at("a/b")))
	}
	if !s.FS.Capabilities().Sync {
		return
	}
	s.is(s.FS.SyncFile(t.Context(), s.at("missing")), fs.ErrNotExist)
	s.is(s.FS.SyncDir(t.Context(), s.at("missing")), fs.ErrNotExist)
	s.is(s.FS.SyncDir(t.Context(), s.at("a/b/f")), filesys.ErrNotDirectory)
}

func endedContext(t *testing.T, s *subject) {
	s.write("f", "x")
	s.mkdir("d")
	file, dir := s.stat("f"), s.stat("d")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range map[string]error{
		"MkdirAll":       s.FS.MkdirAll(ctx, s.at("new")),
		"Rename":         s.FS.Rename(ctx, s.at("f"), s.at("g")),
		"DropSecondName": s.FS.DropSecondName(ctx, s.at("f"), s.at("g")),
		"SetAttributes":  s.FS.SetAttributes(ctx, s.at("f"), filesys.Attributes{Mode: "0600"}),
		"Remove":         s.FS.Remove(ctx, file),
		"RemoveDir":      s.FS.RemoveDir(ctx, dir),
	} {
		if !errors.Is(err, context.Canceled) || commitstep.ClassOf(err) != commitstep.ClassNotSent {
			t.Errorf("%s: %v (%s), want not sent", name, err, commitstep.ClassOf(err))
		}
	}
	s.holds("f", "x")
	s.free("new")
	s.free("g")
	if !s.stat("d").Dir {
		t.Error("the directory is gone")
	}
}

func sweeps(t *testing.T, s *subject) {
	sw, ok := s.FS.(filesys.Sweeper)
	if !ok {
		return // Remove leaves nothing behind
	}
	s.write("d/a", "a")
	s.write("d/sub/b", "b")
	for _, look := range []bool{true, false} {
		got, err := sw.Sweep(t.Context(), s.at("d"), func(filesys.Info) bool { return true }, look)
		s.ok(err)
		if got.Todo != 0 || len(got.Stays) != 0 {
			t.Errorf("in a directory without private places something is found: %+v", got)
		}
	}
	s.holds("d/a", "a")
	s.holds("d/sub/b", "b")
	_, err := sw.Sweep(t.Context(), s.at("missing"), func(filesys.Info) bool { return true }, false)
	s.ok(err)
}
