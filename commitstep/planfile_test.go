package commitstep_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"sigs.k8s.io/yaml"
)

const head = `"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d"`

func TestParsePlan(t *testing.T) {
	t.Parallel()
	p, err := commitstep.ParsePlan([]byte(`{` + head + `,"id":"run-17","locks":["l"],"acceptReusedPaths":"restaged",
		"stages":[{"steps":[{"kind":"fs.rename","params":{"from":"a","to":"b"}},{"kind":"x"}]},{"steps":[{"kind":"watermark.set","params":{"source":"s","from":null,"to":9007199254740993}}]}],
		"cleanup":[{"path":"a"},{"path":"b","leftovers":"delete"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != "run-17" || p.Key != (commitstep.Key{Job: "j", Dataset: "d"}) || fmt.Sprint(p.Locks) != "[l]" || p.AcceptReusedPaths != "restaged" {
		t.Errorf("read as %+v", p)
	}
	steps, err := collect(p)
	if err != nil || stagesOf(steps) != "0:fs.rename 0:x 1:watermark.set" {
		t.Fatalf("steps %q, %v", stagesOf(steps), err)
	}
	// Whole, beyond what a float holds.
	if got := string(steps[2].Params); !strings.Contains(got, "9007199254740993") {
		t.Errorf("parameters are %s", got)
	}
	if len(p.CleanupSteps) != 2 || p.CleanupSteps[0].Kind != commitstep.CleanupKind || string(p.CleanupSteps[1].Params) != `{"path":"b","leftovers":"delete"}` {
		t.Errorf("cleanup is %+v", p.CleanupSteps)
	}
}

// badDocuments have one thing wrong each.
var badDocuments = []struct{ name, doc, says string }{
	{"nothing", ``, "empty"},
	{"white space", " \n\t ", "empty"},
	{"null", `null`, `apiVersion ""`},
	{"an array", `[]`, "array"},
	{"a text", `"plan"`, "string"},
	{"yaml", "apiVersion: commitstep/v1", "invalid character"},
	{"cut", `{` + head, "ends too early"},
	{"cut in a text", `{"apiVersion":"commit`, "ends too early"},
	{"a second document", `{` + head + `}{}`, "follows"},
	{"text behind it", `{` + head + `} x`, "follows"},
	{"no version", `{"kind":"Plan","job":"j","dataset":"d"}`, `apiVersion ""`},
	{"a later version", `{"apiVersion":"commitstep/v2","kind":"Plan","job":"j","dataset":"d"}`, "commitstep/v2"},
	{"another kind", `{"apiVersion":"commitstep/v1","kind":"Job","job":"j","dataset":"d"}`, `kind "Job"`},
	{"a misspelt field", `{` + head + `,"stagse":[]}`, "stagse"},
	{"a misspelt field of a step", `{` + head + `,"stages":[{"steps":[{"kind":"x","parms":{}}]}]}`, "parms"},
	{"a misspelt field of a stage", `{` + head + `,"stages":[{"step":[]}]}`, `"step"`},
	{"a misspelt field of the cleanup", `{` + head + `,"cleanup":[{"path":"a","leftover":"delete"}]}`, "leftover"},
	{"a field twice", `{` + head + `,"dataset":"e"}`, `"dataset" appears twice`},
	{"a field twice, in another case", `{` + head + `,"Dataset":"e"}`, `"Dataset" appears twice`},
	{"a field twice, in a folded case", `{` + head + `,"stages":[],"\u017ftages":[]}`, "appears twice"},
	{"a field twice, escaped", `{` + head + `,"d\u0061taset":"e"}`, "appears twice"},
	{"a parameter twice", `{` + head + `,"stages":[{"steps":[{"kind":"x","params":{"a":{"b":1,"b":2}}}]}]}`, `"b" appears twice`},
	{"a number for a name", `{"apiVersion":"commitstep/v1","kind":"Plan","job":1,"dataset":"d"}`, "number"},
	{"no job", `{"apiVersion":"commitstep/v1","kind":"Plan","dataset":"d"}`, "job is empty"},
	{"a null dataset", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":null}`, "dataset is empty"},
	{"a long dataset", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"` + strings.Repeat("x", 1025) + `"}`, "1025 bytes"},
	{"bytes that are no UTF-8", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"` + "\xff" + `"}`, "not valid UTF-8"},
	{"half a surrogate", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"\ud800"}`, "surrogate"},
	{"the other half", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"\udc00\ud800"}`, "surrogate"},
	{"half a surrogate in a parameter", `{` + head + `,"stages":[{"steps":[{"kind":"x","params":{"to":"\ud800x"}}]}]}`, "surrogate"},
	{"an empty stage", `{` + head + `,"stages":[{"steps":[{"kind":"x"}]},{"steps":[]}]}`, "stage 2 has no steps"},
	{"a null stage", `{` + head + `,"stages":[null]}`, "stage 1 has no steps"},
	{"a null step", `{` + head + `,"stages":[{"steps":[null]}]}`, "has no kind"},
	{"a step without a kind", `{` + head + `,"stages":[{"steps":[{"params":{}}]}]}`, "stage 1 step 1 () has no kind"},
	{"stages as an object", `{` + head + `,"stages":{}}`, "object"},
	{"a null lock", `{` + head + `,"locks":[null]}`, "lock is empty"},
	{"an empty lock", `{` + head + `,"locks":["a",""]}`, "lock is empty"},
	{"a null cleanup", `{` + head + `,"cleanup":[{"path":"a"},null]}`, "cleanup 2 has no path"},
	{"a count of steps", `{` + head + `,"stepCount":1}`, "stepCount"},
	{"a secret", `{` + head + `,"stages":[{"steps":[{"kind":"x","params":{"password":"hunter2"}}]}]}`, `"password"`},
	{"a byte order mark", "\ufeff{" + head + "}", "invalid character"},
	{"deep nesting", `{` + head + `,"stages":[{"steps":[{"kind":"x","params":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}]}]}`, "nested deeper"},
	{"very deep nesting", strings.Repeat("[", 1_000_000), "nested deeper"},
	{"a huge number for a name", `{"apiVersion":"commitstep/v1","kind":"Plan","job":1` + strings.Repeat("0", 100_000) + `,"dataset":"d"}`, "number"},
	{"a NUL byte", "{" + head + "}\x00", "follows"},
}

func TestBadDocumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range badDocuments {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := commitstep.ParsePlan([]byte(c.doc))
			if p != nil {
				t.Errorf("read as %+v", p)
			}
			requireRefusal(t, err, c.says)
			if len(err.Error()) > 4096 {
				t.Errorf("the refusal has %d bytes", len(err.Error()))
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the refusal shows the secret: %q", err)
			}
		})
	}
}

