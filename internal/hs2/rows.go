package hs2

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/beltran/gohive/hiveserver"
)

// pageRows is how many rows are asked for at once.
const pageRows = 1000

// Column describes a column of a result. Type is Hive's name, in capitals, without
// parameters: STRING, DECIMAL, …
type Column struct{ Name, Type string }

// Rows is a result that is read page by page. It can be read once, by one
// goroutine.
type Rows struct {
	ctx     context.Context
	o       *Operation
	columns []Column
}

// Columns describes the rows.
func (r *Rows) Columns() []Column { return r.columns }

// Rows opens the result of a statement that has finished. The context is for
// reading it as well. A page whose answer is lost cannot be had again.
func (o *Operation) Rows(ctx context.Context) (*Rows, error) {
	const rpc = "GetResultSetMetadata"
	req := &hiveserver.TGetResultSetMetadataReq{OperationHandle: o.h.thrift()}
	var resp *hiveserver.TGetResultSetMetadataResp
	err := o.c.call(ctx, callOptions{rpc: rpc, read: true}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.GetResultSetMetadata(ctx, req)
		return err
	})
	if err == nil {
		err = o.c.check(rpc, resp.GetStatus())
	}
	if err != nil {
		return nil, err
	}
	r := &Rows{ctx: ctx, o: o}
	for _, d := range resp.GetSchema().GetColumns() {
		r.columns = append(r.columns, Column{Name: d.GetColumnName(), Type: typeName(d.GetTypeDesc())})
	}
	return r, nil
}

func typeName(d *hiveserver.TTypeDesc) string {
	for _, e := range d.GetTypes() {
		if e.GetPrimitiveEntry() != nil {
			return hiveserver.TYPE_NAMES[e.PrimitiveEntry.Type]
		}
	}
	return ""
}

// All yields the rows. A value is nil for NULL, or a bool, int8, int16, int32,
// int64, float64, string or []byte; dates, decimals and compound types are strings
// as the server prints them. An error ends it.
func (r *Rows) All() iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for {
			cols, n, err := r.o.fetch(r.ctx, hiveserver.TFetchOrientation_FETCH_NEXT, fetchRows)
			if err == nil && n > 0 && len(cols) != len(r.columns) {
				err = r.o.c.rubbish("FetchResults", fmt.Errorf("%d columns, want %d", len(cols), len(r.columns)))
			}
			if err != nil {
				yield(nil, err)
				return
			}
			// The flag that more rows follow is not kept by all servers; an empty
			// page is.
			if n == 0 {
				return
			}
			for i := range n {
				row := make([]any, len(cols))
				for c := range cols {
					row[c] = cols[c].value(i)
				}
				if !yield(row, nil) {
					return
				}
			}
		}
	}
}

// maxLogLines is how many lines of a log are kept.
const maxLogLines = 100_000

// Logs are the lines that the server keeps of the statement, from the first one
// on. Servers forget them some time after the statement, and may be told to keep
// none.
func (o *Operation) Logs(ctx context.Context) ([]string, error) {
	var lines []string
	from := hiveserver.TFetchOrientation_FETCH_FIRST
	for len(lines) < maxLogLines {
		cols, n, err := o.fetch(ctx, from, fetchLog)
		if err != nil {
			return lines, err
		}
		if n == 0 {
			break
		}
		for i := range n {
			if s, ok := cols[0].value(i).(string); ok {
				lines = append(lines, s)
			}
		}
		from = hiveserver.TFetchOrientation_FETCH_NEXT
	}
	return lines, nil
}

// What FetchResults gives.
const (
	fetchRows int16 = 0
	fetchLog  int16 = 1
)

// fetch gets one page of n rows. It is not repeated: the server's cursor moves.
func (o *Operation) fetch(ctx context.Context, from hiveserver.TFetchOrientation, what int16) (cols []column, n int, err error) {
	const rpc = "FetchResults"
	req := &hiveserver.TFetchResultsReq{OperationHandle: o.h.thrift(), Orientation: from, MaxRows: pageRows, FetchType: what}
	var resp *hiveserver.TFetchResultsResp
	err = o.c.call(ctx, callOptions{rpc: rpc}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.FetchResults(ctx, req)
		return err
	})
	if err == nil {
		err = o.c.check(rpc, resp.GetStatus())
	}
	if err != nil {
		return nil, 0, err
	}
	cols, n, err = columnsOf(resp.GetResults())
	if err != nil {
		return nil, 0, o.c.rubbish(rpc, err)
	}
	return cols, n, nil
}

// columnsOf reads a page, whose columns must have the same length n.
func columnsOf(set *hiveserver.TRowSet) (cols []column, n int, err error) {
	if set == nil {
		return nil, 0, nil
	}
	if len(set.GetRows()) > 0 {
		return nil, 0, errors.New("rows instead of columns")
	}
	if set.IsSetColumnCount() || set.IsSetBinaryColumns() {
		// Hive 4.0.1 on Tez was seen to send nothing but the count, whatever rows
		// there are; taken for an empty page it would be a wrong result.
		return nil, 0, errors.New("columns that the query's tasks have packed: the session needs " + packedResults + "=false")
	}
	for i, c := range set.GetColumns() {
		col, err := columnOf(c)
		if err != nil {
			return nil, 0, fmt.Errorf("column %d: %w", i+1, err)
		}
		if i > 0 && col.n != n {
			return nil, 0, fmt.Errorf("columns of %d and %d values", n, col.n)
		}
		n = col.n
		cols = append(cols, col)
	}
	return cols, n, nil
}

// column gives the values of a column by index.
type column struct {
	n     int
	nulls []byte // a bit for each value, lowest first; it may be shorter
	at    func(i int) any
}

func (c column) value(i int) any {
	if i/8 < len(c.nulls) && c.nulls[i/8]&(1<<(i%8)) != 0 {
		return nil
	}
	return c.at(i)
}

func valuesOf[T any](values []T, nulls []byte) column {
	return column{len(values), nulls, func(i int) any { return values[i] }}
}

func columnOf(c *hiveserver.TColumn) (column, error) {
	switch {
	case c.GetStringVal() != nil:
		return valuesOf(c.StringVal.Values, c.StringVal.Nulls), nil
	case c.GetI64Val() != nil:
		return valuesOf(c.I64Val.Values, c.I64Val.Nulls), nil
	case c.GetI32Val() != nil:
		return valuesOf(c.I32Val.Values, c.I32Val.Nulls), nil
	case c.GetI16Val() != nil:
		return valuesOf(c.I16Val.Values, c.I16Val.Nulls), nil
	case c.GetByteVal() != nil:
		return valuesOf(c.ByteVal.Values, c.ByteVal.Nulls), nil
	case c.GetBoolVal() != nil:
		return valuesOf(c.BoolVal.Values, c.BoolVal.Nulls), nil
	case c.GetDoubleVal() != nil:
		return valuesOf(c.DoubleVal.Values, c.DoubleVal.Nulls), nil
	case c.GetBinaryVal() != nil:
		return valuesOf(c.BinaryVal.Values, c.BinaryVal.Nulls), nil
	}
	return column{}, errors.New("no values of a known type")
}

// Table is a whole result.
type Table struct {
	Columns []Column
	Rows    [][]any
}
