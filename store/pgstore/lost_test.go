package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// behindProxy opens a store whose connections can be broken.
func behindProxy(t *testing.T, s site, o *pgstore.Options) (*pgstore.Store, *faultproxy.Proxy) {
	t.Helper()
	c := kit.Cluster(t)
	p, err := faultproxy.Listen(fmt.Sprintf("127.0.0.1:%d", c.Port()), faultproxy.PostgreSQL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	dsn := strings.Replace(s.dsn, fmt.Sprintf("127.0.0.1:%d", c.Port()), p.Addr(), 1)
	require.NotEqual(t, s.dsn, dsn)
	return open(t, dsn, o), p
}

func join(t testing.TB, st store.Store, name string) commitstep.Instance {
	t.Helper()
	in := commitstep.Instance{ID: uuid.New(), Name: name, Host: "host", PID: 1}
	_, err := st.Join(context.Background(), in)
	require.NoError(t, err)
	return in
}

// plan is a sequence of three steps, of which the last moves a watermark.
type plan struct {
	id   uuid.UUID
	key  commitstep.Key
	move commitstep.WatermarkMove
}

func newPlan(dataset string) plan {
	id := uuid.Must(uuid.NewV7())
	return plan{id: id, key: commitstep.Key{Job: "j", Dataset: dataset}, move: commitstep.WatermarkMove{
		WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: dataset}, To: commitstep.Int(7), Token: commitstep.StepToken(id, 2)}}
}

func (p plan) draft() store.Draft {
	steps := make([]commitstep.Step, 3)
	for i := range steps {
		steps[i] = commitstep.Step{Index: i, Stage: i, Kind: "test.noop", Version: 1, Params: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))}
	}
	return store.Draft{ID: p.id, Key: p.key,
		Pages: func(yield func([]commitstep.Step, error) bool) { yield(steps, nil) },
		Header: func() (commitstep.Header, error) {
			return commitstep.Header{ID: p.id, Key: p.key, PlanID: "plan " + p.id.String(), PlanHash: "hash of " + p.id.String(), Created: time.Now(), Steps: 3, Stages: 3,
				FirstWatermark: 2, Locks: []string{p.move.Lock()}, Moves: []commitstep.WatermarkMove{p.move}}, nil
		}}
}

// life is everything a driver and a person do with one sequence, in order. Each
// part checks what it is told.
func life(ctx context.Context, st *pgstore.Store, me uuid.UUID, p plan) []func() error {
	var f store.Fence
	note := store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`{"a":1}`)}
	attempt := store.Event{Type: store.EventAttempt, Step: 1, Attempt: commitstep.AttemptRecord{Number: 1, Started: time.Now()}}
	return []func() error{
		func() error {
			l, err := st.Put(ctx, p.draft(), me)
			if err == nil && l.Epoch != 1 {
				err = fmt.Errorf("stored with epoch %d", l.Epoch)
			}
			f = store.Fence{ID: l.ID, Epoch: l.Epoch, Owner: me}
			return err
		},
		func() error { return st.Record(ctx, f, true, note, attempt) },
		func() error {
			return st.Park(ctx, f, store.Parking{Reason: commitstep.PublishUnknown, Step: 1, Message: "who knows"})
		},
		func() error {
			l, err := st.Get(ctx, p.key)
			if err != nil {
				return err
			}
			c, err := st.Decide(ctx, store.Decision{Key: p.key, ID: p.id, Kind: store.DecideRetry, Step: 1, Version: l.Version, State: commitstep.Pending, ResetAttempts: true,
				Person: store.Person{Name: "op", Reason: "look again"}})
			if err == nil && c.State != commitstep.Pending {
				err = fmt.Errorf("decided, and %s", c.State)
			}
			return err
		},
		func() error {
			l, err := st.ClaimOne(ctx, me, p.key)
			f = store.Fence{ID: l.ID, Epoch: l.Epoch, Owner: me}
			return err
		},
		func() error {
			return st.Complete(ctx, f, false, store.HistoryNotes{Executed: 3}, store.Event{Type: store.EventMove, Step: 2, Move: p.move})
		},
	}
}

