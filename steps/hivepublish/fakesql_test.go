package hivepublish

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/commitstep/engine/internal/hs2"
)

// The statements that the kinds send.
var (
	describeSQL = regexp.MustCompile("^DESCRIBE FORMATTED (`\\w+`\\.`\\w+`)(?: PARTITION (\\(.*\\)))?$")
	showPartSQL = regexp.MustCompile("^SHOW PARTITIONS (`\\w+`\\.`\\w+`) PARTITION (\\(.*\\))$")
	showAllSQL  = regexp.MustCompile("^SHOW PARTITIONS (`\\w+`\\.`\\w+`)$")
	showTabSQL  = regexp.MustCompile("^SHOW TABLES IN (`\\w+`) LIKE '(\\w+)'$")
	showPropSQL = regexp.MustCompile("^SHOW TBLPROPERTIES (`\\w+`\\.`\\w+`) \\('(.*)'\\)$")
	insertSQL   = regexp.MustCompile("INSERT OVERWRITE TABLE (`\\w+`\\.`\\w+`) PARTITION (\\(.*?\\)) SELECT")
	countSQL    = regexp.MustCompile("SELECT count\\(\\*\\) FROM (`\\w+`\\.`\\w+`) WHERE (\\(.*\\))$")
	setLocSQL   = regexp.MustCompile("ALTER TABLE (`\\w+`\\.`\\w+`) PARTITION (\\(.*?\\)) SET LOCATION '(.*)'$")
	addPartSQL  = regexp.MustCompile("ALTER TABLE (`\\w+`\\.`\\w+`) ADD (IF NOT EXISTS )?PARTITION (\\(.*?\\)) LOCATION '(.*)'$")
	insertDir   = regexp.MustCompile("INSERT OVERWRITE DIRECTORY '([^']*)'")
	tempTable   = regexp.MustCompile("^CREATE TEMPORARY EXTERNAL TABLE IF NOT EXISTS (`\\w+`.`commitstep_\\w+`) .* LOCATION '([^']*)'(?: TBLPROPERTIES \\(.*\\))?$")
	tempCount   = regexp.MustCompile("FROM (`\\w+`.`commitstep_\\w+`) t\\)")
)

func semantic(format string, a ...any) error {
	return &hs2.ServerError{RPC: "ExecuteStatement", SQLState: "42S02", Code: 10001, Message: fmt.Sprintf(format, a...)}
}

// run has the lock.
func (w *warehouse) run(sql string) (*hs2.Table, error) {
	table := func(name string) (*fakeTable, error) {
		if t := w.tables[name]; t != nil {
			return t, nil
		}
		return nil, semantic("Table not found %s", name)
	}
	if strings.HasPrefix(sql, explainPrefix) {
		if m := countSQL.FindStringSubmatch(sql); m != nil && w.tables[m[1]] != nil {
			_, err := w.tables[m[1]].spec(m[2])
			return &hs2.Table{}, err
		}
		return &hs2.Table{}, nil
	}
	if m := describeSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		return t.describe(m[2])
	}
	if m := showPartSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		out := &hs2.Table{}
		if t.parts[m[2]] != nil {
			out.Rows = append(out.Rows, []any{m[2]})
		}
		return out, nil
	}
	if m := showAllSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		out := &hs2.Table{}
		for spec := range t.parts {
			out.Rows = append(out.Rows, []any{strings.NewReplacer("(", "", ")", "", "`", "", "'", "", ", ", "/").Replace(spec)})
		}
		return out, nil
	}
	if m := showTabSQL.FindStringSubmatch(sql); m != nil {
		out := &hs2.Table{}
		if w.tables[m[1]+".`"+m[2]+"`"] != nil {
			out.Rows = append(out.Rows, []any{m[2]})
		}
		return out, nil
	}
	if m := showPropSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		var v any
		if t.params[m[2]] != " " { // it drops one blank at the end of a line
			v = t.params[m[2]]
		}
		return &hs2.Table{Rows: [][]any{{m[2], v}}}, nil
	}
	if m := insertSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		p := t.parts[m[2]]
		if p == nil {
			p = &fakePart{t.location + "/new"}
			t.parts[m[2]] = p
		}
		w.inserts++
		w.files[p.location] = w.rows
		return nil, nil
	}
	if m := countSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		spec, err := t.spec(m[2])
		if err != nil {
			return nil, err
		}
		n := 0
		if p := t.parts[spec]; p != nil {
			n = w.files[p.location]
		} else if m[2] == "(1 = 1)" {
			for _, p := range t.parts {
				n += w.files[p.location]
			}
		}
		return &hs2.Table{Rows: [][]any{{int64(n)}}}, nil
	}
	if m := setLocSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		p := t.parts[m[2]]
		if p == nil {
			return nil, semantic("Partition not found %s", m[2])
		}
		w.alters++
		p.location = m[3]
		return nil, nil
	}
	if m := addPartSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		if t.parts[m[3]] != nil {
			if m[2] != "" {
				return nil, nil
			}
			return nil, errors.New("AlreadyExistsException")
		}
		w.alters++
		t.parts[m[3]] = &fakePart{m[4]}
		return nil, nil
	}
	return w.runStaging(sql)
}

