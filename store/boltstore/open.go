package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/internal/shell"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const initHint = "make one with `commitstep store init --store %s`"

// quotedPlace is the store's address as a shell takes it.
func quotedPlace(path string) string { return shell.Quote("bolt:" + path) }

// Open opens the store at path for this process. It never creates one; see the
// package comment for its errors. The whole file is verified first. nil options
// are the defaults. End the use of the store with Close.
func Open(path string, o *Options) (*Store, error) {
	s := &Store{path: path, o: o.withDefaults(), putting: make(map[uuid.UUID]chan struct{}), stop: make(chan struct{})}
	s.scratch.New = func() any { return new([]byte) }
	if err := checkFile(path); err != nil {
		return nil, err
	}
	own, err := own(path, s.o.LockWait)
	if err != nil {
		if errors.Is(err, ErrLocked) {
			return nil, fileError(path, err, "one process at a time may use a store: end that one, or let it do the work")
		}
		return nil, fileError(path, err, "")
	}
	db, x, err := openFile(path, &s.o, own)
	if err != nil {
		own.release()
		return nil, err
	}
	s.own, s.db = own, db
	s.q = batch.New(batch.Options{Linger: s.o.Linger, Rejoin: Rejoin, RejoinMost: RejoinMost}, s.commit)
	s.mu.Lock()
	s.install(x)
	s.mu.Unlock()
	return s, nil
}

// checkFile tells the wrong kinds of file apart before anything is opened.
func checkFile(path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if target, ok := deadLink(path); ok {
			return fileError(path, ErrAbsent, deadLinkHint, target)
		}
		return fileError(path, ErrAbsent, initHint, quotedPlace(path))
	case err != nil:
		return fileError(path, err, "")
	case !fi.Mode().IsRegular():
		return fileError(path, ErrNotFile, "name the store's file, not its directory")
	case fi.Size() == 0:
		return fileError(path, ErrEmpty, "if it never held a store, "+initHint+"; otherwise restore a backup", quotedPlace(path))
	}
	return nil
}

// openFile locks the file, verifies it and hands it to bbolt. It must be the
// one that own holds: what takes its name meanwhile is another store.
func openFile(path string, o *Options, own *ownership) (*bbolt.DB, *index, error) {
	var x *index
	// The free pages are not stored: their list has no checksum, and one wrong
	// entry would let a later commit overwrite a page in use. bbolt finds them
	// by walking the pages; docs/adr/0002 has what that costs.
	bo := &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, NoStatistics: true, Timeout: o.LockWait}
	bo.OpenFile = func(name string, _ int, _ os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err = own.same(f); err == nil {
			x, err = verified(f, o)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
	db, err := openBolt(path, bo)
	switch {
	case err == nil:
		return db, x, nil
	case errors.Is(err, ErrNotStore):
		return nil, nil, fileError(path, err, "name the right file, or "+initHint+" elsewhere", quotedPlace(path))
	case errors.Is(err, commitstep.ErrNewerFormat):
		return nil, nil, fileError(path, err, "use a newer program; nothing was changed")
	case errors.Is(err, commitstep.ErrDamaged):
		return nil, nil, fileError(path, err, "nothing was changed: keep a copy of the file, run `commitstep store check`, then restore a backup and run `commitstep store adopt`")
	}
	return nil, nil, fileError(path, err, "")
}

func verified(f *os.File, o *Options) (*index, error) {
	if err := lockFile(context.Background(), f, o.LockWait); err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Size() == 0 {
		return nil, ErrEmpty
	}
	return readIndex(f, fi.Size())
}

// openBolt turns a panic into an error, should bbolt object to a file that was
// found sound.
func openBolt(path string, o *bbolt.Options) (db *bbolt.DB, err error) {
	defer guard(&err)()
	return bbolt.Open(path, 0o600, o)
}

// Init makes a new store at path and opens it. Whatever is there already is
// left alone and refused with fs.ErrExist, except an empty file, which is
// replaced. A crash leaves either nothing at path or a complete store.
func Init(path string, o *Options) (*Store, error) {
	opts := o.withDefaults()
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("boltstore: %w", err)
	}
	info := storeRecord{Format: baseFormat, ID: id, Created: opts.Clock.Now().Round(0).UTC()}
	tmp, err := tempName(path)
	if err != nil {
		return nil, fileError(path, err, "")
	}
	defer os.Remove(tmp) // gone already after the rename
	if err := create(tmp, info); err != nil {
		return nil, fileError(path, err, "")
	}
	if err := place(tmp, path, true); err != nil {
		return nil, err
	}
	return Open(path, o)
}

// tempName makes an empty file beside path, for one that is to get that name.
func tempName(path string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.new")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// create fills a new file with the buckets and the first records.
func create(path string, info storeRecord) error {
	db, err := openBolt(path, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	// The second commit makes the other meta page say, too, that the free pages
	// are not stored.
	for range 2 {
		if err = db.Update(func(tx *bbolt.Tx) error { return fill(tx, info) }); err != nil {
			break
		}
	}
	return errors.Join(err, db.Close())
}

func fill(tx *bbolt.Tx, info storeRecord) error {
	for tab, name := range tableNames {
		if table(tab) == tabPaths {
			continue
		}
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	b := tx.Bucket([]byte(tableNames[tabMeta]))
	rec, err := sealRecord(commitstep.RecordMeta, keyStore, info)
	if err != nil {
		return err
	}
	if err := b.Put(keyStore, rec); err != nil {
		return err
	}
	if b.Get(keySums) != nil {
		return nil
	}
	if rec, err = sealRecord(commitstep.RecordMeta, keySums, sums{}); err != nil {
		return err
	}
	return b.Put(keySums, rec)
}

// place gives the finished file tmp its name, durably, without ever replacing
// anything but, if replaceEmpty, an empty file.
func place(tmp, path string, replaceEmpty bool) error {
	if err := syncPath(tmp); err != nil {
		return fileError(path, err, "")
	}
	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// A file system without that call: a link does not replace either.
		err = os.Link(tmp, path)
	}
	if target, ok := deadLink(path); ok && errors.Is(err, fs.ErrExist) {
		return fileError(path, fs.ErrExist, deadLinkHint, target)
	}
	if errors.Is(err, fs.ErrExist) && replaceEmpty {
		err = replaceIfEmpty(tmp, path)
	}
	if errors.Is(err, fs.ErrExist) {
		return fileError(path, fs.ErrExist, "nothing was changed; use it as it is, or name another path")
	}
	if err != nil {
		return fileError(path, err, "")
	}
	if err := syncPath(filepath.Dir(path)); err != nil {
		return fileError(path, fmt.Errorf("sync its directory: %w", err), "it exists; open it")
	}
	return nil
}

// replaceIfEmpty renames tmp over an empty file. The lock on the empty file
// makes two of these take turns, and the second finds the first one's store.
func replaceIfEmpty(tmp, path string) error {
	if fi, err := os.Stat(path); err == nil && (!fi.Mode().IsRegular() || fi.Size() > 0) {
		return fs.ErrExist // and perhaps locked by its owner for long
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(path)
	if err != nil || !os.SameFile(mine, now) || !now.Mode().IsRegular() || now.Size() > 0 {
		return fs.ErrExist
	}
	return os.Rename(tmp, path)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
