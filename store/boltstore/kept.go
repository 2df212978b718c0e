package boltstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

var _ store.StepKeeper = (*Store)(nil)

// The steps of a long abandoned sequence stay in the file, since only they
// tell its staged files from others. Its history record says that they are no
// garbage, so no further record is needed that could contradict it.

// keeps reports whether a record without a header belongs to an abandoned
// sequence, or holds the attempts of one with an outcome. One whose history
// cannot be read is kept too.
func (t *txn) keeps(o orphan) bool {
	if o.tab != tabPages && o.tab != tabProgress {
		return false
	}
	id, _, err := parsePageKey(o.key)
	if err != nil {
		return false
	}
	rec := t.get(tabHistory, id[:])
	if rec == nil {
		return false
	}
	e, err := decodeHistory(id[:], rec)
	return err != nil || e.State == commitstep.Abandoned || o.tab == tabProgress && t.past(o.key)
}

// keptSteps is Steps for a long abandoned sequence.
func (s *Store) keptSteps(ctx context.Context, id uuid.UUID, n int) (store.Page, error) {
	page := store.Page{Number: n}
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		r := rtx{tx}
		if n < 0 {
			return commitstep.ErrNotFound
		}
		if err := abandoned(r, id); err != nil {
			return err
		}
		steps, progress, err := readLongPage(r, s, id, n)
		if err != nil {
			return err
		}
		page.Steps = steps
		page.Progress = make([]commitstep.Progress, len(steps))
		for i := range page.Progress {
			page.Progress[i] = progress.of(i)
		}
		return nil
	})
	if err != nil {
		return store.Page{}, err
	}
	return page, nil
}

// abandoned returns nil when history says so of the sequence.
func abandoned(r reads, id uuid.UUID) error {
	rec := r.get(tabHistory, id[:])
	if rec == nil {
		return fmt.Errorf("history of sequence %s: %w", id, commitstep.ErrNotFound)
	}
	e, err := decodeHistory(id[:], rec)
	if err != nil {
		return fmt.Errorf("history of sequence %s: %w", id, err)
	}
	if e.State != commitstep.Abandoned {
		return fmt.Errorf("sequence %s is %s, not abandoned: %w", id, e.State, commitstep.ErrNotFound)
	}
	return nil
}

// DropSteps removes the kept steps of an abandoned sequence; see
// [store.StepKeeper]. It waits for the removal, in bounded steps.
func (s *Store) DropSteps(ctx context.Context, id uuid.UUID) error {
	err := s.write(ctx, func(t *txn) error {
		if err := s.mayRun(); err != nil {
			return err
		}
		if err := abandoned(t, id); err != nil {
			return err
		}
		t.then(func() {
			s.dropIDs = append(s.dropIDs, dropped{id})
			s.collect()
		})
		return nil
	})
	if err != nil {
		return err
	}
	return s.waitCollected(ctx)
}

// orKept is the answer for a sequence that is not live: its kept steps, or the
// error that there is no such sequence.
func (s *Store) orKept(ctx context.Context, id uuid.UUID, n int, absent error) (store.Page, error) {
	page, err := s.keptSteps(ctx, id, n)
	if errors.Is(err, commitstep.ErrNotFound) {
		return store.Page{}, absent
	}
	return page, err
}
