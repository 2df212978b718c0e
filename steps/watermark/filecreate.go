package watermark

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// create makes t.dir a directory that holds watermarks, unless it is one. It is
// repeatable: a process that dies in it leaves nothing that stops the next.
func (t *FileTarget) create() error {
	made := missing(t.dir)
	if err := t.do("make directory", func() error { return os.MkdirAll(t.dir, 0o755) }); err != nil {
		return err
	}
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	self, err := root.Open(".")
	if err != nil {
		return err
	}
	defer self.Close() // releases the lock
	// Two creators must agree on one id.
	if err := t.do("lock directory", func() error { return lockWait(self) }); err != nil {
		return err
	}
	if _, err := root.Lstat(markerName); err == nil {
		return t.syncMade(self, made)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != markerTemp && name != "lost+found" {
			return fmt.Errorf("it holds %q and is no watermark directory; name an empty one", name)
		}
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return err
	}
	b, err := json.Marshal(marker{ID: id, Created: t.now().UTC()})
	if err != nil {
		return err
	}
	if err := t.writeTemp(root, markerTemp, commitstep.Seal(commitstep.RecordMeta, []byte(markerKey), b)); err != nil {
		return err
	}
	if err := t.do("rename", func() error { return root.Rename(markerTemp, markerName) }); err != nil {
		return err
	}
	return t.syncMade(self, made)
}

// missing is the topmost directory of dir that does not exist yet, dir itself
// if all do.
func missing(dir string) string {
	top := dir
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); err == nil || d == filepath.Dir(d) {
			return top
		}
		top = d
	}
}

// syncMade makes the directory and the entries of all above it durable: this
// process made those from top on, and one that died may have made others.
func (t *FileTarget) syncMade(self *os.File, top string) error {
	if err := t.do("sync directory", self.Sync); err != nil {
		return err
	}
	made := true
	for d := t.dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		err := t.do("sync directory", func() error {
			f, err := os.Open(filepath.Dir(d))
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Sync()
		})
		if err != nil && (made || !errors.Is(err, fs.ErrPermission)) {
			return err
		}
		made = made && d != top
	}
	return nil
}

func lockWait(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}
