package fstest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

func resolves(t *testing.T, s *subject) {
	root, err := s.FS.Resolve(".", "")
	s.ok(err)
	if root.Resource != s.FS.Resource() || !root.Contains(s.Dir) {
		t.Fatalf("the root is %s, the test's directory %s of %s", root, s.Dir, s.FS.Resource())
	}
	a, err := s.FS.Resolve(s.Dir.String()+"/x/../y", "")
	s.ok(err)
	if a != s.at("y") {
		t.Fatalf("got %s, want %s", a, s.at("y"))
	}
	// Addresses survive their text form: nothing is encoded or decoded twice.
	for _, name := range []string{"a b", "a%20b", "a+b", "a?b#c", "_x", "..."} {
		a, err := s.FS.Resolve(s.at(name).String(), "")
		s.ok(err)
		if a != s.at(name) {
			t.Fatalf("%q resolves to %s", name, a)
		}
	}
	for _, name := range []string{"a:b", "a|b", `a\b`, "~"} {
		if _, err := s.FS.Resolve(s.at(name).String(), ""); s.Refuses(name) == (err == nil) {
			t.Errorf("%q: %v, and such a name is refused: %v", name, err, s.Refuses(name))
		}
	}
	for _, text := range []string{"", "no-such-scheme://x/y", "nul\x00byte", "bad\xffutf8"} {
		_, err := s.FS.Resolve(text, s.Dir.Path)
		var p *commitstep.PlanError
		if !errors.As(err, &p) {
			t.Errorf("%q: %v, want a *PlanError", text, err)
		}
	}
}

func stats(t *testing.T, s *subject) {
	s.write("d/file", "four")
	if i := s.stat("d/file"); i.Dir || i.Other || i.Size != 4 || i.Path != s.at("d/file") || i.MTime.IsZero() {
		t.Errorf("file: %+v", i)
	}
	if i := s.stat("d"); !i.Dir || i.Other {
		t.Errorf("directory: %+v", i)
	}
	s.free("nothing")
	s.free("no/parent/either")
	_, err := s.FS.Stat(t.Context(), s.at("d/file/below"))
	if !s.FS.Capabilities().BlursNotDirectory || !errors.Is(err, fs.ErrNotExist) {
		s.is(err, filesys.ErrNotDirectory)
	}
	for _, err := range s.FS.List(t.Context(), s.at("nothing")) {
		s.is(err, fs.ErrNotExist)
	}
	// Time and size tell that a file was written to.
	before := s.stat("d/file")
	s.write("d/file", "five!")
	after := s.stat("d/file")
	if after.ID != before.ID {
		t.Errorf("writing changed the id from %q to %q", before.ID.Text, after.ID.Text)
	}
	if after.Size != 5 {
		t.Errorf("size %d after writing 5 bytes", after.Size)
	}
}

func statsLinks(t *testing.T, s *subject) {
	if s.Symlink == nil {
		return // nothing to follow
	}
	s.write("real/file", "x")
	s.ok(s.Symlink(s.at("to-file"), "real/file"))
	s.ok(s.Symlink(s.at("to-dir"), "real"))
	s.ok(s.Symlink(s.at("to-dir-absolute"), s.at("real").Path))
	s.ok(s.Symlink(s.at("nowhere"), "missing"))
	s.ok(s.Symlink(s.at("ring"), "ring"))
	for _, name := range []string{"to-file", "to-dir", "nowhere", "ring"} {
		if i := s.stat(name); !i.Other || i.Dir {
			t.Errorf("%s: %+v, want neither file nor directory", name, i)
		}
	}
	for _, dir := range []string{"to-dir", "to-dir-absolute"} {
		if i := s.stat(dir + "/file"); i.ID != s.stat("real/file").ID || i.Size != 1 {
			t.Errorf("through %s: %+v", dir, i)
		}
	}
	s.free("nowhere/x")
	if _, err := s.FS.Stat(t.Context(), s.at("ring/x")); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("below a ring of links: %v", err)
	}
}

