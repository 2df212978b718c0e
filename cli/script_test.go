package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs the transcripts in testdata/script: every command, with its
// refusals and exit codes, as a process of its own.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts("testdata/script"))
}

// scripts are the transcripts in a directory, with what all of them may use.
func scripts(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_STATE_HOME", e.Getenv("WORK")+"/state")
			e.Setenv("COMMITSTEP_BY", "alice")
			e.Setenv(quickExit, quickExitOn)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "grab": grab, "scrub": scrub, "replace": replace,
		},
	}
}

// exits CODE ARG...: run commitstep and demand this exit code. A command that
// is killed has the code "killed".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: exits CODE ARG...")
	}
	got := "0"
	if err := ts.Exec("commitstep", args[1:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		if got = strconv.Itoa(e.ExitCode()); got == "-1" {
			got = "killed"
		}
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// grab VAR PATH: set VAR to a value in the JSON on stdout.
func grab(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: grab VAR PATH")
	}
	var v any
	d := json.NewDecoder(bytes.NewReader([]byte(ts.ReadFile("stdout"))))
	d.UseNumber()
	ts.Check(d.Decode(&v))
	got, err := at(v, args[1])
	ts.Check(err)
	ts.Setenv(args[0], fmt.Sprint(got))
}

var scrubs = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uuid>"},
	{regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z`), "<time>"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "<hash>"},
	{regexp.MustCompile(`("tookMillis": )\d+`), "${1}0"},
	{regexp.MustCompile(`(handle|btime):[^"]*`), "<file id>"},
	{regexp.MustCompile(`("host": )"[^"]*"`), `${1}"<host>"`},
	{regexp.MustCompile(`commitstep on [^"]* \(pid \d+\)`), "commitstep on <host> (pid 1)"},
	{regexp.MustCompile(`("tool": )"[^"]*"`), `${1}"<tool>"`},
	{regexp.MustCompile(`\d+s( ago)?`), "<age>"},
}

// scrub FILE: write stdout to FILE with everything replaced that differs from
// run to run, to be compared with a golden file.
func scrub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: scrub FILE")
	}
	s := ts.ReadFile("stdout")
	s = regexp.MustCompile(regexp.QuoteMeta(ts.Getenv("WORK"))).ReplaceAllString(s, "<work>")
	for _, x := range scrubs {
		s = x.re.ReplaceAllString(s, x.with)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(s), 0o600))
}

// replace FILE OLD NEW: change every occurrence of some bytes by as many others.
func replace(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 || len(args[1]) != len(args[2]) {
		ts.Fatalf("usage: replace FILE OLD NEW, of one length")
	}
	p := ts.MkAbs(args[0])
	b, err := os.ReadFile(p)
	ts.Check(err)
	if !bytes.Contains(b, []byte(args[1])) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(p, bytes.ReplaceAll(b, []byte(args[1]), []byte(args[2])), 0o600))
}
