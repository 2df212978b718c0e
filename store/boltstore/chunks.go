package boltstore

import (
	"bytes"
	"context"
	"iter"

	"go.etcd.io/bbolt"
)

// chunkRecords and chunkBytes bound what one transaction of a list copies.
const (
	chunkRecords = 256
	chunkBytes   = 1 << 20
)

// chunk is a portion of a table, copied out of its transaction.
type chunk struct {
	records []kv
	// sum is that of the whole table, as of this portion's transaction.
	sum sum
	err error
}

type kv struct{ key, value []byte }

// chunks reads a table, or the part with a prefix, in portions, each in a
// transaction of its own, so that a slow reader does not keep old pages alive.
// An error is the last chunk.
func (s *Store) chunks(ctx context.Context, tab table, prefix []byte, reverse bool) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		var after []byte
		for {
			var c chunk
			more := false
			err := s.view(ctx, func(tx *bbolt.Tx) error {
				r := rtx{tx}
				if err := openRecordMeta(r, &c.sum, tab); err != nil {
					return err
				}
				cur := r.cursor(tab)
				k, v := startAt(cur, prefix, after, reverse)
				size := 0
				for k != nil && bytes.HasPrefix(k, prefix) {
					if len(c.records) >= chunkRecords || size >= chunkBytes {
						more = true
						break
					}
					c.records = append(c.records, kv{bytes.Clone(k), bytes.Clone(v)})
					size += len(k) + len(v)
					if reverse {
						k, v = cur.Prev()
					} else {
						k, v = cur.Next()
					}
				}
				return nil
			})
			if err != nil {
				yield(chunk{err: err})
				return
			}
			if !yield(c) || !more {
				return
			}
			after = c.records[len(c.records)-1].key
		}
	}
}

// startAt positions a cursor after the key, or at the first one with prefix.
// Reverse lists have no prefix.
func startAt(c *bbolt.Cursor, prefix, after []byte, reverse bool) (k, v []byte) {
	switch {
	case !reverse && after == nil && len(prefix) == 0:
		return c.First()
	case !reverse && after == nil:
		return c.Seek(prefix)
	case !reverse:
		k, v = c.Seek(after)
		if k != nil && bytes.Equal(k, after) {
			k, v = c.Next()
		}
		return k, v
	case after == nil:
		return c.Last()
	}
	if k, _ = c.Seek(after); k == nil {
		return c.Last()
	}
	return c.Prev()
}

// openRecordMeta reads the stored sum of a table.
func openRecordMeta(r rtx, out *sum, tab table) error {
	all, err := readSums(r)
	if err == nil {
		*out = all[tab]
	}
	return err
}