func identities(t *testing.T, s *subject) {
	if !s.FS.Capabilities().StableIDs {
		if i := s.stat(s.write("x", "x").Base()); !i.ID.IsZero() {
			t.Fatalf("no stable ids are promised, yet the id is %q", i.ID.Text)
		}
		return
	}
	seen := map[filesys.ID]string{}
	unique := func(name string) filesys.ID {
		id := s.stat(name).ID
		if id.IsZero() {
			t.Fatalf("%s has no id", name)
		}
		if other, dup := seen[id]; dup {
			t.Fatalf("%s and %s share the id %q", name, other, id.Text)
		}
		seen[id] = name
		return id
	}
	// Inodes are reused at once on many file systems, ids must not be.
	for n := range 200 {
		name := fmt.Sprint("reused-", n)
		s.write(name, "x")
		unique(name)
		s.ok(s.Delete(s.at(name)))
	}
	s.write("a/file", "x")
	id, dir := unique("a/file"), unique("a")
	s.mkdir("b")
	s.ok(s.FS.Rename(t.Context(), s.at("a/file"), s.at("b/other")))
	if got := s.stat("b/other").ID; got != id {
		t.Errorf("the file's id changed from %q to %q", id.Text, got.Text)
	}
	s.ok(s.FS.Rename(t.Context(), s.at("a"), s.at("b/a")))
	if got := s.stat("b/a").ID; got != dir {
		t.Errorf("the directory's id changed from %q to %q", dir.Text, got.Text)
	}
	again, err := s.Again().Stat(t.Context(), s.at("b/other"))
	s.ok(err)
	if again.ID != id {
		t.Errorf("another connection sees the id %q, this one %q", again.ID.Text, id.Text)
	}
	for _, i := range s.list(s.at("b")) {
		if want := s.stat("b/" + i.Path.Base()); want.ID != i.ID || want.Size != i.Size || !want.MTime.Equal(i.MTime) {
			t.Errorf("listed %+v, looked at %+v", i, want)
		}
	}
}

// oddNames are pairs and singles that careless handling makes one or loses.
func (s *subject) oddNames() []string {
	names := []string{
		"a b", "a%20b", "a+b", "a%2Fb", "a%2fb", "%", "%%", "%zz", "a#b", "a?b", "a:b", "a;b", "a&b=c", "a|b", `a\b`, `a"b`, "a'b", "a*b", "~",
		".hidden", "_hidden", "...", "-", "--help", " lead", "trail ", "new\nline", "tab\tbed",
		"NAME", "name", "e\u0301", "\u00e9", // two spellings of one letter
		strings.Repeat("가", s.MaxNameBytes/3), strings.Repeat("x", s.MaxNameBytes),
	}
	return slices.DeleteFunc(names, s.Refuses)
}

