package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/commitstep/engine/commitstep"
	"go.etcd.io/bbolt"
)

// Backup writes a stamped copy of the store, as of one commit, to path, which
// must not exist (fs.ErrExist). The copy gets its name only once it is complete
// and durable. Readers and writers go on; a writer that has to enlarge the file
// waits for the copy.
func (s *Store) Backup(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return fileError(path, err, "name a path where nothing is")
	}
	tmp, err := tempName(path)
	if err != nil {
		return fileError(path, err, "")
	}
	defer os.Remove(tmp)
	if err := s.copyTo(ctx, tmp); err != nil {
		return fileError(path, fmt.Errorf("backup: %w", err), "nothing was left there")
	}
	if err := stamp(tmp, fmt.Sprintf("backup of %s made at %s", s.path, s.now().Format(time.RFC3339))); err != nil {
		return fileError(path, fmt.Errorf("stamp the backup: %w", err), "nothing was left there")
	}
	return place(tmp, path, false)
}

// copyTo writes the file's pages, as of one transaction, to path.
func (s *Store) copyTo(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(&ctxWriter{ctx, f}, 1<<20)
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})
	if err == nil {
		err = w.Flush()
	}
	return errors.Join(err, f.Close())
}

// stamp marks a copy, which nobody else can know yet. What the copy says of
// itself stays: it may have been sealed while it was written. So does the stamp
// of an unfinished copy, which says what to repeat.
func stamp(path, what string) error {
	db, err := openBolt(path, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(tableNames[tabMeta]))
		var info storeRecord
		if err := openRecord(commitstep.RecordMeta, keyStore, b.Get(keyStore), &info); err != nil {
			return err
		}
		if !info.Importing {
			info.Stamped = what
		}
		rec, err := sealRecord(commitstep.RecordMeta, keyStore, info)
		if err != nil {
			return err
		}
		return b.Put(keyStore, rec)
	})
	return errors.Join(err, db.Close())
}

// ctxWriter ends a long copy when its context does.
type ctxWriter struct {
	ctx context.Context
	f   *os.File
}

func (w *ctxWriter) Write(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.f.Write(b)
}
