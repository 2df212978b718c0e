package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// ends fails a test whose call goes on long after it should have given up. What
// it waits for is seconds; without a limit of our own it is minutes.
const ends = 45 * time.Second

func within(t *testing.T, what string, fn func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(ends):
		t.Fatal(what + " does not end")
		return nil
	}
}

// silence is a server that takes connections and never says anything.
func silence(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var taken []net.Conn
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken = append(taken, c)
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-over
		for _, c := range taken {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// A server that takes connections and never answers is given up after the time
// that was set, and another one of the address is found behind it.
func TestOpeningAtASilentServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	addr := silence(t)
	err := within(t, "opening", func() error {
		_, err := pgstore.Open(context.Background(), "postgres://u@"+addr+"/db?give_up=1s", nil)
		return err
	})
	require.ErrorIs(t, err, pgstore.ErrUnreachable)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "that is how a caller's context ends")
	require.ErrorContains(t, err, "within 1s")

	here := fmt.Sprintf("127.0.0.1:%d", kit.Cluster(t).Port())
	two := strings.Replace(s.dsn, here, addr+","+here, 1)
	require.NotEqual(t, s.dsn, two)
	err = within(t, "opening", func() error {
		st, err := pgstore.Open(context.Background(), two+"&give_up=8s", nil)
		if err == nil {
			err = st.Close()
		}
		return err
	})
	require.NoError(t, err)
}

// A server falls silent in the middle of everything: callers hear, after the time
// that was set, what is known.
func TestAServerThatFallsSilent(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{GiveUp: time.Second, LeaseTTL: 3 * time.Second})
	me := join(t, st, "me")
	ctx := t.Context()
	l, err := st.Put(ctx, newPlan("a").draft(), me.ID)
	require.NoError(t, err)
	proxy.On(faultproxy.Rule{Do: faultproxy.BlackHole})
	calls := map[string]func() error{
		"put":     func() error { _, err := st.Put(ctx, newPlan("b").draft(), me.ID); return err },
		"read":    func() error { _, err := st.Get(ctx, l.Key); return err },
		"claim":   func() error { _, err := st.Claim(ctx, me.ID, store.ClaimFilter{}); return err },
		"renewal": func() error { _, err := st.Renew(ctx, me.ID); return err },
		"leave":   func() error { return st.Leave(ctx, uuid.New()) },
	}
	heard := make(chan error, len(calls))
	for name, call := range calls {
		go func() { heard <- fmt.Errorf("%s: %w", name, call()) }()
	}
	for range calls {
		err := within(t, "a call", func() error { return <-heard })
		switch name, _, _ := strings.Cut(err.Error(), ":"); name {
		case "read":
			require.ErrorIs(t, err, pgstore.ErrUnreachable)
			continue
		case "leave":
			require.NoError(t, errors.Unwrap(err), "the lease ends by itself")
			continue
		}
		require.Condition(t, func() bool {
			return errors.Is(err, pgstore.ErrUnreachable) || errors.Is(err, commitstep.ErrOutcomeUnknown)
		}, "%v", err)
	}
	proxy.Clear()
	proxy.Refuse(true)
	require.Equal(t, 1, value[int](t, s, `SELECT count(*)::int FROM sequences`), "what was swallowed was not written")
}

// One connection falls silent after the server has carried out what came on it,
// while the server answers on others: the caller hears the truth from those.
func TestAnAnswerThatNeverComes(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{LeaseTTL: time.Hour, StatementTimeout: 100 * time.Millisecond, LockTimeout: 100 * time.Millisecond})
	me := join(t, st, "me")
	for _, part := range life(t.Context(), st, me.ID, newPlan("warm")) {
		require.NoError(t, part())
	}
	p := newPlan("muted")
	h := proxy.On(faultproxy.Rule{Nth: 1, Do: faultproxy.Mute, Match: func(m faultproxy.Message) bool { return m.Type == 'S' }})
	for i, part := range life(t.Context(), st, me.ID, p) {
		require.NoError(t, within(t, "part", part), "part %d", i)
	}
	require.Equal(t, 1, h.Count())
	truth(t, s, p)
	proxy.Refuse(true) // or the muted connection is waited for
}