func TestGoodOddDocuments(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		`{` + head + `}`, // without steps; the driver refuses to publish it
		`{` + head + `,"stages":null,"locks":null,"cleanup":null,"id":null}`,
		`{` + head + `,"stages":[{"steps":[{"kind":"x","params":null}]}]}`,
		`{` + head + `,"stages":[{"steps":[{"kind":"x","params":{"n":1e400,"m":123456789012345678901234567890,"s":"\ud83d\ude00"}}]}]}`,
		"\r\n{" + head + "}\r\n",
		`{` + head + `,"stages":[{"steps":[{"kind":"x","params":` + strings.Repeat("[", 190) + strings.Repeat("]", 190) + `}]}]}`,
	} {
		if _, err := commitstep.ParsePlan([]byte(doc)); err != nil {
			t.Errorf("%.120s: %v", doc, err)
		}
	}
}

func lines(s ...string) io.Reader { return strings.NewReader(strings.Join(s, "\n")) }

func TestReadPlanLines(t *testing.T) {
	t.Parallel()
	for _, sep := range []string{"\n", "\r\n", "\n\n  \n"} {
		text := strings.Join([]string{`{` + head + `,"stepCount":3,"cleanup":[{"path":"x"}]}`, `{"stage":0,"kind":"a","params":{"i":0}}`, `{"stage":0,"kind":"b"}`, `{"stage":1,"kind":"c"}`}, sep)
		for _, end := range []string{"", sep} {
			p, err := commitstep.ReadPlanLines(strings.NewReader(text + end))
			if err != nil {
				t.Fatal(err)
			}
			steps, err := collect(p)
			if err != nil || stagesOf(steps) != "0:a 0:b 1:c" || string(steps[0].Params) != `{"i":0}` || len(p.CleanupSteps) != 1 {
				t.Fatalf("%q: %q, %v", sep, stagesOf(steps), err)
			}
			// A second range must not look like a plan without steps.
			steps, err = collect(p)
			requireRefusal(t, err, "read already")
			if len(steps) != 0 {
				t.Fatalf("%d steps in the second range", len(steps))
			}
		}
	}
}