// truth compares the database with a life that was told to have succeeded.
func truth(t *testing.T, s site, p plan) {
	t.Helper()
	require.Equal(t, 0, value[int](t, s, `SELECT count(*)::int FROM sequences WHERE id = $1`, p.id))
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM history WHERE id = $1 AND state = 'completed'`, p.id))
	require.Equal(t, 0, value[int](t, s, `SELECT count(*)::int FROM locks WHERE sequence = $1`, p.id))
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM audit WHERE sequence = $1`, p.id), "decided once")
	require.Equal(t, `{"value":7}`, value[string](t, s, `SELECT value FROM watermarks WHERE source = $1`, p.key.Dataset))
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM attempts WHERE sequence = $1`, p.id))
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM plan_ids WHERE sequence = $1`, p.id))
}

// At every message of put, record, park, decide, claim and complete, the
// connection breaks: before the message, right behind it, and before its
// answer. The caller hears the truth each time.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	for _, do := range []struct {
		name string
		do   faultproxy.Action
	}{{"before the message", faultproxy.DropBefore}, {"behind the message", faultproxy.DropAfter}, {"before the answer", faultproxy.DropReply}} {
		t.Run(do.name, func(t *testing.T) {
			t.Parallel()
			st, proxy := behindProxy(t, s, &pgstore.Options{MaxConns: 3, MarkDelay: time.Hour, LeaseTTL: time.Hour})
			me := join(t, st, do.name)
			ctx := t.Context()
			// Twice without faults: the connection knows every statement then,
			// and the number of messages is known.
			total := 0
			for i := range 2 {
				warm := newPlan(fmt.Sprint("warm ", i, " ", do.name))
				before := proxy.Messages()
				for i, part := range life(ctx, st, me.ID, warm) {
					require.NoError(t, part(), "part %d", i)
				}
				total = proxy.Messages() - before
				truth(t, s, warm)
			}
			require.Greater(t, total, 20)
			fired := 0
			for n := 1; n <= total; n++ {
				p := newPlan(fmt.Sprintf("%s, message %d", do.name, n))
				h := proxy.On(faultproxy.Rule{Nth: n, Do: do.do})
				for i, part := range life(ctx, st, me.ID, p) {
					require.NoError(t, part(), "%s %d, part %d", do.name, n, i)
				}
				fired += h.Count()
				proxy.Clear()
				truth(t, s, p)
			}
			require.Greater(t, fired, total/2, "the faults happened")
		})
	}
}

// The connection breaks while the server still commits a decision, and goes on
// for a while: what asks again meets its own decision, not somebody else's.
func TestADecisionThatIsStillBeingCommitted(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	s.sql(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON audit DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	st, proxy := behindProxy(t, s, &pgstore.Options{MaxConns: 3, LeaseTTL: time.Hour})
	me := join(t, st, "me")
	decisions := map[string]func() error{
		"watermark set": func() error {
			return st.SetWatermark(t.Context(), commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "other", Source: "s"}, To: commitstep.Int(3), Token: uuid.New()}, store.Person{Name: "op", Reason: "the first one"})
		},
		"resolve": func() error {
			p := newPlan("slow")
			parts := life(t.Context(), st, me.ID, p)
			for _, part := range parts[:3] {
				if err := part(); err != nil {
					return err
				}
			}
			return parts[3]()
		},
		"watermark accept": func() error {
			_, err := st.AcceptWatermarks(t.Context(), "job", store.Person{Name: "op", Reason: "as it was seen"})
			return err
		},
	}
	for name, decide := range decisions {
		before := value[int](t, s, `SELECT count(*)::int FROM audit`)
		proxy.On(faultproxy.Rule{Match: isCancel, Do: faultproxy.DropBefore})
		h := proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Type == 'Q' && strings.Contains(string(m.Data), "commit") }, Nth: 1, Do: faultproxy.DropAfter})
		require.NoError(t, decide(), name)
		require.Equal(t, 1, h.Count(), name)
		proxy.Clear()
		require.Equal(t, before+1, value[int](t, s, `SELECT count(*)::int FROM audit`), name)
	}
}

