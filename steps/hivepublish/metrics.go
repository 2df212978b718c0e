package hivepublish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/commitstep/engine/internal/hs2"
)

// Metric is a question about the published rows whose answer is known when the
// load is planned: how many there are, what they sum up to.
type Metric struct {
	Name string `json:"name"`
	// Query gives one row. It reads ${table}, restricted by ${partition_filter};
	// for hive.stage_and_swap the same text is also asked of the staged rows.
	Query string `json:"query"`
	// Want is the answer: the row's columns as text, separated by tabs, NULL for
	// none. Doubles are compared as text too, so cast sums to DECIMAL.
	Want *Text `json:"want,omitempty"`
	// Source is a query whose answer, when the load is planned, is what is wanted:
	// a count of ${stage}.
	Source *Source `json:"source,omitempty"`
}

// Source is a query for what is wanted.
type Source struct {
	Query string `json:"query"`
}

// Text is a text in a plan that may be written as a number.
type Text string

// UnmarshalJSON takes a string or a number, whose digits are kept as written.
func (t *Text) UnmarshalJSON(b []byte) error {
	var n json.Number
	if len(b) > 0 && b[0] != '"' {
		if err := json.Unmarshal(b, &n); err != nil || n == "" {
			return fmt.Errorf("want a text or a number, not %s", b)
		}
		*t = Text(n)
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// rowsMetric is the count that every step takes.
const rowsMetric = "rows"

const rowsQuery = "SELECT count(*) FROM ${table} WHERE ${partition_filter}"

// metric is a Metric that was checked.
type metric struct {
	Metric
	query  statement
	source *statement
}

// checkMetrics adds the count of rows, which is always taken. demand wants at
// least one metric with an expectation.
func checkMetrics(rows *int64, list []Metric, known map[string]bool, demand bool) ([]metric, error) {
	all := []Metric{{Name: rowsMetric, Query: rowsQuery}}
	if rows != nil {
		if *rows < 0 {
			return nil, fmt.Errorf("it expects %d rows", *rows)
		}
		want := Text(fmt.Sprint(*rows))
		all[0].Want = &want
	}
	all = append(all, list...)
	// What a metric reads is given with it.
	withTable := map[string]bool{"table": true, "partition_filter": true}
	for k := range known {
		withTable[k] = true
	}
	var out []metric
	seen := map[string]bool{}
	expects := false
	for _, m := range all {
		bad := func(err error) ([]metric, error) { return nil, fmt.Errorf("metric %q: %w", m.Name, err) }
		if m.Name == "" || seen[m.Name] {
			return bad(fmt.Errorf("its name is empty or was given already (%q is the count of rows, see the parameter rows)", rowsMetric))
		}
		seen[m.Name] = true
		if m.Want != nil && m.Source != nil {
			return bad(fmt.Errorf("it has both a value that is wanted and a query for it"))
		}
		expects = expects || m.Want != nil || m.Source != nil
		c := metric{Metric: m}
		var err error
		if c.query, err = parseQuery(m.Query, withTable); err != nil {
			return bad(err)
		}
		if !slices.ContainsFunc(c.query.pieces, func(p piece) bool { return p.kind == pieceHole && p.hole() == "table" }) {
			return bad(fmt.Errorf("it does not read ${table}, so that it says nothing of what was published"))
		}
		if m.Source != nil {
			src, err := parseQuery(m.Source.Query, withTable)
			if err != nil {
				return bad(fmt.Errorf("source: %w", err))
			}
			c.source = &src
		}
		out = append(out, c)
	}
	if demand && !expects {
		return nil, fmt.Errorf("it expects nothing of what it publishes: give rows, or a metric with want or source; that a query ended is no proof of what it wrote")
	}
	return out, nil
}

func parseQuery(sql string, known map[string]bool) (statement, error) {
	st, err := parseStatement(sql, known)
	if err == nil {
		err = st.checkQuery()
	}
	return st, err
}

// MetricValue is the answer to a metric: the row's columns as text, separated by
// tabs.
type MetricValue struct {
	Name string `json:"name"`
	Got  string `json:"got"`
}

type value = MetricValue

// noAnswerError: a metric was asked and has no answer, by the server's word or by
// what it gave. Asking again may help (a server that is full), or never will (a
// column that is not there any more); that nobody could ask is another matter.
type noAnswerError struct{ err error }

func (e *noAnswerError) Error() string { return e.err.Error() }
func (e *noAnswerError) Unwrap() error { return e.err }

// unanswered reports a *noAnswerError.
func unanswered(err error) bool {
	var e *noAnswerError
	return errors.As(err, &e)
}

// String is for people.
func (v MetricValue) String() string { return v.Name + "=" + v.Got }

// measure asks every metric with ask, which is [Server.query] or one in a session
// that sees the staged rows.
func (s *Server) measure(ctx context.Context, ask func(ctx context.Context, sql string) (*hs2.Table, error), metrics []metric, values map[string]bound) ([]value, error) {
	var out []value
	for _, m := range metrics {
		got, err := one(ctx, ask, m.query, values)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", m.Name, err)
		}
		out = append(out, value{m.Name, got})
	}
	return out, nil
}

// wanted gives what is expected of every metric, asking the source where the plan
// does; a metric without expectation is left out.
func (s *Server) wanted(ctx context.Context, metrics []metric, values map[string]bound) ([]value, error) {
	var out []value
	for _, m := range metrics {
		switch {
		case m.Want != nil:
			out = append(out, value{m.Name, string(*m.Want)})
		case m.source != nil:
			got, err := one(ctx, s.query, *m.source, values)
			if err != nil {
				return nil, fmt.Errorf("metric %q: source: %w", m.Name, err)
			}
			out = append(out, value{m.Name, got})
		}
	}
	return out, nil
}

// one asks a query for its one row.
func one(ctx context.Context, ask func(context.Context, string) (*hs2.Table, error), q statement, values map[string]bound) (string, error) {
	sql, err := q.bind(values)
	if err != nil {
		return "", err
	}
	t, err := ask(ctx, "/* commitstep metric */ "+sql)
	if said(err) || errors.Is(err, hs2.ErrTooManyRows) {
		return "", &noAnswerError{err}
	}
	if err != nil {
		return "", err
	}
	if len(t.Rows) != 1 {
		return "", &noAnswerError{fmt.Errorf("it gives %d rows and must give one", len(t.Rows))}
	}
	var cells []string
	for _, c := range t.Rows[0] {
		if c == nil {
			cells = append(cells, "NULL")
		} else {
			cells = append(cells, fmt.Sprint(c))
		}
	}
	return strings.Join(cells, "\t"), nil
}

// differ says how got is not what is wanted, "" when it is. Every wanted metric
// must be there.
func differ(want, got []value) string {
	var out []string
	for _, w := range want {
		found := false
		for _, g := range got {
			if g.Name != w.Name {
				continue
			}
			found = true
			if g.Got != w.Got {
				out = append(out, fmt.Sprintf("%s is %s, expected %s", w.Name, g.Got, w.Got))
			}
		}
		if !found {
			out = append(out, w.Name+" was not measured")
		}
	}
	return strings.Join(out, "; ")
}

// equal reports that two measurements say the same of everything.
func equal(a, b []value) bool { return len(a) == len(b) && len(a) > 0 && differ(a, b) == "" }

func words(vs []value) string {
	var out []string
	for _, v := range vs {
		out = append(out, v.String())
	}
	return strings.Join(out, ", ")
}
