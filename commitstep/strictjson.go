package commitstep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth is how deep a document may be nested.
const maxDepth = 200

// strictJSON decodes exactly one value. It refuses what encoding/json would
// take silently: unknown and repeated fields, text that is not UTF-8 and
// half surrogates (both become U+FFFD, so that two names become one), and a
// second value behind the first.
func strictJSON(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return errors.New("it is empty")
	}
	if err := lintJSON(data); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("it ends too early")
		}
		return plainJSONError(err)
	}
	if len(bytes.TrimSpace(data[d.InputOffset():])) > 0 {
		return errors.New("something follows after the end of the document")
	}
	return nil
}

// plainJSONError says in the words of the document, not of Go, what is wrong.
func plainJSONError(err error) error {
	var te *json.UnmarshalTypeError
	if !errors.As(err, &te) {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	field := te.Field
	if i := strings.LastIndexByte(field, '.'); i >= 0 {
		field = field[i+1:] // what is before may be a Go struct
	}
	found, _, _ := strings.Cut(te.Value, " ")
	want, hint := "", ""
	switch k := te.Type.Kind(); k {
	case reflect.String:
		want, hint = "a text", "; put it in quotes"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		want = fmt.Sprintf("a whole number of %d bits", te.Type.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		want = fmt.Sprintf("a whole number of %d bits that is not negative", te.Type.Bits())
	case reflect.Slice, reflect.Array:
		want = "a list"
	default:
		want = "an object"
	}
	if found == "string" {
		found = "text"
	}
	if field == "" {
		return fmt.Errorf("%s stands where %s belongs%s", te.Value, want, hint)
	}
	if found == "number" {
		found = te.Value // with its digits where the decoder tells them
	}
	return fmt.Errorf("the field %q has %s where %s belongs%s", field, found, want, hint)
}

// jsonLevel is one open object or array.
type jsonLevel struct {
	object bool
	key    bool // the next string is a key
	keys   [][]byte
	many   map[string]bool // instead of keys, for objects with many
}

// manyKeys is where comparing a key with all others becomes dearer than a map.
const manyKeys = 16

// lintJSON looks for what the decoder would not refuse. It does not check
// syntax, and leaves a document that it cannot follow to the decoder.
func lintJSON(data []byte) error {
	if !utf8.Valid(data) {
		return errors.New("it is not valid UTF-8")
	}
	var stack []jsonLevel
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '{', '[':
			if len(stack) == maxDepth {
				return fmt.Errorf("it is nested deeper than %d levels", maxDepth)
			}
			stack = append(stack, jsonLevel{object: c == '{', key: c == '{'})
		case '}', ']':
			if len(stack) == 0 {
				return nil
			}
			stack = stack[:len(stack)-1]
		case ',':
			if n := len(stack); n > 0 {
				stack[n-1].key = stack[n-1].object
			}
		case '"':
			end, err := stringEnd(data, i)
			if err != nil {
				return err
			}
			if end < 0 {
				return nil
			}
			if n := len(stack); n > 0 && stack[n-1].key {
				stack[n-1].key = false
				if err := stack[n-1].add(data[i+1 : end]); err != nil {
					return err
				}
			}
			i = end
		}
	}
	return nil
}

// stringEnd is the index of the closing quote of the string that opens at i, or
// -1 without one. It refuses escaped halves of surrogate pairs.
func stringEnd(data []byte, i int) (int, error) {
	for i++; i < len(data); i++ {
		switch data[i] {
		case '"':
			return i, nil
		case '\\':
			i++
			if i >= len(data) || data[i] != 'u' {
				continue
			}
			r, ok := hex4(data, i+1)
			if !ok {
				return -1, nil
			}
			i += 4
			if r < 0xD800 || r > 0xDFFF {
				continue
			}
			low, ok := hex4(data, i+3)
			if r > 0xDBFF || !ok || data[i+1] != '\\' || data[i+2] != 'u' || low < 0xDC00 || low > 0xDFFF {
				return -1, fmt.Errorf(`\u%04x is half a surrogate pair and no character`, r)
			}
			i += 6
		}
	}
	return -1, nil
}

func hex4(data []byte, i int) (rune, bool) {
	if i < 0 || i+4 > len(data) {
		return 0, false
	}
	var r rune
	for _, c := range data[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// add notes a key. Keys are compared as encoding/json matches them to fields,
// without regard to case.
func (l *jsonLevel) add(key []byte) error {
	if bytes.IndexByte(key, '\\') >= 0 {
		var s string
		if json.Unmarshal(slices.Concat([]byte{'"'}, key, []byte{'"'}), &s) != nil {
			return nil // the decoder says what is wrong
		}
		key = []byte(s)
	}
	twice := false
	if l.many == nil {
		twice = slices.ContainsFunc(l.keys, func(k []byte) bool { return bytes.EqualFold(k, key) })
		if l.keys = append(l.keys, key); len(l.keys) > manyKeys {
			l.many = make(map[string]bool, 2*len(l.keys))
			for _, k := range l.keys {
				l.many[foldKey(k)] = true
			}
		}
	} else {
		f := foldKey(key)
		twice = l.many[f]
		l.many[f] = true
	}
	if twice {
		return fmt.Errorf("the field %q appears twice", key)
	}
	return nil
}

// foldKey maps all spellings that bytes.EqualFold holds equal to one.
func foldKey(key []byte) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, string(key))
}
