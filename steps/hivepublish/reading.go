package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/commitstep/engine/commitstep"
)

// A serde, and the reader under it, are given the properties of the table's storage,
// then those of the table itself (TBLPROPERTIES), then those of the partition's
// storage and of the partition; each replaces what came before. Rows for a partition
// are written with all of them, and counted through a table that has them, so that a
// count sees what readers will see.

// bookkeeping are properties of tables and partitions that no reader and no writer
// goes by. Of a table that a session makes they would be wrong, or dangerous: with
// external.table.purge its files go when it is dropped.
var bookkeeping = []string{
	"EXTERNAL", "TRANSLATED_TO_EXTERNAL", "comment", "bucketing_version",
	"transient_lastDdlTime", "last_modified_by", "last_modified_time",
	"numFiles", "numFilesErasureCoded", "numRows", "rawDataSize", "totalSize", "numPartitions",
	"COLUMN_STATS_ACCURATE", "STATS_GENERATED", "STATS_GENERATED_VIA_STATS_TASK", "DO_NOT_UPDATE_STATS",
	"external.table.purge", "auto.purge", "discover.partitions", "partition.retention.period",
	"immutable", "transactional", "transactional_properties",
	"presto_version", "presto_query_id", "trino_version", "trino_query_id", "repl.last.id",
}

// foreign begin the names under which other engines keep what Hive does not read.
var foreign = []string{"spark.sql.", "impala."}

// forReading are the properties that are not bookkeeping.
func forReading(props map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range props {
		if !slices.Contains(bookkeeping, k) && !slices.ContainsFunc(foreign, func(p string) bool { return strings.HasPrefix(k, p) }) {
			out[k] = v
		}
	}
	return out
}

// read is what a reader of a partition goes by, as far as DESCRIBE FORMATTED tells: a
// value of blanks looks empty there. st is the partition, which need not be there. An
// error, whose hint says what can be done, means that rows that a query wrote could
// not be read as an INSERT would leave them, or not alike by all readers.
func read(table described, st state) (f format, hint string, err error) {
	const otherwise = "use hive.insert_overwrite, or change the table"
	rows := table
	levels := []described{table}
	if st.there {
		rows = st.described
		levels = append(levels, st.described)
	}
	for _, d := range levels {
		if how := d.spread(); how != "" {
			return f, otherwise, fmt.Errorf("it is %s, and Hive looks for a row only where an INSERT would have put it; a query into a directory does not", how)
		}
	}
	for i, c := range rows.columns {
		// Readers convert what lies in the files to the table's types, an INSERT writes
		// those, and a cast to the partition's would cut values off.
		if i < len(table.columns) && table.columns[i] != c {
			t := table.columns[i]
			return f, "change the partition's columns, too, with ALTER TABLE … PARTITION … CHANGE COLUMN, as CASCADE would have", fmt.Errorf("its column %d is %s %s, and the table's is %s %s: the table was changed, and the partition was not", i+1, c.Name, c.Type, t.Name, t.Type)
		}
	}
	props := map[string]string{}
	var own map[string]string // what the table alone gives
	for _, d := range levels {
		for _, k := range slices.Sorted(maps.Keys(forReading(d.params))) {
			v := d.params[k]
			// Seen on a 4.0.1: a query that runs as a task takes the table's, one that is
			// answered without takes the storage's.
			if in, ok := d.serdeProps[k]; ok && in != v {
				return f, "give both one value, or leave one out", fmt.Errorf("its property %q is %q in TBLPROPERTIES and %q in its storage properties; Hive's readers do not agree on which counts", k, v, in)
			}
		}
		maps.Copy(props, d.serdeProps)
		maps.Copy(props, forReading(d.params))
		if own == nil {
			own = maps.Clone(props)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(props)) {
		if v, ok := own[k]; rows.serde == textSerde && (!ok || v != props[k]) {
			// Seen too: a task reads text with the table's.
			return f, "use hive.insert_overwrite, which gives the partition the table's", fmt.Errorf("the partition's property %q is %q, the table's %q; Hive's readers do not agree on which counts", k, props[k], v)
		}
	}
	for _, k := range []string{"skip.header.line.count", "skip.footer.line.count"} {
		// The table's counts even where the partition has another.
		for _, v := range []string{own[k], props[k]} {
			if n, err := strconv.Atoi(v); v != "" && (err != nil || n != 0) {
				return f, otherwise, fmt.Errorf("its property %q is %q, and a file that a query writes has no such lines: rows would not be read", k, v)
			}
		}
	}
	f = format{Serde: rows.serde, Input: rows.input, Output: rows.output, Properties: props, Table: forReading(table.params)}
	if !f.tried() {
		return f, "use hive.insert_overwrite", fmt.Errorf("it keeps its rows with %s, %s and %s; whether a directory can be written so that it reads the same was not tried", f.Serde, f.Input, f.Output)
	}
	return f, "", nil
}

// reading is read for a plan, with the values as they are.
func (s *stageStep) reading(ctx context.Context, table described, st state) (format, error) {
	f, hint, err := read(table, st)
	if err != nil {
		return f, s.bad(hint, fmt.Errorf("%s cannot be published by %s: %w", s.target, StageAndSwapName, err))
	}
	for _, k := range slices.Sorted(maps.Keys(f.Properties)) {
		if f.Properties[k] != "" {
			continue
		}
		v, err := "", errBlank
		if f.onlyTable(k, table, st) {
			v, err = s.server.blank(ctx, s.target, k)
		}
		if errors.Is(err, errBlank) {
			return f, s.bad("use hive.insert_overwrite", fmt.Errorf("the storage property %q of %s is blank, or too blank to be read back", k, s.target))
		}
		if err != nil {
			return f, s.unasked(ctx, err)
		}
		f.Properties[k], f.Table[k] = v, v
	}
	return f, nil
}

// tableNow describes the table for [stageStep.readsAsCounted].
func (s *stageStep) tableNow(ctx context.Context) (described, error) {
	table, err := s.server.describeTable(ctx, s.target)
	switch {
	case errors.Is(err, errNoTable):
		return table, commitstep.Refused(fmt.Errorf("%s: %w", s.where, err))
	case err != nil:
		return table, commitstep.NotSent(fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err))
	}
	return table, nil
}

