package hivepublish

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Statements come from plans, so they are taken apart here once, by Hive's own
// rules of quoting, and never put together from text that was not. HiveServer2
// runs one statement per call; a second one behind a semicolon is refused here
// already, with a better message.

// pieceKind is what a piece of a statement is.
type pieceKind uint8

const (
	pieceOther   pieceKind = iota // operators, numbers, parentheses
	pieceWord                     // keywords and bare names
	pieceSpace                    // white space and comments
	pieceString                   // '…' or "…"
	pieceName                     // `…`
	pieceHole                     // ${…} outside quotes
	pieceEnd                      // ;
	pieceHint                     // /*+ … */, which Hive reads
	pieceComment                  // -- and /* */
)

// piece is a part of a statement; all pieces together are the whole text.
type piece struct {
	kind pieceKind
	text string
}

// hole is the name in a ${name}.
func (p piece) hole() string { return p.text[2 : len(p.text)-1] }

// is compares a keyword.
func (p piece) is(word string) bool { return p.kind == pieceWord && strings.EqualFold(p.text, word) }

// errStatement is behind every complaint about a statement's text.
var errStatement = errors.New("the statement cannot be used")

func badStatement(format string, a ...any) error {
	return fmt.Errorf("%w: %s", errStatement, fmt.Sprintf(format, a...))
}

// maxStatement bounds a statement, which is stored with its plan.
const maxStatement = 1 << 20

// split takes a statement apart.
func split(sql string) ([]piece, error) {
	switch {
	case len(sql) > maxStatement:
		return nil, badStatement("it has %d bytes, more than the %d allowed", len(sql), maxStatement)
	case !utf8.ValidString(sql):
		return nil, badStatement("it is not valid UTF-8")
	case strings.ContainsRune(sql, 0):
		return nil, badStatement("it holds a NUL byte")
	}
	var out []piece
	for rest := sql; rest != ""; {
		kind, n, err := next(rest)
		if err != nil {
			return nil, fmt.Errorf("%w (at byte %d)", err, len(sql)-len(rest))
		}
		out = append(out, piece{kind, rest[:n]})
		rest = rest[n:]
	}
	return out, nil
}

// next measures the first piece of s, which is not empty.
func next(s string) (pieceKind, int, error) {
	switch c := s[0]; {
	case c == '\'' || c == '"':
		return quoted(s)
	case c == '`':
		for i := 1; i < len(s); i++ {
			if s[i] != '`' {
				continue
			}
			if i+1 < len(s) && s[i+1] == '`' {
				i++ // a doubled one stands for itself
				continue
			}
			return pieceName, i + 1, nil
		}
		return 0, 0, badStatement("a back-quoted name does not end")
	case strings.HasPrefix(s, "--"):
		if i := strings.IndexAny(s, "\r\n"); i >= 0 {
			return pieceComment, i, nil
		}
		return pieceComment, len(s), nil
	case strings.HasPrefix(s, "/*"):
		return comment(s)
	case strings.HasPrefix(s, "${"):
		i := strings.IndexByte(s, '}')
		if i < 0 {
			return 0, 0, badStatement("a ${ has no }")
		}
		return pieceHole, i + 1, nil
	case c == ';':
		return pieceEnd, 1, nil
	case isSpace(c):
		n := 1
		for n < len(s) && isSpace(s[n]) {
			n++
		}
		return pieceSpace, n, nil
	case isWord(c):
		n := 1
		for n < len(s) && isWord(s[n]) {
			n++
		}
		return pieceWord, n, nil
	}
	return pieceOther, 1, nil
}

// quoted measures a string. A backslash takes the next character with it; a
// doubled quote is the end of one string and the begin of the next, which is
// the same here.
func quoted(s string) (pieceKind, int, error) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return pieceString, i + 1, nil
		}
	}
	return 0, 0, badStatement("a string that begins with %c does not end", s[0])
}

