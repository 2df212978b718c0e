package commitstep

// scanTable maps a byte to its form in the search for secret words: lower case,
// separators as "_". 0 stands for bytes that end the cheap look: an escape that
// could hide a word, "@" of an address, and everything beyond ASCII, where some
// letters have an ASCII lower case.
var scanTable = func() (t [256]byte) {
	for c := range 0x80 {
		switch {
		case c >= 'A' && c <= 'Z':
			t[c] = byte(c) + 'a' - 'A'
		case c == '-' || c == '.' || c == ' ':
			t[c] = '_'
		case c == '\\' || c == '@' || c == 0:
		default:
			t[c] = byte(c)
		}
	}
	return t
}()

// scanWords are the words to look for, by their first letter.
var scanWords = func() (t [256][]string) {
	for _, w := range append(SecretWords(), "pwd") {
		t[w[0]] = append(t[w[0]], w)
	}
	return t
}()

// MayHoldSecret is a cheap look at raw JSON that never misses: parameters
// without any of the words, without "@", and without an escape that could hide
// one, hold no secret by the rules of CheckNoSecrets. Almost all steps end here,
// a million times in a long plan.
func MayHoldSecret(raw []byte) bool {
	for i, c := range raw {
		low := scanTable[c]
		if low == 0 {
			return true
		}
		for _, w := range scanWords[low] {
			if startsWith(raw[i:], w) {
				return true
			}
		}
	}
	return false
}

func startsWith(raw []byte, word string) bool {
	if len(raw) < len(word) {
		return false
	}
	for i := 1; i < len(word); i++ {
		if scanTable[raw[i]] != word[i] {
			return false
		}
	}
	return true
}
