package boltstore

import (
	"bytes"
	"fmt"
	"io"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// seq is what memory holds of a live or cleaning sequence. The file is the
// truth about everything else.
type seq struct {
	id       uuid.UUID
	key      commitstep.Key
	cleaning bool // kept in tabCleaning
	long     bool // its steps are in tabPages

	// Guarded by Store.mu. The epoch may be ahead of the file's, see claim.go;
	// steps is how many the sequence has, 0 while no driver holds it.
	epoch  uint64
	holder *lease
	steps  int
	// queue holds events recorded behind, oldest first. The committer removes
	// them after the commit that carries them, and gen changes with it. What is
	// in the queue never changes, so that a reader may keep a part of it.
	queue []mark
	gen   uint64

	// Only the committer touches these. They are caches of what the file says
	// with the running transaction applied; nil means not loaded.
	header *commitstep.Header
	record []byte // the header's
	cond   *conditionRecord
	stored bool // cond has a record in the file
	taken  int  // events of queue that the running transaction carries
	gone   bool
}

// index is what reading the whole file yields.
type index struct {
	info    storeRecord
	newest  uuid.UUID // of the history
	sums    sums
	seqs    map[uuid.UUID]*seq
	bad     []*badRecord
	orphans []orphan
}

// orphan is a record of a sequence that has no header: left by a put or a
// removal that a crash interrupted.
type orphan struct {
	tab table
	key []byte
}

// readIndex verifies the whole file, page by page, and builds the index. The
// error matches ErrNotStore, commitstep.ErrNewerFormat or ErrDamaged.
func readIndex(r io.ReaderAt, size int64) (*index, error) {
	f, err := openPageFile(r, size)
	if err != nil {
		return nil, err
	}
	list, err := f.buckets()
	if err != nil {
		return nil, err
	}
	var found [tableCount]*boltBucket
	unknown := ""
	for i := range list {
		if tab, ok := tableByName([]byte(list[i].name)); ok {
			found[tab] = &list[i]
		} else {
			unknown = list[i].name
		}
	}
	if found[tabMeta] == nil {
		if len(list) == 0 || unknown != "" {
			return nil, ErrNotStore
		}
		return nil, damaged("the bucket %q is missing", tabMeta)
	}
	x := &index{seqs: make(map[uuid.UUID]*seq)}
	if err := x.readMeta(f, *found[tabMeta]); err != nil {
		return nil, err
	}
	if unknown != "" {
		return nil, damaged("there is a bucket %q that does not belong here", unknown)
	}
	var actual sums
	// Headers come first, since all else is told apart by them.
	for tab := tabLive; tab < tableCount; tab++ {
		if found[tab] == nil {
			if tab == tabPaths && x.info.Format < pathsFormat {
				continue
			}
			return nil, damaged("the bucket %q is missing", tab)
		}
		err := f.records(*found[tab], func(key, value []byte) error {
			actual[tab].add(key, value)
			x.record(tab, key, value)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if err := f.freelist(); err != nil {
		return nil, err
	}
	for tab := tabLive; tab < tableCount; tab++ {
		if err := x.compare(tab, actual[tab]); err != nil {
			return nil, err
		}
	}
	x.attribute()
	if err := x.attributeLocks(f, *found[tabLive]); err != nil {
		return nil, err
	}
	return x, nil
}

func (x *index) readMeta(f *pageFile, b boltBucket) error {
	var info, total []byte
	err := f.records(b, func(key, value []byte) error {
		switch {
		case bytes.Equal(key, keyStore):
			info = bytes.Clone(value)
		case bytes.Equal(key, keySums):
			total = bytes.Clone(value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if info == nil || total == nil {
		return damaged("the records that say what the store is are missing")
	}
	if err := openRecord(commitstep.RecordMeta, keyStore, info, &x.info); err != nil {
		return fmt.Errorf("the record that says what the store is: %w", err)
	}
	if x.info.Format > StoreFormat {
		return fmt.Errorf("%w: the store has format %d, this program reads up to %d", commitstep.ErrNewerFormat, x.info.Format, StoreFormat)
	}
	if err := openRecord(commitstep.RecordMeta, keySums, total, &x.sums); err != nil {
		return fmt.Errorf("the record that counts all others: %w", err)
	}
	return nil
}

var recordTypes = [tableCount]commitstep.RecordType{
	tabMeta: commitstep.RecordMeta, tabLive: commitstep.RecordHeader, tabCleaning: commitstep.RecordHeader,
	tabPages: commitstep.RecordPage, tabConditions: commitstep.RecordCondition, tabProgress: commitstep.RecordProgress,
	tabLocks: commitstep.RecordLock, tabWatermarks: commitstep.RecordWatermark, tabAccepted: commitstep.RecordMeta,
	tabPlanIDs: commitstep.RecordPlanID, tabHistory: commitstep.RecordHistory, tabAudit: commitstep.RecordAudit,
	tabAside: commitstep.RecordMeta, tabPaths: commitstep.RecordPath,
}

// record checks one record and takes it into the index.
func (x *index) record(tab table, key, value []byte) {
	if tab == tabHistory && len(key) == len(x.newest) {
		x.newest = uuid.UUID(key) // they come in order
	}
	payload, err := commitstep.Open(recordTypes[tab], key, value)
	if err == nil {
		err = x.take(tab, key, payload)
	}
	if err != nil {
		x.bad = append(x.bad, x.newBadRecord(tab, key, value, err))
	}
}

func (x *index) take(tab table, key, payload []byte) error {
	var id uuid.UUID
	var err error
	switch tab {
	case tabLive, tabCleaning:
		return x.takeHeader(tab, key, payload)
	case tabConditions:
		if id, err = parseID(key); err != nil {
			return damaged("%v", err)
		}
		var c conditionRecord
		if err := decode(payload, &c); err != nil {
			return err
		}
		if q := x.seqs[id]; q != nil {
			q.epoch = c.Epoch
		}
	case tabPages, tabProgress:
		if id, _, err = parsePageKey(key); err != nil {
			return damaged("%v", err)
		}
	default:
		return nil
	}
	if x.seqs[id] == nil {
		x.orphans = append(x.orphans, orphan{tab, bytes.Clone(key)})
	}
	return nil
}

func (x *index) takeHeader(tab table, key, payload []byte) error {
	header, steps, err := splitHeader(payload)
	if err != nil {
		return err
	}
	q := &seq{cleaning: tab == tabCleaning, long: steps == nil, epoch: 1}
	if q.cleaning {
		q.key, _, err = parseTriple(key)
	} else {
		q.key, err = parseLiveKey(key)
	}
	if err != nil {
		return damaged("%v", err)
	}
	if q.id, err = headerID(header); err != nil {
		return err
	}
	if other := x.seqs[q.id]; other != nil {
		return damaged("sequence %s is kept twice, also under %s", q.id, other.key)
	}
	x.seqs[q.id] = q
	return nil
}

// headerID reads only the id, which stands first, since opening a store with
// many sequences should not decode them all.
func headerID(header []byte) (uuid.UUID, error) {
	const start = `{"id":"`
	if len(header) > len(start)+36 && string(header[:len(start)]) == start {
		if id, err := uuid.ParseBytes(header[len(start) : len(start)+36]); err == nil {
			return id, nil
		}
	}
	return uuid.Nil, damaged("the header does not start with the id")
}