// Two callers share a commit whose answer is lost, and one of them is refused:
// each hears its own truth.
func TestALostAnswerFindsTheRightCaller(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{MaxConns: 3, Linger: 20 * time.Millisecond})
	me := join(t, st, "me")
	first := newPlan("taken")
	_, err := st.Put(t.Context(), first.draft(), me.ID)
	require.NoError(t, err)
	for n := range 20 {
		h := proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Type == 'S' }, Nth: 1, Do: faultproxy.DropReply})
		second, other := newPlan("taken"), newPlan(fmt.Sprintf("free %d", n))
		taken, free := make(chan error, 1), make(chan error, 1)
		go func() { _, err := st.Put(t.Context(), second.draft(), me.ID); taken <- err }()
		go func() { _, err := st.Put(t.Context(), other.draft(), me.ID); free <- err }()
		var pending *commitstep.PendingError
		require.ErrorAs(t, <-taken, &pending)
		require.Equal(t, first.id, pending.ID)
		require.NoError(t, <-free)
		<-h.Fired()
		proxy.Clear()
	}
}

// The server goes away for good: the caller hears, after the time that was
// set, that nothing was written, or that nobody can know.
func TestGivingUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{GiveUp: 300 * time.Millisecond})
	me := join(t, st, "me")
	ctx := t.Context()
	l, err := st.Put(ctx, newPlan("a").draft(), me.ID)
	require.NoError(t, err)
	f := store.Fence{ID: l.ID, Epoch: l.Epoch}

	proxy.Refuse(true)
	_, err = st.Put(ctx, newPlan("b").draft(), me.ID)
	require.Error(t, err)
	if !errors.Is(err, commitstep.ErrOutcomeUnknown) { // the old connection may have broken while it was used
		require.ErrorIs(t, err, pgstore.ErrUnreachable)
	}
	_, err = st.Put(ctx, newPlan("c").draft(), me.ID)
	require.ErrorIs(t, err, pgstore.ErrUnreachable)
	require.NotErrorIs(t, err, commitstep.ErrOutcomeUnknown, "no connection could be made: nothing was sent")
	require.ErrorContains(t, err, "nothing was written")
	_, err = st.Get(ctx, l.Key)
	require.ErrorIs(t, err, pgstore.ErrUnreachable)

	proxy.Refuse(false)
	warm, err := st.Put(ctx, newPlan("warm").draft(), me.ID) // the connection learns the statements
	require.NoError(t, err)
	require.NoError(t, st.Complete(ctx, store.Fence{ID: warm.ID, Epoch: 1}, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: newPlanMove(warm)}))
	loseEverythingAfterNext(proxy)
	err = st.Complete(ctx, f, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: newPlanMove(l)})
	require.ErrorIs(t, err, commitstep.ErrOutcomeUnknown)
	proxy.Clear()
	proxy.Refuse(false)
	h, err := st.LookupHistory(ctx, l.ID)
	require.NoError(t, err, "in truth it was completed")
	require.Equal(t, commitstep.Completed, h.State)
	require.NoError(t, st.Complete(ctx, f, false, store.HistoryNotes{}), "asked again, the caller hears it")
}

func newPlanMove(l commitstep.Live) commitstep.WatermarkMove { return l.Moves[0] }

// A caller who stops waiting while the server is away is let go, if nothing can
// have been written.
func TestACallerWhoLeavesIsLetGo(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, nil)
	me := join(t, st, "me")
	proxy.Refuse(true)
	// Connections that were open break first, with an unknown outcome for reads
	// only; then no connection can be made.
	rctx, rcancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer rcancel()
	_, err := st.Get(rctx, commitstep.Key{Job: "j", Dataset: "d"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	started := time.Now()
	_, err = st.Put(ctx, newPlan("a").draft(), me.ID)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(started), 20*time.Second)
	proxy.Refuse(false)
	_, err = st.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "a"})
	require.ErrorIs(t, err, commitstep.ErrNotFound)
}

