package pgstore_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/stretchr/testify/require"
)

// The server crashes in the middle of 16 publishers, and comes back: what was
// acknowledged is there, and every caller ends with the truth.
func TestTheServerCrashesUnderPublishers(t *testing.T) {
	t.Parallel()
	kit.Cluster(t) // skips where there is none
	ctx := t.Context()
	c, err := pgkit.Start(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	dsn := c.URL("postgres")
	migrate(t, dsn, nil)
	st := open(t, dsn, &pgstore.Options{LeaseTTL: time.Hour})
	me := join(t, st, "me")

	var mu sync.Mutex
	stored := map[commitstep.Key]plan{}
	done := map[commitstep.Key]plan{}
	var next, crashes atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	failed := make(chan error, 16)
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				p := newPlan(fmt.Sprintf("d%06d", next.Add(1)))
				l, err := st.Put(ctx, p.draft(), me.ID)
				if err != nil {
					failed <- fmt.Errorf("put: %w", err)
					return
				}
				mu.Lock()
				stored[p.key] = p
				mu.Unlock()
				err = st.Complete(ctx, store.Fence{ID: l.ID, Epoch: l.Epoch}, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move})
				if err != nil {
					failed <- fmt.Errorf("complete: %w", err)
					return
				}
				mu.Lock()
				done[p.key] = p
				mu.Unlock()
			}
		})
	}
	for range 3 {
		before := next.Load()
		require.Eventually(t, func() bool { return next.Load() > before+200 || len(failed) > 0 }, 30*time.Second, time.Millisecond)
		c.StopImmediate()
		crashes.Add(1)
		require.NoError(t, c.Restart(ctx))
	}
	before := next.Load()
	require.Eventually(t, func() bool { return next.Load() > before+100 || len(failed) > 0 }, 30*time.Second, time.Millisecond)
	close(stop)
	wg.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	require.Greater(t, len(done), 600)
	past := map[commitstep.Key]int{}
	for e, err := range st.ListHistory(ctx, store.HistoryFilter{}) {
		require.NoError(t, err)
		past[e.Key]++
		require.Contains(t, stored, e.Key)
	}
	for k, p := range done {
		require.Equal(t, 1, past[k], "%s was acknowledged", k)
		v, err := st.Watermark(ctx, p.move.WatermarkKey)
		require.NoError(t, err)
		require.Equal(t, commitstep.Int(7), v.Watermark)
	}
	for l, err := range st.Scan(ctx, store.Filter{}) {
		require.NoError(t, err)
		t.Errorf("%s is still live, and its caller heard that it is completed", l.Key)
	}
	for p, err := range st.Check(ctx) {
		require.NoError(t, err)
		t.Error(p)
	}
}

// A failed write of one caller does not become another's, even if it cannot be
// stored at all: the database refuses this text whatever is tried.
func TestWhatTheDatabaseRefusesHitsItsOwnCallerOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	s.sql(t, `ALTER TABLE sequences ADD CHECK (dataset <> 'poison')`)
	st := open(t, s.dsn, &pgstore.Options{Linger: 20 * time.Millisecond})
	me := join(t, st, "me")
	results := make([]chan error, 32)
	for i := range results {
		results[i] = make(chan error, 1)
		name := fmt.Sprint("good ", i)
		if i == 17 {
			name = "poison"
		}
		go func() { _, err := st.Put(t.Context(), newPlan(name).draft(), me.ID); results[i] <- err }()
	}
	for i, r := range results {
		if err := <-r; i == 17 {
			require.ErrorContains(t, err, "check constraint")
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 31, value[int](t, s, `SELECT count(*)::int FROM sequences`))
}

// A process that dies holds its sequences until its lease ends; then another
// takes them with a higher epoch, and what the first still sends is refused.
func TestALeaseThatEndedIsTakenOver(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	a, b := open(t, s.dsn, nil), open(t, s.dsn, nil)
	dead, heir := join(t, a, "dead"), join(t, b, "heir")
	ctx := t.Context()
	p := newPlan("d")
	l, err := a.Put(ctx, p.draft(), dead.ID)
	require.NoError(t, err)

	none, err := b.Claim(ctx, heir.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Empty(t, none, "the lease lasts")
	_, err = b.ClaimOne(ctx, heir.ID, p.key)
	var busy *store.BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, "dead", busy.Holder.Name)
	require.True(t, busy.Until.After(time.Now()))

	s.sql(t, `UPDATE instances SET until = until - interval '1 minute' WHERE id = $1`, dead.ID)
	got, err := b.Claim(ctx, heir.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, l.Epoch+1, got[0].Epoch)
	_, err = a.Renew(ctx, dead.ID)
	require.ErrorIs(t, err, commitstep.ErrFenced, "it was judged expired and stays so")
	old := store.Fence{ID: l.ID, Epoch: l.Epoch}
	require.ErrorIs(t, a.Record(ctx, old, true, store.Event{Type: store.EventDone, Step: 0}), commitstep.ErrFenced)
	require.ErrorIs(t, a.Complete(ctx, old, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}), commitstep.ErrFenced)
	require.ErrorIs(t, a.Park(ctx, old, store.Parking{Reason: commitstep.ConflictFound, Step: 0}), commitstep.ErrFenced)
	_, err = a.Watermark(ctx, p.move.WatermarkKey)
	require.ErrorIs(t, err, commitstep.ErrNotFound, "nothing of the fenced write was written")
	require.NoError(t, b.Complete(ctx, store.Fence{ID: l.ID, Epoch: got[0].Epoch}, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}))
}