var (
	comparedCol = regexp.MustCompile("`(\\w+)`='")
	castValue   = regexp.MustCompile(`CAST\(('[^']*') AS [^=]*?\)( AND |\)$)`)
	boolValue   = regexp.MustCompile("=(true|false)")
)

// spec gives the partition that a condition selects. What the server refuses to
// compare is refused.
func (t *fakeTable) spec(where string) (string, error) {
	for _, m := range comparedCol.FindAllStringSubmatch(where, -1) {
		for _, c := range t.partitions {
			if c.Name == m[1] && (c.Type == "bigint" || strings.HasPrefix(c.Type, "decimal")) {
				return "", &hs2.ServerError{RPC: "ExecuteStatement", SQLState: "42000", Code: 10014, Message: "Unsafe compares between different types are disabled for safety reasons"}
			}
		}
	}
	where = castValue.ReplaceAllString(where, "$1$2")
	where = boolValue.ReplaceAllString(where, "='$1'")
	return strings.ReplaceAll(where, " AND ", ", "), nil
}

// describe prints as the server does, padded.
func (t *fakeTable) describe(spec string) (*hs2.Table, error) {
	location, params, serdeProps, columns := t.location, "Table Parameters:", t.serdeProps, t.columns
	if spec != "" {
		p := t.parts[spec]
		if p == nil {
			return nil, semantic("Partition not found %s", spec)
		}
		location, params = p.location, "Partition Parameters:"
		if t.partProps != nil {
			serdeProps = t.partProps
		}
		if t.kept != nil {
			columns = t.kept
		}
	}
	out := &hs2.Table{}
	add := func(a string, rest ...string) {
		row := []any{a + strings.Repeat(" ", 4)}
		for _, r := range rest {
			row = append(row, r+"   ")
		}
		for len(row) < 3 {
			row = append(row, nil)
		}
		out.Rows = append(out.Rows, row)
	}
	add("# col_name", "data_type", "comment")
	for _, c := range columns {
		add(c.Name, c.Type)
	}
	add("")
	add("# Partition Information")
	add("# col_name", "data_type", "comment")
	for _, c := range t.partitions {
		add(c.Name, c.Type)
	}
	add("")
	add("# Detailed Table Information")
	add("Database:", "sales")
	add("Location:", location)
	if spec == "" {
		add("Table Type:", t.kind)
	}
	add(params, "")
	for _, k := range slices.Sorted(maps.Keys(t.params)) {
		if spec == "" || slices.Contains(bookkeeping, k) { // a partition's own
			add("", k, t.params[k])
		}
	}
	add("")
	add("# Storage Information")
	add("SerDe Library:", cmp.Or(t.serde, "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"))
	add("InputFormat:", cmp.Or(t.input, "org.apache.hadoop.mapred.TextInputFormat"))
	add("OutputFormat:", "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat")
	add("Compressed:", "No")
	for _, l := range t.layout {
		add(l[0], l[1])
	}
	add("Storage Desc Params:", "")
	add("", "serialization.format", "1")
	for _, k := range slices.Sorted(maps.Keys(serdeProps)) {
		add("", k, serdeProps[k])
	}
	return out, nil
}

// runStaging is what only hive.stage_and_swap sends.
func (w *warehouse) runStaging(sql string) (*hs2.Table, error) {
	if m := insertDir.FindStringSubmatch(sql); m != nil {
		w.files[m[1]] = w.rows
		if w.disk != "" {
			if err := os.MkdirAll(w.disk+strings.TrimPrefix(m[1], "hdfs://nn:8020"), 0o755); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	if m := tempTable.FindStringSubmatch(sql); m != nil {
		w.tables[m[1]+"@"+w.session] = &fakeTable{location: m[2]}
		return nil, nil
	}
	if m := tempCount.FindStringSubmatch(sql); m != nil {
		if _, where, ok := strings.Cut(sql, " FROM commitstep_staged WHERE "); ok {
			if _, err := w.facts().spec(where); err != nil {
				return nil, err
			}
		}
		t := w.tables[m[1]+"@"+w.session]
		if t == nil {
			return nil, semantic("Table not found %s", m[1])
		}
		return &hs2.Table{Rows: [][]any{{int64(w.files[t.location])}}}, nil
	}
	if strings.HasPrefix(sql, "DROP TABLE") {
		for n, t := range w.tables {
			if strings.HasSuffix(sql+"@"+w.session, " "+n) && t.columns == nil {
				delete(w.tables, n)
			}
		}
		return nil, nil
	}
	if strings.HasSuffix(sql, "LIMIT 0") {
		return &hs2.Table{Columns: []hs2.Column{{Name: "q.id", Type: "INT"}, {Name: "q.name", Type: "STRING"}}}, nil
	}
	return nil, semantic("cannot recognize input near %.80q", sql)
}
