package boltstore

import (
	"bytes"

	"path/filepath"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// edit changes a closed store's file behind its back, through bbolt, so that
// the structure stays sound and only records change.
func edit(t *testing.T, path string, fn func(b *bbolt.Bucket) error, tab table) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error { return fn(tx.Bucket([]byte(tab.String()))) }))
	require.NoError(t, db.Close())
}

// rewrite replaces the record under key by what change makes of it.
func rewrite(t *testing.T, path string, tab table, key []byte, change func([]byte) []byte) {
	t.Helper()
	edit(t, path, func(b *bbolt.Bucket) error {
		old := b.Get(key)
		require.NotNil(t, old, "%s %x", tab, key)
		return b.Put(key, change(bytes.Clone(old)))
	}, tab)
}

func spoil(b []byte) []byte { b[len(b)-1] ^= 4; return b }

// hurt is a store in which something of dataset "hurt" was damaged; "fine" is
// another pending one, "done" a completed one.
type hurt struct {
	path  string
	ids   map[string]uuid.UUID
	marks commitstep.WatermarkKey
}

func makeHurt(t *testing.T) *hurt {
	t.Helper()
	ctx := t.Context()
	h := &hurt{path: filepath.Join(t.TempDir(), "hurt.db"), ids: map[string]uuid.UUID{}, marks: commitstep.WatermarkKey{Job: "job", Source: "src"}}
	s, err := Init(h.path, nil)
	require.NoError(t, err)
	me := join(t, s)
	for _, d := range []string{"hurt", "fine", "done", "long"} {
		n := 3
		if d == "long" {
			n = 2 * store.PageSize
		}
		dr := draft(dataset(d), n, func(x *commitstep.Header) { x.Locks = []string{"lock " + d}; x.PlanID = "plan" })
		l, err := s.Put(ctx, dr, me)
		require.NoError(t, err)
		h.ids[d] = l.ID
		require.NoError(t, s.Record(ctx, fenceOf(l), true, store.Event{Type: store.EventDone, Step: 1}))
		if d == "done" {
			require.NoError(t, s.Complete(ctx, fenceOf(l), false, store.HistoryNotes{}))
		}
	}
	require.NoError(t, s.SetWatermark(ctx, commitstep.WatermarkMove{WatermarkKey: h.marks, To: commitstep.Int(5)}, somebody))
	require.NoError(t, s.Close())
	return h
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func problems(t *testing.T, s *Store) []string {
	t.Helper()
	require.NoError(t, s.waitCollected(t.Context()))
	var out []string
	for p, err := range s.Check(t.Context()) {
		require.NoError(t, err)
		out = append(out, p)
	}
	return out
}

func TestADamagedRecordSetsItsDatasetAside(t *testing.T) {
	t.Parallel()
	id := func(h *hurt, d string) []byte { v := h.ids[d]; return v[:] }
	for _, c := range []struct {
		name    string
		dataset string
		tab     table
		key     func(h *hurt) []byte
	}{
		{"header", "hurt", tabLive, func(*hurt) []byte { return liveKey(dataset("hurt")) }},
		{"condition", "hurt", tabConditions, func(h *hurt) []byte { return id(h, "hurt") }},
		{"lock", "hurt", tabLocks, func(*hurt) []byte { return []byte("lock hurt") }},
		{"page", "long", tabPages, func(h *hurt) []byte { return pageKey(h.ids["long"], 1) }},
		{"progress", "long", tabProgress, func(h *hurt) []byte { return pageKey(h.ids["long"], 0) }},
		{"header of a long one", "long", tabLive, func(*hurt) []byte { return liveKey(dataset("long")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			h := makeHurt(t)
			rewrite(t, h.path, c.tab, c.key(h), spoil)
			key := dataset(c.dataset)
			for range 2 {
				s := open(t, h.path)
				q, err := s.Quarantine(ctx)
				require.NoError(t, err)
				require.Len(t, q, 1)
				require.True(t, q[0].NameKnown)
				require.Equal(t, key, q[0].Key)
				require.Contains(t, q[0].Problem, "checksum")
				require.False(t, q[0].Newer)
				_, err = s.Get(ctx, key)
				require.ErrorIs(t, err, commitstep.ErrDamaged)
				_, err = s.Find(ctx, h.ids[c.dataset])
				require.ErrorIs(t, err, commitstep.ErrDamaged)
				_, err = s.Steps(ctx, h.ids[c.dataset], 0)
				require.ErrorIs(t, err, commitstep.ErrDamaged)
				me := join(t, s)
				_, err = s.Put(ctx, draft(key, 1, nil), me)
				require.ErrorIs(t, err, commitstep.ErrDamaged)
				_, err = s.Put(ctx, draft(dataset("thief"), 1, func(x *commitstep.Header) { x.Locks = []string{"lock " + c.dataset} }), me)
				require.Error(t, err, "its locks are not free")
				_, err = s.ClaimOne(ctx, me, key)
				require.ErrorIs(t, err, commitstep.ErrDamaged)
				require.Len(t, problems(t, s), 1)

				// The others go on.
				claimed, err := s.Claim(ctx, me, store.ClaimFilter{})
				require.NoError(t, err)
				require.Len(t, claimed, 2)
				for _, l := range claimed {
					require.NotEqual(t, key, l.Key)
					require.NoError(t, s.Record(ctx, fenceOf(l), true, store.Event{Type: store.EventDone, Step: 0}))
				}
				other := put(t, s, me, dataset("another"), 3)
				require.NoError(t, s.Complete(ctx, fenceOf(other), false, store.HistoryNotes{}))
				require.ErrorIs(t, s.ReleaseQuarantine(ctx, key, somebody), commitstep.ErrDamaged)
				require.NoError(t, s.Close())
			}

			s := open(t, h.path)
			require.NoError(t, s.AbandonQuarantine(ctx, key, somebody))
			require.ErrorIs(t, s.AbandonQuarantine(ctx, key, somebody), commitstep.ErrNotFound)
			rows := 0
			for e, err := range s.ListAudit(ctx) {
				require.NoError(t, err)
				rows++
				if e.Action == "quarantine.abandon" {
					require.Equal(t, key, e.Key)
				}
			}
			require.Equal(t, 2, rows)
			aside := 0
			for ch := range s.chunks(ctx, tabAside, nil, false) {
				require.NoError(t, ch.err)
				aside += len(ch.records)
			}
			require.Equal(t, 1, aside, "the damaged bytes are kept")
			me := join(t, s)
			l, err := s.Put(ctx, draft(key, 3, func(x *commitstep.Header) { x.Locks = []string{"lock " + c.dataset} }), me)
			require.NoError(t, err, "key and lock are free")
			require.NoError(t, s.Complete(ctx, fenceOf(l), false, store.HistoryNotes{}))
			require.NoError(t, s.Close())
			s = open(t, h.path)
			require.Empty(t, problems(t, s))
			q, err := s.Quarantine(ctx)
			require.NoError(t, err)
			require.Empty(t, q)
		})
	}
}

func TestARecordOfANewerFormatIsLeftPending(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	key := liveKey(dataset("hurt"))
	var original []byte
	rewriteWithSum(t, h.path, tabLive, key, func(b []byte) []byte {
		original = bytes.Clone(b)
		return commitstep.SealVersion(commitstep.RecordHeader, 7, key, b[8:])
	})
	s := open(t, h.path)
	q, err := s.Quarantine(ctx)
	require.NoError(t, err)
	require.Len(t, q, 1)
	require.True(t, q[0].Newer)
	require.Equal(t, dataset("hurt"), q[0].Key)
	require.Contains(t, q[0].Problem, "7")
	require.Contains(t, q[0].Problem, "1")
	_, err = s.Get(ctx, dataset("hurt"))
	require.ErrorIs(t, err, commitstep.ErrNewerFormat)
	me := join(t, s)
	_, err = s.Put(ctx, draft(dataset("hurt"), 1, nil), me)
	require.ErrorIs(t, err, commitstep.ErrNewerFormat)
	claimed, err := s.Claim(ctx, me, store.ClaimFilter{})
	require.NoError(t, err)
	require.Len(t, claimed, 2)
	require.ErrorIs(t, s.ReleaseQuarantine(ctx, dataset("hurt"), somebody), commitstep.ErrNewerFormat)
	require.NoError(t, s.Close())
	// A program that can read it finds it as it was.
	rewriteWithSum(t, h.path, tabLive, key, func([]byte) []byte { return original })
	s = open(t, h.path)
	l, err := s.Get(ctx, dataset("hurt"))
	require.NoError(t, err)
	require.Equal(t, commitstep.Pending, l.State)
}

// rewriteWithSum is rewrite by a program that keeps the sums.
func rewriteWithSum(t *testing.T, path string, tab table, key []byte, change func([]byte) []byte) {
	t.Helper()
	var was, is []byte
	rewrite(t, path, tab, key, func(b []byte) []byte {
		was = bytes.Clone(b)
		is = change(b)
		return is
	})
	rewrite(t, path, tabMeta, keySums, func(b []byte) []byte {
		var all sums
		require.NoError(t, openRecord(commitstep.RecordMeta, keySums, b, &all))
		all[tab].remove(key, was)
		all[tab].add(key, is)
		rec, err := sealRecord(commitstep.RecordMeta, keySums, all)
		require.NoError(t, err)
		return rec
	})
}

func TestAReleasedRecordCountsAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	key := liveKey(dataset("hurt"))
	rewrite(t, h.path, tabLive, key, spoil)
	s := open(t, h.path)
	// The repair: the bytes are right again, while the store is open.
	require.NoError(t, s.write(ctx, func(t *txn) error {
		t.wrote = true
		return t.bucket(tabLive).Put(key, spoil(bytes.Clone(t.get(tabLive, key))))
	}))
	require.NoError(t, s.ReleaseQuarantine(ctx, dataset("hurt"), somebody))
	l, err := s.Get(ctx, dataset("hurt"))
	require.NoError(t, err)
	require.Equal(t, h.ids["hurt"], l.ID)
	got, err := s.ClaimOne(ctx, join(t, s), dataset("hurt"))
	require.NoError(t, err)
	require.NoError(t, s.Complete(ctx, fenceOf(got), false, store.HistoryNotes{}))
	require.Empty(t, problems(t, s))
}

func TestADamagedKeyIsFoundByWhatTheRecordSays(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	edit(t, h.path, func(b *bbolt.Bucket) error {
		v := bytes.Clone(b.Get(liveKey(dataset("hurt"))))
		require.NoError(t, b.Delete(liveKey(dataset("hurt"))))
		return b.Put(liveKey(dataset("hurT")), v)
	}, tabLive)
	s := open(t, h.path)
	q, err := s.Quarantine(ctx)
	require.NoError(t, err)
	require.Len(t, q, 1)
	require.True(t, q[0].NameKnown)
	require.Equal(t, dataset("hurt"), q[0].Key)
	_, err = s.Get(ctx, dataset("hurt"))
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	_, err = s.Put(ctx, draft(dataset("hurt"), 1, nil), join(t, s))
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	require.NoError(t, s.AbandonQuarantine(ctx, dataset("hurt"), somebody))
	require.NoError(t, s.Close())
	s = open(t, h.path)
	require.Empty(t, problems(t, s))
}

func TestWithoutAReadableNameNoPlanIsStored(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	edit(t, h.path, func(b *bbolt.Bucket) error {
		v := bytes.Clone(b.Get(liveKey(dataset("hurt"))))
		require.NoError(t, b.Delete(liveKey(dataset("hurt"))))
		return b.Put(liveKey(dataset("hurT")), spoil(v))
	}, tabLive)
	s := open(t, h.path)
	q, err := s.Quarantine(ctx)
	require.NoError(t, err)
	require.Len(t, q, 1)
	require.False(t, q[0].NameKnown)
	require.Equal(t, commitstep.Key{}, q[0].Key)
	me := join(t, s)
	_, err = s.Put(ctx, draft(dataset("new"), 1, nil), me)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	_, err = s.Get(ctx, dataset("never stored"))
	require.ErrorIs(t, err, commitstep.ErrDamaged, "it may be the one")
	// What is there goes on.
	claimed, err := s.Claim(ctx, me, store.ClaimFilter{})
	require.NoError(t, err)
	require.Len(t, claimed, 2)
	require.NoError(t, s.Complete(ctx, fenceOf(claimed[0]), false, store.HistoryNotes{}))
	require.NoError(t, s.AbandonQuarantine(ctx, commitstep.Key{}, somebody))
	_, err = s.Put(ctx, draft(dataset("new"), 1, nil), me)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	s = open(t, h.path)
	require.Empty(t, problems(t, s))
}

func TestADamagedWatermarkIsNeverNone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	rewrite(t, h.path, tabWatermarks, pairKey("job", "src"), spoil)
	s := open(t, h.path)
	me := join(t, s)
	_, err := s.Watermark(ctx, h.marks)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	m := commitstep.WatermarkMove{WatermarkKey: h.marks, To: commitstep.Int(9), Token: uuid.New()}
	_, err = s.Put(ctx, draft(dataset("x"), 1, func(x *commitstep.Header) { x.Moves = []commitstep.WatermarkMove{m} }), me)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	require.ErrorIs(t, s.SetWatermark(ctx, m, somebody), commitstep.ErrDamaged)
	fine := 0
	for _, err := range s.ListWatermarks(ctx, "") {
		require.ErrorIs(t, err, commitstep.ErrDamaged)
		fine++
	}
	require.Equal(t, 1, fine)
	q, err := s.Quarantine(ctx)
	require.NoError(t, err)
	require.Empty(t, q, "no dataset is concerned")
	require.NotEmpty(t, problems(t, s))
	require.NoError(t, s.AbandonQuarantine(ctx, commitstep.Key{Job: "job", Dataset: "src"}, somebody))
	require.NoError(t, s.SetWatermark(ctx, m, somebody))
	require.NoError(t, s.Close())
	s = open(t, h.path)
	require.Empty(t, problems(t, s))
}

