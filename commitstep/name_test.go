package commitstep_test

import (
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"pgregory.net/rapid"
)

// oddNames are texts that some file system holds equal, refuses or hides.
var oddNames = []string{
	"", " ", ".", "..", "...", ".x", "_x", "x.", "x", "X", "x x", "x:x", "x/x", "/x", "x/", "/", "//", "%", "%2F", "%2f", "x%2Fx", "+", "x+", "+/", "-", "-x",
	"a/b", "a:b", "a b", "a_b", "A_B", "/abs", "default_dataset_urn", "con", "nul", "x\x00y", "\n", "\\", "*?<>|\"",
	"caf\u00e9", "cafe\u0301", "\u017f", "s", "\u212a", "k", "stra\u00dfe", "STRASSE", "\ufeffx",
	strings.Repeat("\ud55c", 100), strings.Repeat("\ud55c", 341), strings.Repeat("a", 199), strings.Repeat("a", 200), strings.Repeat("a", 1024), strings.Repeat(".", 1024),
	strings.Repeat("a", 198) + ".b", strings.Repeat("a", 199) + ".", strings.Repeat("a", 199) + ".b", strings.Repeat("/", 255),
}

// checkName holds everything that is promised of one encoded name.
func checkName(t interface{ Fatalf(string, ...any) }, name string) string {
	p := commitstep.EncodeName(name)
	back, err := commitstep.DecodeName(p)
	if err != nil || back != name {
		t.Fatalf("%q is encoded as %q and decoded as %q, %v", name, p, back, err)
	}
	for i := range len(p) {
		// Plain ASCII: no normalisation of Unicode can change it.
		if c := p[i]; c <= ' ' || c >= 0x7f || c == '\\' || c == ':' {
			t.Fatalf("%q is encoded as %q, with the byte %q", name, p, c)
		}
	}
	parts := strings.Split(p, "/")
	for i, c := range parts {
		switch {
		case c == "" || c[0] == '.' || c[0] == '_':
			t.Fatalf("%q is encoded as %q: component %q is empty or hidden", name, p, c)
		case len(c) > 200:
			t.Fatalf("%q is encoded with a component of %d bytes", name, len(c))
		case strings.HasSuffix(c, "."):
			t.Fatalf("%q is encoded as %q: component %q ends in a dot", name, p, c)
		case strings.HasSuffix(c, "+") != (i < len(parts)-1):
			t.Fatalf("%q is encoded as %q: only the last component ends without +", name, p)
		}
	}
	return p
}

// checkPair holds that two names never meet on disk, also where case is folded.
func checkPair(t interface{ Fatalf(string, ...any) }, a, b string) {
	if a == b {
		return
	}
	p, q := strings.ToLower(commitstep.EncodeName(a)), strings.ToLower(commitstep.EncodeName(b))
	if p == q {
		t.Fatalf("%q and %q are both encoded as %q", a, b, p)
	}
	if strings.HasPrefix(p, q+"/") || strings.HasPrefix(q, p+"/") {
		t.Fatalf("%q and %q: one of %q and %q is a directory of the other", a, b, p, q)
	}
}

func TestOddNamesComeBackAndNeverMeet(t *testing.T) {
	t.Parallel()
	for i, a := range oddNames {
		checkName(t, a)
		for _, b := range oddNames[:i] {
			checkPair(t, a, b)
		}
	}
}

// On disk since the first release; a change loses what was stored under it.
func TestEncodedNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"":            "%",
		"mytopic":     "mytopic",
		"MyTopic:0":   "%4Dy%54opic%3A0",
		"..":          "%2E%2E",
		"db.orders":   "db.orders",
		"orders.":     "orders%2E",
		"a/b":         "a%2Fb",
		"\u00e9":      "%C3%A9",
		"_x":          "%5Fx",
		"1 %2F+":      "1%20%252%46%2B",
		"2015-12-09":  "2015-12-09",
		rep("a", 200): rep("a", 199) + "+/a",
	} {
		if got := commitstep.EncodeName(name); got != want {
			t.Errorf("%q is encoded as %q, want %q", name, got, want)
		}
	}
}

func rep(s string, n int) string { return strings.Repeat(s, n) }

func TestDecodeRefusesWhatWasNeverEncoded(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"", "/", "a/b", "a+/b", "%2", "%", "%%", "%4d", "%4D%", "A", "a b", ".", "..", ".x", "a.", "_x", "%61", "a+", "+", "+/a", "a/../b", "\u00e9", "%2G", rep("a", 200), rep("a", 199) + "+/", rep("a", 198) + "+/aa"} {
		got, err := commitstep.DecodeName(p)
		if p == "%" {
			if err != nil || got != "" {
				t.Errorf("%q is decoded as %q, %v", p, got, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%q is decoded as %q", p, got)
		}
	}
}

func TestNamesProperty(t *testing.T) {
	t.Parallel()
	// Characters that the encoding treats differently, so that near misses are
	// likely, with lengths around the limit of a component.
	name := rapid.Custom(func(t *rapid.T) string {
		piece := rapid.SampledFrom([]string{"a", "A", ".", "/", "+", "%", "2F", "_", "-", " ", ":", "\u00e9", "e\u0301", "\ud55c", "\x00", "\xff", rep("a", 190), rep("A", 66), rep(".", 198)})
		return strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		checkName(t, a)
		checkName(t, b)
		checkPair(t, a, b)
		// A name and one that goes on where it ends are the likeliest to nest.
		checkPair(t, a, a+b)
	})
}

func FuzzName(f *testing.F) {
	for _, n := range oddNames {
		f.Add(n, n+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		checkName(t, a)
		checkPair(t, a, b)
		if name, err := commitstep.DecodeName(a); err == nil && commitstep.EncodeName(name) != a {
			t.Fatalf("%q is decoded as %q, which is encoded as %q", a, name, commitstep.EncodeName(name))
		}
	})
}
