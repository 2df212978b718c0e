package fsremove_test

import (
	"encoding/json"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/steps/fsremove"
)

// TestSummary: no path looks like another one, or like two lines.
func TestSummary(t *testing.T) {
	t.Parallel()
	files, err := local.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	for path, want := range map[string]string{"/run/a b": "remove /run/a b", "/run/a\nb": `remove "/run/a\nb"`} {
		params, err := json.Marshal(map[string]string{"path": "file://" + path})
		if err != nil {
			t.Fatal(err)
		}
		b, err := fsremove.Kind(files).New(commitstep.Step{Kind: fsremove.Name, Version: 1, Params: params})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.(interface{ Summary() string }).Summary(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
