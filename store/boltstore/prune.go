package boltstore

import (
	"context"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

var _ store.Pruner = (*Store)(nil)

// PruneHistory removes what is known of sequences that ended longer ago than
// olderThan; see [store.Pruner].
func (s *Store) PruneHistory(ctx context.Context, olderThan time.Duration) (int, error) {
	if olderThan < 0 {
		return 0, fmt.Errorf("boltstore: prune: %s is no age", olderThan)
	}
	before := s.now().Add(-olderThan)
	total := 0
	for c := range s.chunks(ctx, tabHistory, nil, false) {
		if c.err != nil {
			return total, fmt.Errorf("prune: %w", c.err)
		}
		var old []store.HistoryEntry
		for _, r := range c.records {
			e, err := decodeHistory(r.key, r.value)
			if err != nil {
				continue // damage is for a person to look at, not to be swept away
			}
			if e.Ended.Before(before) {
				old = append(old, e)
			}
		}
		if len(old) == 0 {
			continue
		}
		n := 0
		err := s.write(ctx, func(t *txn) error {
			n = 0
			for _, e := range old {
				s.mu.Lock()
				_, used := s.seqs[e.ID]
				s.mu.Unlock()
				if used || t.get(tabHistory, e.ID[:]) == nil {
					continue // still cleaning
				}
				t.del(tabHistory, e.ID[:])
				n++
				if e.State == commitstep.Abandoned && e.Detail == nil || t.hasProgress(e.ID) {
					t.then(func() {
						s.dropIDs = append(s.dropIDs, dropped{e.ID})
						s.collect()
					})
				}
			}
			return nil
		})
		if err != nil {
			return total, fmt.Errorf("prune: %w", err)
		}
		total += n
	}
	return total, nil
}
