package boltstore

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func draft(key commitstep.Key, n int, edit func(*commitstep.Header)) store.Draft {
	id := uuid.Must(uuid.NewV7())
	return store.Draft{ID: id, Key: key, Pages: func(yield func([]commitstep.Step, error) bool) {
		for i := 0; i < n; i += store.PageSize {
			var p []commitstep.Step
			for j := i; j < min(n, i+store.PageSize); j++ {
				p = append(p, commitstep.Step{Index: j, Kind: "noop", Version: 1, Params: json.RawMessage(fmt.Sprintf(`{"n":%d}`, j))})
			}
			if !yield(p, nil) {
				return
			}
		}
	}, Header: func() (commitstep.Header, error) {
		h := commitstep.Header{ID: id, Key: key, PlanHash: "h" + id.String(), Created: time.Now(), Steps: n, Stages: 1, FirstWatermark: -1}
		if edit != nil {
			edit(&h)
		}
		return h, nil
	}}
}

func TestSmoke(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "a.db")
	_, err := Open(path, nil)
	require.ErrorIs(t, err, ErrAbsent)
	t.Log(err)
	s, err := Init(path, nil)
	require.NoError(t, err)
	_, err = Init(path, nil)
	t.Log(err)
	start := time.Now()
	_, err = Open(path, nil)
	t.Log(err, time.Since(start))
	me := commitstep.Instance{ID: uuid.New(), Name: "me"}
	_, err = s.Join(ctx, me)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := range 100 {
				key := commitstep.Key{Job: "j", Dataset: fmt.Sprintf("d%d-%d", g, i)}
				l, err := s.Put(ctx, draft(key, 5, func(h *commitstep.Header) { h.PlanID = "p"; h.Locks = []string{key.Dataset} }), me.ID)
				if err != nil {
					t.Error(err)
					return
				}
				f := store.Fence{ID: l.ID, Epoch: l.Epoch}
				p, err := s.Steps(ctx, l.ID, 0)
				if err != nil || len(p.Steps) != 5 {
					t.Error(err)
				}
				if i%10 == 0 {
					if err := s.Record(ctx, f, i%20 == 0, store.Event{Type: store.EventDone, Step: 1}); err != nil {
						t.Error(err)
					}
					p, err := s.Steps(ctx, l.ID, 0)
					if err != nil || !p.Progress[1].Done {
						t.Error(err, p.Progress)
					}
				}
				if i%3 == 0 {
					continue
				}
				if err := s.Complete(ctx, f, i%7 == 0, store.HistoryNotes{Executed: 5}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := 0
	for _, err := range s.Scan(ctx, store.Filter{}) {
		require.NoError(t, err)
		n++
	}
	t.Log(n)
	l, err := s.Put(ctx, draft(commitstep.Key{Job: "big", Dataset: "x"}, 2000, nil), me.ID)
	require.NoError(t, err)
	p, err := s.Steps(ctx, l.ID, 3)
	require.NoError(t, err)
	require.Equal(t, 2000-3*512, len(p.Steps))
	require.NoError(t, s.Record(ctx, store.Fence{ID: l.ID, Epoch: 1}, false, store.Event{Type: store.EventDone, Step: 1999}))
	for p, err := range s.Check(ctx) {
		t.Error(p, err)
	}
	require.NoError(t, s.Close())
	s, err = Open(path, nil)
	require.NoError(t, err)
	_, err = s.Join(ctx, me)
	require.NoError(t, err)
	p, err = s.Steps(ctx, l.ID, 3)
	require.NoError(t, err)
	require.True(t, p.Progress[1999-3*512].Done)
	got := 0
	var after *commitstep.Key
	for {
		c, err := s.Claim(ctx, me.ID, store.ClaimFilter{Limit: 10, After: after})
		require.NoError(t, err)
		if len(c) == 0 {
			break
		}
		for _, l := range c {
			got++
			require.NoError(t, s.Record(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, true, store.Event{Type: store.EventAttempt, Step: 0, Attempt: commitstep.AttemptRecord{Number: 1, Started: time.Now()}}))
			if l.Cleaning {
				require.NoError(t, s.Cleaned(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, "some"))
				continue
			}
			require.NoError(t, s.Complete(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, false, store.HistoryNotes{}))
		}
		after = &c[len(c)-1].Key
	}
	require.Equal(t, n+1, got)
	hist := 0
	for e, err := range s.ListHistory(ctx, store.HistoryFilter{}) {
		require.NoError(t, err)
		hist++
		_ = e
	}
	require.Equal(t, 6401, hist)
	require.NoError(t, s.Backup(ctx, path+".bak"))
	require.NoError(t, s.waitCollected(ctx))
	for p, err := range s.Check(ctx) {
		t.Error(p, err)
	}
	require.NoError(t, s.Close())
	b, err := Open(path+".bak", nil)
	require.NoError(t, err)
	t.Log(b.Info())
	require.NoError(t, b.Close())
}
