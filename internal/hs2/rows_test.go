package hs2_test

import (
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var valueOf = map[string]*rapid.Generator[any]{
	"BOOLEAN":   rapid.Bool().AsAny(),
	"TINYINT":   rapid.Int8().AsAny(),
	"SMALLINT":  rapid.Int16().AsAny(),
	"INT":       rapid.Int32().AsAny(),
	"BIGINT":    rapid.Int64().AsAny(),
	"DOUBLE":    rapid.Float64().AsAny(),
	"FLOAT":     rapid.Float64().AsAny(),
	"STRING":    rapid.String().AsAny(),
	"DECIMAL":   rapid.StringMatching(`-?[0-9]{1,30}\.[0-9]{2}`).AsAny(),
	"TIMESTAMP": rapid.String().AsAny(),
	"BINARY":    rapid.SliceOf(rapid.Byte()).AsAny(),
}

// TestRowsComeBackAsTheyWere, of all types, with nulls anywhere, over any number
// of pages.
func TestRowsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	rapid.Check(t, func(rt *rapid.T) {
		var run hs2test.Run
		for range rapid.IntRange(1, 6).Draw(rt, "columns") {
			kind := rapid.SampledFrom([]string{"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE", "FLOAT", "STRING", "DECIMAL", "TIMESTAMP", "BINARY"}).Draw(rt, "type")
			run.Columns = append(run.Columns, hs2.Column{Name: rapid.String().Draw(rt, "name"), Type: kind})
		}
		n := rapid.SampledFrom([]int{0, 1, 7, 8, 9, 64, 999, 1000, 1001, 2001}).Draw(rt, "rows")
		distinct := rapid.IntRange(1, 20).Draw(rt, "distinct")
		for i := range min(n, distinct) {
			_ = i
			var row []any
			for _, col := range run.Columns {
				if rapid.Bool().Draw(rt, "null") {
					row = append(row, nil)
				} else {
					row = append(row, valueOf[col.Type].Draw(rt, "value"))
				}
			}
			run.Rows = append(run.Rows, row)
		}
		for i := len(run.Rows); i < n; i++ {
			run.Rows = append(run.Rows, run.Rows[(i*7)%distinct])
		}
		srv.Statement("", run)
		table, err := c.Query(t.Context(), session, "SELECT")
		require.NoError(rt, err)
		require.Equal(rt, run.Columns, table.Columns)
		require.Len(rt, table.Rows, n)
		for i := range n {
			require.Equal(rt, run.Rows[i], table.Rows[i])
		}
	})
}

// TestRowsCanBeLeft after some of them, and a lost page ends them.
func TestRowsCanBeLeft(t *testing.T) {
	t.Parallel()
	srv, _, session := fake(t)
	run := hs2test.Run{Columns: []hs2.Column{{Name: "n", Type: "INT"}}, Logs: make([]string, 2500)}
	for i := range 2500 {
		run.Rows = append(run.Rows, []any{int32(i)})
	}
	srv.Statement("", run)
	op, err := session.Execute(t.Context(), "SELECT", nil)
	require.NoError(t, err)
	rows, err := op.Rows(t.Context())
	require.NoError(t, err)
	for row, err := range rows.All() {
		require.NoError(t, err)
		if row[0] == int32(500) {
			break
		}
	}
	require.Equal(t, 1, srv.Calls("FetchResults"))

	srv.On("FetchResults", 2, hs2test.CutAfter)
	op, err = session.Execute(t.Context(), "SELECT", nil)
	require.NoError(t, err)
	rows, err = op.Rows(t.Context())
	require.NoError(t, err)
	n := 0
	for _, err = range rows.All() {
		n++
	}
	transportError(t, err, true)
	require.Equal(t, 1001, n, "1000 rows, and the error instead of a gap")

	lines, err := op.Logs(t.Context())
	require.NoError(t, err)
	require.Len(t, lines, 2500)
	lines, err = op.Logs(t.Context())
	require.NoError(t, err)
	require.Len(t, lines, 2500, "from the first one on, each time")
}
