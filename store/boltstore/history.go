package boltstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

func readSums(r rtx) (sums, error) {
	var all sums
	rec := r.get(tabMeta, keySums)
	if rec == nil {
		return all, damaged("the record that counts all others is missing")
	}
	err := openRecord(commitstep.RecordMeta, keySums, rec, &all)
	return all, err
}

// ListHistory yields outcomes, the newest sequence first. Entries that cannot
// be read are passed over, and the range then ends with an error, as it does
// when entries are missing.
func (s *Store) ListHistory(ctx context.Context, f store.HistoryFilter) iter.Seq2[store.HistoryEntry, error] {
	return func(yield func(store.HistoryEntry, error) bool) {
		var w tableWatch
		n := 0
		for c := range s.chunks(ctx, tabHistory, nil, true) {
			if c.err != nil {
				yield(store.HistoryEntry{}, c.err)
				return
			}
			w.see(c)
			for _, r := range c.records {
				e, err := decodeHistory(r.key, r.value)
				if err != nil {
					w.fault(fmt.Errorf("history of sequence %x: %w", r.key, err))
					continue
				}
				if f.Job != "" && e.Job != f.Job || f.Match != nil && !f.Match(e.Dataset) {
					continue
				}
				if !yield(e, nil) {
					return
				}
				if n++; f.Limit > 0 && n == f.Limit {
					return
				}
			}
		}
		if err := w.verdict(ctx, s, tabHistory); err != nil {
			yield(store.HistoryEntry{}, err)
		}
	}
}

// LookupHistory finds the outcome of a sequence; ErrNotFound without one,
// ErrDamaged when it cannot be read.
func (s *Store) LookupHistory(ctx context.Context, id uuid.UUID) (store.HistoryEntry, error) {
	var e store.HistoryEntry
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		rec := rtx{tx}.get(tabHistory, id[:])
		if rec == nil {
			if err := s.absent(tabHistory, id[:]); err != nil {
				return err
			}
			return fmt.Errorf("history of sequence %s: %w", id, commitstep.ErrNotFound)
		}
		var err error
		if e, err = decodeHistory(id[:], rec); err != nil {
			err = fmt.Errorf("history of sequence %s: %w", id, err)
		}
		return err
	})
	return e, err
}

// tableWatch holds what a list saw against the table's sum.
type tableWatch struct {
	seen  sum
	first sum
	last  sum
	any   bool
	bad   int
	err   error
}

func (w *tableWatch) see(c chunk) {
	if !w.any {
		w.first, w.any = c.sum, true
	}
	w.last = c.sum
	for _, r := range c.records {
		w.seen.add(r.key, r.value)
	}
}

// fault keeps the first damaged entry for the end of the range.
func (w *tableWatch) fault(err error) {
	w.bad++
	if w.err == nil {
		w.err = err
	}
}

// verdict is the error that ends the range.
func (w *tableWatch) verdict(ctx context.Context, s *Store, tab table) error {
	if w.err != nil {
		return fmt.Errorf("%d entries of %q cannot be read, the first: %w; run `commitstep store check`", w.bad, tab, w.err)
	}
	want := w.last
	if w.first != w.last {
		// The table grew while it was listed, so the list is no whole; count
		// keys and checksums once more in one transaction.
		w.seen = sum{}
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			r := rtx{tx}
			if err := openRecordMeta(r, &want, tab); err != nil {
				return err
			}
			c := r.cursor(tab)
			for k, v := c.First(); k != nil; k, v = c.Next() {
				w.seen.add(k, v)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if w.seen != want {
		return damaged("%q has %d entries and should have %d, or holds others than were written; run `commitstep store check`", tab, w.seen.Count, want.Count)
	}
	return nil
}

// ListAudit yields decisions, the oldest first, and ends with an error when
// entries are missing or cannot be read.
func (s *Store) ListAudit(ctx context.Context) iter.Seq2[store.AuditEntry, error] {
	return func(yield func(store.AuditEntry, error) bool) {
		var w tableWatch
		for c := range s.chunks(ctx, tabAudit, nil, false) {
			if c.err != nil {
				yield(store.AuditEntry{}, c.err)
				return
			}
			w.see(c)
			for _, r := range c.records {
				var e store.AuditEntry
				if err := openRecord(commitstep.RecordAudit, r.key, r.value, &e); err != nil {
					w.fault(fmt.Errorf("audit entry %x: %w", r.key, err))
					continue
				}
				if !yield(e, nil) {
					return
				}
			}
		}
		if err := w.verdict(ctx, s, tabAudit); err != nil {
			yield(store.AuditEntry{}, err)
		}
	}
}

// RecordAudit appends an entry for an action that happened outside the store.
// Its number and time are set here.
func (s *Store) RecordAudit(ctx context.Context, e store.AuditEntry) error {
	if err := checkPerson(e.Person); err != nil {
		return err
	}
	if e.Action == "" {
		return fmt.Errorf("boltstore: an audit entry needs an action")
	}
	return s.write(ctx, func(t *txn) error {
		t.audit(e)
		return nil
	})
}

// audit appends e with the next number. Numbers have no gaps since they are
// given in the transaction, and nothing ever leaves the table.
func (t *txn) audit(e store.AuditEntry) {
	e.Number = 1
	if k, _ := t.bucket(tabAudit).Cursor().Last(); len(k) == 8 {
		e.Number = binary.BigEndian.Uint64(k) + 1
	}
	e.At = t.s.now()
	key := numberKey(e.Number)
	rec, err := sealRecord(commitstep.RecordAudit, key, e)
	if err != nil {
		t.err = err
		return
	}
	t.put(tabAudit, key, rec)
}

// checkPerson refuses decisions that nobody could be asked about later.
func checkPerson(p store.Person) error {
	if strings.TrimSpace(p.Name) == "" {
		return fmt.Errorf("%w: it needs the name of the person who decides", commitstep.ErrDecision)
	}
	if n := utf8.RuneCountInString(strings.TrimSpace(p.Reason)); n < store.MinReason {
		return fmt.Errorf("%w: the reason has %d characters and needs at least %d; say why", commitstep.ErrDecision, n, store.MinReason)
	}
	return nil
}
