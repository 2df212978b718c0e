package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const racers = 16

var raceTests = []test{
	{"of many puts of one key exactly one wins", func(w *world) {
		for round := range 20 {
			k := key("j", fmt.Sprint(round))
			var won atomic.Int64
			var winner atomic.Value
			var wg sync.WaitGroup
			start := make(chan struct{})
			for range racers {
				wg.Go(func() {
					<-start
					l, err := w.tryPut(seqSpec{key: k})
					switch {
					case err == nil:
						won.Add(1)
						winner.Store(l.ID)
					case !errors.Is(err, commitstep.ErrPending):
						w.Errorf("round %d: %v", round, err)
					}
				})
			}
			close(start)
			wg.Wait()
			require.Equal(w, int64(1), won.Load())
			require.Equal(w, winner.Load(), w.get(k).ID)
		}
	}},
	{"many puts of the same sequence all succeed and store one", func(w *world) {
		for _, steps := range []int{3, 3 * store.PageSize} {
			q := seqSpec{key: key("j", fmt.Sprint(steps)), steps: steps}.withDefaults()
			var wg sync.WaitGroup
			for range racers {
				wg.Go(func() {
					if l, err := w.st.Put(w.ctx, q.draft(), w.me.ID); err != nil || l.ID != q.id {
						w.Errorf("put again: %v", err)
					}
				})
			}
			wg.Wait()
			page, err := w.st.Steps(w.ctx, q.id, (steps-1)/store.PageSize)
			require.NoError(w, err)
			require.NotEmpty(w, page.Steps)
		}
		require.Len(w, w.scan(store.Filter{}), 2)
	}},
	{"different keys never disturb each other", func(w *world) {
		const each = 40
		var wg sync.WaitGroup
		for g := range racers {
			wg.Go(func() {
				for i := range each {
					k := key("j", fmt.Sprintf("%d-%d", g, i))
					l, err := w.tryPut(seqSpec{key: k, locks: []string{k.Dataset}})
					if err == nil {
						var got commitstep.Live
						if got, err = w.st.Get(w.ctx, k); err == nil && got.ID != l.ID {
							err = fmt.Errorf("got %s", got.ID)
						}
					}
					if err == nil && i%2 == 0 {
						err = w.st.Record(w.ctx, fence(l), i%4 == 0, done(1))
					}
					if err == nil {
						err = w.st.Complete(w.ctx, fence(l), false, store.HistoryNotes{})
					}
					if err == nil {
						if _, gerr := w.st.Get(w.ctx, k); !errors.Is(gerr, commitstep.ErrNotFound) {
							err = fmt.Errorf("after complete: %v", gerr)
						}
					}
					if err != nil {
						w.Errorf("%s: %v", k, err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.Empty(w, w.scan(store.Filter{}))
		require.Len(w, w.history(store.HistoryFilter{}), racers*each)
	}},
	{"no reader sees a part of a long put", func(w *world) {
		q := seqSpec{key: key("j", "long"), steps: 20 * store.PageSize}.withDefaults()
		written := make(chan struct{}, 64)
		pages := q.pages
		q.pages = func(yield func([]commitstep.Step, error) bool) {
			for p, err := range pages {
				if !yield(p, err) {
					return
				}
				select {
				case written <- struct{}{}:
				default:
				}
			}
			close(written)
		}
		result := make(chan error, 1)
		go func() { _, err := w.st.Put(w.ctx, q.draft(), w.me.ID); result <- err }()
		look := func() (there bool) {
			for _, l := range w.scan(store.Filter{}) {
				there = true
				for n := range 20 {
					page, err := w.st.Steps(w.ctx, l.ID, n)
					require.NoError(w, err)
					require.Len(w, page.Steps, store.PageSize)
				}
			}
			_, err := w.st.Get(w.ctx, q.key)
			if there {
				require.NoError(w, err)
			} else if err != nil {
				require.ErrorIs(w, err, commitstep.ErrNotFound)
			}
			return there
		}
		for range written {
			look()
		}
		require.NoError(w, <-result)
		require.True(w, look())
	}},
	{"of many claims each sequence goes to one", func(w *world) {
		const n = 100
		for i := range n {
			w.put(seqSpec{key: key("j", fmt.Sprintf("%03d", i))})
		}
		require.NoError(w, w.st.Leave(w.ctx, w.me.ID))
		var mu sync.Mutex
		got := map[uuid.UUID]int{}
		var wg sync.WaitGroup
		for range 8 {
			in := w.join("racer")
			wg.Go(func() {
				for {
					part, err := w.st.Claim(w.ctx, in.ID, store.ClaimFilter{Limit: 5})
					if err != nil {
						w.Errorf("claim: %v", err)
						return
					}
					if len(part) == 0 {
						return
					}
					mu.Lock()
					for _, l := range part {
						got[l.ID]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		require.Len(w, got, n)
		for id, times := range got {
			require.Equal(w, 1, times, id)
		}
		w.me = w.join("me, later")
	}},
	{"of many moves of one watermark from one value exactly one happens", func(w *world) {
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range racers {
			l := w.put(seqSpec{key: key("j", fmt.Sprint(i))})
			wg.Go(func() {
				err := w.st.Record(w.ctx, fence(l), true, store.Event{Type: store.EventMove, Step: 0, Move: move("j", "s", commitstep.None(), commitstep.Int(int64(i)))})
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, commitstep.ErrStale):
					w.Errorf("move: %v", err)
				}
			})
		}
		wg.Wait()
		require.Equal(w, int64(1), won.Load())
		require.Len(w, w.watermarks("j"), 1)
	}},
	{"parallel events of one sequence are all kept", func(w *world) {
		n := 2 * store.PageSize
		l := w.put(seqSpec{key: key("j", "d"), steps: n})
		var wg sync.WaitGroup
		for g := range racers {
			wg.Go(func() {
				for i := g; i < n; i += racers {
					if err := w.st.Record(w.ctx, fence(l), i%64 == 0, done(i)); err != nil {
						w.Errorf("record: %v", err)
					}
				}
			})
		}
		wg.Wait()
		for range 2 {
			for p := range 2 {
				page, err := w.st.Steps(w.ctx, l.ID, p)
				require.NoError(w, err)
				for i, pr := range page.Progress {
					require.True(w, pr.Done, i)
				}
			}
			w.reopen()
		}
	}},
}
