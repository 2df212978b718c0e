package cli

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// table collects what people read: lines and aligned columns. Nothing is cut
// to a width: a name that was cut cannot be copied into the next command.
type table struct {
	buf bytes.Buffer
	tab *tabwriter.Writer
}

// line prints one line of text; names in it must be quoted by the caller.
func (t *table) line(format string, a ...any) {
	t.endRows()
	fmt.Fprintf(&t.buf, format+"\n", a...)
}

// row prints one row of aligned cells. Consecutive rows share their columns.
func (t *table) row(cells ...string) {
	if t.tab == nil {
		t.tab = tabwriter.NewWriter(&t.buf, 0, 8, 2, ' ', 0)
	}
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.tab, "\t")
		}
		fmt.Fprint(t.tab, oneLine(c))
	}
	fmt.Fprintln(t.tab)
}

func (t *table) endRows() {
	if t.tab != nil {
		_ = t.tab.Flush() // into memory
		t.tab = nil
	}
}

// flush writes everything at once, without trailing blanks.
func (t *table) flush(w io.Writer) error {
	t.endRows()
	var out strings.Builder
	for l := range strings.Lines(t.buf.String()) {
		out.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// name shows a job, dataset or path: as it is when that is unmistakable, else
// quoted, so that no control character reaches the terminal and no blank at an
// end is lost.
func name(s string) string {
	if s == "" || strings.TrimSpace(s) != s || s[0] == '"' || strings.Contains(s, "  ") {
		return strconv.Quote(s)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return strconv.Quote(s)
		}
	}
	return s
}

// age tells a duration in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// since tells how long ago t was; "" for the zero time.
func since(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return age(now.Sub(t)) + " ago"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
