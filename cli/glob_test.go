package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "", true},
		{"*", "any/thing at all", true}, // '/' is a character like any other
		{"a*c", "a/b/c", true},
		{"a*c", "a/b/d", false},
		{"a?c", "a/c", true},
		{"a?c", "ac", false},
		{"?", "é", true},
		{"?", "e\u0301", false}, // nothing is normalised
		{"MyTopic", "mytopic", false},
		{"MyTopic", "MyTopic2", false},
		{"My*", "MyTopic", true},
		{"[a-c]x", "bx", true},
		{"[a-c]x", "dx", false},
		{"[^a-c]x", "dx", true},
		{"[!a-c]x", "ax", false},
		{"[a-]", "-", true},
		{`[\]]`, "]", true},
		{`[\^a]`, "^", true},
		{`\*`, "*", true},
		{`\*`, "x", false},
		{`a\\b`, `a\b`, true},
		{"**", "x", true},
		{"*a*b*c*", "xxaxxbxxcxx", true},
		{"*a*b*c*", "xxaxxcxxbxx", false},
		{"..", "..", true},
		{"]", "]", true},
	} {
		g, err := parseGlob(c.pattern)
		require.NoError(t, err, c.pattern)
		require.Equal(t, c.want, g.match(c.name), "%q on %q", c.pattern, c.name)
	}
	for _, bad := range []string{"", "[", "[a", "[]", "[^]", `\`, "[z-a]", `[a-\`, `[\`, "\xff"} {
		_, err := parseGlob(bad)
		require.Error(t, err, "%q", bad)
		require.Equal(t, ExitUsage, outcomeOf(err).code(), "%q", bad)
	}
}

// TestGlobAgainstRegexp compares with the standard library's regular
// expressions, which say the same in another way.
func TestGlobAgainstRegexp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var pattern, re strings.Builder
		for range rapid.IntRange(1, 8).Draw(t, "parts") {
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				pattern.WriteString("*")
				re.WriteString("(?s:.*)")
			case 1:
				pattern.WriteString("?")
				re.WriteString("(?s:.)")
			case 2:
				pattern.WriteString("[a-b]")
				re.WriteString("[a-b]")
			case 3:
				pattern.WriteString("[^a-b]")
				re.WriteString("[^a-b]")
			default:
				r := rapid.SampledFrom([]rune("ab/é*?[")).Draw(t, "char")
				pattern.WriteString(`\` + string(r))
				re.WriteString(regexp.QuoteMeta(string(r)))
			}
		}
		name := rapid.StringOfN(rapid.SampledFrom([]rune("ab/é*?[\n")), 0, 12, -1).Draw(t, "name")
		g, err := parseGlob(pattern.String())
		require.NoError(t, err)
		want := regexp.MustCompile(`\A(?:` + re.String() + `)\z`).MatchString(name)
		require.Equal(t, want, g.match(name), "%q on %q", pattern.String(), name)
	})
}
