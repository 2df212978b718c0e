package cli

import "unicode/utf8"

// glob is a compiled dataset pattern. It must match the whole name. Datasets
// are plain text, not paths, so '/' is a character like any other:
//
//   - any text, also none, also with '/'
//     ?        any one character
//     [a-z_]   one character of the class; [^…] or [!…] one that is not in it
//     \x       the character x itself
//
// Anything else stands for itself, case and accents included.
type glob []globPart

type globPart struct {
	star  bool
	any   bool // ?
	char  rune
	class []runeRange
	not   bool
}

type runeRange struct{ lo, hi rune }

// parseGlob compiles a pattern; a broken one is a usage error.
func parseGlob(pattern string) (glob, error) {
	if pattern == "" {
		return nil, usagef("the dataset pattern is empty; '*' matches every dataset")
	}
	if !utf8.ValidString(pattern) {
		return nil, usagef("the dataset pattern %q is not valid UTF-8", pattern)
	}
	bad := func(problem string) (glob, error) {
		return nil, usagef("the dataset pattern %q %s; put \\ before a character that stands for itself", pattern, problem)
	}
	var g glob
	rs := []rune(pattern)
	for i := 0; i < len(rs); i++ {
		switch rs[i] {
		case '*':
			if n := len(g); n == 0 || !g[n-1].star {
				g = append(g, globPart{star: true})
			}
		case '?':
			g = append(g, globPart{any: true})
		case '\\':
			if i++; i == len(rs) {
				return bad("ends with a backslash")
			}
			g = append(g, globPart{char: rs[i]})
		case '[':
			p, next, problem := parseClass(rs, i+1)
			if problem != "" {
				return bad(problem)
			}
			g = append(g, p)
			i = next
		default:
			g = append(g, globPart{char: rs[i]})
		}
	}
	return g, nil
}

// parseClass reads a class whose first character is at i, and returns where
// its ']' is.
func parseClass(rs []rune, i int) (p globPart, end int, problem string) {
	p.class = []runeRange{}
	if i < len(rs) && (rs[i] == '^' || rs[i] == '!') {
		p.not = true
		i++
	}
	next := func() (rune, bool) {
		if i < len(rs) && rs[i] == '\\' {
			i++
		}
		if i >= len(rs) {
			return 0, false
		}
		i++
		return rs[i-1], true
	}
	for first := true; ; first = false {
		if i >= len(rs) {
			return p, i, "has a [ without its ]"
		}
		if rs[i] == ']' {
			if first {
				return p, i, "has an empty class"
			}
			return p, i, ""
		}
		lo, ok := next()
		hi := lo
		if ok && i+1 < len(rs) && rs[i] == '-' && rs[i+1] != ']' {
			i++
			hi, ok = next()
		}
		if !ok {
			return p, i, "has a [ without its ]"
		}
		if hi < lo {
			return p, i, "has a range that runs backwards"
		}
		p.class = append(p.class, runeRange{lo, hi})
	}
}

func (p globPart) matches(r rune) bool {
	switch {
	case p.any:
		return true
	case p.class == nil:
		return p.char == r
	}
	for _, c := range p.class {
		if c.lo <= r && r <= c.hi {
			return !p.not
		}
	}
	return p.not
}

// match reports whether the whole name matches. Only the last star is ever
// tried again, so that no pattern takes exponential time.
func (g glob) match(s string) bool {
	i, star := 0, -1
	var again string // the text from which the last star may take one more
	for {
		if i < len(g) && g[i].star {
			star, again = i, s
			i++
			continue
		}
		if s == "" {
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		if i < len(g) && g[i].matches(r) {
			i++
			s = s[n:]
			continue
		}
		if star < 0 {
			return false
		}
		_, n = utf8.DecodeRuneInString(again)
		again = again[n:]
		s, i = again, star+1
	}
	return i == len(g)
}

const globHelp = `
Dataset patterns: '*' matches any text, also with '/'; '?' any one character;
'[a-z]' one of a class, '[^a-z]' one outside it; '\' takes the next character
as it is. A pattern must match the whole name.`

// matcher makes a filter of an optional pattern; nil takes all.
func matcher(pattern string, given bool) (func(string) bool, error) {
	if !given {
		return nil, nil
	}
	g, err := parseGlob(pattern)
	if err != nil {
		return nil, err
	}
	return g.match, nil
}
