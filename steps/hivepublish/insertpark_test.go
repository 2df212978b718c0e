package hivepublish

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

func TestWithdrawingAnInsert(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	running := func() *fakeOp { return &fakeOp{status: hs2.Status{State: hs2.Running}} }
	b := newBench(t, insertSpec(), scripted(running))
	require.NoError(t, withdraw(b, false), "never executed")
	hurry(b.server)
	require.NoError(t, b.process().Execute(ctx))
	b.w.down = true
	require.ErrorContains(t, withdraw(b, false), "--server-gone")
	require.NoError(t, withdraw(b, true))
	b.w.down = false
	require.ErrorContains(t, withdraw(b, false), "RUNNING")
	for _, o := range b.w.ops {
		o.status.State = hs2.Finished
	}
	require.NoError(t, withdraw(b, false))
	require.Empty(t, b.w.ops, "its session was closed")

	// The submission is still on its way inside the server: the list shows it.
	b = newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{lost: true, status: hs2.Status{State: hs2.Pending}} }))
	require.Error(t, b.process().Execute(ctx))
	for _, o := range b.w.ops {
		o.session = "compiling, not known to its session yet"
	}
	require.ErrorContains(t, withdraw(b, false), "PENDING")
	b.server.list = nil
	require.ErrorContains(t, withdraw(b, false), "no web UI is bound")
	require.NoError(t, withdraw(b, true))

	// Closed with its session, and listed as RUNNING for ever: what counts is the end
	// of its task. One that was cancelled may be in the middle of a move.
	ended := time.UnixMilli(1796101041410)
	b.server.now = func() time.Time { return ended.Add(time.Hour) }
	move := hs2.Task{Type: "MOVE", State: "RUNNING", Begin: ended.Add(-time.Minute)}
	var m insertMark
	_, err := b.process().Attempt.NoReturn(&m)
	require.NoError(t, err)
	cut := hs2.Query{State: hs2.Running, StateText: "RUNNING", QueryID: "q", Session: m.Session.guid, End: ended, Tasks: []hs2.Task{move}, Text: mark(b.process().Attempt.Token.String(), 1, "INSERT")}
	cancelled := cut
	cancelled.State, cancelled.StateText = hs2.Canceled, "CANCELED"
	for _, q := range []hs2.Query{cut, cancelled} {
		b.server.list = fixedList{q}
		require.ErrorContains(t, withdraw(b, false), "still lists query q")
		q.Tasks = []hs2.Task{{Type: "MOVE", State: "FINISHED", Begin: move.Begin, End: ended.Add(time.Minute)}}
		b.server.list = fixedList{q}
		require.NoError(t, withdraw(b, false))
	}

	// While it is compiled the list has no text of it, and its session tells.
	p := b.process()
	compiling := hs2.Query{State: hs2.Pending, StateText: "PENDING", Running: true, Session: m.Session.guid}
	foreign := compiling
	foreign.Session = "another"
	b.server.list = fixedList{compiling, foreign}
	require.ErrorContains(t, withdraw(b, false), "PENDING")
	pack, err := p.Step.(Prober).Probe(ctx, p.Attempt)
	require.NoError(t, err)
	require.Len(t, pack.Queries, 1)
	require.Equal(t, "wait", pack.Suggestion.As)
	b.server.list = fixedList{foreign}
	require.ErrorContains(t, withdraw(b, false), "does not show any more", "it was seen, and not seen to end")
	b.server.now = func() time.Time { return ended.Add(3 * time.Hour) }
	require.NoError(t, withdraw(b, false))
}

func TestThePackSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{lost: true} }))
	require.Error(t, b.process().Execute(t.Context()))
	p := b.process()
	on := p.Step.(commitstep.OnPark)
	require.NoError(t, on.OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told"))
	p = b.process()
	var n insertNote
	ok, err := p.Attempt.LastNote(&n)
	require.NoError(t, err)
	require.True(t, ok)
	pack := n.Evidence
	require.NotNil(t, pack, "it is kept with the attempt")
	require.Equal(t, p.Attempt.Token.String(), pack.Token)
	require.Equal(t, "sales.facts/dt=2024-01-01", pack.Target)
	require.Equal(t, []value{{"rows", "2"}}, pack.Before.Metrics)
	require.Equal(t, []value{{"rows", "3"}}, pack.Now.Metrics)
	require.Equal(t, []value{{"rows", "3"}}, pack.Want)
	require.Equal(t, "hdfs://nn:8020/wh/facts/dt=2024-01-01", pack.Now.Location)
	require.Len(t, pack.Queries, 1)
	require.Equal(t, "FINISHED", pack.Queries[0].State)
	require.Contains(t, pack.Phase, "no answer")
	require.Equal(t, "published", pack.Suggestion.As, pack.Suggestion.Why)
	b.want(commitstep.Unknown) // it suggests and never decides

	// The next pack is gathered while nothing can be reached.
	b.w.down = true
	p = b.process()
	later, err := p.Step.(Prober).Probe(t.Context(), p.Attempt)
	require.NoError(t, err)
	require.Empty(t, later.Suggestion.As)
	require.Contains(t, later.Suggestion.Why, "fake:10000 cannot be reached")
	require.Contains(t, later.Suggestion.Why, "--server-gone")
	require.Contains(t, later.Unreachable, errDown.Error())
	require.NotEmpty(t, later.Missing)

	raw, err := json.Marshal(n)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"handle":"session-`)
	shown := p.Step.(commitstep.NoteRedactor).RedactNote(raw)
	require.NotContains(t, string(shown), `"handle"`)
	require.Contains(t, string(shown), "guid-session-")
	require.NotContains(t, string(p.Step.(commitstep.NoteRedactor).RedactNote(json.RawMessage(`{"handle`))), "handle")
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	ls := func(n int) *Listing { return &Listing{Files: n} }
	before := TargetState{Known: true, There: true, Location: "x", Files: ls(1), Metrics: []value{{"rows", "2"}}}
	with := func(n int, v string) TargetState {
		return TargetState{Known: true, There: true, Location: "x", Files: ls(n), Metrics: []value{{"rows", v}}}
	}
	for name, c := range map[string]struct {
		p    Pack
		want string
	}{
		"as it was":            {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "3"}}}, "not-published"},
		"as planned":           {Pack{Before: before, Now: with(2, "3"), Want: []value{{"rows", "3"}}}, "published"},
		"cannot tell":          {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "2"}}}, ""},
		"same count, finished": {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "2"}}, Last: &Outcome{Fate: "finished"}}, "published"},
		"a part":               {Pack{Before: before, Now: with(1, "1"), Want: []value{{"rows", "3"}}}, "not-published"},
		"other files":          {Pack{Before: before, Now: with(2, "2"), Want: []value{{"rows", "3"}}}, ""},
		"still running":        {Pack{Before: before, Now: with(1, "2"), Queries: []QueryRow{{State: "RUNNING", Live: true}}}, "wait"},
		"was cut off":          {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "3"}}, Queries: []QueryRow{{State: "RUNNING"}}}, "not-published"},
		"not looked at":        {Pack{Before: before}, ""},
		"as it was, perhaps":   {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "3"}}, sent: true}, ""},
		"as it was, not run":   {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "3"}}, sent: true, listed: true}, "not-published"},
		"as planned, perhaps":  {Pack{Before: before, Now: with(2, "3"), Want: []value{{"rows", "3"}}, sent: true}, "published"},
		"sent elsewhere":       {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "3"}}, sent: true, Server: "a:1", Bound: "b:1"}, ""},
		"ended elsewhere":      {Pack{Before: before, Now: with(1, "2"), Want: []value{{"rows", "3"}}, Server: "a:1", Bound: "b:1"}, "not-published"},
		"out of reach":         {Pack{Before: before, Unreachable: "refused", Server: "a:1"}, ""},
	} {
		c.p.suggest()
		require.Equal(t, c.want, c.p.Suggestion.As, "%s: %s", name, c.p.Suggestion.Why)
		require.NotEmpty(t, c.p.Suggestion.Why)
	}
}
