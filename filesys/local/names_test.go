//go:build linux

package local_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Nothing can have a name that is too long, so a look says that nothing is
// there, and a change says that it can never be made.
func TestNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := open(t, root)
	write(t, filepath.Join(root, "in"), "x")
	if err := os.Mkdir(filepath.Join(root, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	longest, long := strings.Repeat("n", 255), strings.Repeat("n", 256)
	deep := strings.Repeat(strings.Repeat("d", 200)+"/", 21) + "f"
	for _, name := range []string{"out/" + long, long + "/x", "out/" + long + "/x/y", deep} {
		_, err := f.Stat(t.Context(), at(root, name))
		if !filesys.Missing(err) || !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, filesys.ErrNameTooLong) {
			t.Errorf("Stat of a path of %d bytes: %v", len(name), err)
		}
		for _, err := range f.List(t.Context(), at(root, name)) {
			if !filesys.Missing(err) {
				t.Errorf("List: %v", err)
			}
		}
		err = f.Rename(t.Context(), at(root, "in"), at(root, name))
		if !commitstep.IsPermanent(err) || !errors.Is(err, filesys.ErrNameTooLong) {
			t.Errorf("Rename: %v", err)
		}
		if err := f.MkdirAll(t.Context(), at(root, name)); !commitstep.IsPermanent(err) {
			t.Errorf("MkdirAll: %v", err)
		}
		if err := f.DropSecondName(t.Context(), at(root, "in"), at(root, name)); err != nil {
			t.Errorf("DropSecondName: %v", err)
		}
	}
	if err := f.Remove(t.Context(), filesys.Info{Path: at(root, "out/"+long)}); err != nil {
		t.Errorf("Remove of what cannot be there: %v", err)
	}
	if got := strings.Join(entries(t, root), " "); got != "in out" {
		t.Errorf("directories were made in vain: %s", got)
	}
	if err := f.Rename(t.Context(), at(root, "in"), at(root, "out/"+longest)); err != nil {
		t.Error(err)
	}
}

// While the directory of a name is missing, only the file system can tell
// whether it has room for the name.
func TestCheckMoveOfLongNames(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := open(t, root)
	write(t, filepath.Join(root, "in"), "x")
	longest, long := strings.Repeat("n", 255), strings.Repeat("n", 256)
	for name, ok := range map[string]bool{
		longest: true, "no/" + longest: true, "no/no/" + longest + "/x": true,
		long: false, "no/" + long: false, "no/" + long + "/x": false, "no/no/" + long + "/x/y": false,
	} {
		err := f.CheckMove(t.Context(), at(root, "in"), at(root, name))
		if ok && err != nil || !ok && !errors.Is(err, filesys.ErrNameTooLong) {
			t.Errorf("%.20s…: %v", name, err)
		}
	}
}

func TestResolveRefusesLongPaths(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := open(t, root)
	fill := func(bytes int) string {
		p := root
		for len(p)+101 < bytes {
			p += "/" + strings.Repeat("d", 99)
		}
		return p + "/" + strings.Repeat("f", bytes-len(p)-1)
	}
	if _, err := f.Resolve(fill(4095), ""); err != nil {
		t.Error(err)
	}
	_, err := f.Resolve(fill(4096), "")
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) || pe.Hint == "" || !errors.Is(err, filesys.ErrNameTooLong) || len(err.Error()) > 400 {
		t.Errorf("got %v", err)
	}
}
