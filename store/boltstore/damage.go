package boltstore

import (
	"bytes"
	"iter"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

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
		case tabPaths:
			// The record does not say of which path it is: any one byte of the
			// digest changed.
			for i := range len(key) * 255 {
				k := bytes.Clone(key)
				k[i/255] ^= byte(i%255 + 1)
				if !yield(k) {
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
