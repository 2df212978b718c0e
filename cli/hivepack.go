package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/steps/hivepublish"
)

// liftPack takes the evidence pack out of a step's note, where its kind keeps it,
// so that it is printed once and in its own place.
func liftPack(note json.RawMessage) (*hivepublish.Pack, json.RawMessage) {
	const key = "evidence"
	var fields map[string]json.RawMessage
	if json.Unmarshal(note, &fields) != nil || fields[key] == nil {
		return nil, note
	}
	p := &hivepublish.Pack{}
	if json.Unmarshal(fields[key], p) != nil || p.Gathered.IsZero() {
		return nil, note // something else of that name
	}
	delete(fields, key)
	rest, err := json.Marshal(fields)
	if err != nil {
		return nil, note
	}
	return p, rest
}

// shownLogs is how many lines of a statement's log a table shows; JSON has more.
const shownLogs = 10

// packTable adds an evidence pack for a person: what is known now, and what was
// gathered first, when the server may have known more.
func packTable(t *table, now time.Time, step int, p *hivepublish.Pack) {
	if p.First != nil {
		onePack(t, now, fmt.Sprintf("evidence of step %d, as it was first gathered", step), p.First)
	}
	onePack(t, now, fmt.Sprintf("evidence of step %d, gathered", step), p)
	t.line("  The evidence decides nothing; you do.")
}

func onePack(t *table, now time.Time, title string, p *hivepublish.Pack) {
	t.line("")
	t.line("%s %s:", title, since(now, p.Gathered))
	row := func(what, text string) {
		if text != "" {
			t.row("  "+what, text)
		}
	}
	row("target", p.Target)
	row("token", p.Token)
	row("server", p.Server)
	row("session", p.Session)
	row("operation", p.Operation)
	row("query", p.QueryID)
	if !p.Marked.IsZero() {
		row("sent", stampText(now, p.Marked))
	}
	if !p.Submitted.IsZero() {
		row("accepted", stampText(now, p.Submitted))
	}
	row("phase", p.Phase)
	if l := p.Last; l != nil {
		row("last state", lastText(l))
		for _, k := range l.Tasks {
			text := strings.TrimSpace(k.ID + " " + k.Type + " " + k.State)
			if k.Error != "" {
				text += ": " + k.Error
			}
			row("task", text)
		}
	}
	row("expected", metricsText(p.Want))
	stateRows(row, "before", p.Before)
	stateRows(row, "now", p.Now)
	for _, d := range paramsDiff(p.Before, p.Now) {
		row("parameter", d)
	}
	for _, l := range p.Leftovers {
		row("left over", name(l.Path)+": "+listingText(&l.Listing))
	}
	for _, q := range p.Queries {
		text := fmt.Sprintf("%s %s, operation %s", q.QueryID, q.State, q.Operation)
		if !q.Begin.IsZero() {
			text += ", begun " + stampText(now, q.Begin)
		}
		if q.Error != "" {
			text += ": " + q.Error
		}
		row("server lists", text)
		row("", q.Text)
	}
	logs := p.Logs[max(0, len(p.Logs)-shownLogs):]
	for _, l := range logs {
		row("log", strings.TrimSpace(l))
	}
	if n := len(p.Logs) - len(logs); n > 0 {
		row("", fmt.Sprintf("and %d earlier lines; -o json shows them", n))
	}
	for _, m := range p.Missing {
		row("not known", m)
	}
	as := p.Suggestion.As
	if as == "" {
		as = "none"
	}
	t.line("  suggestion: %s. %s", as, oneLine(p.Suggestion.Why))
}

func stampText(now, at time.Time) string {
	return at.UTC().Format(time.RFC3339) + ", " + since(now, at)
}

func lastText(o *hivepublish.Outcome) string {
	s := o.State
	if o.SQLState != "" || o.Code != 0 {
		s += fmt.Sprintf(" (SQL state %s, code %d)", o.SQLState, o.Code)
	}
	switch o.Moved {
	case "began":
		s += "; it had begun to replace the target"
	case "not begun":
		s += "; it had not begun to replace the target"
	}
	if o.Rows != nil {
		s += fmt.Sprintf("; %d rows written", *o.Rows)
	}
	if o.Message != "" {
		s += ": " + o.Message
	}
	return s
}

// metricsText joins answers to metrics, whatever type keeps them.
func metricsText[T fmt.Stringer](vs []T) string {
	var out []string
	for _, v := range vs {
		out = append(out, v.String())
	}
	return strings.Join(out, ", ")
}

func stateRows(row func(what, text string), when string, s hivepublish.TargetState) {
	switch {
	case !s.Known:
		row(when, "not known")
	case !s.There:
		row(when, strings.TrimPrefix(metricsText(s.Metrics)+"; the partition is absent", "; "))
	default:
		text := []string{}
		if m := metricsText(s.Metrics); m != "" {
			text = append(text, m)
		}
		if s.Files != nil {
			text = append(text, listingText(s.Files))
		}
		row(when, strings.Join(append(text, name(s.Location)), "; "))
	}
}

func listingText(l *hivepublish.Listing) string {
	s := fmt.Sprintf("%s with %d bytes", plural(l.Files, "file", "files"), l.Bytes)
	if l.Partial {
		s = "at least " + s
	}
	if !l.Newest.IsZero() {
		s += ", the newest of " + l.Newest.UTC().Format(time.RFC3339)
	}
	if l.Error != "" {
		s = "could not be listed: " + l.Error
	}
	return s
}

// paramsDiff lists the parameters of a partition that have changed.
func paramsDiff(before, now hivepublish.TargetState) []string {
	if !before.Known || !now.Known || !before.There || !now.There {
		return nil
	}
	all := maps.Clone(before.Params)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, now.Params)
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		was, had := before.Params[k]
		is, has := now.Params[k]
		switch {
		case had && has && was == is:
		case !had:
			out = append(out, fmt.Sprintf("%s is %s, was not set", k, name(is)))
		case !has:
			out = append(out, fmt.Sprintf("%s is not set, was %s", k, name(was)))
		default:
			out = append(out, fmt.Sprintf("%s is %s, was %s", k, name(is), name(was)))
		}
	}
	return out
}
