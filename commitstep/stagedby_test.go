package commitstep_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

type idle struct{}

func (idle) Verify(context.Context, *commitstep.Attempt) (commitstep.Verdict, error) {
	return commitstep.Verdict{}, nil
}
func (idle) Execute(context.Context, *commitstep.Attempt) error { return nil }

func TestStagedByAndUnstaged(t *testing.T) {
	t.Parallel()
	build := func(commitstep.Step) (commitstep.CommitStep, error) { return idle{}, nil }
	kinds := commitstep.NewRegistry(commitstep.Kind{Name: "data", Version: 1, New: build}, commitstep.Kind{Name: "mark", Version: 1, Class: commitstep.WatermarkStep, New: build})
	for name, c := range map[string]struct {
		kind, params, evidence string
		want                   []string
		unstaged               bool
	}{
		"a rename":                   {"data", `{"from":"hdfs://prod/a","to":"hdfs://prod/b"}`, `{"id":"x"}`, []string{"hdfs://prod/a"}, false},
		"a query of a staging table": {"data", `{"query":"SELECT 1"}`, `{"staged":["file:///a","hdfs://prod/b"]}`, []string{"file:///a", "hdfs://prod/b"}, false},
		"a query of anything":        {"data", `{"query":"SELECT 1"}`, `{}`, nil, true},
		"no list":                    {"data", `{}`, `{"staged":7}`, nil, true},
		"a watermark":                {"mark", `{"from":null}`, ``, nil, false},
		"not known here":             {"else", `[]`, `[]`, nil, true},
	} {
		s := commitstep.Step{Index: 3, Kind: c.kind, Params: json.RawMessage(c.params), Evidence: json.RawMessage(c.evidence)}
		var got []string
		for _, a := range commitstep.StagedBy(s) {
			got = append(got, a.String())
		}
		if len(got) != len(c.want) || len(got) > 0 && got[0] != c.want[0] || len(got) > 1 && got[1] != c.want[1] {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		first, ok := kinds.Unstaged([]commitstep.Step{s})
		if ok != c.unstaged || ok && first.Index != 3 {
			t.Errorf("%s: unstaged %v, want %v", name, ok, c.unstaged)
		}
	}
}
