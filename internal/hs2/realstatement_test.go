package hs2_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

func realRows(t *testing.T, h hive) {
	s := h.open(t, nil)
	kinds := []struct {
		kind, sql string
		want      any
	}{
		{"BOOLEAN", "true", true},
		{"TINYINT", "CAST(-8 AS TINYINT)", int8(-8)},
		{"SMALLINT", "CAST(-300 AS SMALLINT)", int16(-300)},
		{"INT", "70000", int32(70000)},
		{"BIGINT", "9007199254740993L", int64(9007199254740993)},
		{"FLOAT", "CAST(1.5 AS FLOAT)", 1.5},
		{"DOUBLE", "CAST(-2.25 AS DOUBLE)", -2.25},
		{"DECIMAL", "CAST('12345678901234567890.10' AS DECIMAL(38,2))", "12345678901234567890.10"},
		{"STRING", "'Grüße, 世界'", "Grüße, 世界"},
		{"VARCHAR", "CAST('v' AS VARCHAR(9))", "v"},
		{"CHAR", "CAST('ab' AS CHAR(4))", "ab  "},
		{"DATE", "DATE '2024-02-29'", "2024-02-29"},
		{"TIMESTAMP", "TIMESTAMP '2024-01-02 03:04:05.678'", "2024-01-02 03:04:05.678"},
		{"BINARY", "unhex('00FF10')", []byte{0, 0xff, 0x10}},
		{"ARRAY", "array(1, 2)", "[1,2]"},
		{"MAP", "map('k', 1)", `{"k":1}`},
		{"STRUCT", "named_struct('x', 1, 'y', 'z')", `{"x":1,"y":"z"}`},
		{"INTERVAL_YEAR_MONTH", "INTERVAL '1' YEAR", "1-0"},
		{"INTERVAL_DAY_TIME", "INTERVAL '1' DAY", "1 00:00:00.000000000"},
	}
	var values, nulls []string
	var want []any
	for i, k := range kinds {
		values = append(values, fmt.Sprintf("%s AS c%d", k.sql, i))
		nulls = append(nulls, fmt.Sprintf("IF(id > 0, NULL, %s) AS c%d", k.sql, i))
		want = append(want, k.want)
	}
	// Without a reduction the server answers by itself, without a job.
	table, err := h.client.Query(h.ctx(t), s, "SELECT "+strings.Join(values, ", "))
	require.NoError(t, err)
	require.Equal(t, [][]any{want}, table.Rows)
	for i, k := range kinds {
		require.Equal(t, hs2.Column{Name: fmt.Sprintf("c%d", i), Type: k.kind}, table.Columns[i])
	}
	table, err = h.client.Query(h.ctx(t), s, "SELECT "+strings.Join(nulls, ", ")+" FROM src")
	require.NoError(t, err)
	require.Len(t, table.Rows, 3)
	for _, row := range table.Rows {
		require.Equal(t, make([]any, len(kinds)), row)
	}
	// More than one page, in order, with a null in every byte of the bitmap.
	table, err = h.client.Query(h.ctx(t), s, "SELECT pos, IF(pos % 5 = 0, NULL, pos) FROM (SELECT posexplode(split(space(2499), ' ')) AS (pos, val)) x ORDER BY pos")
	require.NoError(t, err)
	require.Len(t, table.Rows, 2500)
	for i, row := range table.Rows {
		if i%5 == 0 {
			require.Equal(t, []any{int32(i), nil}, row)
		} else {
			require.Equal(t, []any{int32(i), int32(i)}, row)
		}
	}
	// Results that the query's own tasks pack are empty on this server: an error,
	// and never no rows.
	packed := h.open(t, map[string]string{"hive.server2.thrift.resultset.serialize.in.tasks": "true"})
	_, err = h.client.Query(h.ctx(t), packed, "SELECT id, name FROM src ORDER BY id")
	transportError(t, err, true)
	require.ErrorContains(t, err, "hive.server2.thrift.resultset.serialize.in.tasks=false")
	table, err = h.client.Query(h.ctx(t), s, "SELECT id FROM src WHERE id > 99")
	require.NoError(t, err)
	require.Empty(t, table.Rows)
	require.Equal(t, []hs2.Column{{Name: "id", Type: "INT"}}, table.Columns)
}

// refusals are statements that are refused while they are compiled.
var refusals = []struct {
	sql, state string
	code       int32
	says       string
}{
	{"SELEC 1", "42000", 40000, "ParseException line 1:0 cannot recognize input near 'SELEC'"},
	{"SELECT * FROM nosuch", "42S02", 10001, "Table not found 'nosuch'"},
	{"SELECT nocol FROM src", "42000", 10004, "Invalid table alias or column reference 'nocol'"},
}

func realRefusals(t *testing.T, h hive) {
	s := h.open(t, nil)
	for _, r := range refusals {
		_, err := s.Execute(h.ctx(t), r.sql, nil)
		var se *hs2.ServerError
		require.ErrorAs(t, err, &se, r.sql)
		require.Equal(t, "ExecuteStatement", se.RPC)
		require.Equal(t, r.state, se.SQLState)
		require.Equal(t, r.code, se.Code)
		require.Contains(t, se.Message, r.says)
		require.NotErrorIs(t, err, hs2.ErrUnknownHandle)
	}
}

