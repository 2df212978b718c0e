package shell_test

import (
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/commitstep/engine/internal/shell"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestQuote asks a shell what it makes of the quoted words.
func TestQuote(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("bash")
	require.NoError(t, err)
	words := []string{"plain", "a b", "it's", `"`, "$HOME", "`id`", "*", "~", "#x", "a\nb", "a\x1bb'c\\d", "데이터", "", "-n", "x=y", "!!", `\`, "\t", "é\x01", "a\n\""}
	for _, w := range words {
		out, err := exec.Command(sh, "-c", "printf %s "+shell.Quote(w)).Output()
		require.NoError(t, err, "%q", w)
		require.Equal(t, w, string(out))
		require.NotContains(t, shell.Quote(w), "\x1b")
	}
	rapid.Check(t, func(t *rapid.T) {
		q := shell.Quote(rapid.String().Draw(t, "word"))
		require.True(t, utf8.ValidString(q))
		require.False(t, strings.ContainsAny(q, "\n\x1b\x00"), "%q", q)
	})
}