func names(t *testing.T, s *subject) {
	s.mkdir("in")
	s.mkdir("out")
	want := map[string]bool{}
	for _, n := range s.oddNames() {
		s.write("in/"+n, n)
		want[s.at("in/"+n).Path] = true
	}
	got := s.list(s.at("in"))
	for p := range want {
		if _, ok := got[p]; !ok {
			t.Errorf("%q is not listed", p)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d entries listed, want %d", len(got), len(want))
	}
	for _, n := range s.oddNames() {
		s.ok(s.FS.Rename(t.Context(), s.at("in/"+n), s.at("out/"+n)))
	}
	for _, n := range s.oddNames() {
		s.holds("out/"+n, n)
	}
	if left := s.list(s.at("in")); len(left) != 0 {
		t.Errorf("%d entries were left behind", len(left))
	}
	_, err := s.FS.Stat(t.Context(), s.at(strings.Repeat("x", s.MaxNameBytes+1)))
	if err == nil {
		t.Error("a name that is too long is found")
	}
}

func longLists(t *testing.T, s *subject) {
	const n = 2500 // more than one page of every implementation
	for i := range n {
		s.write(fmt.Sprintf("d/%04d", i), "")
	}
	if got := len(s.list(s.at("d"))); got != n {
		t.Fatalf("%d entries, want %d", got, n)
	}
	seen := 0
	for _, err := range s.FS.List(t.Context(), s.at("d")) {
		s.ok(err)
		if seen++; seen == 10 {
			break // an early end must not hang or panic
		}
	}
}

func manyLooks(t *testing.T, s *subject) {
	b, ok := s.FS.(filesys.BatchStater)
	if !ok {
		return // one each it is
	}
	var paths []commitstep.Address
	want := func(names ...string) {
		for _, n := range names {
			paths = append(paths, s.at(n))
		}
	}
	// Long enough that only a part of it is listed: wanted are its start, end
	// and middle, and names between, before and behind those that are there.
	const n = 1100
	for i := range n {
		s.write(fmt.Sprintf("long/%04d", 2*i), "")
	}
	for _, i := range []int{0, 1, 2, 3, 1999, 2000, 2001, 2002, 2003, 2*n - 2, 2*n - 1, 2 * n, 9999} {
		want(fmt.Sprintf("long/%04d", i))
	}
	want("long/!", "long/~", "long/200", "long/20000", "long/0000")
	for i := range 20 { // close together, at a place of its own
		s.write(fmt.Sprintf("close/%04d", 2*i), "x")
		want(fmt.Sprintf("close/%04d", i))
	}
	for _, name := range s.oddNames() {
		s.write("odd/"+name, name)
		want("odd/"+name, "odd/"+name[:len(name)-1])
	}
	s.mkdir("empty/dir")
	want("empty/dir", "empty/a", "empty/b", "empty/c", "no/a", "no/b", "no/c", "no/d", "empty", "no")
	s.write("file", "x")
	want("file/a", "file/b", "file/c")
	paths = slices.DeleteFunc(paths, func(a commitstep.Address) bool {
		return a.Base() == "" || strings.HasSuffix(a.Path, "/") || !utf8.ValidString(a.Path)
	})
	got := b.StatAll(t.Context(), paths)
	if len(got) != len(paths) {
		t.Fatalf("%d results for %d paths", len(got), len(paths))
	}
	for i, a := range paths {
		one, err := s.FS.Stat(t.Context(), a)
		if (err == nil) != (got[i].Err == nil) || filesys.Missing(err) != filesys.Missing(got[i].Err) {
			t.Errorf("%s: alone %v, among others %v", a, err, got[i].Err)
			continue
		}
		if err == nil && one != got[i].Info {
			t.Errorf("alone %+v, among others %+v", one, got[i].Info)
		}
		if up, err := s.FS.Stat(t.Context(), a.Dir()); got[i].ParentSeen && (err != nil || !up.Dir) {
			t.Errorf("%s: its directory was seen, and is %v %v", a, up, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i, l := range b.StatAll(ctx, paths[:3]) {
		if l.Err == nil || filesys.Missing(l.Err) {
			t.Errorf("%s after the context's end: %v", paths[i], l.Err)
		}
	}
}

func finds(t *testing.T, s *subject) {
	f, ok := s.FS.(filesys.Finder)
	if !ok {
		return
	}
	s.write("a/b/file", "x")
	file, dir := s.stat("a/b/file"), s.stat("a")
	at := func(id filesys.ID, want string) {
		t.Helper()
		if got, err := f.Find(t.Context(), id); err != nil || got != s.at(want) {
			t.Fatalf("%s: %s, %v; want %s", id.Text, got, err, s.at(want))
		}
	}
	at(file.ID, "a/b/file")
	at(dir.ID, "a")
	s.mkdir("c")
	s.ok(s.FS.Rename(t.Context(), s.at("a"), s.at("c/d")))
	at(file.ID, "c/d/b/file")
	s.ok(s.Delete(s.at("c/d/b/file")))
	_, err := f.Find(t.Context(), file.ID)
	s.is(err, fs.ErrNotExist)
	if _, err := f.Find(t.Context(), filesys.ID{Text: "other:1"}); err == nil {
		t.Error("an identity of another kind is found")
	}
}

func digests(t *testing.T, s *subject) {
	for _, content := range []string{"", "x", strings.Repeat("0123456789abcdef", 1<<17)} {
		s.write("f", content)
		got, err := s.FS.Digest(t.Context(), s.at("f"))
		s.ok(err)
		sum := sha256.Sum256([]byte(content))
		if want := "sha256:" + hex.EncodeToString(sum[:]); got != want {
			t.Errorf("digest of %d bytes is %s, want %s", len(content), got, want)
		}
	}
	_, err := s.FS.Digest(t.Context(), s.at("missing"))
	s.is(err, fs.ErrNotExist)
	if _, err := s.FS.Digest(t.Context(), s.Dir); err == nil {
		t.Error("a directory has a digest")
	}
}