// comment measures a block comment. Some versions of Hive nest them and some do
// not, so one inside another would mean two things.
func comment(s string) (pieceKind, int, error) {
	end := strings.Index(s[2:], "*/")
	if end < 0 {
		return 0, 0, badStatement("a comment does not end")
	}
	if strings.Contains(s[2:2+end], "/*") {
		return 0, 0, badStatement("a comment stands inside a comment")
	}
	if strings.HasPrefix(s, "/*+") {
		return pieceHint, end + 4, nil
	}
	return pieceComment, end + 4, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' }

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// statement is a text that was taken apart and found to be one statement.
type statement struct{ pieces []piece }

// parseStatement refuses what is no single statement, and placeholders whose name
// is not known.
func parseStatement(sql string, known map[string]bool) (statement, error) {
	pieces, err := split(sql)
	if err != nil {
		return statement{}, err
	}
	for i, p := range pieces {
		switch {
		case p.kind == pieceEnd:
			// One at the end is habit; anything behind it is another statement.
			if rest := significant(pieces[i+1:]); len(rest) > 0 {
				return statement{}, badStatement("it holds a second statement behind a semicolon")
			}
		case p.kind == pieceHole && !known[p.hole()]:
			return statement{}, unknownHole(p.hole(), known)
		case p.kind == pieceString:
			for _, h := range holesIn(p.text) {
				if !known[h] {
					return statement{}, unknownHole(h, known)
				}
			}
			if strings.Contains(p.text, "${") && len(holesIn(p.text)) == 0 {
				return statement{}, badStatement("a ${ in a string has no }")
			}
		case p.kind != pieceHole && strings.Contains(p.text, "${"):
			return statement{}, badStatement("a placeholder stands in a comment or a back-quoted name")
		}
	}
	out := statement{slices.DeleteFunc(pieces, func(p piece) bool { return p.kind == pieceEnd })}
	if len(out.words()) == 0 {
		return statement{}, badStatement("it is empty")
	}
	return out, nil
}

func unknownHole(name string, known map[string]bool) error {
	names := slices.Sorted(maps.Keys(known))
	return badStatement("it holds ${%s}, which nothing is bound to (there are %s)", name, strings.Join(names, ", "))
}

func holesIn(s string) []string {
	var out []string
	for {
		_, after, ok := strings.Cut(s, "${")
		if !ok {
			return out
		}
		name, rest, ok := strings.Cut(after, "}")
		if !ok {
			return out
		}
		out = append(out, name)
		s = rest
	}
}

// significant leaves spaces and comments out.
func significant(pieces []piece) []piece {
	var out []piece
	for _, p := range pieces {
		if p.kind != pieceSpace && p.kind != pieceComment {
			out = append(out, p)
		}
	}
	return out
}

func (s statement) words() []piece { return significant(s.pieces) }

// count is how often a bare keyword stands in it.
func (s statement) count(word string) int {
	n := 0
	for _, p := range s.pieces {
		if p.is(word) {
			n++
		}
	}
	return n
}

// checkInsert holds that the statement overwrites exactly the plan's target, so
// that the lock and the metrics are those of what it writes.
func (s statement) checkInsert(partitioned bool) error {
	w := s.words()
	switch {
	case !w[0].is("INSERT") && !w[0].is("WITH") && !w[0].is("FROM"):
		return badStatement("it begins with %s; write an INSERT OVERWRITE", w[0].text)
	case s.count("INSERT") != 1:
		return badStatement("it has %d INSERTs; a step overwrites one partition, so that it can be checked", s.count("INSERT"))
	}
	i := slices.IndexFunc(w, func(p piece) bool { return p.is("INSERT") }) + 1
	take := func(ok func(piece) bool) bool {
		if i < len(w) && ok(w[i]) {
			i++
			return true
		}
		return false
	}
	hole := func(name string) func(piece) bool {
		return func(p piece) bool { return p.kind == pieceHole && p.hole() == name }
	}
	word := func(t string) func(piece) bool { return func(p piece) bool { return p.is(t) } }
	if !take(word("OVERWRITE")) {
		return badStatement("it has no OVERWRITE behind its INSERT; a repeated INSERT INTO cannot be told from a single one")
	}
	take(word("TABLE"))
	if !take(hole("table")) {
		return badStatement("write INSERT OVERWRITE TABLE ${table}, so that it overwrites what the step names and locks")
	}
	if partitioned && (!take(word("PARTITION")) || !take(hole("partition"))) {
		return badStatement("write PARTITION ${partition} behind ${table}")
	}
	if take(word("PARTITION")) {
		return badStatement("it names a partition and the step does not")
	}
	if take(word("IF")) {
		return badStatement("IF NOT EXISTS would skip the overwrite without a word")
	}
	return nil
}

// checkQuery holds that the statement only reads.
func (s statement) checkQuery() error {
	w := s.words()
	if !w[0].is("SELECT") && !w[0].is("WITH") {
		return badStatement("it begins with %s; write a SELECT", w[0].text)
	}
	if s.count("INSERT") > 0 || s.count("OVERWRITE") > 0 {
		return badStatement("it holds an INSERT; write a SELECT that only reads")
	}
	return nil
}

// with puts a common table expression in front. Its text is ours.
func (s statement) with(cte string) statement {
	out := slices.Clone(s.pieces)
	for i, p := range out {
		if p.kind == pieceSpace || p.kind == pieceComment {
			continue
		}
		text := piece{pieceOther, "WITH " + cte + " "}
		if p.is("WITH") {
			i++
			text.text = " " + cte + ","
		}
		return statement{slices.Insert(out, i, text)}
	}
	return s
}

// bound is what a placeholder stands for: SQL where it stands alone, and the
// inside of a string where it stands in one.
type bound struct {
	sql    string
	inside string
	// text: it may stand in a string.
	text bool
}

// textValue is a value, quoted.
func textValue(v string) bound {
	in := escape(v)
	return bound{sql: "'" + in + "'", inside: in, text: true}
}

// sqlText is an identifier or a clause that was put together from checked parts.
func sqlText(sql string) bound { return bound{sql: sql} }

// bind puts the values in.
func (s statement) bind(values map[string]bound) (string, error) {
	var out strings.Builder
	for _, p := range s.pieces {
		switch p.kind {
		case pieceHole:
			v, ok := values[p.hole()]
			if !ok {
				return "", badStatement("nothing is bound to ${%s}", p.hole())
			}
			out.WriteString(v.sql)
		case pieceString:
			text := p.text
			for _, h := range holesIn(p.text) {
				v, ok := values[h]
				if !ok {
					return "", badStatement("nothing is bound to ${%s}", h)
				}
				if !v.text {
					return "", badStatement("${%s} is no value and stands in a string", h)
				}
				text = strings.Replace(text, "${"+h+"}", v.inside, 1)
			}
			out.WriteString(text)
		default:
			out.WriteString(p.text)
		}
	}
	return strings.TrimSpace(out.String()), nil
}

// escape writes v so that it stands for itself inside a string of either quote.
// Dollar and brace are escaped too, since Hive replaces ${…} in the text of a
// statement, also in strings; the dollar may stand in front of the value.
func escape(v string) string {
	var out strings.Builder
	for _, r := range v {
		switch {
		case r == '\'' || r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r == '$' || r == '{' || r < 0x20 || r == 0x7f:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// quote is v as a string literal.
func quote(v string) string { return "'" + escape(v) + "'" }

// quoteName is a checked name in back quotes.
func quoteName(n string) string { return "`" + strings.ReplaceAll(n, "`", "``") + "`" }

// marker is how a statement of a step is found in the server's query list and log.
// Metrics have none: they are no effect.
func marker(token string) string { return "commitstep token=" + token }

// mark puts the marker in front.
func mark(token string, attempt int, sql string) string {
	return fmt.Sprintf("/* %s attempt=%d */ %s", marker(token), attempt, sql)
}
