package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStagingOfALongSequence: the store keeps the steps of a sequence that is
// too long for its history until its staging was removed.
func TestStagingOfALongSequence(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	dir := t.TempDir()
	const files = 600
	var plan strings.Builder
	plan.WriteString(`{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"long","cleanup":[{"path":"run"}]}` + "\n")
	plan.WriteString(`{"stage":0,"kind":"test.effect","params":{"file":"effect"}}` + "\n")
	for i := range files {
		writeFile(t, dir, fmt.Sprintf("run/%d", i), fmt.Sprint(i))
		fmt.Fprintf(&plan, `{"stage":1,"kind":"fs.rename","params":{"from":"run/%d","to":"out/%d"}}`+"\n", i, i)
	}
	writeFile(t, dir, "effect", "conflict")
	p := writeFile(t, dir, "plan.jsonl", plan.String())
	require.Equal(t, ExitDecision, run(t, App{}, "publish", "-f", p, "--store", st).code)
	must(t, App{}, "resolve", "long", "--job", "j", "--as", "abandon", "--reason", "not needed any more", "--yes", "--store", st)

	list := []string{"staging", "list", "--older-than", "0s", "-o", "json", "--store", st}
	require.Contains(t, must(t, App{}, list...).out, fmt.Sprintf(`"staged": %d`, files))
	// One is somebody else's by now.
	require.NoError(t, os.Remove(filepath.Join(dir, "run/7")))
	writeFile(t, dir, "run/7", "mine")
	r := must(t, App{}, "staging", "remove", "--all", "--older-than", "0s", "--reason", "monthly clean-up", "--yes", "--store", st)
	require.Contains(t, r.out, fmt.Sprintf("removed %d staged sources", files-1))
	left, err := os.ReadDir(filepath.Join(dir, "run"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "7", left[0].Name())
	require.Contains(t, must(t, App{}, list...).out, `"items": []`)
	require.Contains(t, must(t, App{}, "store", "check", "--store", st).out, "no problems")
}

// TestDeclaredPublishedIsNeverRemoved: what a person declared published may be
// the only copy of the data.
func TestDeclaredPublishedIsNeverRemoved(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	dir := t.TempDir()
	writeFile(t, dir, "run/a", "data")
	writeFile(t, dir, "run/left", "perhaps what the query reads")
	writeFile(t, dir, "refuse", "refuse")
	p := writeFile(t, dir, "plan.json", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","cleanup":[{"path":"run","leftovers":"delete"}],"stages":[
		{"steps":[{"kind":"test.query","params":{"file":"q"}}]},
		{"steps":[{"kind":"test.effect","params":{"file":"refuse"}}]},
		{"steps":[{"kind":"fs.rename","params":{"from":"run/a","to":"out/a"}}]}]}`)
	require.Equal(t, ExitDecision, run(t, App{}, "publish", "-f", p, "--store", st, "--unknown-budget", "10ms").code)
	r := run(t, App{}, "resolve", "d", "--job", "j", "--as", "published", "--reason", "counted the rows", "--yes", "--continue", "--store", st)
	require.Equal(t, ExitDecision, r.code, "the next step is refused")
	must(t, App{}, "resolve", "d", "--job", "j", "--as", "abandon", "--accept-partial", "--reason", "not needed any more", "--yes", "--store", st)
	out := must(t, App{}, "staging", "list", "--older-than", "0s", "-o", "json", "--store", st).out
	require.Contains(t, out, `"staged": 1`)
	require.Contains(t, out, `"kept": 1`)
	out = must(t, App{}, "staging", "remove", "--all", "--older-than", "0s", "--reason", "monthly clean-up", "--yes", "-o", "json", "--store", st).out
	require.Contains(t, out, "nobody can tell where its data was staged")
	require.FileExists(t, filepath.Join(dir, "run/left"))
	require.NoFileExists(t, filepath.Join(dir, "run/a"))
	require.NoFileExists(t, filepath.Join(dir, "q.discarded"))
	h := must(t, App{}, "history", "list", "-o", "json", "--store", st).out
	require.Contains(t, h, `"declaredPublished": [`)
}

// TestStagingCountsAgreeWithWhatIsRemoved: something foreign at the destination
// says nothing about the source, so list, dry run, report and audit all speak of
// the file that is removed.
func TestStagingCountsAgreeWithWhatIsRemoved(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	dir := t.TempDir()
	writeFile(t, dir, "task/a", "data")
	writeFile(t, dir, "effect", "conflict")
	p := writeFile(t, dir, "plan.json", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","cleanup":[{"path":"task"}],"stages":[
		{"steps":[{"kind":"test.effect","params":{"file":"effect"}}]},
		{"steps":[{"kind":"fs.rename","params":{"from":"task/a","to":"out/x"}}]}]}`)
	require.Equal(t, ExitDecision, run(t, App{}, "publish", "-f", p, "--store", st).code)
	writeFile(t, dir, "out/x", "somebody else's")
	must(t, App{}, "resolve", "d", "--job", "j", "--as", "abandon", "--reason", "not needed any more", "--yes", "--store", st)

	require.Contains(t, must(t, App{}, "staging", "list", "--older-than", "0s", "-o", "json", "--store", st).out, `"staged": 1`)
	remove := []string{"staging", "remove", "--all", "--older-than", "0s", "--reason", "monthly clean-up", "--store", st}
	require.Contains(t, must(t, App{}, append(remove, "--dry-run")...).out, "would remove 1 staged source\n")
	require.FileExists(t, filepath.Join(dir, "task/a"))
	out := must(t, App{}, append(remove, "--yes", "-o", "json")...).out
	require.Contains(t, out, `"removed": 1`)
	require.Contains(t, out, `"unclear": 0`)
	require.NoFileExists(t, filepath.Join(dir, "task/a"))
	require.FileExists(t, filepath.Join(dir, "out/x"))
	require.Contains(t, must(t, App{}, "audit", "list", "-o", "json", "--store", st).out, `"after": "1 removed, 0 stay"`)
}
