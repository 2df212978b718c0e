package hivepublish

import (
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

func TestOnePartitionOneLock(t *testing.T) {
	t.Parallel()
	cols := []column{{"dt", "date"}, {"hr", "int"}}
	lock := func(tb string, spec map[string]string) string {
		t.Helper()
		tg, err := Target{Hive: "dw", Table: tb, Partition: spec}.check()
		require.NoError(t, err)
		tg, err = tg.normal(cols)
		require.NoError(t, err)
		return tg.lock("dw")
	}
	want := lock("default.facts", map[string]string{"dt": "2024-01-01", "hr": "1"})
	require.Equal(t, want, lock("facts", map[string]string{"hr": "01", "dt": "2024-01-01"}))
	require.Equal(t, want, lock("`Default`.FACTS", map[string]string{"HR": "+1", "DT": "2024-01-01"}))
	require.NotEqual(t, want, lock("facts", map[string]string{"hr": "10", "dt": "2024-01-01"}))
	require.NotEqual(t, want, lock("other.facts", map[string]string{"hr": "1", "dt": "2024-01-01"}))

	// No two partitions share a lock, whatever their values hold.
	a := target{db: "d", table: "t", spec: []keyValue{{"a", "x/b=y"}, {"b", "z"}}}
	b := target{db: "d", table: "t", spec: []keyValue{{"a", "x"}, {"b", "y/b=z"}}}
	require.NotEqual(t, a.lock("dw"), b.lock("dw"))
	require.NotEqual(t, target{spec: []keyValue{{"a", "%2F"}}}.lock("dw"), target{spec: []keyValue{{"a", "/"}}}.lock("dw"))
	long := target{spec: []keyValue{{"a", strings.Repeat("x", 2000)}}}
	require.Less(t, len(long.lock("dw")), 1024)
}

func TestAnIntegerFitsItsColumn(t *testing.T) {
	t.Parallel()
	for typ, c := range map[string][2]string{"tinyint": {"-128", "128"}, "smallint": {"32767", "-32769"}, "int": {"-2147483648", "99999999999"}, "bigint": {"9223372036854775807", "9223372036854775808"}} {
		cols := []column{{"p", typ}}
		_, err := target{spec: []keyValue{{"p", c[0]}}}.normal(cols)
		require.NoError(t, err, typ)
		_, err = target{spec: []keyValue{{"p", c[1]}}}.normal(cols)
		require.ErrorContains(t, err, "does not fit", typ)
	}
}

// Two names of one server would let two publish one partition.
func TestOneServerHasOneName(t *testing.T) {
	t.Parallel()
	connect := func(name, address string) *Server {
		s, err := Connect(name, Config{Address: address})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	build := func(s ...*Server) error {
		_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(s...)...), commitstep.NewPlan("j", "d").Step(InsertOverwrite(Insert{Target: Target{Hive: "none"}})))
		return err
	}
	dw := connect("dw", "hs2.example:10000")
	for _, same := range []string{"hs2.example:10000", "HS2.Example:10000", "hs2.example.:010000"} {
		require.ErrorContains(t, build(dw, connect("again", same)), `"again" and "dw" are one`, same)
	}
	require.ErrorContains(t, build(connect("a", "[::1]:10000"), connect("b", "[0:0::1]:10000")), "are one")
	for _, other := range []string{"hs2.example:10001", "hs2:10000"} {
		require.ErrorContains(t, build(dw, connect("other", other)), "has not bound", other)
	}
}

func TestTargetsThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, tg := range map[string]Target{
		"empty":              {},
		"three parts":        {Table: "a.b.c"},
		"a statement":        {Table: "a; DROP TABLE b"},
		"a quote":            {Table: "a`b"},
		"an empty part":      {Table: "a."},
		"a column twice":     {Table: "a", Partition: map[string]string{"DT": "1", "dt": "1"}},
		"no value":           {Table: "a", Partition: map[string]string{"dt": ""}},
		"a quote in a value": {Table: "a", Partition: map[string]string{"dt": "x'"}},
		"a backslash":        {Table: "a", Partition: map[string]string{"dt": `x\`}},
		"a dollar":           {Table: "a", Partition: map[string]string{"dt": "${env:HOME}"}},
		"a line break":       {Table: "a", Partition: map[string]string{"dt": "a\nb"}},
		"Hive's own":         {Table: "a", Partition: map[string]string{"dt": "__HIVE_DEFAULT_PARTITION__"}},
		"a dotted column":    {Table: "a", Partition: map[string]string{"a.b": "1"}},
	} {
		_, err := tg.check()
		require.Error(t, err, name)
	}
	tg, err := Target{Table: "a", Partition: map[string]string{"dt": "x"}}.check()
	require.NoError(t, err)
	for name, cols := range map[string][]column{
		"more columns":   {{"dt", "string"}, {"hr", "int"}},
		"another column": {{"hr", "string"}},
		"no columns":     nil,
		"not an integer": {{"dt", "bigint"}},
		"not a date":     {{"dt", "date"}},
	} {
		_, err := tg.normal(cols)
		require.Error(t, err, name)
	}
}

func TestLocations(t *testing.T) {
	t.Parallel()
	one := func(s string) location {
		t.Helper()
		l, err := parseLocation(s)
		require.NoError(t, err, s)
		return l
	}
	require.True(t, one("file:///a/b").same("file:/a/b"))
	require.True(t, one("hdfs://NN:8020/a/b/").same("hdfs://nn:8020/a//b"))
	require.False(t, one("hdfs://nn:8020/a").same("hdfs://nn2:8020/a"))
	require.False(t, one("hdfs://nn:8020/a").same("hdfs://nn:8020/A"))
	require.False(t, one("hdfs://nn:8020/a").same("/a"))
	require.Equal(t, "hdfs://nn:8020/a/token=x", one("hdfs://nn:8020/a").join("token=x").String())
	require.Equal(t, "file:///a", one("file:/a").String())
	require.True(t, one("hdfs://nn/a/b").within(one("hdfs://nn/a")))
	require.False(t, one("hdfs://nn/ab").within(one("hdfs://nn/a")))
	require.Equal(t, "hdfs://nn/c", one("hdfs://nn/a/b/../../c").String())
	for _, bad := range []string{"", "/a", "a/b", "hdfs", "hdfs://u:p@nn/a", "hdfs://nn/a\nb", ":/a", "s3 :/a"} {
		_, err := parseLocation(bad)
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "u:p", "credentials are not shown")
	}
}
