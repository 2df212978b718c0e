package pgtarget_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// through has the table reached through a proxy.
func (tb *table) through() *faultproxy.Proxy {
	tb.t.Helper()
	server := fmt.Sprintf("127.0.0.1:%d", kit.Cluster(tb.t).Port())
	proxy, err := faultproxy.Listen(server, faultproxy.PostgreSQL)
	require.NoError(tb.t, err)
	tb.t.Cleanup(func() { require.NoError(tb.t, proxy.Close()) })
	tb.cfg.DSN = strings.Replace(tb.cfg.DSN, server, proxy.Addr(), 1)
	return proxy
}

// A connection that breaks once while a plan is made, at whatever message, is
// not noticed by whoever plans or reads.
func TestOneCutWhileAPlanIsMade(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	first := move(commitstep.None(), commitstep.Int(100))
	require.NoError(t, tb.open().CompareAndSet(t.Context(), first, uuid.New()))
	proxy := tb.through()
	for _, do := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropAfter, faultproxy.DropReply} {
		for n := 1; ; n++ {
			cut := proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return m.Turn }, Nth: n, Do: do})
			tg, err := pgtarget.Open(t.Context(), tb.cfg)
			require.NoError(t, err, "message %d", n)
			v, err := tg.Plan(t.Context(), move(commitstep.Int(100), commitstep.Int(200)))
			require.NoError(t, err, "message %d", n)
			require.Equal(t, first.Token, v.Token)
			v, err = tg.Watermark(t.Context(), topic)
			require.NoError(t, err, "message %d", n)
			require.Equal(t, commitstep.Int(100), v.Watermark)
			listed := 0
			for _, err := range tg.List(t.Context(), "") {
				require.NoError(t, err, "message %d", n)
				listed++
			}
			require.Equal(t, 1, listed)
			require.NoError(t, tg.Close())
			fired := cut.Count() > 0
			proxy.Clear()
			if !fired {
				require.Greater(t, n, 4, "the conversation was cut nowhere")
				break
			}
		}
	}
}

// A plan costs one message that waits for an answer, and one more on a connection
// that has not asked for the types yet.
func TestPlanningTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	proxy := tb.through()
	tg := tb.open()
	plan := func() int {
		before := proxy.RoundTrips()
		_, err := tg.Plan(t.Context(), move(commitstep.None(), commitstep.Int(1)))
		require.ErrorIs(t, err, commitstep.ErrNotFound)
		return proxy.RoundTrips() - before
	}
	require.LessOrEqual(t, plan(), 2)
	require.Equal(t, 1, plan())
}

// A server that is down is trouble that may be over: what is planned waits for
// it as for every other server.
func TestAServerThatIsDown(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	proxy := tb.through()
	tg := tb.open()
	proxy.Refuse(true)
	_, err := pgtarget.Open(t.Context(), tb.cfg)
	require.ErrorIs(t, err, commitstep.ErrUnavailable)
	require.ErrorContains(t, err, `target "marks"`)
	_, err = tg.Plan(t.Context(), move(commitstep.None(), commitstep.Int(1)))
	require.ErrorIs(t, err, commitstep.ErrUnavailable)
	err = tg.CompareAndSet(t.Context(), move(commitstep.None(), commitstep.Int(1)), uuid.New())
	require.Equal(t, commitstep.ClassNotSent, commitstep.ClassOf(err))
	proxy.Refuse(false)
	_, err = tg.Plan(t.Context(), move(commitstep.None(), commitstep.Int(1)))
	require.ErrorIs(t, err, commitstep.ErrNotFound)

	// A wrong name is none.
	bad := tb.cfg
	bad.DSN = strings.Replace(bad.DSN, "/postgres?", "/nowhere?", 1)
	_, err = pgtarget.Open(t.Context(), bad)
	require.ErrorContains(t, err, "nowhere")
	require.NotErrorIs(t, err, commitstep.ErrUnavailable)
}

// A server that takes connections and says nothing keeps nobody for longer than
// the time limits of the target; that is not the end of the caller's time.
func TestASilentServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	silent := func(t *testing.T, err error) {
		t.Helper()
		require.NoError(t, ctx.Err(), "it was the caller who gave up")
		require.ErrorIs(t, err, commitstep.ErrUnavailable)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no answer in time")
	}
	t.Run("from the start", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() {
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				})
			}
		})
		t.Cleanup(func() {
			require.NoError(t, l.Close())
			wg.Wait()
		})
		_, err = pgtarget.Open(ctx, pgtarget.Config{Name: "marks", DSN: "postgres://etl@" + l.Addr().String() + "/db?sslmode=disable", Table: "public.marks", Columns: columns})
		silent(t, err)
	})
	t.Run("in the middle", func(t *testing.T) {
		t.Parallel()
		tb := newTable(t, full, columns)
		proxy := tb.through()
		tg := tb.open()
		hole := proxy.On(faultproxy.Rule{Do: faultproxy.BlackHole})
		_, err := tg.Plan(ctx, move(commitstep.None(), commitstep.Int(1)))
		silent(t, err)
		<-hole.Fired()
	})
}

// Every way to send statements that an address can ask for, and a pooler that
// gives each transaction another session.
func TestWaysToTheServer(t *testing.T) {
	t.Parallel()
	for name, dsn := range map[string]func() string{
		"a pooler":        func() string { return kit.Bouncer(t).URL("postgres") },
		"cache_statement": func() string { return kit.Cluster(t).URL("postgres") + "&default_query_exec_mode=cache_statement" },
		"describe_exec":   func() string { return kit.Cluster(t).URL("postgres") + "&default_query_exec_mode=describe_exec" },
		"exec":            func() string { return kit.Cluster(t).URL("postgres") + "&default_query_exec_mode=exec" },
		"simple_protocol": func() string { return kit.Cluster(t).URL("postgres") + "&default_query_exec_mode=simple_protocol" },
	} {
		tb := newTable(t, full, columns)
		tb.cfg.DSN = dsn()
		tg := tb.open()
		first, second := move(commitstep.None(), commitstep.Int(1)), move(commitstep.Int(1), commitstep.Int(2))
		require.NoError(t, plan(tg, first), name)
		require.NoError(t, tg.CompareAndSet(t.Context(), first, uuid.New()), name)
		require.NoError(t, plan(tg, second), name)
		require.NoError(t, tg.CompareAndSet(t.Context(), second, uuid.New()), name)
		v, err := tg.Watermark(t.Context(), topic)
		require.NoError(t, err, name)
		require.Equal(t, second.To, v.Watermark, name)
		for _, err := range tg.List(t.Context(), "") {
			require.NoError(t, err, name)
		}
		require.ErrorContains(t, plan(tg, move(second.To, commitstep.Int(3).InEpoch(1<<63))), "epoch", name)
	}
}
