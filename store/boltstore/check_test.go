package boltstore

import (
	"context"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// Records that are sound one by one, and counted, but do not fit together.
func TestCheckFindsWhatDoesNotFitTogether(t *testing.T) {
	t.Parallel()
	seal := func(tx *txn, tab table, key []byte, payload string) {
		tx.put(tab, key, commitstep.Seal(recordTypes[tab], key, []byte(payload)))
	}
	stranger := uuid.New()
	for _, c := range []struct {
		name, says string
		change     func(tx *txn, h *hurt)
	}{
		{"a lock is missing", `lock "lock fine" is missing`, func(tx *txn, _ *hurt) { tx.del(tabLocks, []byte("lock fine")) }},
		{"a lock of nobody", "not live", func(tx *txn, _ *hurt) {
			seal(tx, tabLocks, []byte("x"), `{"id":"`+stranger.String()+`","job":"j","dataset":"d"}`)
		}},
		{"a lock of another", "is held by sequence", func(tx *txn, h *hurt) {
			seal(tx, tabLocks, []byte("lock fine"), `{"id":"`+h.ids["hurt"].String()+`","job":"job","dataset":"hurt"}`)
		}},
		{"a page is missing", "page 1 of its 1024 steps is missing", func(tx *txn, h *hurt) { tx.del(tabPages, pageKey(h.ids["long"], 1)) }},
		{"a page is short", "has 1 steps and should have 512", func(tx *txn, h *hurt) {
			seal(tx, tabPages, pageKey(h.ids["long"], 0), `[{"stage":0,"kind":"k","version":1}]`)
		}},
		{"a page is no list", "cannot be decoded", func(tx *txn, h *hurt) { seal(tx, tabPages, pageKey(h.ids["long"], 0), `{}`) }},
		{"a condition of nobody", "has no header", func(tx *txn, _ *hurt) { seal(tx, tabConditions, stranger[:], `{"state":"parked"}`) }},
		{"a progress of nobody", "has no header", func(tx *txn, _ *hurt) { seal(tx, tabProgress, pageKey(stranger, 0), `{}`) }},
		{"a completed one among the live", "is completed is kept in", func(tx *txn, h *hurt) {
			id := h.ids["hurt"]
			seal(tx, tabConditions, id[:], `{"state":"completed","version":9,"epoch":9}`)
		}},
		{"a plan id under another key", "plan id", func(tx *txn, _ *hurt) {
			seal(tx, tabPlanIDs, tripleKey(dataset("x"), "p"), `{"key":{"job":"job","dataset":"y"},"planId":"p","state":"completed"}`)
		}},
		{"a watermark under another key", `watermark "other"`, func(tx *txn, _ *hurt) {
			seal(tx, tabWatermarks, pairKey("job", "src"), `{"job":"job","source":"other","watermark":{"value":1}}`)
		}},
		{"a gap in the audit", "number 3 follows number 1", func(tx *txn, _ *hurt) {
			seal(tx, tabAudit, numberKey(3), `{"number":3,"action":"x"}`)
		}},
		{"a history under another key", "is kept under", func(tx *txn, h *hurt) {
			seal(tx, tabHistory, stranger[:], `{"header":{"id":"`+h.ids["done"].String()+`"},"state":"completed"}`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := makeHurt(t)
			s := open(t, h.path)
			require.Empty(t, problems(t, s))
			require.NoError(t, s.write(t.Context(), func(tx *txn) error { c.change(tx, h); return tx.err }))
			found := problems(t, s)
			require.NotEmpty(t, found)
			require.Contains(t, found[0], c.says)
		})
	}
}

func TestCheckBoundsWhatItLists(t *testing.T) {
	t.Parallel()
	h := makeHurt(t)
	s := open(t, h.path)
	require.NoError(t, s.write(t.Context(), func(tx *txn) error {
		for range maxProblems + 5 {
			id := uuid.New()
			tx.put(tabConditions, id[:], commitstep.Seal(commitstep.RecordCondition, id[:], []byte("{}")))
		}
		return nil
	}))
	found := problems(t, s)
	require.Len(t, found, maxProblems+1)
	require.Equal(t, "and 5 more problems", found[maxProblems])
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range s.Check(cancelled) {
		require.ErrorIs(t, err, context.Canceled)
	}
}

// What a crash leaves between two transactions is collected at the next open.
func TestRestsOfAnInterruptedPutAreCollected(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	s := open(t, h.path)
	rest := uuid.New()
	require.NoError(t, s.write(ctx, func(tx *txn) error {
		for n := range 3 * collectStep {
			k := pageKey(rest, n)
			tx.put(tabPages, k, commitstep.Seal(commitstep.RecordPage, k, []byte("[]")))
		}
		tx.put(tabConditions, rest[:], commitstep.Seal(commitstep.RecordCondition, rest[:], []byte("{}")))
		return nil
	}))
	require.NoError(t, s.Close())
	s = open(t, h.path)
	require.Empty(t, problems(t, s)) // waits for the collection first
	left := 0
	for c := range s.chunks(ctx, tabPages, nil, false) {
		require.NoError(t, c.err)
		left += len(c.records)
	}
	require.Equal(t, 2, left, "those of the live one stay")
	p, err := s.Steps(ctx, h.ids["long"], 1)
	require.NoError(t, err)
	require.Len(t, p.Steps, store.PageSize)
	require.NoError(t, s.Close())

	// But not while a header cannot be read, whose they may be.
	s = open(t, h.path)
	require.NoError(t, s.write(ctx, func(tx *txn) error {
		k := pageKey(rest, 0)
		tx.put(tabPages, k, commitstep.Seal(commitstep.RecordPage, k, []byte("[]")))
		return nil
	}))
	require.NoError(t, s.Close())
	rewrite(t, h.path, tabLive, liveKey(dataset("hurt")), spoil)
	s = open(t, h.path)
	require.NoError(t, s.waitCollected(ctx))
	require.NoError(t, s.view(ctx, func(tx *bbolt.Tx) error {
		require.NotNil(t, rtx{tx}.get(tabPages, pageKey(rest, 0)))
		return nil
	}))
}

// The pages of a long sequence that ended go in the background.
func TestPagesOfAnEndedSequenceAreCollected(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t, nil)
	me := join(t, s)
	for _, cleaning := range []bool{false, true} {
		l := put(t, s, me, dataset("long"), 100*store.PageSize)
		require.NoError(t, s.Complete(ctx, fenceOf(l), cleaning, store.HistoryNotes{}))
		if cleaning {
			require.NoError(t, s.waitCollected(ctx))
			_, err := s.Steps(ctx, l.ID, 99)
			require.NoError(t, err)
			require.NoError(t, s.Cleaned(ctx, fenceOf(l), ""))
			require.NoError(t, s.write(ctx, s.flushOp))
		}
		require.NoError(t, s.waitCollected(ctx))
		for c := range s.chunks(ctx, tabPages, nil, false) {
			require.NoError(t, c.err)
			require.Empty(t, c.records)
		}
	}
}
