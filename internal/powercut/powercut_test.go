package powercut_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/commitstep/engine/internal/powercut"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"write": writeChild})
	goleak.VerifyTestMain(m)
}

// hex writes text as strace -xx does.
func hex(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "\\x%02x", s[i])
	}
	return b.String()
}

// tape writes a recording line by line. P("x") is a path argument, F("x") a
// descriptor of it.
type tape struct{ bytes.Buffer }

func (t *tape) line(format string, a ...any) *tape {
	fmt.Fprintf(t, "100 "+format+" = 0\n", a...)
	return t
}

func P(name string) string { return `"` + hex(filepath.Join("/r", name)) + `"` }
func F(name string) string { return "7<" + hex(filepath.Join("/r", name)) + ">" }

func (t *tape) create(name string) *tape {
	return t.line("openat(AT_FDCWD<%s>, %s, O_WRONLY|O_CREAT|O_CLOEXEC, 0644)", hex("/"), P(name))
}
func (t *tape) write(name, data string, off int) *tape {
	fmt.Fprintf(t, "100 pwrite64(%s, \"%s\", %d, %d) = %d\n", F(name), hex(data), len(data), off, len(data))
	return t
}
func (t *tape) mkdir(name string) *tape { return t.line("mkdir(%s, 0755)", P(name)) }
func (t *tape) rename(from, to string) *tape {
	return t.line("renameat2(5<%s>, \"%s\", AT_FDCWD<%s>, %s, RENAME_NOREPLACE)", hex("/r"), hex(from), hex("/"), P(to))
}
func (t *tape) fsync(name string) *tape { return t.line("fsync(%s)", F(name)) }
func (t *tape) mark(note string) *tape {
	fmt.Fprintf(t, "100 unlink(%s) = -1 ENOENT (No such file or directory)\n", P("powercut-mark:"+note))
	return t
}

// initial has the file /r/src/f with the content "data".
func initial() powercut.Tree {
	return powercut.Tree{
		"/r":       {Dir: true, Inode: 0, Mode: 0o755, Initial: "/r"},
		"/r/src":   {Dir: true, Inode: 1, Mode: 0o755, Initial: "/r/src"},
		"/r/dst":   {Dir: true, Inode: 2, Mode: 0o755, Initial: "/r/dst"},
		"/r/src/f": {Data: []byte("data"), Inode: 3, Mode: 0o644, Initial: "/r/src/f"},
	}
}

// states are the contents of the files of every state, as "name=content …".
func (t *tape) states(tb testing.TB, unsynced ...string) []string {
	tb.Helper()
	rec, err := powercut.Parse(&t.Buffer, "/r", initial(), unsynced...)
	require.NoError(tb, err)
	return listStates(rec)
}

