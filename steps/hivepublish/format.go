package hivepublish

import (
	"maps"
	"slices"
	"strings"
)

// format is how rows are kept in files: what DESCRIBE FORMATTED says of a table
// or a partition, and what a directory that is to become a partition is written
// with.
type format struct {
	Serde      string            `json:"serde"`
	Input      string            `json:"input"`
	Output     string            `json:"output"`
	Properties map[string]string `json:"properties,omitempty"`
}

// directory is the clause of INSERT OVERWRITE DIRECTORY. Left to itself, Hive calls
// the columns of such files _col0, _col1, …, whatever the query calls them, and
// formats that go by name then read NULL in every row: so it is told their names.
func (f format) directory(cols []column) string {
	var names []string
	for _, c := range cols {
		names = append(names, c.Name)
	}
	named := f
	named.Properties = maps.Clone(f.Properties)
	if named.Properties == nil {
		named.Properties = map[string]string{}
	}
	named.Properties["columns"] = strings.Join(names, ",")
	return named.sql()
}

// sql is the clause that CREATE TABLE and INSERT OVERWRITE DIRECTORY share.
func (f format) sql() string {
	s := "ROW FORMAT SERDE " + quote(f.Serde)
	if len(f.Properties) > 0 {
		var props []string
		for _, k := range slices.Sorted(maps.Keys(f.Properties)) {
			props = append(props, quote(k)+"="+quote(f.Properties[k]))
		}
		s += " WITH SERDEPROPERTIES (" + strings.Join(props, ", ") + ")"
	}
	return s + " STORED AS INPUTFORMAT " + quote(f.Input) + " OUTPUTFORMAT " + quote(f.Output)
}

// primitive are the types that CAST takes. A struct, map or array has to come in
// its own type; Hive converts none on INSERT either.
func primitive(typ string) bool { return !strings.ContainsRune(typ, '<') }

// castList selects the columns of a query, by their order, as the table's
// columns, by their names: what INSERT INTO the table would do. Files that were
// written under a query's own names would be read as NULL by formats that go by
// name.
func castList(from []string, to []column) string {
	var out []string
	for i, c := range to {
		v := "q." + quoteName(from[i])
		if primitive(c.Type) {
			v = "CAST(" + v + " AS " + c.Type + ")"
		}
		out = append(out, v+" AS "+quoteName(c.Name))
	}
	return strings.Join(out, ", ")
}

// columnList declares columns.
func columnList(cols []column) string {
	var out []string
	for _, c := range cols {
		out = append(out, quoteName(c.Name)+" "+c.Type)
	}
	return "(" + strings.Join(out, ", ") + ")"
}

// triedSerdes are those that were tried on a real server: a directory written with
// them reads as the same rows that an INSERT would have left.
var triedSerdes = []string{
	"org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
	"org.apache.hadoop.hive.ql.io.orc.OrcSerde",
	"org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
	"org.apache.hadoop.hive.serde2.avro.AvroSerDe",
	"org.apache.hadoop.hive.serde2.JsonSerDe",
	"org.apache.hadoop.hive.serde2.OpenCSVSerde",
}

// tried reports that the format is one of them.
func (f format) tried() bool {
	return slices.Contains(triedSerdes, f.Serde) && f.Input != "" && f.Output != ""
}