// realAsyncCompile: the same errors come with the status, and nothing began.
func realAsyncCompile(t *testing.T, h hive) {
	s := h.open(t, map[string]string{"hive.server2.async.exec.async.compile": "true"})
	for _, r := range refusals {
		op, err := s.Execute(h.ctx(t), r.sql, nil)
		require.NoError(t, err, r.sql)
		st, err := op.Wait(h.ctx(t), nil)
		require.NoError(t, err)
		require.Equal(t, hs2.Error, st.State)
		require.Equal(t, r.state, st.SQLState)
		require.Equal(t, r.code, st.Code)
		require.Contains(t, st.Message, r.says)
		began, known := st.MoveBegan()
		require.True(t, known)
		require.False(t, began)
		require.NoError(t, op.Close(h.ctx(t)))
	}
}

func realFailures(t *testing.T, h hive) {
	s := h.open(t, nil)
	for _, sql := range []string{
		"CREATE TABLE dst (id INT, name STRING) PARTITIONED BY (dt STRING)",
		"ALTER TABLE dst ADD PARTITION (dt='x')",
	} {
		_, err := h.client.Query(h.ctx(t), s, sql)
		require.NoError(t, err, sql)
	}
	for _, f := range []struct {
		sql, state string
		code       int32
		says       string
	}{
		{"INSERT OVERWRITE TABLE dst PARTITION (dt='x') SELECT id, CAST(assert_true(id < 0) AS STRING) FROM src", "08S01", 2, "return code 2 from org.apache.hadoop.hive.ql.exec.tez.TezTask. Vertex failed"},
		{"SELECT assert_true(false)", "", 1, "ASSERT_TRUE(): assertion failed"},
		{"ALTER TABLE dst ADD PARTITION (dt='x')", "08S01", 40000, "AlreadyExistsException"},
		{"CREATE TABLE src (id INT)", "08S01", 40000, "already exists"},
	} {
		op, err := s.Execute(h.ctx(t), f.sql, nil)
		require.NoError(t, err, f.sql)
		id, err := op.QueryID(h.ctx(t))
		require.NoError(t, err)
		require.Regexp(t, `^\w+_\d{14}_[0-9a-f-]{36}$`, id)
		st, err := op.Wait(h.ctx(t), nil)
		require.NoError(t, err)
		require.Equal(t, hs2.Error, st.State, f.sql)
		require.Equal(t, f.state, st.SQLState, f.sql)
		require.Equal(t, f.code, st.Code, f.sql)
		require.Contains(t, st.Message, f.says)
		require.Nil(t, st.ModifiedRows)
		require.False(t, st.Started.IsZero() || st.Completed.IsZero())
		if strings.HasPrefix(f.sql, "INSERT") {
			began, known := st.MoveBegan()
			require.True(t, known)
			require.False(t, began, "%+v", st.Tasks)
			lines, err := op.Logs(h.ctx(t))
			require.NoError(t, err)
			require.Contains(t, strings.Join(lines, "\n"), id)
		}
		require.NoError(t, op.Close(h.ctx(t)))
		_, err = op.Status(h.ctx(t))
		require.ErrorIs(t, err, hs2.ErrUnknownHandle)
		_, err = op.QueryID(h.ctx(t))
		require.ErrorIs(t, err, hs2.ErrUnknownHandle)
		require.ErrorIs(t, op.Close(h.ctx(t)), hs2.ErrUnknownHandle)
		require.ErrorIs(t, op.Cancel(h.ctx(t)), hs2.ErrUnknownHandle)
	}
}

func realCancel(t *testing.T, h hive) {
	s := h.open(t, nil)
	_, err := h.client.Query(h.ctx(t), s, "CREATE TABLE cancelled (id INT, name STRING)")
	require.NoError(t, err)
	op, err := s.Execute(h.ctx(t), slow("cancel", "cancelled"), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(h.ctx(t))
	st, err := op.Wait(ctx, func(st hs2.Status) {
		if st.State == hs2.Running && len(st.Tasks) > 0 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled, "%+v", st)
	require.NoError(t, op.Cancel(h.ctx(t)))
	st, err = op.Wait(h.ctx(t), nil)
	require.NoError(t, err)
	require.Equal(t, hs2.Canceled, st.State)
	require.Zero(t, st.Code)
}

func realTimeout(t *testing.T, h hive) {
	s := h.open(t, map[string]string{"hive.query.timeout.seconds": "10s"})
	op, err := s.Execute(h.ctx(t), "SELECT count(*), max(reflect('java.lang.Thread', 'sleep', 10000L)) FROM src", nil)
	var se *hs2.ServerError
	for range 5 {
		// On a busy machine the limit may come while it is compiled: then it is
		// refused.
		if !errors.As(err, &se) {
			break
		}
		require.Contains(t, se.Message, "TIMEDOUT")
		op, err = s.Execute(h.ctx(t), "SELECT count(*), max(reflect('java.lang.Thread', 'sleep', 10000L)) FROM src", nil)
	}
	require.NoError(t, err)
	st, err := op.Wait(h.ctx(t), nil)
	require.NoError(t, err)
	require.Equal(t, hs2.TimedOut, st.State)
	require.Zero(t, st.Code)
}
