package hivepublish

import (
	"errors"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var holes = map[string]bool{"table": true, "partition": true, "partition_filter": true, "token": true, "dataset": true, "job": true, "v": true}

func TestOneStatementOnly(t *testing.T) {
	t.Parallel()
	for sql, problem := range map[string]string{
		"SELECT 1":                             "",
		"SELECT 1; -- the end\n  ":             "",
		"SELECT ';' , \";\" , `a;b` /* ; */":   "",
		"SELECT 'it\\'s; fine'":                "",
		"SELECT 'a''b;'":                       "",
		"SELECT '${token}/x' -- ; \n":          "",
		"SELECT /*+ MAPJOIN(a) */ 1":           "",
		"SELECT 1; DROP TABLE t":               "second statement",
		"SELECT 1;;SELECT 2":                   "second statement",
		"SELECT 'a":                            "does not end",
		"SELECT 'a\\'":                         "does not end",
		"SELECT \"a":                           "does not end",
		"SELECT `a":                            "does not end",
		"SELECT `a``":                          "does not end",
		"SELECT /* a":                          "does not end",
		"SELECT /* a /* b */ c */ 1":           "inside a comment",
		"SELECT ${nope}":                       "nothing is bound",
		"SELECT '${hiveconf:x}'":               "nothing is bound",
		"SELECT ${env:HOME}":                   "nothing is bound",
		"SELECT ${token":                       "has no }",
		"SELECT '${token'":                     "has no }",
		"SELECT `${token}`":                    "comment or a back-quoted name",
		"SELECT 1 -- ${token}":                 "comment or a back-quoted name",
		"":                                     "empty",
		" -- nothing\n;":                       "empty",
		"SELECT \x00":                          "NUL",
		"SELECT '\xff'":                        "UTF-8",
		strings.Repeat("x", maxStatement+1):    "bytes",
		"SELECT '" + strings.Repeat("${v}", 3): "does not end",
	} {
		_, err := parseStatement(sql, holes)
		if problem == "" {
			require.NoError(t, err, sql)
			continue
		}
		require.ErrorIs(t, err, errStatement, sql)
		require.ErrorContains(t, err, problem, sql)
	}
}

func TestInsertOverwritesWhatTheStepNames(t *testing.T) {
	t.Parallel()
	for sql, problem := range map[string]string{
		"INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 1":                               "",
		"insert overwrite ${table} partition ${partition} select 1":                                     "",
		"WITH a AS (SELECT 1) INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 1":          "",
		"FROM x INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT *":                        "",
		"/* ours */ INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 'INSERT'":             "",
		"INSERT INTO TABLE ${table} PARTITION ${partition} SELECT 1":                                    "no OVERWRITE",
		"INSERT OVERWRITE TABLE facts PARTITION ${partition} SELECT 1":                                  "${table}",
		"INSERT OVERWRITE TABLE ${table} PARTITION (dt='x') SELECT 1":                                   "${partition}",
		"INSERT OVERWRITE TABLE ${table} SELECT 1":                                                      "${partition}",
		"INSERT OVERWRITE DIRECTORY '/x' SELECT 1":                                                      "${table}",
		"INSERT OVERWRITE TABLE ${table} PARTITION ${partition} IF NOT EXISTS SELECT 1":                 "skip",
		"FROM x INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 1 INSERT INTO y SELECT 2": "2 INSERTs",
		"TRUNCATE TABLE ${table}": "begins with TRUNCATE",
		"SET a=b":                 "begins with SET",
		"EXPLAIN INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 1": "begins with EXPLAIN",
	} {
		st, err := parseStatement(sql, holes)
		require.NoError(t, err, sql)
		err = st.checkInsert(true)
		if problem == "" {
			require.NoError(t, err, sql)
		} else {
			require.ErrorContains(t, err, problem, sql)
		}
	}
	st, err := parseStatement("INSERT OVERWRITE TABLE ${table} PARTITION (dt='x') SELECT 1", holes)
	require.NoError(t, err)
	require.ErrorContains(t, st.checkInsert(false), "the step does not")
}

func TestMetricsOnlyRead(t *testing.T) {
	t.Parallel()
	for sql, ok := range map[string]bool{
		"SELECT count(*) FROM ${table}":                      true,
		"WITH a AS (SELECT 1) SELECT * FROM a":               true,
		"SELECT 'INSERT', `insert` FROM ${table}":            true,
		"WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a": false,
		"DROP TABLE t":          false,
		"FROM t SELECT *":       false,
		"SHOW TABLES":           false,
		"/* x */ DELETE FROM t": false,
	} {
		_, err := parseQuery(sql, holes)
		require.Equal(t, ok, err == nil, "%s: %v", sql, err)
	}
}

// unescape is how Hive reads the inside of a string, as far as escape writes it.
func unescape(t interface{ Fatalf(string, ...any) }, s string) string {
	var out strings.Builder
	r := []rune(s)
	for i := 0; i < len(r); i++ {
		if r[i] != '\\' {
			out.WriteRune(r[i])
			continue
		}
		i++
		if r[i] != 'u' {
			out.WriteRune(r[i])
			continue
		}
		var v rune
		for _, h := range string(r[i+1 : i+5]) {
			v = v*16 + rune(strings.IndexRune("0123456789abcdef", h))
		}
		out.WriteRune(v)
		i += 4
	}
	return out.String()
}

// Whatever a value holds: bound, it stays one string of that value, in either
// kind of quotes, and nothing in it means anything to Hive.
func TestValuesStayValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{`'; DROP TABLE t --`, `\`, `\'`, `${env:HOME}`, `{env:HOME}`, "a\nb", "*/", `"`, "\\u0027", "a'b\"c`d"})).Draw(t, "value")
		if strings.ContainsRune(v, 0) || strings.ContainsRune(v, '\uFFFD') {
			t.Skip()
		}
		for _, sql := range []string{"SELECT ${v}", "SELECT '${v}'", `SELECT "${v}"`, "SELECT 'a${v}b${v}'", "SELECT '$${v}'"} {
			st, err := parseStatement(sql, holes)
			require.NoError(t, err)
			out, err := st.bind(map[string]bound{"v": textValue(v)})
			require.NoError(t, err)
			pieces, err := split(out)
			require.NoError(t, err, out)
			w := significant(pieces)
			require.Len(t, w, 2, out)
			require.Equal(t, pieceString, w[1].kind)
			inside := unescape(t, w[1].text[1:len(w[1].text)-1])
			want := v
			if strings.Contains(sql, "'a") {
				want = "a" + v + "b" + v
			}
			if strings.Contains(sql, "'$$") {
				want = "$" + v
			}
			require.Equal(t, want, inside)
			require.NotContains(t, out, "${", "Hive replaces ${…} also in strings")
		}
	})
}

