package commitstep

import "bytes"

// mayHoldSecret is a cheap look at raw JSON that never misses: parameters
// without any of the words, without "@", and without an escape that could hide
// one, hold no secret by the rules of CheckNoSecrets. Almost all steps end here,
// a million times in a long plan.
func mayHoldSecret(raw []byte) bool {
	var stack [512]byte
	low := append(stack[:0], raw...)
	for i, c := range low {
		switch {
		case c == '\\' || c == '@':
			return true
		case c >= 'A' && c <= 'Z':
			low[i] = c + 'a' - 'A'
		case c == '-' || c == '.' || c == ' ':
			low[i] = '_'
		case c >= 0x80:
			return true // letters that lower to ASCII, like the Kelvin sign
		}
	}
	for _, w := range secretWords {
		if bytes.Contains(low, []byte(w)) {
			return true
		}
	}
	return bytes.Contains(low, []byte("pwd"))
}
