package hivepublish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// shortList is a web UI that keeps the latest closed statements only, as many as
// HiveServer2 does by itself.
type shortList struct {
	active, closed []hs2.Query
	// next is what is closed between two looks.
	next []hs2.Query
}

const shortKeeps = 25

func (l *shortList) close(all ...hs2.Query) {
	l.closed = append(l.closed, all...)
	l.closed = l.closed[max(0, len(l.closed)-shortKeeps):]
}

func (l *shortList) Find(context.Context, string) ([]hs2.Query, error) {
	out := slices.Concat(l.active, l.closed)
	l.close(l.next...)
	l.next = nil
	return out, nil
}

// others are closed statements of another client.
func others(n int) (out []hs2.Query) {
	for i := range n {
		out = append(out, hs2.Query{State: hs2.Finished, Operation: fmt.Sprint("other-", i), Session: "other", End: time.Unix(int64(i+1), 0), Text: "SELECT 1"})
	}
	return out
}

// handClock is a clock that a test moves.
func handClock(s *Server) func(time.Duration) {
	at := time.Unix(1796101041, 0)
	s.now = func() time.Time { return at }
	return func(d time.Duration) { at = at.Add(d) }
}

// lostBench is a bench whose statement was sent without an answer; it is open in
// its session, and in no list.
func lostBench(t *testing.T) (b *stepBench, pass func(time.Duration), m insertMark) {
	t.Helper()
	b = newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{lost: true, status: hs2.Status{State: hs2.Running}} }))
	pass = handClock(b.server)
	require.Error(t, b.process().Execute(t.Context()))
	_, err := b.process().Attempt.NoReturn(&m)
	require.NoError(t, err)
	return b, pass, m
}

// HiveServer2 forgets a closed statement as soon as some others were closed. That it
// is not listed any more is no proof that it ended.
func TestAForgottenStatementHasTimeToEnd(t *testing.T) {
	t.Parallel()
	b, pass, m := lostBench(t)
	list := &shortList{}
	b.server.list = list
	list.next = []hs2.Query{{
		State: hs2.Running, StateText: "RUNNING", QueryID: "q", Operation: "o", Session: m.Session.guid, End: b.server.now(),
		Tasks: []hs2.Task{{Type: "MOVE", Begin: b.server.now()}}, Text: mark(b.process().Attempt.Token.String(), 1, "INSERT"),
	}}
	err := withdraw(b, false)
	require.ErrorContains(t, err, "still lists query q with this token as RUNNING")
	require.ErrorContains(t, err, "Its session was closed just now, and what ran in it was cut off")

	pass(30 * time.Second)
	err = withdraw(b, false)
	require.ErrorContains(t, err, "still lists query q")
	require.NotContains(t, err.Error(), "just now")
	seen := b.server.now()

	list.close(others(30)...)
	for range 2 {
		pass(4 * time.Second)
		err = withdraw(b, false)
		require.ErrorContains(t, err, "does not show any more whether the statement")
		require.ErrorContains(t, err, "wait until "+stamp(seen.Add(compileQuiet)))
	}
	require.NoError(t, withdraw(b, true), "a server that is gone ends nothing any more")
	pass(compileQuiet - 8*time.Second - 1)
	require.Error(t, withdraw(b, false))
	pass(1)
	require.NoError(t, withdraw(b, false))
}

// What was listed as ended, or was never listed although its session was open, needs
// no waiting.
func TestWhatIsSeenToHaveEndedIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b, _, m := lostBench(t)
	b.server.list = &shortList{closed: others(shortKeeps)}
	require.NoError(t, withdraw(b, false), "it never arrived")
	require.NotContains(t, b.w.sessions, m.Session.handle)

	b, _, m = lostBench(t)
	ended := hs2.Query{State: hs2.Finished, StateText: "FINISHED", Session: m.Session.guid, Text: mark(b.process().Attempt.Token.String(), 1, "INSERT")}
	b.server.list = &shortList{closed: []hs2.Query{ended}}
	b.w.restart()
	require.NoError(t, withdraw(b, false))

	// That of an earlier attempt with the same token says nothing of this one.
	ended.Session = "an earlier one"
	b, _, _ = lostBench(t)
	b.server.list = &shortList{closed: []hs2.Query{ended}}
	b.w.restart()
	require.ErrorContains(t, withdraw(b, false), "wait until")
}

