package hivepublish

import (
	"fmt"
	"strings"

	"github.com/commitstep/engine/internal/hs2"
)

// column is a column of a table, with Hive's type in full: decimal(10,2).
type column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// described is what DESCRIBE FORMATTED says of a table or a partition.
type described struct {
	columns    []column
	partitions []column
	location   string
	tableType  string            // MANAGED_TABLE, EXTERNAL_TABLE, VIRTUAL_VIEW, …
	params     map[string]string // of the partition, if one was asked for
	serde      string
	input      string
	output     string
	serdeProps map[string]string
}

// format is how rows are kept in the files.
func (d described) format() format {
	return format{Serde: d.serde, Input: d.input, Output: d.output, Properties: d.serdeProps}
}

// parseDescribe reads the answer to DESCRIBE FORMATTED. It is a report for
// people: three columns of padded text, in sections that begin with "#" in the
// first. Where a line that everything rests on is missing, that is an error and
// never an absence.
func parseDescribe(t *hs2.Table) (described, error) {
	d := described{params: map[string]string{}, serdeProps: map[string]string{}}
	section := "# col_name"
	var into map[string]string // the list of properties that the lines belong to
	for i, row := range t.Rows {
		if len(row) < 2 {
			return d, fmt.Errorf("DESCRIBE FORMATTED: line %d has %d columns", i+1, len(row))
		}
		name, value, third := cell(row, 0), cell(row, 1), cell(row, 2)
		switch {
		case strings.HasPrefix(name, "#"):
			// "# col_name" heads both the columns and the partition columns.
			if name != "# col_name" || section != "# Partition Information" {
				section = name
			}
			into = nil
			continue
		case name == "" && into != nil && value != "":
			into[value] = third
			continue
		case name == "":
			continue
		}
		switch section {
		case "# col_name":
			d.columns = append(d.columns, column{strings.ToLower(name), value})
		case "# Partition Information":
			d.partitions = append(d.partitions, column{strings.ToLower(name), value})
		default:
			into = d.field(strings.TrimSuffix(name, ":"), value)
		}
	}
	if len(d.columns) == 0 {
		return d, fmt.Errorf("DESCRIBE FORMATTED: no columns in %d lines", len(t.Rows))
	}
	return d, nil
}

func (d *described) field(name, value string) (into map[string]string) {
	switch name {
	case "Location":
		d.location = value
	case "Table Type":
		d.tableType = value
	case "Table Parameters", "Partition Parameters":
		return d.params
	case "SerDe Library":
		d.serde = value
	case "InputFormat":
		d.input = value
	case "OutputFormat":
		d.output = value
	case "Storage Desc Params":
		return d.serdeProps
	}
	return nil
}

// cell is a column's text without its padding. Values of properties may hold
// blanks that matter (a delimiter), so those that are blanks only stay.
func cell(row []any, i int) string {
	if i >= len(row) || row[i] == nil {
		return ""
	}
	s, ok := row[i].(string)
	if !ok {
		return fmt.Sprint(row[i])
	}
	return strings.Trim(s, " ")
}

// acid reports whether the table's files are under Hive's transactions.
func (d described) acid() bool {
	return strings.EqualFold(d.params["transactional"], "true") || strings.EqualFold(d.params["table_type"], "ICEBERG")
}

// format is how rows are kept in files.
type format struct {
	Serde      string            `json:"serde"`
	Input      string            `json:"input"`
	Output     string            `json:"output"`
	Properties map[string]string `json:"properties,omitempty"`
}