// One dataset, alone, costs at most four turns of request and answer.
func TestRoundTripsOfOneDataset(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, nil)
	me := join(t, st, "me")
	for n := range 5 {
		p := newPlan(fmt.Sprint("d", n))
		before := proxy.RoundTrips()
		l, err := st.Put(t.Context(), p.draft(), me.ID)
		require.NoError(t, err)
		f := store.Fence{ID: l.ID, Epoch: 1}
		_, err = st.Steps(t.Context(), l.ID, 0)
		require.NoError(t, err)
		require.NoError(t, st.Record(t.Context(), f, false, store.Event{Type: store.EventDone, Step: 0}, store.Event{Type: store.EventDone, Step: 1}))
		require.NoError(t, st.Complete(t.Context(), f, false, store.HistoryNotes{}, store.Event{Type: store.EventMove, Step: 2, Move: p.move}))
		took := proxy.RoundTrips() - before
		if n == 0 {
			continue // the connection learns the statements
		}
		require.LessOrEqual(t, took, 4)
	}
}

// loseEverythingAfterNext loses the next answer, and lets nothing through
// afterwards.
func loseEverythingAfterNext(proxy *faultproxy.Proxy) {
	lost := proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Type == 'S' }, Nth: 1, Do: faultproxy.DropReply})
	proxy.On(faultproxy.Rule{Do: faultproxy.DropBefore, Match: func(faultproxy.Message) bool {
		select {
		case <-lost.Fired():
			return true
		default:
			return false
		}
	}})
}

// The connection breaks while the server still commits a claim: the next try
// waits for it and takes over what it holds, instead of passing it by.
func TestAClaimThatIsStillBeingCommitted(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{MaxConns: 3, LeaseTTL: time.Hour})
	me := join(t, st, "me")
	var key commitstep.Key
	for i := range 3 {
		p := newPlan(fmt.Sprint("dataset ", i))
		l, err := st.Put(t.Context(), p.draft(), me.ID)
		require.NoError(t, err)
		require.NoError(t, st.Release(t.Context(), store.Fence{ID: l.ID, Epoch: l.Epoch}))
		key = p.key
	}
	// The statements are known then, so that the next sync is the claim's.
	warm, err := st.Claim(t.Context(), me.ID, store.ClaimFilter{Limit: 2})
	require.NoError(t, err)
	one, err := st.ClaimOne(t.Context(), me.ID, key)
	require.NoError(t, err)
	for _, l := range append(warm, one) {
		require.NoError(t, st.Release(t.Context(), store.Fence{ID: l.ID, Epoch: l.Epoch}))
	}
	s.sql(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON sequences DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.epoch > OLD.epoch) EXECUTE FUNCTION slow()`)
	cut := func() *faultproxy.Hook {
		proxy.On(faultproxy.Rule{Match: isCancel, Do: faultproxy.DropBefore})
		return proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Type == 'S' && m.Turn }, Nth: 1, Do: faultproxy.DropAfter})
	}
	h := cut()
	list, err := st.Claim(t.Context(), me.ID, store.ClaimFilter{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, 1, h.Count())
	require.Len(t, list, 2)
	proxy.Clear()
	for _, l := range list {
		require.NoError(t, st.Record(t.Context(), store.Fence{ID: l.ID, Epoch: l.Epoch}, true, store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`1`)}), "what the claim gave is held")
	}
	l, err := st.Get(t.Context(), key)
	require.NoError(t, err)
	was := l.Epoch
	h = cut()
	l, err = st.ClaimOne(t.Context(), me.ID, key)
	require.NoError(t, err)
	require.Equal(t, 1, h.Count())
	require.Greater(t, l.Epoch, was)
	require.NoError(t, st.Record(t.Context(), store.Fence{ID: l.ID, Epoch: l.Epoch}, true, store.Event{Type: store.EventNote, Step: 0, Data: json.RawMessage(`1`)}))
}

// isCancel: a client whose connection broke asks on another one that its
// statement be cancelled. A commit that waits for its disk cannot be.
func isCancel(m faultproxy.Message) bool {
	return len(m.Data) == 16 && string(m.Data[4:8]) == "\x04\xd2\x16\x2e"
}
