package main

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"time"

	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// bareBolt is floor B: bbolt with the engine's own group commit, one bucket,
// put and delete of as many bytes as the engine keeps of one dataset.
type bareBolt struct {
	db *bbolt.DB
	q  *batch.Queue[boltOp]
}

type boltOp struct {
	key, value []byte // value nil deletes
}

var bucket = []byte("live")

func newBareBolt(dir, name string) (*bareBolt, error) {
	db, err := bbolt.Open(filepath.Join(dir, name), 0o644, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, NoStatistics: true})
	if err != nil {
		return nil, err
	}
	if err := db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket(bucket); return err }); err != nil {
		return nil, err
	}
	b := &bareBolt{db: db}
	b.q = batch.New(batch.Options{Rejoin: boltstore.Rejoin, RejoinMost: boltstore.RejoinMost}, func(ops []boltOp, results []error) {
		err := db.Update(func(tx *bbolt.Tx) error {
			bk := tx.Bucket(bucket)
			for _, op := range ops {
				var err error
				if op.value == nil {
					err = bk.Delete(op.key)
				} else {
					err = bk.Put(op.key, op.value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		for i := range results {
			results[i] = err
		}
	})
	return b, nil
}

func (b *bareBolt) dataset(ctx context.Context, key, value []byte) error {
	if err := b.q.Do(ctx, boltOp{key, value}); err != nil {
		return err
	}
	return b.q.Do(ctx, boltOp{key, nil})
}

func (b *bareBolt) close() error {
	b.q.Close()
	return b.db.Close()
}

// appendLog is floor L: an append-only file, one group fdatasync each for put
// and complete, the same bytes.
type appendLog struct {
	f *os.File
	q *batch.Queue[[]byte]
}

func newAppendLog(dir, name string) (*appendLog, error) {
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	var buf []byte
	l := &appendLog{f: f}
	l.q = batch.New(batch.Options{Rejoin: boltstore.Rejoin, RejoinMost: boltstore.RejoinMost}, func(ops [][]byte, results []error) {
		buf = buf[:0]
		for _, op := range ops {
			buf = binary.BigEndian.AppendUint32(buf, uint32(len(op)))
			buf = append(buf, op...)
		}
		_, err := f.Write(buf)
		if err == nil {
			err = fdatasync(f)
		}
		for i := range results {
			results[i] = err
		}
	})
	return l, nil
}

func (l *appendLog) dataset(ctx context.Context, put, complete []byte) error {
	if err := l.q.Do(ctx, put); err != nil {
		return err
	}
	return l.q.Do(ctx, complete)
}

func (l *appendLog) close() error {
	l.q.Close()
	return l.f.Close()
}

// timeKey is a key that grows with time, as sequence ids do.
func timeKey() []byte {
	id, err := uuid.NewV7()
	if err != nil {
		panic(err) // the system has no randomness left
	}
	return id[:]
}
