package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A command to be copied out of a message is about the same store.
func TestHintsNameTheStore(t *testing.T) {
	t.Parallel()
	in := &invocation{App: App{Program: "commitstep"}, used: "bolt:/a b/c.db"}
	const on = " --store 'bolt:/a b/c.db'"
	for text, want := range map[string]string{
		"`commitstep store check` lists it, `commitstep quarantine list` too":   "`commitstep store check" + on + "` lists it, `commitstep quarantine list" + on + "` too",
		"`commitstep store adopt --reason \u2026`":                              "`commitstep store adopt --reason \u2026" + on + "`",
		"`commitstep store migrate --store postgres:` and `x`":                  "`commitstep store migrate --store postgres:` and `x`",
		"`commitstep store copy` and `commitstep store init` and `commitstep":   "`commitstep store copy` and `commitstep store init` and `commitstep",
		"see `commitstep help exit-codes`, `commitstep pending`, commitstep `a": "see `commitstep help exit-codes`, `commitstep pending" + on + "`, commitstep `a",
	} {
		require.Equal(t, want, in.onUsedStore(text))
		none := &invocation{App: App{Program: "commitstep"}}
		require.Equal(t, text, none.onUsedStore(text))
	}
	st := newStore(t)
	r := run(t, App{}, "history", "show", "019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d", "--store", st)
	require.Equal(t, ExitNotFound, r.code)
	require.Contains(t, r.errOut, "`commitstep pending show 019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d --store "+st+"`")
	r = run(t, App{}, "history", "show", "x", "--store", st)
	require.Equal(t, ExitUsage, r.code)
	require.Equal(t, 0, strings.Count(r.errOut, st), "nothing was looked at")
}