func TestADamagedPlanIDBlocksThatPlan(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := makeHurt(t)
	rewrite(t, h.path, tabPlanIDs, tripleKey(dataset("done"), "plan"), spoil)
	s := open(t, h.path)
	_, err := s.LookupPlan(ctx, dataset("done"), "plan")
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	me := join(t, s)
	_, err = s.Put(ctx, draft(dataset("done"), 1, func(x *commitstep.Header) { x.PlanID = "plan" }), me)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	_, err = s.Put(ctx, draft(dataset("done"), 1, func(x *commitstep.Header) { x.PlanID = "another" }), me)
	require.NoError(t, err)
}

func TestDamagedHistoryEndsTheListWithAnError(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "a.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	me := join(t, s)
	var ids []uuid.UUID
	for _, d := range []string{"a", "b", "c"} {
		l := put(t, s, me, dataset(d), 1)
		require.NoError(t, s.Complete(ctx, fenceOf(l), false, store.HistoryNotes{}))
		ids = append(ids, l.ID)
		require.NoError(t, s.RecordAudit(ctx, store.AuditEntry{Person: somebody, Action: "x"}))
	}
	require.NoError(t, s.Close())
	rewrite(t, path, tabHistory, ids[1][:], spoil)
	rewrite(t, path, tabAudit, numberKey(2), spoil)
	s = open(t, path)
	var seen []string
	var last error
	for e, err := range s.ListHistory(ctx, store.HistoryFilter{}) {
		if last = err; err == nil {
			seen = append(seen, e.Dataset)
		}
	}
	require.Equal(t, []string{"c", "a"}, seen)
	require.ErrorIs(t, last, commitstep.ErrDamaged)
	_, err = s.LookupHistory(ctx, ids[1])
	require.ErrorIs(t, err, commitstep.ErrDamaged)
	var numbers []uint64
	for e, err := range s.ListAudit(ctx) {
		if last = err; err == nil {
			numbers = append(numbers, e.Number)
		}
	}
	require.Equal(t, []uint64{1, 3}, numbers)
	require.ErrorIs(t, last, commitstep.ErrDamaged)
	require.NoError(t, s.RecordAudit(ctx, store.AuditEntry{Person: somebody, Action: "x"}))
	require.Len(t, problems(t, s), 2)
	// They block no job.
	put(t, s, join(t, s), dataset("d"), 1)
}