func listStates(rec *powercut.Recording) []string {
	var out []string
	for s := range rec.States(powercut.Options{}) {
		var files []string
		for _, p := range s.Tree.Below("/r") {
			if n := s.Tree[p]; !n.Dir {
				files = append(files, strings.TrimPrefix(p, "/r/")+"="+string(n.Data))
			}
		}
		if text := strings.Join(files, " ") + fmt.Sprint(s.Notes); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

func TestRenameIsOneUnit(t *testing.T) {
	t.Parallel()
	old, both, renamed := "src/f=data[]", "dst/f=data src/f=data[]", "dst/f=data[]"
	require.Equal(t, []string{both, renamed, old}, new(tape).rename("src/f", "dst/f").states(t), "nothing synced")
	end := func(s ...string) []string { return withDone(s...) }
	require.Equal(t, end(both, renamed), at(t, new(tape).rename("src/f", "dst/f").fsync("dst").mark("done")))
	require.Equal(t, end(renamed), at(t, new(tape).rename("src/f", "dst/f").fsync("src").mark("done")), "the old name is gone, so the new one is there")
	require.Equal(t, end(renamed), at(t, new(tape).rename("src/f", "dst/f").fsync("dst").fsync("src").mark("done")))
}

func withDone(s ...string) []string {
	for i := range s {
		s[i] = strings.TrimSuffix(s[i], "[]") + "[done]"
	}
	return s
}

// at are the states that may be found after the note "done".
func at(tb testing.TB, tp *tape, unsynced ...string) []string {
	tb.Helper()
	return slices.DeleteFunc(tp.states(tb, unsynced...), func(s string) bool { return !strings.HasSuffix(s, "[done]") })
}

func TestFsyncOfAFileIsNotThatOfItsName(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"dst/g= src/f=data[done]", "dst/g=new src/f=data[done]", "src/f=data[done]"},
		at(t, new(tape).create("dst/g").write("dst/g", "new", 0).mark("done")))
	require.Equal(t, []string{"dst/g=new src/f=data[done]", "src/f=data[done]"},
		at(t, new(tape).create("dst/g").write("dst/g", "new", 0).fsync("dst/g").mark("done")))
	require.Equal(t, []string{"dst/g= src/f=data[done]", "dst/g=new src/f=data[done]"},
		at(t, new(tape).create("dst/g").write("dst/g", "new", 0).fsync("dst").mark("done")))
	require.Equal(t, []string{"dst/g=new src/f=data[done]"},
		at(t, new(tape).create("dst/g").write("dst/g", "new", 0).fsync("dst/g").fsync("dst").mark("done")))
}

func TestNewDirectoriesNeedTheirParentsSync(t *testing.T) {
	t.Parallel()
	in := func() *tape { return new(tape).mkdir("new").rename("src/f", "new/f") }
	require.Equal(t, []string{"new/f=data src/f=data[done]", "new/f=data[done]", "src/f=data[done]"}, at(t, in().mark("done")),
		"a rename in the air does not lose its file with the directory")
	require.Contains(t, at(t, in().fsync("new").fsync("src").mark("done")), "[done]", "both directories are synced, but not the new one's own name")
	require.Equal(t, []string{"new/f=data[done]"}, at(t, in().fsync("new").fsync("/").fsync("src").mark("done")))
}

func TestStagedDataThatNobodySynced(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"[done]", "src/f=[done]", "src/f=data[done]"}, at(t, new(tape).mark("done"), "/r/src/f"))
	require.Equal(t, []string{"src/f=data[done]"}, at(t, new(tape).fsync("src/f").fsync("src").mark("done"), "/r/src/f"))
}

func TestWritesAreTornAtSectors(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("a", 512) + strings.Repeat("b", 512)
	got := new(tape).write("src/f", big, 0).states(t)
	whole := []string{strings.Repeat("a", 512) + strings.Repeat("b", 512), "data" + strings.Repeat("\x00", 508) + strings.Repeat("b", 512), strings.Repeat("a", 512) + strings.Repeat("\x00", 512), "data"}
	for _, w := range whole {
		require.Contains(t, got, "src/f="+w+"[]")
	}
	require.LessOrEqual(t, len(got), 5)
}

// A sync that began before a write ended promises nothing about it.
func TestSyncCoversOnlyWhatHadEnded(t *testing.T) {
	t.Parallel()
	var late tape
	fmt.Fprintf(&late, "101 fsync(%s <unfinished ...>\n", F("src/f"))
	late.write("src/f", "DATA", 0)
	fmt.Fprintf(&late, "101 <... fsync resumed>) = 0\n")
	require.Equal(t, []string{"src/f=DATA[done]", "src/f=data[done]"}, at(t, late.mark("done")))
}

func TestForgottenSyncsAreNoticed(t *testing.T) {
	t.Parallel()
	tp := new(tape).rename("src/f", "dst/f").fsync("dst").fsync("src")
	rec, err := powercut.Parse(&tp.Buffer, "/r", initial())
	require.NoError(t, err)
	require.Equal(t, 2, rec.Syncs())
	require.Equal(t, 1, rec.Changes())
	bad := rec.Without(func(path string, dir bool) bool { return dir && path == "/r/dst" })
	require.Equal(t, 1, bad.Syncs())
	require.Contains(t, listStates(rec.Without(func(string, bool) bool { return true })), "src/f=data[]")
}

func TestRecordingsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string]string{
		"unknown call": "100 symlinkat(\"" + hex("x") + "\", 5<" + hex("/r") + ">, \"" + hex("l") + "\") = 0\n",
		"fallocate":    "100 fallocate(" + F("src/f") + ", 0, 0, 10) = 0\n",
		"cut data":     "100 pwrite64(" + F("src/f") + ", \"" + hex("da") + "\"..., 4, 0) = 4\n",
		"no call":      "100 gibberish\n",
		"lost file":    "100 fsync(" + F("nowhere") + ") = 0\n",
		"end only":     "100 <... fsync resumed>) = 0\n",
	} {
		_, err := powercut.Parse(strings.NewReader(lines), "/r", initial())
		require.Error(t, err, name)
	}
	// Elsewhere anything goes.
	_, err := powercut.Parse(strings.NewReader("100 symlink(\""+hex("/x")+"\", \""+hex("/y")+"\") = 0\n100 write(1<"+hex("/dev/null")+">, \"a\", 1) = 1\n"), "/r", initial())
	require.NoError(t, err)
}

// writeChild makes known changes below its argument.
func writeChild(c *testkit.Child) int {
	root := c.Args[0]
	dir := filepath.Join(root, "out dir")
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "한"), []byte("\x00\"binary\n"), 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(root, "in"), filepath.Join(dir, "in"))
	}
	if err == nil {
		err = os.Chmod(filepath.Join(dir, "in"), 0o640)
	}
	for _, p := range []string{filepath.Join(dir, "in"), dir, root} {
		var f *os.File
		if err == nil {
			if f, err = os.Open(p); err == nil {
				err = f.Sync()
				_ = f.Close()
			}
		}
	}
	if err == nil {
		powercut.Mark(root, "synced")
		err = unix.Unlink(filepath.Join(dir, "in"))
	}
	if err != nil {
		return c.Fail("%v", err)
	}
	return 0
}

// The same through a real program and a real strace, and back to a disk.
func TestRecordsARealProgram(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed; on Debian: apt-get install strace")
	}
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(filepath.Join(root, "in"), []byte("staged"), 0o644))
	before, err := powercut.Scan(root)
	require.NoError(t, err)
	p := testkit.StartWith(t, "write", []string{root}, powercut.Under(out))
	code, by := p.Exit()
	require.Zero(t, by)
	require.Zero(t, code, p.Output())
	rec, err := powercut.ReadFile(out, root, before)
	require.NoError(t, err)
	require.Equal(t, 3, rec.Syncs())
	var last powercut.State
	n := 0
	for s := range rec.States(powercut.Options{}) {
		n++
		last = s
		if s.Had("synced") {
			if in, ok := s.Tree[root+"/out dir/in"]; ok {
				require.Equal(t, "staged", string(in.Data))
				require.Equal(t, os.FileMode(0o640), in.Mode)
				require.Equal(t, root+"/in", in.Initial)
			}
		}
	}
	require.Greater(t, n, 10)
	// The end of the run with nothing lost is what is on the disk now.
	after, err := powercut.Scan(root)
	require.NoError(t, err)
	require.Equal(t, after.Below(root), last.Tree.Below(root))
	require.Equal(t, "\x00\"binary\n", string(last.Tree[root+"/out dir/한"].Data))
	// And a state written to the disk is that state.
	require.NoError(t, last.Tree.WriteTo(root))
	again, err := powercut.Scan(root)
	require.NoError(t, err)
	require.Equal(t, last.Tree.Below(root), again.Below(root))
	for _, p := range again.Below(root) {
		require.Equal(t, last.Tree[p].Data, again[p].Data)
		require.Equal(t, last.Tree[p].Mode, again[p].Mode, p)
	}
}
