package commitstep

import (
	"strconv"
	"unicode/utf8"
)

// PlainObject takes an object apart that is written as encoding/json writes
// one: without white space between its parts, escapes or broken UTF-8. It
// calls field for every name and value, in order, and reports whether the whole
// of raw was such an object and field never returned false. Kinds use it to read
// the steps that they wrote themselves; after false, of which nothing may be
// concluded, [DecodeParams] or encoding/json decide. It does not notice a name
// that comes twice.
func PlainObject(raw []byte, field func(name, value []byte) bool) bool {
	if len(raw) < 2 || raw[0] != '{' || !utf8.Valid(raw) {
		return false
	}
	if raw[1] == '}' {
		return len(raw) == 2
	}
	for i := 1; ; i++ {
		if i >= len(raw) || raw[i] != '"' {
			return false
		}
		colon, ok := scanText(raw, i+1)
		if !ok || colon >= len(raw) || raw[colon] != ':' {
			return false
		}
		end, ok := scanValue(raw, colon+1, 1)
		if !ok || end >= len(raw) || !field(raw[i+1:colon-1], raw[colon+1:end]) {
			return false
		}
		switch raw[end] {
		case ',':
			i = end
		case '}':
			return end+1 == len(raw)
		default:
			return false
		}
	}
}

// PlainText is the text of a value of PlainObject; ok is false for every other
// kind of value.
func PlainText(value []byte) (text string, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	return string(value[1 : len(value)-1]), true
}

// PlainInt is the whole number of a value of PlainObject; ok is false for every
// other kind of value, and for what does not fit.
func PlainInt(value []byte) (n int64, ok bool) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	return n, err == nil
}
