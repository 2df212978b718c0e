package boltstore

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
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

// badRecord is a record that cannot be read.
type badRecord struct {
	tab   table
	key   []byte
	err   error
	newer bool

	// Whose record it is, as far as that is certain.
	id        uuid.UUID
	dataset   commitstep.Key
	nameKnown bool

	// trueKey is what key was before it was damaged, if that is what happened.
	trueKey []byte

	// diffs are what the table's sum would gain if the stored checksum, or the
	// key, were what is damaged: then its sum speaks for the true one.
	diffs []diff
	// excess is what the table's stored sum holds beyond the record's present
	// contribution, to be taken out with the record.
	excess uint64
}

type diff struct {
	add uint64
	key []byte // the true key, when the key is what is damaged
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
	tabAside: commitstep.RecordMeta,
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

func (x *index) newBadRecord(tab table, key, value []byte, err error) *badRecord {
	b := &badRecord{tab: tab, key: bytes.Clone(key), err: err, newer: !commitstep.IsDamage(err)}
	if len(value) < 8 {
		return b
	}
	stored := mix(key, recordCRC(value))
	payload := value[8:]
	t := recordTypes[tab]
	// The checksum field is damaged: all else is as it was.
	fixed := commitstep.SealVersion(t, value[3], key, payload)
	b.diffs = append(b.diffs, diff{add: mix(key, recordCRC(fixed)) - stored})
	// The key is damaged: then the record fits another one.
	for k := range x.otherKeys(tab, key, payload) {
		if _, err := commitstep.Open(t, k, value); err == nil {
			b.diffs = append(b.diffs, diff{add: mix(k, recordCRC(value)) - stored, key: bytes.Clone(k)})
			break
		}
	}
	return b
}

// otherKeys yields the keys under which a record may have been kept, judged by
// what it says itself and by the sequences that there are.
func (x *index) otherKeys(tab table, key, payload []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		switch tab {
		case tabLive, tabCleaning:
			var h commitstep.Header
			header, _, err := splitHeader(payload)
			switch {
			case err != nil || decode(header, &h) != nil:
			case tab == tabLive:
				yield(liveKey(h.Key))
			default:
				yield(cleaningKey(h.Key, h.ID))
			}
		case tabConditions:
			for id := range x.seqs {
				if !yield(id[:]) {
					return
				}
			}
		case tabPages, tabProgress:
			id, n, err := parsePageKey(key)
			if err != nil {
				return
			}
			for other := range x.seqs {
				if !yield(pageKey(other, n)) {
					return
				}
			}
			// The page number with any one of its bytes changed.
			for i := range 4 * 255 {
				if !yield(pageKey(id, n^(i%255+1)<<(i/255*8))) {
					return
				}
			}
		case tabWatermarks:
			var v commitstep.WatermarkValue
			if decode(payload, &v) == nil {
				yield(pairKey(v.Job, v.Source))
			}
		case tabPlanIDs:
			var r store.PlanRecord
			if decode(payload, &r) == nil {
				yield(tripleKey(r.Key, r.PlanID))
			}
		case tabHistory:
			var r historyRecord
			if decode(payload, &r) == nil {
				if id, err := headerID(r.Header); err == nil {
					yield(id[:])
				}
			}
		case tabAudit:
			var e store.AuditEntry
			if decode(payload, &e) == nil {
				yield(numberKey(e.Number))
			}
		}
	}
}

// compare holds what was read of a table against its stored sum. Equal sums
// prove that all keys and stored checksums are right, so that the names of
// damaged records can be trusted. A difference that damaged records explain is
// theirs; any other means that records are missing, doubled or old, and then
// nothing in the table can be trusted.
func (x *index) compare(tab table, actual sum) error {
	want := x.sums[tab]
	var bad []*badRecord
	for _, b := range x.bad {
		if b.tab == tab {
			bad = append(bad, b)
			b.nameKnown = true
		}
	}
	if want.Count != actual.Count {
		return damaged("bucket %q has %d records and should have %d", tab, actual.Count, want.Count)
	}
	missing := want.Hash - actual.Hash
	if missing == 0 {
		return nil
	}
	if len(bad) == 0 {
		return damaged("bucket %q holds other records than were written to it", tab)
	}
	if len(bad) <= 8 && explain(bad, missing) {
		return nil
	}
	for _, b := range bad {
		b.nameKnown = false
	}
	bad[0].excess = missing
	return nil
}

// explain finds alternatives of the damaged records that add up to missing.
func explain(bad []*badRecord, missing uint64) bool {
	if len(bad) == 0 {
		return missing == 0
	}
	if explain(bad[1:], missing) {
		return true
	}
	for _, d := range bad[0].diffs {
		if explain(bad[1:], missing-d.add) {
			bad[0].excess, bad[0].trueKey = d.add, d.key
			return true
		}
	}
	return false
}

// attribute finds the dataset of every damaged record.
func (x *index) attribute() {
	for _, b := range x.bad {
		if !b.nameKnown {
			continue
		}
		var err error
		key := b.certainKey()
		switch b.tab {
		case tabLive:
			b.dataset, err = parseLiveKey(key)
		case tabCleaning:
			var last string
			if b.dataset, last, err = parseTriple(key); err == nil {
				b.id, err = parseID([]byte(last))
			}
		case tabConditions:
			b.id, err = parseID(key)
		case tabPages, tabProgress:
			b.id, _, err = parsePageKey(key)
		}
		if q := x.seqs[b.id]; q != nil {
			b.dataset = q.key
		}
		b.nameKnown = err == nil
	}
}

// certainKey is the key as it was written.
func (b *badRecord) certainKey() []byte {
	if b.trueKey != nil {
		return b.trueKey
	}
	return b.key
}

// attributeLocks finds the holders of damaged locks among the headers, which
// are read a second time for that.
func (x *index) attributeLocks(f *pageFile, live boltBucket) error {
	locks := make(map[string]*badRecord)
	for _, b := range x.bad {
		if b.tab == tabLocks && b.nameKnown {
			b.nameKnown = false
			locks[string(b.certainKey())] = b
		}
	}
	if len(locks) == 0 {
		return nil
	}
	clear(f.used)
	return f.records(live, func(key, value []byte) error {
		k, err := parseLiveKey(key)
		if err != nil {
			return nil
		}
		raw, _, err := openHeader(key, value)
		if err != nil {
			return nil
		}
		h, err := decodeHeader(raw, k)
		if err != nil {
			return nil
		}
		for _, lock := range locksOf(h) {
			if b := locks[lock]; b != nil {
				b.nameKnown, b.dataset, b.id = true, k, h.ID
			}
		}
		return nil
	})
}

// hasBad reports whether a damaged record is in one of the tables.
func (x *index) hasBad(tabs ...table) bool {
	return slices.ContainsFunc(x.bad, func(b *badRecord) bool { return slices.Contains(tabs, b.tab) })
}
