package boltstore

import (
	"bytes"
	"context"
	"errors"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// This store forgets the attempts of a sequence when it ends. Those that came
// with a copy of a store that keeps them are kept, to go on with the next copy:
// as progress records with Past set, until the history is pruned.

// pastPage is a progress record that was kept so.
type pastPage struct {
	Past bool `json:"past"`
	progressPage
}

// attempts imports those of a sequence with an outcome.
func (im *importer) attempts(c *store.CopyAttempts) error {
	p := &pastPage{Past: true}
	for i, x := range c.Steps {
		if c.Number < 0 || i < 0 || i >= store.PageSize {
			return errors.New("boltstore: import: attempts at a step that no page has")
		}
		*p.note(i) = stepNote{Attempts: x.Attempts, Count: x.Count, Failed: x.Failed}
	}
	return im.add(tabProgress, commitstep.RecordProgress, pageKey(c.Sequence, c.Number), p)
}

// exportAttempts gives what attempts was told of a sequence.
func (s *Store) exportAttempts(ctx context.Context, id uuid.UUID, give func(store.CopyItem) bool) (bool, error) {
	for from := 0; ; {
		var page *pastPage
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			c := rtx{tx}.cursor(tabProgress)
			k, v := c.Seek(pageKey(id, from))
			if !bytes.HasPrefix(k, id[:]) {
				return nil
			}
			_, n, err := parsePageKey(k)
			if err != nil {
				return damaged("%v", err)
			}
			from, page = n, new(pastPage)
			return openRecord(commitstep.RecordProgress, k, v, page)
		})
		if err != nil || page == nil {
			return true, err
		}
		if page.Past {
			c := &store.CopyAttempts{Sequence: id, Number: from, Steps: map[int]commitstep.Progress{}}
			for i, x := range page.Steps {
				c.Steps[i] = *x
			}
			if !give(store.CopyItem{Attempts: c}) {
				return false, nil
			}
		}
		from++
	}
}

// past reports whether a progress record was kept for its attempts.
func (t *txn) past(key []byte) bool {
	var p pastPage
	rec := t.get(tabProgress, key)
	return rec != nil && openRecord(commitstep.RecordProgress, key, rec, &p) == nil && p.Past
}

// hasProgress reports whether there is any progress record of a sequence.
func (t *txn) hasProgress(id uuid.UUID) bool {
	k, _ := t.bucket(tabProgress).Cursor().Seek(id[:])
	return bytes.HasPrefix(k, id[:])
}
