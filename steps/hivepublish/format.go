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
	Serde  string `json:"serde"`
	Input  string `json:"input"`
	Output string `json:"output"`
	// Properties are all that the serde of a reader is given, Table those of them
	// that are the table's own (TBLPROPERTIES), which some readers look for there.
	Properties map[string]string `json:"properties,omitempty"`
	Table      map[string]string `json:"table,omitempty"`
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
		s += " WITH SERDEPROPERTIES " + propertyList(f.Properties)
	}
	return s + " STORED AS INPUTFORMAT " + quote(f.Input) + " OUTPUTFORMAT " + quote(f.Output)
}

// table is the clause at the end of CREATE TABLE.
func (f format) table() string {
	if len(f.Table) == 0 {
		return ""
	}
	return " TBLPROPERTIES " + propertyList(f.Table)
}

func propertyList(p map[string]string) string {
	var props []string
	for _, k := range slices.Sorted(maps.Keys(p)) {
		props = append(props, quote(k)+"="+quote(p[k]))
	}
	return "(" + strings.Join(props, ", ") + ")"
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

const textSerde = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"

// triedFormats are serde, input and output format that were tried on a real server:
// a directory written with them reads as the same rows that an INSERT would have left.
var triedFormats = [][3]string{
	{textSerde, textInput, textOutput},
	{"org.apache.hadoop.hive.serde2.JsonSerDe", textInput, textOutput},
	{"org.apache.hadoop.hive.serde2.OpenCSVSerde", textInput, textOutput},
	{textSerde, "org.apache.hadoop.mapred.SequenceFileInputFormat", "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"},
	{"org.apache.hadoop.hive.ql.io.orc.OrcSerde", "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat", "org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat"},
	{"org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe", "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat", "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"},
	{"org.apache.hadoop.hive.serde2.avro.AvroSerDe", "org.apache.hadoop.hive.ql.io.avro.AvroContainerInputFormat", "org.apache.hadoop.hive.ql.io.avro.AvroContainerOutputFormat"},
}

const (
	textInput  = "org.apache.hadoop.mapred.TextInputFormat"
	textOutput = "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat"
)

// tried reports that the format is one of them.
func (f format) tried() bool {
	return slices.Contains(triedFormats, [3]string{f.Serde, f.Input, f.Output})
}
