package hs2

import "iter"

// Column describes a column of a result. Type is Hive's name, in capitals, without
// parameters: STRING, DECIMAL, …
type Column struct{ Name, Type string }

// Rows is a result that is read page by page. It can be read once, by one
// goroutine.
type Rows struct{ columns []Column }

// Columns describes the rows.
func (r *Rows) Columns() []Column { return r.columns }

// All yields the rows. A value is nil for NULL, or a bool, int8, int16, int32,
// int64, float64, string or []byte; dates, decimals and compound types are strings
// as the server prints them. An error ends it.
func (r *Rows) All() iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) { yield(nil, errNotYet) }
}

// Table is a whole result.
type Table struct {
	Columns []Column
	Rows    [][]any
}