func TestLostOrForeignRecordsAreOneClearError(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, h *hurt){
		"a record is missing": func(t *testing.T, h *hurt) {
			edit(t, h.path, func(b *bbolt.Bucket) error { return b.Delete(liveKey(dataset("fine"))) }, tabLive)
		},
		"a record too many": func(t *testing.T, h *hurt) {
			edit(t, h.path, func(b *bbolt.Bucket) error {
				return b.Put([]byte("x"), commitstep.Seal(commitstep.RecordLock, []byte("x"), []byte("{}")))
			}, tabLocks)
		},
		"an older record": func(t *testing.T, h *hurt) {
			key := pairKey("job", "src")
			rewrite(t, h.path, tabWatermarks, key, func([]byte) []byte {
				return commitstep.Seal(commitstep.RecordWatermark, key, []byte(`{"job":"job","source":"src","watermark":{"value":1}}`))
			})
		},
		"the sums are damaged":  func(t *testing.T, h *hurt) { rewrite(t, h.path, tabMeta, keySums, spoil) },
		"the store record":      func(t *testing.T, h *hurt) { rewrite(t, h.path, tabMeta, keyStore, spoil) },
		"the record is garbage": func(t *testing.T, h *hurt) { rewrite(t, h.path, tabMeta, keyStore, func([]byte) []byte { return nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := makeHurt(t)
			change(t, h)
			_, err := Open(h.path, nil)
			require.ErrorIs(t, err, commitstep.ErrDamaged)
			require.ErrorContains(t, err, "commitstep store check")
			require.ErrorContains(t, err, h.path)
		})
	}
}

func TestANewerStoreIsRefusedWithBothNumbers(t *testing.T) {
	t.Parallel()
	h := makeHurt(t)
	rewrite(t, h.path, tabMeta, keyStore, func(b []byte) []byte {
		return commitstep.Seal(commitstep.RecordMeta, keyStore, bytes.Replace(b[8:], []byte(`"format":1`), []byte(`"format":42`), 1))
	})
	_, err := Open(h.path, nil)
	require.ErrorIs(t, err, commitstep.ErrNewerFormat)
	require.ErrorContains(t, err, "42")
	require.ErrorContains(t, err, "up to 2")
}

// A copy without what cannot be read would let its dataset be ingested.
func TestADamagedSequenceEndsAnExport(t *testing.T) {
	t.Parallel()
	h := makeHurt(t)
	rewrite(t, h.path, tabLive, liveKey(dataset("hurt")), spoil)
	s, err := Open(h.path, nil)
	require.NoError(t, err)
	defer s.Close()
	var last error
	for _, err := range s.Export(t.Context()) {
		last = err
	}
	require.ErrorIs(t, last, commitstep.ErrDamaged)
	require.ErrorContains(t, last, "quarantine list")
}