// A renewal that the database gets too late does not bring back a lease that
// somebody has judged expired, whoever comes first.
func TestRenewalAndTakeoverAgree(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	a, b := open(t, s.dsn, nil), open(t, s.dsn, nil)
	heir := join(t, b, "heir")
	ctx := t.Context()
	taken := 0
	for n := range 40 {
		owner := join(t, a, "owner")
		p := newPlan(fmt.Sprint("d", n))
		_, err := a.Put(ctx, p.draft(), owner.ID)
		require.NoError(t, err)
		// The lease ends within the next moments.
		s.sql(t, `UPDATE instances SET until = clock_timestamp() + interval '3 milliseconds' WHERE id = $1`, owner.ID)
		renewed, claimed := make(chan error, 1), make(chan []commitstep.Live, 1)
		go func() { _, err := a.Renew(ctx, owner.ID); renewed <- err }()
		go func() {
			time.Sleep(time.Duration(n%8) * time.Millisecond)
			got, err := b.Claim(ctx, heir.ID, store.ClaimFilter{})
			if err != nil {
				t.Error(err)
			}
			claimed <- got
		}()
		rerr, got := <-renewed, <-claimed
		if rerr == nil {
			for _, l := range got {
				require.NotEqual(t, p.id, l.ID, "renewed and taken over")
			}
		} else {
			require.ErrorIs(t, rerr, commitstep.ErrFenced)
		}
		if len(got) > 0 {
			taken++
		}
		require.NoError(t, a.Leave(ctx, owner.ID))
	}
	t.Logf("%d of 40 were taken over", taken)
}

