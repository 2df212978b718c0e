package hivepublish

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"

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
	// layout are the lines that tell how rows are spread over the files.
	layout map[string]string
}

// spread says how the place of a row among the files follows from its values, "" if
// it does not.
func (d described) spread() string {
	n, _ := strconv.Atoi(d.layout["Num Buckets"]) // no number where there are none
	columns := func(line string) string {
		if v := d.layout[line]; v != "[]" {
			return v
		}
		return ""
	}
	buckets, sorted, skewed := columns("Bucket Columns"), columns("Sort Columns"), columns("Skewed Columns")
	switch {
	case n > 0 || buckets != "":
		return fmt.Sprintf("bucketed by %s into %d", buckets, n)
	case sorted != "":
		return "sorted by " + sorted
	case skewed != "" || strings.EqualFold(d.layout["Stored As SubDirectories"], "yes"):
		return "skewed by " + skewed
	}
	return ""
}

// parseDescribe reads the answer to DESCRIBE FORMATTED. It is a report for
// people: three columns of padded text, in sections that begin with "#" in the
// first. Where a line that everything rests on is missing, that is an error and
// never an absence.
func parseDescribe(t *hs2.Table) (described, error) {
	d := described{params: map[string]string{}, serdeProps: map[string]string{}, layout: map[string]string{}}
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
			var err error
			if into[value], err = javaUnescape(third); err != nil {
				return d, fmt.Errorf("DESCRIBE FORMATTED: %w", err)
			}
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
	case "Num Buckets", "Bucket Columns", "Sort Columns", "Skewed Columns", "Stored As SubDirectories":
		d.layout[name] = value
	case "Storage Desc Params":
		return d.serdeProps
	}
	return nil
}

// cell is a column's text without the padding on its right.
func cell(row []any, i int) string {
	if i >= len(row) || row[i] == nil {
		return ""
	}
	s, ok := row[i].(string)
	if !ok {
		return fmt.Sprint(row[i])
	}
	return strings.TrimRight(s, " ")
}

// javaUnescape takes back what Hive does to properties before it prints them, Java's
// escapes: a tab between fields is shown as \t.
func javaUnescape(s string) (string, error) {
	if !strings.ContainsRune(s, '\\') {
		return s, nil
	}
	var out []uint16
	r := utf16.Encode([]rune(s))
	for i := 0; i < len(r); i++ {
		if r[i] != '\\' {
			out = append(out, r[i])
			continue
		}
		i++
		if i == len(r) {
			return "", fmt.Errorf("property %q ends in a backslash", s)
		}
		switch c := r[i]; c {
		case 't':
			out = append(out, '\t')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			if i+4 >= len(r) {
				return "", fmt.Errorf("property %q has half an escape", s)
			}
			v, err := strconv.ParseUint(string(utf16.Decode(r[i+1:i+5])), 16, 16)
			if err != nil {
				return "", fmt.Errorf("property %q has a wrong escape", s)
			}
			out = append(out, uint16(v))
			i += 4
		default:
			out = append(out, c)
		}
	}
	return string(utf16.Decode(out)), nil
}

// acid reports whether the table's files are under Hive's transactions.
func (d described) acid() bool {
	return strings.EqualFold(d.params["transactional"], "true") || strings.EqualFold(d.params["table_type"], "ICEBERG")
}
