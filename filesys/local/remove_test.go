//go:build linux

package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
)

// atRename calls fn once, right before the first rename.
func atRename(fn func()) local.Option {
	done := false
	return local.WithTrace(func(op local.Op) {
		if op.Kind == local.OpRename && !op.After && !done {
			done = true
			fn()
		}
	})
}

func TestAFileThatTakesTheNameDuringARemovalIsPutBack(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]local.Option{"as it is": nil, "without noreplace": {local.WithoutNoReplace()}, "full disk": {local.WithFullDisk()}} {
		root := t.TempDir()
		f := filepath.Join(root, "d/f")
		write(t, f, "ours")
		files := open(t, root, append(opts, atRename(func() {
			if err := os.Remove(f); err != nil {
				t.Error(err)
			}
			write(t, f, "foreign")
		}))...)
		err := files.Remove(t.Context(), stat(t, files, root, "d/f"))
		if !errors.Is(err, filesys.ErrChanged) || commitstep.ClassOf(err) != commitstep.ClassRefused {
			if !errors.Is(err, filesys.ErrChanged) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := read(t, f); got != "foreign" {
			t.Errorf("%s: the file holds %q", name, got)
		}
		if left := entries(t, filepath.Join(root, "d")); len(left) != 1 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}

func TestAForeignFileWhoseNameWasTakenStaysWhereTheErrorSays(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := filepath.Join(root, "d/f")
	write(t, f, "ours")
	renames := 0
	files := open(t, root, local.WithTrace(func(op local.Op) {
		if op.Kind != local.OpRename || op.After {
			return
		}
		switch renames++; renames {
		case 1:
			if err := os.Remove(f); err != nil {
				t.Error(err)
			}
			write(t, f, "foreign")
		case 2: // on its way back
			write(t, f, "a third")
		}
	}))
	err := files.Remove(t.Context(), stat(t, files, root, "d/f"))
	if !errors.Is(err, filesys.ErrChanged) {
		t.Fatal(err)
	}
	if got := read(t, f); got != "a third" {
		t.Fatalf("the file holds %q", got)
	}
	var private string
	for _, e := range entries(t, filepath.Join(root, "d")) {
		if strings.HasPrefix(e, local.PrivatePrefix) {
			private = filepath.Join(root, "d", e, "f")
		}
	}
	if private == "" || !strings.Contains(err.Error(), private) {
		t.Fatalf("the error does not name %q: %v", private, err)
	}
	if got := read(t, private); got != "foreign" {
		t.Fatalf("the foreign file holds %q", got)
	}

	never := func(filesys.Info) bool { return false }
	swept, err := files.Sweep(t.Context(), at(root, "d"), never, false)
	if err != nil || swept.Todo != 0 || len(swept.Stays) != 1 || !strings.Contains(swept.Stays[0], private) {
		t.Fatalf("while the name is taken: %+v, %v", swept, err)
	}
	if err := os.Remove(f); err != nil {
		t.Fatal(err)
	}
	if swept, err = files.Sweep(t.Context(), at(root, "d"), never, false); err != nil || swept.Todo == 0 {
		t.Fatalf("once the name is free: %+v, %v", swept, err)
	}
	if got := read(t, f); got != "foreign" {
		t.Fatalf("put back was %q", got)
	}
	if left := entries(t, filepath.Join(root, "d")); len(left) != 1 {
		t.Fatalf("left %q", left)
	}
}

func TestRemovalOnAFullDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "d/f"), "ours")
	files := open(t, root, local.WithFullDisk())
	if err := files.Remove(t.Context(), stat(t, files, root, "d/f")); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, filepath.Join(root, "d")); len(left) != 0 {
		t.Fatalf("left %q", left)
	}
	// A crash in the middle left the file under its private name.
	private := filepath.Join(root, "d", local.PrivatePrefix+"0")
	write(t, private, "ours")
	info := stat(t, files, root, "d/"+local.PrivatePrefix+"0")
	swept, err := files.Sweep(t.Context(), at(root, "d"), func(i filesys.Info) bool { return false }, false)
	if err != nil || len(swept.Stays) != 1 || read(t, private) != "ours" {
		t.Fatalf("a foreign one: %+v, %v", swept, err)
	}
	swept, err = files.Sweep(t.Context(), at(root, "d"), func(i filesys.Info) bool { return i.ID == info.ID }, false)
	if err != nil || swept.Todo != 1 || len(entries(t, filepath.Join(root, "d"))) != 0 {
		t.Fatalf("ours: %+v, %v", swept, err)
	}
}

// A removal whose private directory is swept away under it must not take that
// for success.
func TestASweepDuringARemovalHidesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "d/f"), "ours")
	other := open(t, root)
	files := open(t, root, atRename(func() {
		if _, err := other.Sweep(t.Context(), at(root, "d"), func(filesys.Info) bool { return false }, false); err != nil {
			t.Error(err)
		}
	}))
	want := stat(t, files, root, "d/f")
	err := files.Remove(t.Context(), want)
	if commitstep.ClassOf(err) != commitstep.ClassRefused || read(t, filepath.Join(root, "d/f")) != "ours" {
		t.Fatalf("%v", err)
	}
	if err := files.Remove(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, filepath.Join(root, "d")); len(left) != 0 {
		t.Fatalf("left %q", left)
	}
}

func TestTheLastNameIsNeverDropped(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "a"), "x")
	if err := os.Link(filepath.Join(root, "a"), filepath.Join(root, "b")); err != nil {
		t.Fatal(err)
	}
	// The other name goes between the look and the removal.
	files := open(t, root, atRename(func() {
		if err := os.Remove(filepath.Join(root, "b")); err != nil {
			t.Error(err)
		}
	}))
	if err := files.DropSecondName(t.Context(), at(root, "a"), at(root, "b")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(root, "a")); got != "x" {
		t.Fatalf("it holds %q", got)
	}
	// One directory entry under two paths, through a link.
	if err := os.Symlink(root, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(root, "a"), filepath.Join(root, "c")); err != nil {
		t.Fatal(err)
	}
	if err := files.DropSecondName(t.Context(), at(root, "link/a"), at(root, "a")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(root, "a")); got != "x" {
		t.Fatalf("it holds %q", got)
	}
}
