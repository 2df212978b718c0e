package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// TestMain makes the test binary the command line too: scripts run it as
// `commitstep`, a process of its own that can be killed.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){
		"commitstep": func() { os.Exit(Run(context.Background(), os.Args[1:], testKinds()...)) },
	})
}

type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// testKinds are kinds of "a program's own": their effect is a word in a file,
// which a test writes to say what the outside world answers.
func testKinds() []commitstep.Kind {
	return []commitstep.Kind{
		{Name: "test.effect", Version: 1, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
			e := &effect{}
			return e, commitstep.DecodeParams(s, &e.effectParams)
		}},
		{Name: "test.query", Version: 1, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
			q := &query{}
			return q, commitstep.DecodeParams(s, &q.effectParams)
		}},
	}
}

type effectParams struct {
	File string `json:"file"`
	Mark string `json:"mark,omitempty"`
}

// effect is done when its file says so.
type effect struct{ effectParams }

func (e *effect) Summary() string { return filepath.Base(e.File) }

func (e *effect) Resolve(p *commitstep.Preparation) error {
	if !filepath.IsAbs(e.File) {
		e.File = filepath.Join(p.BaseDir, e.File)
	}
	return p.Set(e.effectParams, nil)
}

func (e *effect) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	b, err := os.ReadFile(e.File)
	if errors.Is(err, os.ErrNotExist) {
		return commitstep.IsNotDone("there is no %s", e.Summary()), nil
	}
	switch word := strings.TrimSpace(string(b)); word {
	case "done":
		return commitstep.IsDone("%s says so", e.Summary()), nil
	case "unknown":
		return commitstep.IsUnknown("%s cannot tell", e.Summary()), nil
	case "conflict":
		return commitstep.InConflict("%s belongs to somebody else", e.Summary()), nil
	case "down":
		return commitstep.Verdict{}, errors.New("the server is down")
	}
	return commitstep.IsNotDone("%s says %q", e.Summary(), b), nil
}

func (e *effect) Execute(context.Context, *commitstep.Attempt) error {
	if b, err := os.ReadFile(e.File); err == nil && strings.HasPrefix(string(b), "refuse") {
		return commitstep.Permanent(errors.New("the quota is used up"))
	}
	return os.WriteFile(e.File, []byte("done"), 0o600)
}

// query cannot be taken back, and nobody knows whether it happened.
type query struct{ effect }

func (*query) Irreversible() {}

// Discard leaves a trace, for tests of what must not be discarded.
func (q *query) Discard(context.Context, *commitstep.Attempt) ([]string, error) {
	return nil, os.WriteFile(q.File+".discarded", nil, 0o600)
}

func (q *query) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := a.PointOfNoReturn(ctx, "query-1"); err != nil {
		return err
	}
	if err := os.WriteFile(q.File, []byte("unknown"), 0o600); err != nil {
		return err
	}
	return errors.New("the connection was lost")
}

// outcomeOfRun is what one command did.
type outcomeOfRun struct {
	code        int
	out, errOut string
}

// run runs one command in this process, with its own environment and without a
// terminal.
func run(t *testing.T, a App, args ...string) outcomeOfRun {
	t.Helper()
	var out, errOut bytes.Buffer
	if a.Stdin == nil {
		a.Stdin = strings.NewReader("")
	}
	a.Stdout, a.Stderr = &out, &errOut
	if a.Env == nil {
		a.Env = func(string) string { return "" }
	}
	if a.Terminal == nil {
		a.Terminal = func() bool { return false }
	}
	a.Program = "commitstep"
	a.Kinds = testKinds()
	code := a.Run(context.Background(), args)
	return outcomeOfRun{code, out.String(), errOut.String()}
}

// must is run for commands that have to succeed.
func must(t *testing.T, a App, args ...string) outcomeOfRun {
	t.Helper()
	r := run(t, a, args...)
	if r.code != ExitOK {
		t.Fatalf("%v: exit %d\n%s%s", args, r.code, r.out, r.errOut)
	}
	return r
}

// newStore makes an empty store and returns its --store value.
func newStore(t *testing.T) string {
	t.Helper()
	st := "bolt:" + filepath.Join(t.TempDir(), "commit.db")
	must(t, App{}, "store", "init", "--store", st)
	return st
}

// writeFile writes a file below dir and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// planOf is a plan of single-step stages of one kind.
func planOf(job, dataset, kind string, files ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"apiVersion":"commitstep/v1","kind":"Plan","job":%q,"dataset":%q,"stages":[`, job, dataset)
	for i, f := range files {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"steps":[{"kind":%q,"params":{"file":%q}}]}`, kind, f)
	}
	return b.String() + "]}"
}

// at follows a path like items.0.sequence into decoded JSON.
func at(v any, path string) (any, error) {
	for _, p := range strings.Split(path, ".") {
		switch w := v.(type) {
		case map[string]any:
			next, ok := w[p]
			if !ok {
				return nil, fmt.Errorf("there is no %q in %v", p, w)
			}
			v = next
		case []any:
			var i int
			if _, err := fmt.Sscan(p, &i); err != nil || i < 0 || i >= len(w) {
				return nil, fmt.Errorf("there is no item %q of %d", p, len(w))
			}
			v = w[i]
		default:
			return nil, fmt.Errorf("%q leads into %v", p, v)
		}
	}
	return v, nil
}