func TestBadFirstLines(t *testing.T) {
	t.Parallel()
	for _, c := range badDocuments {
		if c.name == "a count of steps" || strings.Contains(c.doc, `"stages":null`) {
			continue
		}
		_, err := commitstep.ReadPlanLines(lines(strings.ReplaceAll(c.doc, "\n", " ")))
		t.Run(c.name, func(t *testing.T) { requireRefusal(t, err) })
	}
	_, err := commitstep.ReadPlanLines(lines(`{` + head + `,"stages":[]}`))
	requireRefusal(t, err, "has stages")
	_, err = commitstep.ReadPlanLines(lines(`{` + head + strings.Repeat(" ", 5<<20) + `}`))
	requireRefusal(t, err, "line 1", "longer than 4194304 bytes")
	boom := errors.New("boom")
	_, err = commitstep.ReadPlanLines(io.MultiReader(strings.NewReader(`{`), failing{boom}))
	if !errors.Is(err, boom) {
		t.Errorf("a reader's error is lost: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestBadStepLines(t *testing.T) {
	t.Parallel()
	first, good := `{`+head+`}`, `{"stage":0,"kind":"a"}`
	counted := `{` + head + `,"stepCount":2}`
	for _, c := range []struct {
		name  string
		in    io.Reader
		steps int // before the refusal
		says  string
	}{
		{"no stage", lines(first, good, `{"kind":"a"}`), 1, "line 3 cannot be read: it has no stage"},
		{"a null stage", lines(first, `{"stage":null,"kind":"a"}`), 0, "it has no stage"},
		{"half a stage", lines(first, `{"stage":0.5,"kind":"a"}`), 0, "line 2"},
		{"a huge stage", lines(first, `{"stage":99999999999999999999,"kind":"a"}`), 0, "line 2"},
		{"a gap", lines(first, good, `{"stage":2,"kind":"a"}`), 1, "after stage 0"},
		{"no kind", lines(first, `{"stage":0}`), 0, "has no kind"},
		{"a misspelt field", lines(first, `{"stage":0,"kind":"a","parms":{}}`), 0, "parms"},
		{"a field twice", lines(first, `{"stage":0,"stage":0,"kind":"a"}`), 0, "twice"},
		{"two steps on a line", lines(first, good+good), 0, "follows"},
		{"a cut line", lines(first, good, good[:10]), 1, "line 3 cannot be read: it ends too early"},
		{"a secret", lines(first, `{"stage":0,"kind":"a","params":{"token":"hunter2"}}`), 0, `"token"`},
		{"a long line", lines(first, good, `{"stage":0,"kind":"`+strings.Repeat("a", 5<<20)+`"}`), 1, "line 3 cannot be read: it is longer than"},
		{"a failing reader", io.MultiReader(lines(first, good, ""), failing{errors.New("boom")}), 1, "boom"},
		{"a step missing", lines(counted, good), 1, "1 steps were read, stepCount says 2"},
		{"all steps missing", lines(counted), 0, "0 steps were read, stepCount says 2"},
		{"a step too many", lines(counted, good, good, good), 3, "3 steps were read, stepCount says 2"},
		{"bytes that are no UTF-8", lines(first, `{"stage":0,"kind":"a","params":{"to":"`+"\xff"+`"}}`), 0, "not valid UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := commitstep.ReadPlanLines(c.in)
			if err != nil {
				t.Fatal(err)
			}
			steps, err := collect(p)
			requireRefusal(t, err, c.says)
			if len(steps) != c.steps {
				t.Errorf("%d steps before the refusal, want %d", len(steps), c.steps)
			}
		})
	}
}

// The steps of a long plan are read as they are asked for.
func TestLinesAreNotReadAhead(t *testing.T) {
	t.Parallel()
	const n = 100_000
	r, w := io.Pipe()
	written := make(chan int, 1)
	go func() {
		defer w.Close()
		_, _ = fmt.Fprintf(w, "{%s,\"stepCount\":%d}\n", head, n)
		for i := range n {
			if _, err := fmt.Fprintf(w, `{"stage":%d,"kind":"a","params":{"i":%d}}`+"\n", i/1000, i); err != nil {
				written <- i
				return
			}
		}
		written <- n
	}()
	p, err := commitstep.ReadPlanLines(r)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for s, err := range p.Steps() {
		if err != nil {
			t.Fatal(err)
		}
		if s.Stage != seen/1000 || string(s.Params) != fmt.Sprintf(`{"i":%d}`, seen) {
			t.Fatalf("step %d is %+v", seen, s)
		}
		if seen++; seen == n/2 {
			break
		}
	}
	_ = r.Close()
	// The scanner's buffer starts at 64 KiB; a line has some 40 bytes.
	if i := <-written; i > n/2+10_000 {
		t.Errorf("%d lines were read for %d steps", i, seen)
	}
}

func TestExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "examples", "plan.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	fromYAML, err := commitstep.ParsePlan(doc)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join("..", "examples", "plan.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fromLines, err := commitstep.ReadPlanLines(f)
	if err != nil {
		t.Fatal(err)
	}
	a, err := collect(fromYAML)
	if err != nil {
		t.Fatal(err)
	}
	b, err := collect(fromLines)
	if err != nil {
		t.Fatal(err)
	}
	// The two files are one plan in two forms.
	if want := "0:fs.rename 0:fs.rename 0:fs.rename 1:watermark.set 1:watermark.set"; stagesOf(a) != want || stagesOf(b) != want {
		t.Errorf("steps are %q and %q, want %q", stagesOf(a), stagesOf(b), want)
	}
	hash := func(p *commitstep.Plan, steps []commitstep.StagedSpec) string {
		h := commitstep.NewPlanHasher(p)
		for i, s := range steps {
			h.Step(commitstep.Step{Index: i, Stage: s.Stage, Kind: s.Kind, Version: 1, Params: canonical(t, s.Params)})
		}
		for _, s := range p.CleanupSteps {
			h.Cleanup(commitstep.Step{Kind: s.Kind, Version: 1, Params: canonical(t, s.Params)})
		}
		return h.Sum()
	}
	if hash(fromYAML, a) != hash(fromLines, b) || fromYAML.ID != fromLines.ID || fromYAML.ID == "" {
		t.Errorf("the two examples differ: %+v %+v, %+v %+v", fromYAML, a, fromLines, b)
	}
}

