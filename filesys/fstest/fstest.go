package fstest

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Subject is a file system under test, with what a test must do to it behind
// its back: a writer that stages files is no part of [filesys.FS].
type Subject struct {
	FS filesys.FS
	// Dir is an empty directory of this subject's own.
	Dir commitstep.Address
	// Write makes a file with this content, or replaces the content of the one
	// that is there, which keeps its identity.
	Write func(a commitstep.Address, content string) error
	// Read gives a file's content.
	Read func(a commitstep.Address) (string, error)
	// Link makes a second name for a file; nil where there are none.
	Link func(name, existing commitstep.Address) error
	// Symlink makes a symbolic link; nil where there are none.
	Symlink func(name commitstep.Address, target string) error
	// Delete removes a file or a directory with all that is in it.
	Delete func(a commitstep.Address) error
	// Again opens another connection to the same file system; nil gives FS.
	Again func() filesys.FS
	// Limits, where the file system has tighter ones than most.
	MaxNameBytes int // 0 means 255
	// Refuses says that no file can have a name; Resolve must refuse it then.
	// Nil refuses none.
	Refuses func(name string) bool
}

// Exercise runs the whole suite. open is called once for every test, from
// parallel ones; it may use t.TempDir and t.Cleanup. What the file system says
// of itself (Capabilities) decides what must hold; nothing is skipped silently.
func Exercise(t *testing.T, open func(t testing.TB) Subject) {
	t.Helper()
	for _, c := range []struct {
		name string
		fn   func(*testing.T, *subject)
	}{
		{"addresses are resolved below the root", resolves},
		{"stat tells kinds, sizes and what is missing", stats},
		{"a link is not followed at the end of a path", statsLinks},
		{"identity survives a rename and is never shared", identities},
		{"names come back byte for byte", names},
		{"a long directory is listed once and whole", longLists},
		{"many looks at once are as good as one each", manyLooks},
		{"what has an identity is found", finds},
		{"digests are SHA-256 of the content", digests},
		{"directories are made as often as asked", mkdirs},
		{"rename moves and keeps the bytes", renames},
		{"rename never overwrites", renamesNoClobber},
		{"one of sixteen racers gets the name", racers},
		{"rename says what is wrong", renameErrors},
		{"directories are moved whole", renamesDirs},
		{"a second name is dropped, nothing else", secondNames},
		{"attributes are set and seen", attributes},
		{"a file is removed only if it is the one", removes},
		{"a directory is removed only if empty and the one", removesDirs},
		{"syncs work and say what is missing", syncs},
		{"an ended context changes nothing", endedContext},
		{"sweeping leaves the files of others", sweeps},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.fn(t, newSubject(t, open(t)))
		})
	}
}

// subject adds what the tests say often.
type subject struct {
	Subject
	t testing.TB
}

func newSubject(t testing.TB, s Subject) *subject {
	t.Helper()
	if s.FS == nil || s.Write == nil || s.Read == nil || s.Delete == nil || s.Dir == (commitstep.Address{}) {
		t.Fatal("fstest: a Subject needs FS, Dir, Write, Read and Delete")
	}
	if s.Again == nil {
		s.Again = func() filesys.FS { return s.FS }
	}
	if s.Refuses == nil {
		s.Refuses = func(string) bool { return false }
	}
	if s.MaxNameBytes == 0 {
		s.MaxNameBytes = 255
	}
	return &subject{s, t}
}

func (s *subject) at(name string) commitstep.Address {
	return commitstep.Address{Resource: s.Dir.Resource, Path: s.Dir.Path + "/" + name}
}

func (s *subject) write(name, content string) commitstep.Address {
	s.t.Helper()
	s.ok(s.Write(s.at(name), content))
	return s.at(name)
}

func (s *subject) mkdir(name string) commitstep.Address {
	s.t.Helper()
	s.ok(s.FS.MkdirAll(s.t.Context(), s.at(name)))
	return s.at(name)
}

func (s *subject) stat(name string) filesys.Info {
	s.t.Helper()
	info, err := s.FS.Stat(s.t.Context(), s.at(name))
	s.ok(err)
	return info
}

func (s *subject) holds(name, content string) {
	s.t.Helper()
	got, err := s.Read(s.at(name))
	s.ok(err)
	if got != content {
		s.t.Fatalf("%s holds %q, want %q", name, got, content)
	}
}

func (s *subject) free(name string) {
	s.t.Helper()
	if _, err := s.FS.Stat(s.t.Context(), s.at(name)); !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatalf("%s: %v, want ErrNotExist", name, err)
	}
}

func (s *subject) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// is wants an error that matches target.
func (s *subject) is(err, target error) {
	s.t.Helper()
	if !errors.Is(err, target) {
		s.t.Fatalf("error is %v, want %v", err, target)
	}
}

// refused wants a definite no that matches target.
func (s *subject) refused(err, target error) {
	s.t.Helper()
	s.is(err, target)
	if c := commitstep.ClassOf(err); c != commitstep.ClassRefused {
		s.t.Fatalf("%v is classified %q, want refused", err, c)
	}
}

func (s *subject) list(dir commitstep.Address) map[string]filesys.Info {
	s.t.Helper()
	out := map[string]filesys.Info{}
	for info, err := range s.FS.List(s.t.Context(), dir) {
		s.ok(err)
		if _, dup := out[info.Path.Path]; dup {
			s.t.Fatalf("%s is listed twice", info.Path)
		}
		out[info.Path.Path] = info
	}
	return out
}
