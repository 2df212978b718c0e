//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/internal/testkit"
)

// everyDeath runs check after a child died at every report of its trace, and
// once after it ended by itself.
func everyDeath(t *testing.T, what string, check func(t *testing.T, root string)) {
	for n := 0; ; n++ {
		root := t.TempDir()
		write(t, filepath.Join(root, "in/f"), "ours")
		if err := os.Mkdir(filepath.Join(root, "out"), 0o755); err != nil {
			t.Fatal(err)
		}
		p := testkit.Start(t, "dies", root, what, strconv.Itoa(n))
		code, by := p.Exit()
		if by != syscall.SIGKILL && code != 0 {
			t.Fatalf("the child failed: %s", p.Output())
		}
		check(t, root)
		if t.Failed() {
			t.Fatalf("after death at report %d", n)
		}
		if by != syscall.SIGKILL {
			if n < 4 {
				t.Fatalf("only %d reports: the child never got to its work", n)
			}
			return
		}
	}
}

// A rename by link and unlink may leave two names, never none; the next process
// finishes it.
func TestDeathWithinARenameByLink(t *testing.T) {
	t.Parallel()
	everyDeath(t, "rename", func(t *testing.T, root string) {
		f := open(t, root)
		_, inErr := os.Lstat(filepath.Join(root, "in/f"))
		_, outErr := os.Lstat(filepath.Join(root, "out/f"))
		if inErr != nil && outErr != nil {
			t.Fatal("the file lost both its names")
		}
		if outErr != nil {
			if err := f.Rename(t.Context(), at(root, "in/f"), at(root, "out/f")); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.DropSecondName(t.Context(), at(root, "in/f"), at(root, "out/f")); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Sweep(t.Context(), at(root, "in"), func(filesys.Info) bool { return false }, false); err != nil {
			t.Fatal(err)
		}
		if left := entries(t, filepath.Join(root, "in")); len(left) != 0 {
			t.Fatalf("left in the source directory: %q", left)
		}
		if got := read(t, filepath.Join(root, "out/f")); got != "ours" {
			t.Fatalf("published %q", got)
		}
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(root, "out/f"), &st); err != nil || st.Nlink != 1 {
			t.Fatalf("%d names, %v", st.Nlink, err)
		}
	})
}

func TestDeathWithinARemoval(t *testing.T) {
	t.Parallel()
	everyDeath(t, "remove", func(t *testing.T, root string) {
		f := open(t, root)
		// What was recorded: any file of that length there is the one.
		ours := func(i filesys.Info) bool { return i.Size == 4 && i.Path == at(root, "in/f") }
		look, err := f.Sweep(t.Context(), at(root, "in"), ours, true)
		if err != nil {
			t.Fatal(err)
		}
		done, err := f.Sweep(t.Context(), at(root, "in"), ours, false)
		if err != nil {
			t.Fatal(err)
		}
		if look.Todo != done.Todo || len(done.Stays) != 0 {
			t.Fatalf("looked %+v, did %+v", look, done)
		}
		if _, err := os.Lstat(filepath.Join(root, "in/f")); err == nil {
			if err := f.Remove(t.Context(), stat(t, f, root, "in/f")); err != nil {
				t.Fatal(err)
			}
		}
		if left := entries(t, filepath.Join(root, "in")); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	})
}

func TestDeathWithinARemovalNeverLosesAForeignFile(t *testing.T) {
	t.Parallel()
	everyDeath(t, "remove-foreign", func(t *testing.T, root string) {
		f := open(t, root)
		if _, err := f.Sweep(t.Context(), at(root, "in"), func(filesys.Info) bool { return false }, false); err != nil {
			t.Fatal(err)
		}
		if left := entries(t, filepath.Join(root, "in")); len(left) != 1 || left[0] != "f" {
			t.Fatalf("left: %q", left)
		}
		if got := read(t, filepath.Join(root, "in/f")); got != "foreign" && got != "ours" {
			t.Fatalf("the file holds %q", got)
		}
	})
}

// Sixteen processes want one name.
func TestRacingProcesses(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"renameat2", "fallback"} {
		root := t.TempDir()
		var ps []*testkit.Process
		for i := range 16 {
			write(t, filepath.Join(root, "from-"+strconv.Itoa(i)), strconv.Itoa(i))
			ps = append(ps, testkit.Start(t, "rename", root, strconv.Itoa(i), how))
		}
		for _, p := range ps {
			p.WaitLine("ready")
		}
		for _, p := range ps {
			p.Tell("go")
		}
		winner := -1
		for i, p := range ps {
			from := filepath.Join(root, "from-"+strconv.Itoa(i))
			if p.WaitLine("result") == "won" {
				if winner >= 0 {
					t.Fatalf("%s: %d and %d both won", how, winner, i)
				}
				winner = i
			} else if got := read(t, from); got != strconv.Itoa(i) {
				t.Fatalf("%s: the loser %d holds %q", how, i, got)
			}
		}
		if winner < 0 || read(t, filepath.Join(root, "to")) != strconv.Itoa(winner) {
			t.Fatalf("%s: the winner is %d, the file holds %q", how, winner, read(t, filepath.Join(root, "to")))
		}
	}
}