func TestNamesAreNoValues(t *testing.T) {
	t.Parallel()
	st, err := parseStatement("SELECT '${table}'", holes)
	require.NoError(t, err)
	_, err = st.bind(map[string]bound{"table": sqlText("`a`")})
	require.ErrorContains(t, err, "stands in a string")
}

func TestBindings(t *testing.T) {
	t.Parallel()
	b := Bindings{Stage: "Stage.Loads", Values: map[string]Text{"day": "it's"}, Names: map[string]string{"dim": "ref.country"}}
	known, err := b.known(true)
	require.NoError(t, err)
	st, err := parseStatement("INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT * FROM ${stage} JOIN ${dim} WHERE t=${token} AND d='x-${day}' AND n=${dataset}", known)
	require.NoError(t, err)
	tg, err := Target{Table: "Sales.`Facts`", Partition: map[string]string{"HR": "1", "dt": "2024-01-01"}}.check()
	require.NoError(t, err)
	token := uuid.MustParse("0198c2a8-0000-7000-8000-000000000001")
	out, err := st.bind(b.values(tg, token, commitstep.Key{Job: "j", Dataset: "d'1"}))
	require.NoError(t, err)
	require.Equal(t, "INSERT OVERWRITE TABLE `sales`.`facts` PARTITION (`dt`='2024-01-01', `hr`='1') SELECT * FROM `stage`.`loads` JOIN `ref`.`country` WHERE t='0198c2a8-0000-7000-8000-000000000001' AND d='x-it\\'s' AND n='d\\'1'", out)

	for _, bad := range []Bindings{
		{Stage: "a;b"}, {Names: map[string]string{"x": "a b"}}, {Values: map[string]Text{"table": "x"}},
		{Values: map[string]Text{"a b": "x"}}, {Values: map[string]Text{"x": "1"}, Names: map[string]string{"x": "y"}}, {Values: map[string]Text{"": "x"}},
		{Values: map[string]Text{"stage": "x"}},
	} {
		_, err := bad.known(true)
		require.Error(t, err, "%+v", bad)
	}
}

func FuzzStatement(f *testing.F) {
	for _, s := range []string{"SELECT 1", "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT '${token}'", "a;b", "'\\", "`a``b`", "/*+ x */", "--\n", "${"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		pieces, err := split(sql)
		if err != nil {
			if !errors.Is(err, errStatement) {
				t.Fatal(err)
			}
			return
		}
		var all strings.Builder
		for _, p := range pieces {
			all.WriteString(p.text)
		}
		if all.String() != sql {
			t.Fatalf("pieces of %q are %q", sql, all.String())
		}
		st, err := parseStatement(sql, holes)
		if err != nil {
			return
		}
		_ = st.checkInsert(true)
		_ = st.checkQuery()
		values := map[string]bound{"table": sqlText("`t`"), "partition": sqlText("(`p`='x')"), "partition_filter": sqlText("(`p`='x')")}
		for _, v := range []string{"token", "dataset", "job", "v"} {
			values[v] = textValue("x'; DROP TABLE t; --")
		}
		out, err := st.bind(values)
		if err != nil {
			return
		}
		// What was one statement stays one, with as many pieces that mean something.
		again, err := split(out)
		if err != nil {
			t.Fatalf("%q became %q: %v", sql, out, err)
		}
		for _, p := range again {
			if p.kind == pieceEnd {
				t.Fatalf("%q became %q, two statements", sql, out)
			}
		}
	})
}
