// Package shell writes commands that people copy out of messages into a POSIX
// shell. It knows no command and runs none.
package shell

import (
	"strconv"
	"strings"
)

// Quote makes s one word of a POSIX shell. A word with control characters is
// written so that they are shown instead of sent to a terminal, which bash, ksh
// and zsh read.
func Quote(s string) string {
	plain := s != "" && s[0] != '~' && s[0] != '#'
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_-./:=,@%+#~", r):
		case r < 0x20 || r == 0x7f:
			q := strconv.QuoteToASCII(s)
			return "$'" + strings.ReplaceAll(q[1:len(q)-1], "'", `\'`) + "'"
		default:
			plain = false
		}
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
