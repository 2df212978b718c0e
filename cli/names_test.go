package cli

import (
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestNamesNeverReachTheTerminalRaw: what a table shows of a name has no
// control character, and no two names look alike in quotes and without.
func TestNamesNeverReachTheTerminalRaw(t *testing.T) {
	t.Parallel()
	require.Equal(t, "MyTopic", name("MyTopic"))
	require.Equal(t, "데이터/a b", name("데이터/a b"))
	require.Equal(t, `" a"`, name(" a"))
	require.Equal(t, `""`, name(""))
	require.Equal(t, `"\x1b[31m"`, name("\x1b[31m"))
	require.Equal(t, `"a\u202eb"`, name("a\u202eb")) // would turn the line around
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		require.Equal(t, a == b, name(a) == name(b), "%q, %q", a, b)
		require.NotContains(t, name(a), "\n")
		require.NotContains(t, name(a), "\x1b")
	})
}

// TestMessageOfAPendingSequence: what once parked it is not shown as what is
// wrong now.
func TestMessageOfAPendingSequence(t *testing.T) {
	t.Parallel()
	require.Equal(t, "no quota", sequenceView{State: commitstep.Parked, Message: "no quota", LastError: "x"}.messageText())
	require.Equal(t, "earlier: no quota", sequenceView{State: commitstep.Pending, Message: "no quota"}.messageText())
	require.Equal(t, "waiting: no route", sequenceView{State: commitstep.Pending, Message: "waiting: no route"}.messageText())
	require.Equal(t, "step 1: x", sequenceView{State: commitstep.Pending, Message: "no quota", LastError: "step 1: x"}.messageText())
	at := time.Unix(100, 0)
	page := store.Page{Steps: []commitstep.Step{{Index: 0, Kind: "a"}, {Index: 1, Kind: "b"}}, Progress: []commitstep.Progress{
		{Done: true, Attempts: []commitstep.AttemptRecord{{Number: 9, Started: at.Add(9), Error: "over"}}},
		{Attempts: []commitstep.AttemptRecord{{Number: 1, Started: at, Error: "first"}, {Number: 2, Started: at.Add(1), Error: "second"}, {Number: 3, Started: at.Add(2)}}}}}
	require.Equal(t, "step 2 (b) attempt 2: second", lastError(page))
}