// A renewal of which nothing is heard is sent again while the lease still lasts; and
// the connection on which nobody answers does not keep the store from being closed.
func TestARenewalThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, &pgstore.Options{LeaseTTL: 9 * time.Second})
	me := join(t, st, "me")
	h := proxy.On(faultproxy.Rule{Nth: 1, Do: faultproxy.BlackHole, Match: func(m faultproxy.Message) bool {
		return m.Type == 'P' && strings.Contains(string(m.Data), "AND until > clock_timestamp() RETURNING until")
	}})
	err := within(t, "the renewal", func() error { _, err := st.Renew(t.Context(), me.ID); return err })
	require.NoError(t, err)
	require.Equal(t, 1, h.Count())
	require.NoError(t, within(t, "closing", st.Close))
}

// What is done behind, to nobody's benefit, does not keep a store from being closed
// when the server falls silent over it.
func TestClosingWhileACollectionIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	st, proxy := behindProxy(t, s, nil)
	h := proxy.On(faultproxy.Rule{Nth: 1, Do: faultproxy.BlackHole, Match: func(m faultproxy.Message) bool {
		return m.Type == 'P' && strings.Contains(string(m.Data), "interval '1 minute'")
	}})
	join(t, st, "me")
	select {
	case <-h.Fired():
	case <-time.After(ends):
		t.Fatal("nothing is collected")
	}
	require.NoError(t, within(t, "closing", st.Close))
}

// At every message of opening and joining the connection breaks; both succeed.
func TestStartingOnABadLine(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	c := kit.Cluster(t)
	proxy, err := faultproxy.Listen(fmt.Sprintf("127.0.0.1:%d", c.Port()), faultproxy.PostgreSQL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	dsn := strings.Replace(s.dsn, fmt.Sprintf("127.0.0.1:%d", c.Port()), proxy.Addr(), 1)
	start := func() error {
		st, err := pgstore.Open(t.Context(), dsn, nil)
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		if _, err = st.Join(t.Context(), commitstep.Instance{ID: uuid.New(), Name: "me"}); err != nil {
			err = fmt.Errorf("join: %w", err)
		}
		if cerr := st.Close(); err == nil {
			err = cerr
		}
		return err
	}
	require.NoError(t, start())
	total := proxy.Messages()
	require.Greater(t, total, 8)
	fired := 0
	for name, do := range map[string]faultproxy.Action{"before the message": faultproxy.DropBefore, "behind the message": faultproxy.DropAfter, "before the answer": faultproxy.DropReply} {
		for n := 1; n <= total; n++ {
			h := proxy.On(faultproxy.Rule{Nth: n, Do: do})
			require.NoError(t, start(), "%s %d of %d", name, n, total)
			fired += h.Count()
			proxy.Clear()
		}
	}
	require.Greater(t, fired, 2*total, "the faults happened")
}

// A program that starts while the server is down for a moment waits for it.
func TestOpeningWhileTheServerRestarts(t *testing.T) {
	t.Parallel()
	kit.Cluster(t) // skips where there is none
	c, err := pgkit.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	dsn := c.URL("postgres")
	migrate(t, dsn, nil)
	c.StopImmediate()
	_, err = pgstore.Open(t.Context(), dsn, &pgstore.Options{GiveUp: 50 * time.Millisecond})
	require.ErrorIs(t, err, pgstore.ErrUnreachable)
	require.ErrorContains(t, err, "see whether the server runs")

	line, done := make(chan string, 1), make(chan error, 1)
	go func() {
		st, err := pgstore.Open(context.Background(), dsn, &pgstore.Options{Log: slog.New(heard{line: line})})
		if err == nil {
			err = st.Close()
		}
		done <- err
	}()
	require.Contains(t, <-line, "trying again")
	require.NoError(t, c.Restart(t.Context()))
	require.NoError(t, <-done)
}

// What waiting cannot help is an error at once.
func TestOpeningWaitsForNothingThatCannotCome(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	c := kit.Cluster(t)
	for name, dsn := range map[string]string{
		"unknown database": strings.Replace(s.dsn, "/"+s.database+"?", "/nosuch?", 1),
		"unknown user":     replaceUser(s.dsn, "nosuch"),
		"no encryption":    strings.Replace(s.dsn, "sslmode=disable", "sslmode=require", 1),
		"no tables":        c.URL("postgres") + "&schema=nosuch",
	} {
		require.NotEqual(t, s.dsn, dsn, name)
		line := make(chan string, 1)
		_, err := pgstore.Open(t.Context(), dsn, &pgstore.Options{Log: slog.New(heard{line: line})})
		require.Error(t, err, name)
		require.Empty(t, line, name)
	}
}
