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

// scanClass says of a byte whether the cheap look ends at it, or a word may
// start with it; scanPairs which bytes may follow in a word.
const (
	scanEnds   = 1
	scanStarts = 2
)

var scanClass, scanPairs = func() (class [256]byte, pairs [256][4]uint64) {
	for c := range 256 {
		low := scanTable[c]
		if low == 0 {
			class[c] = scanEnds
			continue
		}
		for _, w := range scanWords[low] {
			class[c] = scanStarts
			for d := range 256 {
				if scanTable[d] == w[1] {
					pairs[c][d/64] |= 1 << (d % 64)
				}
			}
		}
	}
	return class, pairs
}()

// MayHoldSecret is a cheap look at raw JSON that never misses: parameters
// without any of the words, without "@", and without an escape that could hide
// one, hold no secret by the rules of CheckNoSecrets. Almost all steps end here,
// a million times in a long plan.
func MayHoldSecret(raw []byte) bool {
	for i, c := range raw {
		switch scanClass[c] {
		case 0:
		case scanEnds:
			return true
		default:
			if i+1 < len(raw) {
				if d := raw[i+1]; scanPairs[c][d/64]&(1<<(d%64)) != 0 && wordAt(raw[i:]) {
					return true
				}
			}
		}
	}
	return false
}

func wordAt(raw []byte) bool {
	for _, w := range scanWords[scanTable[raw[0]]] {
		if startsWith(raw, w) {
			return true
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
