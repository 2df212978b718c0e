package pgtarget

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
)

// fits says what of a move the columns cannot hold, "" when they can hold it.
func (t *Target) fits(s *shape, m commitstep.WatermarkMove) string {
	for _, n := range []struct{ what, column, text string }{{"source", t.c.Source, m.Source}, {"job", t.c.Job, m.Job}} {
		switch {
		case strings.ContainsRune(n.text, 0):
			return "PostgreSQL cannot hold a NUL in a name"
		case n.column != "":
			if bad := tooLong(s, n.what, n.column, n.text); bad != "" {
				return bad
			}
		}
	}
	for _, w := range []commitstep.Watermark{m.From, m.To} {
		if w.IsNone() {
			continue
		}
		if bad := t.holds(s, w); bad != "" {
			return bad
		}
	}
	return ""
}

func (t *Target) holds(s *shape, w commitstep.Watermark) string {
	typ := s.Columns[t.c.Value].Type
	n, number := w.Int64()
	text, _ := w.TextValue()
	switch low, high := rangeOf(typ); {
	case number != (high != 0):
		return fmt.Sprintf("its value column %q is of type %s and cannot hold %s; numbers need an integer column, texts a text column", t.c.Value, typ, w)
	case number && (n < low || n > high):
		return fmt.Sprintf("its value column %q is of type %s, from %d to %d, and cannot hold %s; make it bigint", t.c.Value, typ, low, high, w)
	case strings.ContainsRune(text, 0):
		return fmt.Sprintf("PostgreSQL cannot hold %s, which has a NUL", w)
	}
	if bad := tooLong(s, "position", t.c.Value, text); bad != "" {
		return bad
	}
	if w.Epoch() == 0 {
		return ""
	}
	if t.c.Epoch == "" {
		return fmt.Sprintf("it has no epoch column for %s; add one, and name it as epoch in the configuration", w)
	}
	typ = s.Columns[t.c.Epoch].Type
	if _, high := rangeOf(typ); w.Epoch() > uint64(high) {
		return fmt.Sprintf("its epoch column %q is of type %s, up to %d, and cannot hold %s", t.c.Epoch, typ, high, w)
	}
	return ""
}

// rangeOf is what an integer type holds; zero for others.
func rangeOf(typ string) (low, high int64) {
	switch typ {
	case "int2":
		return math.MinInt16, math.MaxInt16
	case "int4":
		return math.MinInt32, math.MaxInt32
	case "int8":
		return math.MinInt64, math.MaxInt64
	}
	return 0, 0
}

// tooLong says that a varchar(n) is too short for a text. The server cuts off
// spaces at the end without a word, so it is not asked.
func tooLong(s *shape, what, column, text string) string {
	limit, n := s.Columns[column].Length, utf8.RuneCountInString(text)
	if limit == 0 || n <= limit {
		return ""
	}
	return fmt.Sprintf("its column %q is varchar(%d), and the %s has %d characters; make it text", column, limit, what, n)
}
