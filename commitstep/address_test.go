package commitstep_test

import (
	"encoding/json"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"pgregory.net/rapid"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, base, resource, path string }{
		{"task-output/1.avro", "/data", "file", "/data/task-output/1.avro"},
		{"./a/../b//c/", "/data", "file", "/data/b/c"},
		{"../x", "/data/run", "file", "/data/x"},
		{"../../../x", "/data", "file", "/x"},
		{"/abs/x", "/data", "file", "/abs/x"},
		{"/abs/x", "", "file", "/abs/x"},
		{"file:///abs/x", "", "file", "/abs/x"},
		{"hdfs://prod/x/y", "", "hdfs://prod", "/x/y"},
		{"hdfs://prod/", "/data", "hdfs://prod", "/"},
		{"hdfs://prod/../x", "", "hdfs://prod", "/x"},
		{"webhdfs+tls://namenode:8020/x", "", "webhdfs+tls://namenode:8020", "/x"},
		// Names are bytes: nothing is decoded, split or trimmed.
		{"/d/part=a%20b/f", "", "file", "/d/part=a%20b/f"},
		{"/d/a b/f", "", "file", "/d/a b/f"},
		{"/d/a?b#c", "", "file", "/d/a?b#c"},
		{"hdfs://prod/a?b#c%2F", "", "hdfs://prod", "/a?b#c%2F"},
		{"a:b", "/data", "file", "/data/a:b"},
		{"hdfs:/x", "/data", "file", "/data/hdfs:/x"},
		{" a ", "/data", "file", "/data/ a "},
		{"a\nb", "/data", "file", "/data/a\nb"},
		{"~/x", "/data", "file", "/data/~/x"},
		{"$HOME", "/data", "file", "/data/$HOME"},
		{"caf\u00e9", "/data", "file", "/data/caf\u00e9"},
		{"cafe\u0301", "/data", "file", "/data/cafe\u0301"},
		{"x/y://z", "/data", "file", "/data/x/y:/z"},
		{".", "/data", "file", "/data"},
	} {
		a, err := commitstep.ParseAddress(c.text, c.base)
		if err != nil || a.Resource != c.resource || a.Path != c.path {
			t.Errorf("%q below %q is %q %q, %v; want %q %q", c.text, c.base, a.Resource, a.Path, err, c.resource, c.path)
			continue
		}
		// What is stored is read back as the same address, wherever it is read.
		again, err := commitstep.ParseAddress(a.String(), "/elsewhere")
		if err != nil || again != a {
			t.Errorf("%q is read back as %+v, %v", a, again, err)
		}
		b, err := json.Marshal(a)
		if err != nil {
			t.Errorf("%q: %v", a, err)
		}
		var fromJSON commitstep.Address
		if err := json.Unmarshal(b, &fromJSON); err != nil || fromJSON != a {
			t.Errorf("%s is read back as %+v, %v", b, fromJSON, err)
		}
	}
}

func TestParseAddressRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, base, says string }{
		{"", "/data", "is empty"},
		{"a", "", "is relative"},
		{"a\x00b", "/data", "NUL"},
		{"a\xff", "/data", "not valid UTF-8"},
		{"hdfs://prod", "/data", "has no path"},
		{"hdfs:///x", "/data", "names no resource"},
		{"file://host/x", "/data", "names a host"},
		{"hdfs://user@prod/x", "/data", "user or password"},
		{"hdfs://user:hunter2@prod/x", "/data", "user or password"},
		{"HDFS://prod/x", "/data", "lower case"},
		{"h dfs://prod/x", "/data", "malformed scheme"},
		{"1hdfs://prod/x", "/data", "malformed scheme"},
		{"://x", "/data", "malformed scheme"},
	} {
		_, err := commitstep.ParseAddress(c.text, c.base)
		requireRefusal(t, err, c.says)
	}
}

func TestContains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		outer, inner string
		want         bool
	}{
		{"/a", "/a", true}, {"/a", "/a/b", true}, {"/a", "/ab", false}, {"/a/b", "/a", false}, {"/", "/a", true}, {"/", "/", true},
		{"hdfs://p/a", "/a", false}, {"hdfs://p/a", "hdfs://q/a", false}, {"hdfs://p/", "hdfs://p/x", true},
	} {
		outer, err := commitstep.ParseAddress(c.outer, "")
		if err != nil {
			t.Fatal(err)
		}
		inner, err := commitstep.ParseAddress(c.inner, "")
		if err != nil {
			t.Fatal(err)
		}
		if outer.Contains(inner) != c.want {
			t.Errorf("%s contains %s: %v, want %v", outer, inner, !c.want, c.want)
		}
		if c.want && outer != inner && !outer.Contains(inner.Dir()) {
			t.Errorf("%s contains %s, but not its directory", outer, inner)
		}
	}
}

// Whatever is accepted is absolute, clean, and read back as the same.
func TestAddressesProperty(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"a", "..", ".", "/", "//", ":", "://", "hdfs", "file", "@", "%2F", " ", "\u00e9", "\xff", "\x00", "A", "+", "p"})
	rapid.Check(t, func(t *rapid.T) {
		text := ""
		for _, p := range rapid.SliceOfN(piece, 0, 10).Draw(t, "pieces") {
			text += p
		}
		a, err := commitstep.ParseAddress(text, "/base")
		if err != nil {
			requireRefusalRapid(t, err)
			return
		}
		if a.Path == "" || a.Path[0] != '/' {
			t.Fatalf("%q has the path %q", text, a.Path)
		}
		again, err := commitstep.ParseAddress(a.String(), "")
		if err != nil || again != a {
			t.Fatalf("%q is %q, read back as %+v, %v", text, a, again, err)
		}
		if !a.Dir().Contains(a) || !a.Contains(a) {
			t.Fatalf("%q does not contain itself", a)
		}
	})
}
