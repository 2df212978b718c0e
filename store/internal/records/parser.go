package records

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// parser walks over JSON whose checksum was right, so it only has to find
// where values end, and gives up on anything it does not expect.
type parser struct {
	b  []byte
	at int
	ok bool
}

func (p *parser) skip(text string) bool {
	if !p.ok || len(p.b)-p.at < len(text) || string(p.b[p.at:p.at+len(text)]) != text {
		return false
	}
	p.at += len(text)
	return true
}

func (p *parser) expect(text string) {
	if !p.skip(text) {
		p.ok = false
	}
}

// int reads a number of up to 9 digits.
func (p *parser) int() int {
	n, start := 0, p.at
	for p.ok && p.at < len(p.b) && p.b[p.at] >= '0' && p.b[p.at] <= '9' && p.at-start < 9 {
		n = n*10 + int(p.b[p.at]-'0')
		p.at++
	}
	if p.at == start {
		p.ok = false
	}
	return n
}

// text reads up to the closing quote; escapes are left to the slow way.
func (p *parser) text() []byte {
	if !p.ok {
		return nil
	}
	i := bytes.IndexByte(p.b[p.at:], '"')
	// The slow way also knows what becomes of bytes that are no UTF-8.
	if i < 0 || bytes.IndexByte(p.b[p.at:p.at+i], '\\') >= 0 || !utf8.Valid(p.b[p.at:p.at+i]) {
		p.ok = false
		return nil
	}
	t := p.b[p.at : p.at+i]
	p.at += i + 1
	return t
}

// value reads one JSON value of any kind.
func (p *parser) value() json.RawMessage {
	start, depth := p.at, 0
	for p.ok && p.at < len(p.b) {
		switch p.b[p.at] {
		case '"':
			p.string()
		case '{', '[':
			depth++
			p.at++
		case '}', ']':
			if depth == 0 {
				return p.cut(start)
			}
			depth--
			p.at++
		case ',':
			if depth == 0 {
				return p.cut(start)
			}
			p.at++
		default:
			p.at++
		}
	}
	p.ok = false
	return nil
}

func (p *parser) cut(start int) json.RawMessage {
	if p.at == start {
		p.ok = false
	}
	return p.b[start:p.at:p.at]
}

// string passes over a JSON string.
func (p *parser) string() {
	for p.at++; p.at < len(p.b); p.at++ {
		switch p.b[p.at] {
		case '\\':
			p.at++
		case '"':
			p.at++
			return
		}
	}
	p.ok = false
}
