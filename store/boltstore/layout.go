package boltstore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// table is one top-level bucket. docs/formats.md has the keys and values.
type table uint8

const (
	tabMeta       table = iota // fixed names -> storeRecord, sumsRecord
	tabLive                    // key -> header, with the steps of short sequences
	tabCleaning                // key and id -> the same, completed and still cleaning
	tabPages                   // id and page -> steps of long sequences
	tabConditions              // id -> condition, with the progress of short sequences
	tabProgress                // id and page -> progress of long sequences
	tabLocks                   // lock -> who holds it
	tabWatermarks              // job and source -> value
	tabAccepted                // job -> acceptance of an adopted store's watermarks
	tabPlanIDs                 // key and plan id -> outcome, for ever
	tabHistory                 // id -> outcome, for ever
	tabAudit                   // number -> decision, for ever
	tabAside                   // damaged bytes that a person gave up
	tabPaths                   // path digest -> who used it, for ever; made with its first record
	tableCount
)

var tableNames = [tableCount]string{"meta", "live", "cleaning", "pages", "conditions", "progress", "locks",
	"watermarks", "accepted", "planids", "history", "audit", "quarantined", "paths"}

func (t table) String() string { return tableNames[t] }

func tableByName(name []byte) (table, bool) {
	for i, n := range tableNames {
		if n == string(name) {
			return table(i), true
		}
	}
	return 0, false
}

// sum stands for the whole content of one table: how many records it has, and
// the sum of a 64-bit mix of every record's key and checksum. It is kept up to
// date with every write at the cost of that write, and proves at open that no
// record was lost, doubled or replaced by an older one, which checksums inside
// the records cannot.
type sum struct {
	Count uint64 `json:"n"`
	Hash  uint64 `json:"h,string"`
}

func (s *sum) add(key, record []byte) {
	s.Count++
	s.Hash += mix(key, recordCRC(record))
}

func (s *sum) remove(key, record []byte) {
	s.Count--
	s.Hash -= mix(key, recordCRC(record))
}

// mix spreads (key, checksum) over 64 bits, so that contributions of different
// records do not cancel out when they are added.
func mix(key []byte, crc uint32) uint64 {
	x := xxhash.Sum64(key) + uint64(crc)*0x9e3779b97f4a7c15 + 1
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// recordCRC is the checksum that the envelope carries. The sum uses the stored
// one, not the computed one, so that damage in one payload is that record's
// trouble alone.
func recordCRC(record []byte) uint32 {
	if len(record) < 8 {
		return 0
	}
	return binary.BigEndian.Uint32(record[4:])
}

// sums of all tables but meta, which holds them.
type sums [tableCount]sum

// stored is what is written of them. A file of format 1 has no tabPaths.
func (s *sums) stored() []sum {
	if s[tabPaths].Count == 0 {
		return s[:tabPaths]
	}
	return s[:]
}

// MarshalJSON is encodeSums for those who are in no hurry.
func (s sums) MarshalJSON() ([]byte, error) { return json.Marshal(s.stored()) }

// txn is one write transaction while it is being filled. Only the committer
// has one.
type txn struct {
	s     *Store
	tx    *bbolt.Tx
	sums  sums
	wrote bool
	// newest is the highest id in the history.
	newest uuid.UUID
	// err is a failure in the middle of a change; it ends the whole transaction.
	err     error
	buckets [tableCount]*bbolt.Bucket
	// after runs once the transaction is durable, with s.mu held.
	after []func()
}

func (t *txn) bucket(tab table) *bbolt.Bucket {
	if t.buckets[tab] == nil {
		b := t.tx.Bucket([]byte(tableNames[tab]))
		if b == nil {
			return nil
		}
		if tab == tabHistory || tab == tabAudit || tab == tabPages {
			// Their keys grow, so full pages are never visited again.
			b.FillPercent = 0.95
		}
		t.buckets[tab] = b
	}
	return t.buckets[tab]
}

// get returns the record, or nil. It is valid until the next write.
func (t *txn) get(tab table, key []byte) []byte {
	b := t.bucket(tab)
	if b == nil {
		return nil // a table that is made with its first record
	}
	return b.Get(key)
}

// put stores record under key, whatever was there. A failure is kept in t.err.
func (t *txn) put(tab table, key, record []byte) {
	if t.err != nil {
		return
	}
	if tab != tabMeta {
		if old := t.get(tab, key); old != nil {
			t.sums[tab].remove(key, old)
		}
		t.sums[tab].add(key, record)
	}
	t.note(tab, key)
	if err := t.bucket(tab).Put(key, record); err != nil {
		t.err = fmt.Errorf("put into %s: %w", tab, err)
	}
}

// insert is put for a key that certainly has no record yet.
func (t *txn) insert(tab table, key, record []byte) {
	if t.err != nil {
		return
	}
	t.sums[tab].add(key, record)
	t.note(tab, key)
	if err := t.bucket(tab).Put(key, record); err != nil {
		t.err = fmt.Errorf("put into %s: %w", tab, err)
	}
}

// note keeps track of what was written.
func (t *txn) note(tab table, key []byte) {
	t.wrote = true
	if tab == tabHistory && bytes.Compare(key, t.newest[:]) > 0 {
		copy(t.newest[:], key)
	}
}

// remove is del for a record that is known already.
func (t *txn) remove(tab table, key, record []byte) {
	if t.err != nil {
		return
	}
	t.sums[tab].remove(key, record)
	t.wrote = true
	if err := t.bucket(tab).Delete(key); err != nil {
		t.err = fmt.Errorf("delete from %s: %w", tab, err)
	}
}

// del removes the record under key, if there is one.
func (t *txn) del(tab table, key []byte) {
	if t.err != nil {
		return
	}
	old := t.get(tab, key)
	if old == nil {
		return
	}
	t.remove(tab, key, old)
}

// outcome returns the history record of id, or nil. Ids grow with time, so that
// one newer than all that ended cannot be among them.
func (t *txn) outcome(id uuid.UUID) ([]byte, error) {
	if bytes.Compare(id[:], t.newest[:]) <= 0 {
		if rec := t.get(tabHistory, id[:]); rec != nil {
			return rec, nil
		}
	}
	return nil, t.s.hidden(tabHistory, id[:])
}

// then adds something to be done to the memory once the commit is durable.
func (t *txn) then(f func()) { t.after = append(t.after, f) }
