package cli

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCalledAs: what `go run` built is deleted when it ends, so no line to be
// copied may name it.
func TestCalledAs(t *testing.T) {
	t.Parallel()
	const pkg = "./cmd/commitstep"
	require.Equal(t, "go run ./cmd/commitstep", calledAs([]string{"/tmp/go-build123/b001/exe/commitstep"}, pkg))
	require.Equal(t, "go run ./cmd/commitstep", calledAs([]string{"/home/u/.cache/go-build/0a/0ab-d/commitstep"}, pkg))
	require.Equal(t, "./bin/commitstep", calledAs([]string{"./bin/commitstep"}, pkg))
	require.Equal(t, "commitstep", calledAs([]string{"commitstep"}, pkg))
	require.Equal(t, "commitstep", calledAs(nil, pkg))

	in := (&App{Program: "go run ./cmd/commitstep"}).invocation()
	in.location = "bolt:/x y/commit.db"
	require.Equal(t, "go run ./cmd/commitstep recover --job j --store 'bolt:/x y/commit.db'", in.line("recover", "--job", "j"))
	require.Equal(t, "see `go run ./cmd/commitstep recover --job j`", in.called("see `commitstep recover --job j`"))
	in.Program = "/opt/my tools/commitstep"
	require.Equal(t, "see `'/opt/my tools/commitstep' recover`", in.called("see `commitstep recover`"))
}

// TestInterruptedBeforeThePlanIsStored: the message says that nothing is left
// behind.
func TestInterruptedBeforeThePlanIsStored(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	dir := t.TempDir()
	writeFile(t, dir, "effect", "")
	for _, name := range []string{"plan.json", "plan.jsonl"} {
		text := planOf("j", "d", "test.effect", "effect")
		if name == "plan.jsonl" {
			text = `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d"}` + "\n" + `{"stage":0,"kind":"test.effect","params":{"file":"effect"}}` + "\n"
		}
		plan := writeFile(t, dir, name, text)
		for calls := range 6 {
			var out, said bytes.Buffer
			ctx, cancel := context.WithCancel(t.Context())
			left := calls
			a := App{Stdout: &out, Stderr: writerFunc(func(b []byte) (int, error) {
				if left == 0 {
					cancel()
				}
				left--
				return said.Write(b)
			}), Env: func(string) string { return "" }, Terminal: func() bool { return false }, Kinds: testKinds()}
			if calls == 0 {
				cancel()
			}
			code := a.Run(ctx, []string{"publish", "-f", plan, "--store", st})
			cancel()
			if code == ExitOK {
				break
			}
			require.Equal(t, ExitInterrupted, code, "%s", &said)
			require.Contains(t, said.String(), "nothing was stored", name)
			require.Contains(t, must(t, App{}, "pending", "list", "-o", "json", "--store", st).out, `"items": []`)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
