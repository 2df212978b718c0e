package boltstore_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/commitstep/engine/store/boltstore"
)

// What the machine refuses is told with the path once and with what to do.
func TestRefusalsOfTheMachineComeWithAdvice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.db")
	if err := os.Symlink("/nowhere/s.db", dead); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(name string, err error, is error, hint string) {
		t.Helper()
		if err == nil || !errors.Is(err, is) || !strings.Contains(err.Error(), hint) || strings.Count(err.Error(), dir) != 1 || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %v with %q", name, err, is, hint)
		}
	}
	for name, c := range map[string]struct {
		path       string
		open, init error
		hint       string
	}{
		"dead link":         {dead, boltstore.ErrAbsent, fs.ErrExist, `link to "/nowhere/s.db"`},
		"name too long":     {filepath.Join(dir, strings.Repeat("n", 300)), syscall.ENAMETOOLONG, syscall.ENAMETOOLONG, "shorter"},
		"path too long":     {dir + strings.Repeat("/"+strings.Repeat("n", 200), 25), syscall.ENAMETOOLONG, syscall.ENAMETOOLONG, "shorter"},
		"file in the way":   {file + "/s.db", syscall.ENOTDIR, syscall.ENOTDIR, "where one of its directories must be"},
		"directory missing": {filepath.Join(dir, "no", "s.db"), boltstore.ErrAbsent, fs.ErrNotExist, "make"},
	} {
		_, err := boltstore.Open(c.path, nil)
		if name != "directory missing" { // its hint names the path again, to be copied
			check(name+", open", err, c.open, c.hint)
		}
		_, err = boltstore.Init(c.path, nil)
		check(name+", init", err, c.init, c.hint)
	}
	if _, err := os.Readlink(dead); err != nil {
		t.Errorf("the link was touched: %v", err)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skip("mounting a file system needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	path := filepath.Join(dir, "s.db")
	st, err := boltstore.Init(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, openErr := boltstore.Open(path, nil)
	_, initErr := boltstore.Init(filepath.Join(dir, "t.db"), nil)
	for _, err := range []error{openErr, initErr} {
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "; make the file system writable") || strings.Count(err.Error(), dir) != 1 {
			t.Errorf("got %v", err)
		}
	}
}
