package hivepublish

import (
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// The answer of a Hive 4.0.1, with its padding and its escapes.
func TestDescribeIsRead(t *testing.T) {
	t.Parallel()
	d, err := parseDescribe(&hs2.Table{Rows: [][]any{
		{"id", "bigint", ""},
		{"label", "string", "a comment"},
		{"", nil, nil},
		{"# Partition Information", nil, nil},
		{"# col_name", "data_type", "comment"},
		{"dt", "string", ""},
		{"", nil, nil},
		{"# Detailed Partition Information", nil, nil},
		{"Partition Value:    ", "[x]                 ", nil},
		{"Location:           ", "hdfs://127.0.0.1:20639/data/token=1/attempt=1", nil},
		{"Partition Parameters:", nil, nil},
		{"", "COLUMN_STATS_ACCURATE", `{\"BASIC_STATS\":\"true\"}`},
		{"", "numFiles            ", "1                   "},
		{"", nil, nil},
		{"# Storage Information", nil, nil},
		{"SerDe Library:      ", "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", nil},
		{"InputFormat:        ", "org.apache.hadoop.mapred.TextInputFormat", nil},
		{"OutputFormat:       ", "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat", nil},
		{"Compressed:         ", "No                  ", nil},
		{"Storage Desc Params:", nil, nil},
		{"", "escape.delim        ", `\\                  `},
		{"", "field.delim         ", `\t                  `},
		{"", "serialization.format", `\u0001              `},
	}})
	require.NoError(t, err)
	require.Equal(t, []column{{"id", "bigint"}, {"label", "string"}}, d.columns)
	require.Equal(t, []column{{"dt", "string"}}, d.partitions)
	require.Equal(t, "hdfs://127.0.0.1:20639/data/token=1/attempt=1", d.location)
	require.Equal(t, map[string]string{"COLUMN_STATS_ACCURATE": `{"BASIC_STATS":"true"}`, "numFiles": "1"}, d.params)
	require.Equal(t, map[string]string{"escape.delim": `\`, "field.delim": "\t", "serialization.format": "\x01"}, d.serdeProps)
	f, _, err := read(d, state{})
	require.NoError(t, err)
	require.Equal(t, `ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe' WITH SERDEPROPERTIES ('columns'='id,label', 'escape.delim'='\\', 'field.delim'='\u0009', 'serialization.format'='\u0001')`+
		` STORED AS INPUTFORMAT 'org.apache.hadoop.mapred.TextInputFormat' OUTPUTFORMAT 'org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat'`, f.directory(d.columns))
}

// What is not understood is an error and never an absence.
func TestOddDescriptionsAreErrors(t *testing.T) {
	t.Parallel()
	for name, rows := range map[string][][]any{
		"nothing":        nil,
		"one column":     {{"id"}},
		"no columns":     {{"# Detailed Table Information", nil, nil}, {"Location:", "x", nil}},
		"half escape":    {{"id", "int", ""}, {"# Storage Information", nil, nil}, {"Storage Desc Params:", nil, nil}, {"", "field.delim", `\u00`}},
		"wrong escape":   {{"id", "int", ""}, {"# Storage Information", nil, nil}, {"Storage Desc Params:", nil, nil}, {"", "field.delim", `\uzzzz`}},
		"lone backslash": {{"id", "int", ""}, {"# Storage Information", nil, nil}, {"Storage Desc Params:", nil, nil}, {"", "field.delim", `\`}},
	} {
		_, err := parseDescribe(&hs2.Table{Rows: rows})
		require.Error(t, err, name)
	}
}

func TestComplexTypesAreNotCast(t *testing.T) {
	t.Parallel()
	require.Equal(t, "CAST(q.`a` AS decimal(10,2)) AS `x`, q.`b` AS `y`", castList([]string{"a", "b"}, []column{{"x", "decimal(10,2)"}, {"y", "array<struct<a:int>>"}}))
}
