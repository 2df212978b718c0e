package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"sigs.k8s.io/yaml"
)

// document is what a command prints: data for programs, and a table of it for
// people. Body marshals to a JSON object without apiVersion and kind.
type document struct {
	kind  string
	body  any
	table func(t *table)
}

// list is the body of every list: items is never null.
type list[T any] struct {
	Items []T `json:"items"`
}

func listOf[T any](items []T) list[T] {
	if items == nil {
		items = []T{}
	}
	return list[T]{Items: items}
}

// reading is a list that is read record by record, of which some may be
// unreadable. What could be read is shown, and the rest is told as an error.
type reading[T any] struct {
	items []T
	errs  []error
	more  int // unreadable beyond errs
}

// maxUnreadable is how many unreadable records are told one by one.
const maxUnreadable = 20

// fault notes one record that cannot be read.
func (r *reading[T]) fault(err error) {
	if len(r.errs) == maxUnreadable {
		r.more++
		return
	}
	r.errs = append(r.errs, err)
}

// err tells all that could not be read, nil when the list is whole.
func (r *reading[T]) err() error {
	all := r.errs
	if r.more > 0 {
		all = append(slices.Clip(all), fmt.Errorf("and %d more that cannot be read", r.more))
	}
	return errors.Join(all...)
}

// readList is the body of such a list. Without Complete there may be more than
// Items; they are null when nothing could be read, since nobody knows then
// whether there is anything.
type readList[T any] struct {
	Complete bool `json:"complete"`
	Items    []T  `json:"items"`
}

func (r *reading[T]) body() readList[T] {
	if r.items == nil && len(r.errs) == 0 {
		return readList[T]{Complete: true, Items: []T{}}
	}
	return readList[T]{Complete: len(r.errs) == 0, Items: r.items}
}

// table shows the items with rows, or says that there are none, which is known
// only of a whole list.
func (r *reading[T]) table(none string, rows func(*table, []T)) func(*table) {
	return func(t *table) {
		switch {
		case len(r.items) > 0:
			rows(t, r.items)
		case len(r.errs) == 0:
			t.line("%s", none)
		}
	}
}

// printer writes documents in one format.
type printer interface {
	print(w io.Writer, d document) error
}

// printers is the table of formats for -o.
func printers() map[string]printer {
	return map[string]printer{"table": tablePrinter{}, "json": jsonPrinter{}, "yaml": yamlPrinter{}}
}

const formatNames = "table, json, yaml"

type tablePrinter struct{}

func (tablePrinter) print(w io.Writer, d document) error {
	t := &table{}
	d.table(t)
	return t.flush(w)
}

type jsonPrinter struct{}

func (jsonPrinter) print(w io.Writer, d document) error {
	b, err := d.marshal()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return fmt.Errorf("print %s: %w", d.kind, err)
	}
	out.WriteByte('\n')
	_, err = w.Write(out.Bytes())
	return err
}

type yamlPrinter struct{}

func (yamlPrinter) print(w io.Writer, d document) error {
	b, err := d.marshal()
	if err != nil {
		return err
	}
	if b, err = yaml.JSONToYAML(b); err != nil {
		return fmt.Errorf("print %s: %w", d.kind, err)
	}
	_, err = w.Write(b)
	return err
}

// marshal puts apiVersion and kind in front of the body's fields.
func (d document) marshal() ([]byte, error) {
	head, err := compactJSON(struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}{commitstep.APIVersion, d.kind})
	if err != nil {
		return nil, err
	}
	body, err := compactJSON(d.body)
	if err != nil {
		return nil, fmt.Errorf("print %s: %w", d.kind, err)
	}
	switch {
	case len(body) < 2 || body[0] != '{':
		return nil, fmt.Errorf("print %s: its body is no object", d.kind)
	case string(body) == "{}":
		return head, nil
	}
	return append(append(head[:len(head)-1], ','), body[1:]...), nil
}

// compactJSON marshals on one line, without escaping <, > and &, which are
// plain characters in names of datasets and files.
func compactJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// errorBody is the JSON of an error on stderr. Code is the exit code.
type errorBody struct {
	Code    int    `json:"code"`
	Name    string `json:"name"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// oneLine keeps a message on one line, so that a log of many runs stays
// readable and no name can forge a line of its own.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == '\t' {
			return ' '
		}
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, s)
}
