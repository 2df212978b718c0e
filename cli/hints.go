package cli

import (
	"slices"
	"strings"

	"github.com/commitstep/engine/internal/shell"
)

// onUsedStore gives the commands that a message names the store that this one
// used, unless they name one. Whoever copies them may have another store in
// their environment, or none.
func (in *invocation) onUsedStore(text string) string {
	if in.used == "" {
		return text
	}
	var b strings.Builder
	begin := "`" + in.program() + " "
	for {
		before, rest, found := strings.Cut(text, begin)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		words, after, closed := strings.Cut(rest, "`")
		b.WriteString(begin)
		if !closed {
			b.WriteString(rest)
			return b.String()
		}
		b.WriteString(words)
		if takesStore(words) {
			b.WriteString(" --store " + shell.Quote(in.used))
		}
		b.WriteByte('`')
		text = after
	}
}

// takesStore reports that words are a command on a store, and name none.
func takesStore(words string) bool {
	if strings.Contains(words, "--store") || strings.Contains(words, "--help") {
		return false
	}
	w := append(strings.Fields(words), "", "")
	switch w[0] {
	case "recover", "pending", "resolve", "quarantine", "history", "audit", "watermark", "staging":
		return true
	case "store":
		// A copy names its two stores, and one that is made is another one.
		return slices.Contains([]string{"migrate", "check", "adopt", "stamp", "prune"}, w[1])
	case "hive":
		return slices.Contains([]string{"probe", "rollback", "sweep"}, w[1])
	}
	return false
}
