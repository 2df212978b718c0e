package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// blocks reports whether an unknown name of this record blocks the store.
func (b *badRecord) blocks() bool {
	return b.tab != tabHistory && b.tab != tabAudit && b.tab != tabAside
}

// sequenceRecord reports whether the record is part of a sequence, so that the
// sequence's dataset is what cannot be read.
func (b *badRecord) sequenceRecord() bool {
	switch b.tab {
	case tabLive, tabCleaning, tabPages, tabConditions, tabProgress, tabLocks:
		return true
	}
	return false
}

// quarantine takes over what the index found damaged, and the sequences
// concerned out of reach of drivers. s.mu must be held.
func (s *Store) quarantine(x *index) {
	s.bad = x.bad
	for _, b := range s.bad {
		// A sequence whose header is damaged is not in the index at all.
		if b.nameKnown && b.sequenceRecord() {
			delete(s.seqs, b.id)
		}
	}
}

// stray reports whether the record is part of a sequence that has no readable
// header: the header is what is quarantined then, or the record is the rest of
// an interrupted put.
func (b *badRecord) stray() bool {
	return b.nameKnown && b.sequenceRecord() && b.dataset == (commitstep.Key{})
}

// distrust sets a sequence aside whose records turned out to be unreadable
// while the store was open. Only the committer calls it.
func (s *Store) distrust(q *seq, err error) {
	s.paths.forget()
	s.mu.Lock()
	defer s.mu.Unlock()
	tab, key := q.where()
	s.bad = append(s.bad, &badRecord{tab: tab, key: key, err: err, newer: !commitstep.IsDamage(err), id: q.id, dataset: q.key, nameKnown: true})
	delete(s.seqs, q.id)
	delete(s.queued, q)
}

// readable returns ErrDamaged, or ErrNewerFormat, when the sequence of key is
// quarantined. s.mu must be held.
func (s *Store) readable(key commitstep.Key) error {
	for _, b := range s.bad {
		if b.nameKnown && b.sequenceRecord() && b.dataset == key && b.tab != tabCleaning {
			return b.error()
		}
	}
	return nil
}

// unreadable is readable by sequence id. s.mu must be held.
func (s *Store) unreadable(id uuid.UUID) error {
	for _, b := range s.bad {
		if b.id == id && id != uuid.Nil && b.sequenceRecord() {
			return b.error()
		}
	}
	return nil
}

// nameless is the error of a header in tab whose sequence id is not known, if
// there is one. s.mu must be held.
func (s *Store) nameless(tab table) error {
	for _, b := range s.bad {
		if b.tab == tab && b.id == uuid.Nil {
			return b.error()
		}
	}
	return nil
}

// noneOf returns ErrDamaged when it is not certain that a dataset has neither a
// live nor a cleaning sequence.
func (s *Store) noneOf(key commitstep.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bad {
		if (b.tab == tabLive || b.tab == tabCleaning) && (!b.nameKnown || b.dataset == key) {
			return b.error()
		}
	}
	return nil
}

// hidden returns ErrDamaged when the record of key is there, under another key
// because its own was damaged.
func (s *Store) hidden(tab table, key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bad {
		if b.tab == tab && bytes.Equal(b.certainKey(), key) {
			return b.error()
		}
	}
	return nil
}

// absent returns ErrDamaged when the table has a record of which it is not
// certain that it was not once kept under key: then key cannot be said to have
// no record.
func (s *Store) absent(tab table, key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.bad {
		if b.tab == tab && (!b.nameKnown || bytes.Equal(b.certainKey(), key)) {
			return b.error()
		}
	}
	return nil
}

func (b *badRecord) error() error {
	name := "a dataset whose name cannot be read"
	if b.dataset != (commitstep.Key{}) {
		name = "dataset " + b.dataset.String()
	}
	return fmt.Errorf("%s: record %s: %w; see `commitstep quarantine list`", name, b.where(), b.err)
}

// where names the record for people.
func (b *badRecord) where() string {
	var parts []string
	rest := b.key
	switch b.tab {
	case tabLive, tabCleaning, tabPlanIDs, tabWatermarks:
		for {
			text, more, err := cutPart(rest)
			if err != nil {
				break
			}
			parts, rest = append(parts, fmt.Sprintf("%q", text)), more
		}
		if b.tab == tabCleaning {
			if id, err := parseID(rest); err == nil {
				return b.tab.String() + "/" + strings.Join(append(parts, id.String()), "/")
			}
		}
		return b.tab.String() + "/" + strings.Join(append(parts, fmt.Sprintf("%q", rest)), "/")
	case tabPages, tabProgress:
		if id, n, err := parsePageKey(b.key); err == nil {
			return fmt.Sprintf("%s/%s/%d", b.tab, id, n)
		}
	case tabConditions, tabHistory:
		if id, err := parseID(b.key); err == nil {
			return fmt.Sprintf("%s/%s", b.tab, id)
		}
	case tabLocks:
		return fmt.Sprintf("%s/%q", b.tab, b.key)
	}
	return fmt.Sprintf("%s/%x", b.tab, b.key)
}

// Quarantine lists what cannot be read of sequences, and what cannot even be
// named. Damaged watermarks, plan ids, history and audit with a readable name
// are not listed: reading those very records fails, and Check finds them.
func (s *Store) Quarantine(ctx context.Context) ([]commitstep.Quarantined, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	var out []commitstep.Quarantined
	for _, b := range s.bad {
		if b.nameKnown && !b.sequenceRecord() || !b.nameKnown && !b.blocks() || b.stray() {
			continue
		}
		q := commitstep.Quarantined{ID: b.id, Where: b.where(), Problem: b.err.Error(), Newer: b.newer, NameKnown: b.nameKnown}
		if b.nameKnown {
			q.Key = b.dataset
		}
		out = append(out, q)
	}
	return out, nil
}