// readsAsCounted holds, right before the ALTER, that the table still reads as it was
// planned, and the rows were counted: it may have been changed since.
func (s *stageStep) readsAsCounted(table described, st state) error {
	f, hint, err := read(table, st)
	switch was := s.ev.Format; {
	case err != nil:
	case f.Serde != was.Serde || f.Input != was.Input || f.Output != was.Output:
		err = fmt.Errorf("rows are read with %s and %s now, and with %s and %s when this was planned", f.Serde, f.Input, was.Serde, was.Input)
	default:
		if k, differ := other(was.Properties, f.Properties); differ {
			err = fmt.Errorf("the property %q is %q now, and was %q when this was planned", k, f.Properties[k], was.Properties[k])
		}
	}
	rows := table
	if st.there {
		rows = st.described
	}
	if err == nil && !slices.Equal(rows.columns, s.ev.Columns) {
		err = errors.New("its columns are not those that it had when this was planned")
	}
	if err == nil {
		return nil
	}
	if hint == "" {
		hint = "change it back and say retry, or abandon this and plan it anew"
	}
	return commitstep.Refused(fmt.Errorf("%s: %s would not be read as its rows were counted: %w (%s)", s.where, s.target, err, hint))
}

// other is the first property that is not the same in both; blanks at the end are not
// told by DESCRIBE FORMATTED.
func other(a, b map[string]string) (key string, differ bool) {
	all := map[string]string{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		va, ina := a[k]
		vb, inb := b[k]
		if ina != inb || strings.TrimRight(va, " ") != strings.TrimRight(vb, " ") {
			return k, true
		}
	}
	return "", false
}

// onlyTable reports that a property is in TBLPROPERTIES and nowhere else.
func (f format) onlyTable(k string, table described, st state) bool {
	_, in := f.Table[k]
	for _, other := range []map[string]string{table.serdeProps, st.serdeProps, st.params} {
		_, too := other[k]
		in = in && !too
	}
	return in
}

// errBlank: how many blanks a property has cannot be told.
var errBlank = errors.New("the property is blank")

// blank asks for a property of a table that DESCRIBE FORMATTED shows as blanks only,
// which is how it pads.
func (s *Server) blank(ctx context.Context, t target, key string) (string, error) {
	tab, err := s.query(ctx, "SHOW TBLPROPERTIES "+t.sqlTable()+" ("+quote(key)+")")
	if said(err) {
		return "", &noAnswerError{err}
	}
	if err != nil {
		return "", err
	}
	// One blank was seen to come as NULL.
	if len(tab.Rows) != 1 || len(tab.Rows[0]) != 2 || tab.Rows[0][0] != key {
		return "", errBlank
	}
	v, ok := tab.Rows[0][1].(string)
	if !ok || strings.Trim(v, " ") != "" {
		return "", errBlank
	}
	return v, nil
}