func FuzzParsePlan(f *testing.F) {
	for _, c := range badDocuments {
		if len(c.doc) < 10_000 {
			f.Add([]byte(c.doc))
		}
	}
	f.Add([]byte(`{` + head + `,"stages":[{"steps":[{"kind":"fs.rename","params":{"from":"a","to":"b"}}]}],"cleanup":[{"path":"a"}],"locks":["l"]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := commitstep.ParsePlan(doc)
		if err != nil {
			requireRefusalRapid(t, err)
			return
		}
		if _, err := collect(p); err != nil {
			t.Fatalf("an accepted document has bad steps: %v", err)
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("an accepted document has bad names: %v", err)
		}
	})
}

func FuzzPlanLines(f *testing.F) {
	f.Add([]byte(`{` + head + `,"stepCount":1}` + "\n" + `{"stage":0,"kind":"a","params":{}}` + "\n"))
	f.Add([]byte(`{` + head + `}` + "\n" + `{"stage":0,"kind":"a"}{"stage":0}` + "\n\n\r\n"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := commitstep.ReadPlanLines(strings.NewReader(string(text)))
		if err != nil {
			requireRefusalRapid(t, err)
			return
		}
		steps, err := collect(p)
		if err != nil {
			requireRefusalRapid(t, err)
		}
		if n := strings.Count(string(text), "\n"); len(steps) > n {
			t.Fatalf("%d steps in %d lines", len(steps), n+1)
		}
		if _, err := collect(p); err == nil {
			t.Fatal("the lines were read twice")
		}
	})
}

// An unset variable in a template must not turn an id into no id.
func TestEmptyIDIsRefused(t *testing.T) {
	t.Parallel()
	_, err := commitstep.ParsePlan([]byte(`{"apiVersion":"commitstep/v1","kind":"Plan","id":"","job":"j","dataset":"d","stages":[{"steps":[{"kind":"a"}]}]}`))
	requireRefusal(t, err, "id", "is empty")
}

// Errors are in the words of the document.
func TestWrongTypesAreNamedPlainly(t *testing.T) {
	t.Parallel()
	for doc, says := range map[string]string{
		`{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":2015}`:              `the field "dataset" has number where a text belongs; put it in quotes`,
		`{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","locks":"x"}`:   `the field "locks" has text where a list belongs`,
		`{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","stages":[[]]}`: `has array where an object belongs`,
	} {
		_, err := commitstep.ParsePlan([]byte(doc))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v does not say %q", doc, err, says)
		}
	}
}