// Without a web UI only the handle tells, and a server that does not know it says
// nothing about the end.
func TestAForgottenHandleHasTimeToEnd(t *testing.T) {
	t.Parallel()
	bench := func() (*stepBench, func(time.Duration)) {
		op := &fakeOp{status: hs2.Status{State: hs2.Running}}
		b := newBench(t, insertSpec(), scripted(func() *fakeOp { return op }))
		hurry(b.server)
		require.NoError(t, b.process().Execute(t.Context()))
		b.server.list = nil
		pass := handClock(b.server)
		pass(24 * 365 * time.Hour) // later than what hurry told
		b.w.restart()
		return b, pass
	}
	b, pass := bench()
	first := b.server.now()
	for range 2 {
		require.ErrorContains(t, withdraw(b, false), "wait until "+stamp(first.Add(compileQuiet)))
		pass(compileQuiet / 2)
	}
	require.NoError(t, withdraw(b, false))

	// It was unknown already when the sequence was parked, some time ago.
	b, pass = bench()
	p := b.process()
	require.NoError(t, p.Step.(commitstep.OnPark).OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, ""))
	pass(compileQuiet / 2)
	require.ErrorContains(t, withdraw(b, false), "wait until")
	pass(compileQuiet / 2)
	require.NoError(t, withdraw(b, false))

	// What cannot be noted is not remembered, and lets nothing through.
	b, pass = bench()
	for range 3 {
		p := b.process()
		var n insertNote
		_, err := p.Attempt.LastNote(&n)
		require.NoError(t, err)
		var m insertMark
		_, err = p.Attempt.NoReturn(&m)
		require.NoError(t, err)
		a := commitstep.NewAttempt(p.Attempt.Sequence, p.Attempt.Key, p.Attempt.Index, commitstep.Progress{Note: raw(t, n), NoReturn: raw(t, m)}, nil)
		require.ErrorContains(t, p.Step.(commitstep.Withdrawer).Withdraw(t.Context(), a, false), "could not be noted")
		pass(time.Hour)
	}
}

// A refused decision does not end a publish that would have finished.
func TestARefusedDecisionCutsNothingOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost, list bool
		says       string
	}{
		"listed":                   {true, true, "still lists query"},
		"listed, its handle known": {false, true, "still lists query"},
		"its handle known":         {false, false, "is RUNNING at fake:10000"},
		"nothing known":            {true, false, "no web UI is bound"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			op := &fakeOp{lost: c.lost, status: hs2.Status{State: hs2.Running}}
			b := newBench(t, insertSpec(), scripted(func() *fakeOp { return op }))
			hurry(b.server)
			err := b.process().Execute(t.Context())
			require.Equal(t, c.lost, err != nil, "%v", err)
			if !c.list {
				b.server.list = nil
			}
			sessions := len(b.w.sessions)
			require.ErrorContains(t, withdraw(b, false), c.says)
			require.Len(t, b.w.sessions, sessions)
			require.NotEmpty(t, b.w.ops)
			if c.lost {
				return
			}
			b.w.mu.Lock()
			_, _ = op.apply()
			op.status = hs2.Status{State: hs2.Finished}
			b.w.mu.Unlock()
			b.want(commitstep.Done)
		})
	}
}

func raw(t *testing.T, v any) json.RawMessage {
	t.Helper()
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return out
}

// A person who says that the server is gone is believed, unless that server answers
// and has the statement, or the session in which it may still arrive.
func TestAServerThatAnswersIsNotGone(t *testing.T) {
	t.Parallel()
	b, _, m := lostBench(t)
	running := hs2.Query{State: hs2.Running, StateText: "RUNNING", Running: true, QueryID: "q", Session: m.Session.guid, Text: mark(b.process().Attempt.Token.String(), 1, "INSERT")}
	b.server.list = &shortList{active: []hs2.Query{running}}
	err := withdraw(b, true)
	require.ErrorContains(t, err, "still lists query q with this token as RUNNING")
	require.ErrorContains(t, err, "without --server-gone")
	require.Contains(t, b.w.sessions, m.Session.handle, "nothing is closed by what is refused")

	b.server.list = &shortList{}
	err = withdraw(b, true)
	require.ErrorContains(t, err, "is open there; it is not gone: decide without --server-gone")
	require.Contains(t, b.w.sessions, m.Session.handle)

	b.server.list = nil
	require.NoError(t, withdraw(b, true), "nothing shows whether it runs, so the word is all there is")
	b.server.list = &shortList{}
	b.w.down = true
	require.NoError(t, withdraw(b, true), "it does not answer")
	b.w.down = false
	b.w.restart()
	require.NoError(t, withdraw(b, true), "what answers in its place knows nothing of it")

	// Its handle tells as much as the list.
	b = newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Running}} }))
	hurry(b.server)
	require.NoError(t, b.process().Execute(t.Context()))
	b.server.list = nil
	require.ErrorContains(t, withdraw(b, true), "is RUNNING at fake:10000; it is not gone")
}