// Eight recoverers of one job at once: each sequence is claimed by exactly one.
func TestRecoverersShareTheWork(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	ctx := t.Context()
	first := open(t, s.dsn, nil)
	me := join(t, first, "writer")
	const n = 300
	for i := range n {
		_, err := first.Put(ctx, newPlan(fmt.Sprintf("d%04d", i)).draft(), me.ID)
		require.NoError(t, err)
	}
	require.NoError(t, first.Leave(ctx, me.ID))
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for w := range 8 {
		st := open(t, s.dsn, &pgstore.Options{MaxConns: 2})
		in := join(t, st, fmt.Sprint("recoverer ", w))
		wg.Go(func() {
			f := store.ClaimFilter{Job: "j", Limit: 7}
			for {
				got, err := st.Claim(ctx, in.ID, f)
				if err != nil {
					t.Error(err)
					return
				}
				if len(got) == 0 {
					return
				}
				mu.Lock()
				for _, l := range got {
					seen[l.Dataset]++
				}
				mu.Unlock()
				f.After = &got[len(got)-1].Key
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, n, "none is left")
	for d, c := range seen {
		require.Equal(t, 1, c, d)
	}
}

// A claim whose answer never came is this process's own: it claims the
// sequences again, and does not wait for itself.
func TestAClaimThatWasNotHeardOfIsClaimedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{GiveUp: 200 * time.Millisecond})
	me := join(t, st, "me")
	ctx := t.Context()
	p := newPlan("d")
	l, err := st.Put(ctx, p.draft(), me.ID)
	require.NoError(t, err)
	require.NoError(t, st.Release(ctx, store.Fence{ID: l.ID, Epoch: 1}))
	got, err := st.Claim(ctx, me.ID, store.ClaimFilter{}) // the connection learns the statement
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.NoError(t, st.Release(ctx, store.Fence{ID: l.ID, Epoch: 2}))
	loseEverythingAfterNext(proxy)
	_, err = st.Claim(ctx, me.ID, store.ClaimFilter{})
	require.ErrorIs(t, err, commitstep.ErrOutcomeUnknown)
	require.Equal(t, 3, value[int](t, s, `SELECT epoch::int FROM sequences WHERE id = $1`, l.ID), "the claim was made")
	proxy.Clear()
	got, err = st.Claim(ctx, me.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.EqualValues(t, 4, got[0].Epoch)
	again, err := st.Claim(ctx, me.ID, store.ClaimFilter{})
	require.NoError(t, err)
	require.Empty(t, again, "what it knows to hold is not free for itself")
	var busy *store.BusyError
	_, err = st.ClaimOne(ctx, me.ID, p.key)
	require.ErrorAs(t, err, &busy)
}

// Two sequences race to move one watermark from the same value, without a lock
// between them: one wins, the other is told both values.
func TestWatermarksAreComparedAndSet(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	a, b := open(t, s.dsn, nil), open(t, s.dsn, nil)
	ina, inb := join(t, a, "a"), join(t, b, "b")
	ctx := t.Context()
	for n := range 25 {
		k := commitstep.WatermarkKey{Job: "j", Source: fmt.Sprint("s", n)}
		won := make(chan error, 2)
		for _, x := range []struct {
			st *pgstore.Store
			in commitstep.Instance
		}{{a, ina}, {b, inb}} {
			p := newPlan(fmt.Sprintf("%s %d", x.in.Name, n))
			l, err := x.st.Put(ctx, p.draft(), x.in.ID)
			require.NoError(t, err)
			m := p.move
			m.WatermarkKey = k
			go func() {
				won <- x.st.Record(ctx, store.Fence{ID: l.ID, Epoch: 1}, true, store.Event{Type: store.EventDone, Step: 0}, store.Event{Type: store.EventMove, Step: 2, Move: m})
			}()
		}
		first, second := <-won, <-won
		if first != nil {
			first, second = second, first
		}
		require.NoError(t, first)
		var stale *store.StaleError
		require.True(t, errors.As(second, &stale), "%v", second)
		require.Equal(t, commitstep.Int(7), stale.Stored)
	}
	require.Equal(t, 25, value[int](t, s, `SELECT count(*)::int FROM progress`), "what was refused has left no mark")
}

// A lower value is only taken with a higher source epoch.
func TestARecreatedSourceStartsAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st := open(t, s.dsn, nil)
	me := join(t, st, "me")
	ctx := t.Context()
	step := func(dataset string, from, to commitstep.Watermark) error {
		p := newPlan(dataset)
		p.move.Source, p.move.From, p.move.To = "topic", from, to
		l, err := st.Put(ctx, p.draft(), me.ID)
		if err != nil {
			return err
		}
		return st.Complete(ctx, store.Fence{ID: l.ID, Epoch: 1}, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move})
	}
	require.NoError(t, step("a", commitstep.None(), commitstep.Int(100)))
	var stale *store.StaleError
	require.ErrorAs(t, step("b", commitstep.Int(80), commitstep.Int(90)), &stale)
	require.Equal(t, commitstep.Int(100), stale.Stored)
	require.Contains(t, stale.Error(), "90")
	require.NoError(t, step("c", commitstep.Int(100), commitstep.Int(5).InEpoch(1)))
	require.ErrorAs(t, step("d", commitstep.Int(100), commitstep.Int(200)), &stale, "the old epoch is over")
	v, err := st.Watermark(ctx, commitstep.WatermarkKey{Job: "j", Source: "topic"})
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(5).InEpoch(1), v.Watermark)
}

// The pages of a put that was never finished are collected when its driver's
// lease has ended, and not before.
func TestRestsOfLongPutsAreCollected(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	a := open(t, s.dsn, nil)
	dead := join(t, a, "dead")
	died := errors.New("died")
	p := newPlan("long")
	d := p.draft()
	d.Pages = func(yield func([]commitstep.Step, error) bool) {
		for n := range 60 {
			page := make([]commitstep.Step, store.PageSize)
			for i := range page {
				page[i] = commitstep.Step{Index: n*store.PageSize + i, Kind: "test.noop", Version: 1, Params: []byte(fmt.Sprintf(`{"path":"%0100d"}`, i))}
			}
			if !yield(page, nil) {
				return
			}
		}
		// As if the process had died here: nothing is tidied up.
		s.sql(t, `ALTER TABLE puts RENAME TO puts_hidden`)
		yield(nil, died)
	}
	_, err := a.Put(t.Context(), d, dead.ID)
	require.ErrorIs(t, err, died)
	s.sql(t, `ALTER TABLE puts_hidden RENAME TO puts`)
	require.Positive(t, value[int](t, s, `SELECT count(*)::int FROM pages`))
	b := open(t, s.dsn, nil)
	join(t, b, "other")
	require.NoError(t, b.Close())
	require.Positive(t, value[int](t, s, `SELECT count(*)::int FROM pages`), "its lease lasts")
	s.sql(t, `UPDATE puts SET started = started - interval '1 hour'`)
	s.advance(t, time.Hour)
	c := open(t, s.dsn, nil)
	join(t, c, "third")
	require.Eventually(t, func() bool { return value[int](t, s, `SELECT count(*)::int FROM pages`) == 0 }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, c.Close())
	require.Zero(t, value[int](t, s, `SELECT count(*)::int FROM puts`))
	require.Zero(t, value[int](t, s, `SELECT count(*)::int FROM garbage`))
}
