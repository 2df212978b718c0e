package cli

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestDocumentedCommandsExist: every command line that the documents show to be
// copied has its command, and that command has its flags.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile("`commitstep ([^`]+)`")
	n := 0
	for _, doc := range []string{"../docs/operations.md", "../docs/hive.md", "../README.md"} {
		b, err := os.ReadFile(doc)
		require.NoError(t, err)
		var lines []string
		for l := range strings.Lines(string(b)) {
			if s, ok := strings.CutPrefix(strings.TrimSpace(l), "commitstep "); ok && strings.HasPrefix(l, "    ") {
				lines = append(lines, s)
			}
		}
		for _, m := range inline.FindAllStringSubmatch(string(b), -1) {
			lines = append(lines, m[1])
		}
		for _, l := range lines {
			n++
			l, _, _ = strings.Cut(l, " #")
			words := strings.Fields(l)
			c, rest, err := (&App{}).invocation().root().Find(words)
			require.NoError(t, err, "%s: %s", doc, l)
			require.True(t, c.Runnable() && (!c.HasSubCommands() || len(rest) == 0), "%s: %s", doc, l)
			for _, w := range rest {
				if name, ok := strings.CutPrefix(w, "--"); ok {
					name, _, _ = strings.Cut(name, "=")
					require.NotNil(t, flag(c.Flags(), c.InheritedFlags(), name), "%s: %s: --%s", doc, l, name)
				}
			}
		}
	}
	require.Greater(t, n, 25)
}

func flag(own, inherited *pflag.FlagSet, name string) *pflag.Flag {
	if f := own.Lookup(name); f != nil {
		return f
	}
	return inherited.Lookup(name)
}

// TestDocumentedExitCodes: the table in the operators' page is the one that the
// program has.
func TestDocumentedExitCodes(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for _, e := range exitTexts() {
		require.Contains(t, string(b), fmt.Sprintf("| %d | %s | %s |", e.code, e.name, e.text))
	}
}
