package commitstep

import (
	"encoding/binary"
	"encoding/json"
)

// ValidJSON is json.Valid, several times as fast for the JSON that steps
// consist of: parameters and evidence are checked whenever they are stored.
func ValidJSON(raw []byte) bool {
	return plainJSON(raw) || json.Valid(raw)
}

// scanDepth is how deep a value may be nested for the quick look.
const scanDepth = 32

// plainJSON reports that raw is certainly valid JSON. It gives up on whatever
// is rare: white space, escapes, deep nesting. json.Valid decides then.
func plainJSON(raw []byte) bool {
	i, ok := scanValue(raw, 0, 0)
	return ok && i == len(raw)
}

// scanValue returns the index behind the value that starts at i.
func scanValue(b []byte, i, depth int) (int, bool) {
	if i >= len(b) || depth == scanDepth {
		return 0, false
	}
	switch c := b[i]; {
	case c == '"':
		return scanText(b, i+1)
	case c == '{' || c == '[':
		return scanList(b, i, depth)
	case c == '-' || c >= '0' && c <= '9':
		return scanNumber(b, i)
	case c == 't':
		return scanWord(b, i, "true")
	case c == 'f':
		return scanWord(b, i, "false")
	case c == 'n':
		return scanWord(b, i, "null")
	}
	return 0, false
}

// scanList is for objects and arrays.
func scanList(b []byte, i, depth int) (int, bool) {
	object, end := b[i] == '{', b[i]+2 // "}" and "]" stand two behind their openings
	if i++; i < len(b) && b[i] == end {
		return i + 1, true
	}
	for ok := true; ; i++ {
		if object {
			if i >= len(b) || b[i] != '"' {
				return 0, false
			}
			if i, ok = scanText(b, i+1); !ok || i >= len(b) || b[i] != ':' {
				return 0, false
			}
			i++
		}
		if i, ok = scanValue(b, i, depth+1); !ok || i >= len(b) {
			return 0, false
		}
		switch b[i] {
		case ',':
		case end:
			return i + 1, true
		default:
			return 0, false
		}
	}
}

const (
	eachByte = 0x0101010101010101
	highBits = 0x8080808080808080
)

// scanText returns the index behind the closing quote of a text that begins at
// i. It takes eight bytes at a time while none of them is a quote, an escape or
// a control character.
func scanText(b []byte, i int) (int, bool) {
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, escape := x^'"'*eachByte, x^'\\'*eachByte
		// A borrow may mark a byte too many, never one too few.
		if ((x-' '*eachByte)&^x|(quote-eachByte)&^quote|(escape-eachByte)&^escape)&highBits != 0 {
			break
		}
	}
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, true
		case c < ' ' || c == '\\':
			return 0, false
		}
	}
	return 0, false
}

func scanNumber(b []byte, i int) (int, bool) {
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = scanDigits(b, i); i == 0 {
		return 0, false
	}
	if i < len(b) && b[i] == '.' {
		if i = scanDigits(b, i+1); i == 0 {
			return 0, false
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i = scanDigits(b, i); i == 0 {
			return 0, false
		}
	}
	return i, true
}

// scanDigits returns the index behind one or more digits, 0 without any.
func scanDigits(b []byte, i int) int {
	from := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == from {
		return 0
	}
	return i
}

func scanWord(b []byte, i int, word string) (int, bool) {
	end := i + len(word)
	return end, end <= len(b) && string(b[i:end]) == word
}
