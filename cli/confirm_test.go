package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parked makes a store with one parked dataset.
func parked(t *testing.T) string {
	t.Helper()
	st := newStore(t)
	dir := t.TempDir()
	writeFile(t, dir, "effect", "conflict")
	plan := writeFile(t, dir, "plan.json", planOf("j", "d", "test.effect", "effect"))
	require.Equal(t, ExitDecision, run(t, App{}, "publish", "-f", plan, "--store", st).code)
	return st
}

func terminal(answer string) App {
	return App{Stdin: strings.NewReader(answer), Terminal: func() bool { return true }}
}

// TestDecisionOnATerminal: the person sees what will happen, and types the
// dataset's name; anything else does nothing.
func TestDecisionOnATerminal(t *testing.T) {
	t.Parallel()
	st := parked(t)
	args := []string{"resolve", "d", "--job", "j", "--as", "abandon", "--reason", "only a test", "--store", st}
	for _, answer := range []string{"", "\n", "y\n", "yes\n", "D\n", "d d\n"} {
		r := run(t, terminal(answer), args...)
		require.Equal(t, ExitError, r.code, "%q", answer)
		require.Contains(t, r.errOut, "nothing was done")
		require.Empty(t, r.out)
	}
	require.Contains(t, must(t, App{}, "pending", "list", "--store", st).out, "parked CONFLICT")
	r := run(t, terminal("d\n"), args...)
	require.Equal(t, ExitOK, r.code, r.errOut)
	require.Contains(t, r.errOut, "before", "the question shows what will change")
	require.Contains(t, r.errOut, "nothing was decided yet")
	require.Contains(t, r.out, "abandoned")
}

// TestNoInput: with --no-input a terminal is none.
func TestNoInput(t *testing.T) {
	t.Parallel()
	r := run(t, terminal("d\n"), "resolve", "d", "--job", "j", "--as", "retry", "--reason", "only a test", "--store", "bolt:x", "--no-input")
	require.Equal(t, ExitUsage, r.code)
	require.Contains(t, r.errOut, "add --yes")
}

// TestEveryDecisionAsks: without a terminal and without --yes no decision that
// cannot be undone is taken, and no store is even opened.
func TestEveryDecisionAsks(t *testing.T) {
	t.Parallel()
	id := "019b0b0c-6f3a-7c11-8d39-0f6f6a7b8c9d"
	for _, args := range [][]string{
		{"resolve", id, "--as", "retry"},
		{"watermark", "set", "--job", "j", "--source", "s", "--from", "1", "--to", "2"},
		{"watermark", "accept", "--job", "j"},
		{"store", "adopt"},
		{"staging", "remove", id},
		{"hive", "sweep", "sales.facts"},
	} {
		args = append(args, "--reason", "only a test", "--store", "bolt:"+t.TempDir()+"/none.db")
		r := run(t, App{}, args...)
		require.Equal(t, ExitUsage, r.code, "%v: %s", args, r.errOut)
		require.Contains(t, r.errOut, "--yes", "%v", args)
		require.Len(t, strings.Split(strings.TrimSpace(r.errOut), "\n"), 1, "one line: %s", r.errOut)
	}
}

// TestKindsOfTheProgram: a program may bind a built-in name otherwise.
func TestKindsOfTheProgram(t *testing.T) {
	t.Parallel()
	reg, err := mergeKinds(testKinds()[:1], testKinds())
	require.NoError(t, err)
	require.Equal(t, []string{"test.effect", "test.query"}, reg.Names())
	_, err = mergeKinds(nil, append(testKinds(), testKinds()[0]))
	require.ErrorContains(t, err, "two step kinds are named")
	broken := testKinds()[:1]
	broken[0].New = nil
	_, err = mergeKinds(nil, broken)
	require.ErrorContains(t, err, "incomplete")
}
