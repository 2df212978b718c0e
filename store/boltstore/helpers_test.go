package boltstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// fakeClock stands still until it is advanced.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// newStore makes a store that is closed, and checked whole, when the test ends.
func newStore(t testing.TB, o *Options) *Store {
	t.Helper()
	s, err := Init(filepath.Join(t.TempDir(), "commit.db"), o)
	require.NoError(t, err)
	closeChecked(t, s)
	return s
}

func openStore(t testing.TB, path string, o *Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	require.NoError(t, err)
	closeChecked(t, s)
	return s
}

func closeChecked(t testing.TB, s *Store) {
	t.Cleanup(func() {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if !closed {
			require.NoError(t, s.waitCollected(context.Background()))
			for p, err := range s.Check(context.Background()) {
				t.Errorf("check at the end of the test: %s (%v)", p, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func join(t testing.TB, s *Store) uuid.UUID {
	t.Helper()
	in := commitstep.Instance{ID: uuid.New(), Name: "test"}
	_, err := s.Join(context.Background(), in)
	require.NoError(t, err)
	return in.ID
}

func dataset(name string) commitstep.Key { return commitstep.Key{Job: "job", Dataset: name} }

// draft is a sequence of n steps.
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
		h := commitstep.Header{ID: id, Key: key, PlanHash: "hash " + id.String(), Created: time.Now(), Steps: n, Stages: 1, FirstWatermark: -1}
		if edit != nil {
			edit(&h)
		}
		return h, nil
	}}
}

func put(t testing.TB, s *Store, me uuid.UUID, key commitstep.Key, n int) commitstep.Live {
	t.Helper()
	l, err := s.Put(context.Background(), draft(key, n, nil), me)
	require.NoError(t, err)
	return l
}

func fenceOf(l commitstep.Live) store.Fence { return store.Fence{ID: l.ID, Epoch: l.Epoch} }

var somebody = store.Person{Name: "op", Reason: "because of the test"}

// createForeign makes a sound database file of another program.
func createForeign(path string) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("things"))
		if err != nil {
			return err
		}
		return b.Put([]byte("a"), []byte("b"))
	})
	return errors.Join(err, db.Close())
}
