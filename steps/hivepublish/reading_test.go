package hivepublish

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// What the table says outside of its storage goes into the writing, where readers
// find it, and into the table through which rows are counted. What only keeps books
// does not: with external.table.purge, counting would remove the files.
func TestStageGoesByTheTablesProperties(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), func(w *warehouse) {
		maps.Copy(w.facts().params, map[string]string{
			"field.delim": ",", "serialization.null.format": "", "any.thing": "it's {\"a\":1}",
			"external.table.purge": "true", "bucketing_version": "2", "comment": "facts", "numFiles": "3", "transient_lastDdlTime": "1",
			"spark.sql.sources.schema": "{}", "skip.header.line.count": "0",
		})
		w.facts().serdeProps = map[string]string{"escape.delim": "|", "collection.delim": ";"}
		w.facts().partProps = map[string]string{"escape.delim": "|"} // the other was given to the table later
	})
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	const own = `'any.thing'='it\'s \u007b\"a\":1}', `
	const serde = `'collection.delim'=';', %'escape.delim'='|', 'field.delim'=',', 'serialization.format'='1', 'serialization.null.format'='', 'skip.header.line.count'='0')`
	sent := b.w.sent("INSERT OVERWRITE DIRECTORY")
	require.Len(t, sent, 1)
	require.Contains(t, sent[0], " WITH SERDEPROPERTIES ("+own+strings.Replace(serde, "%", "'columns'='id,name', ", 1)+" STORED AS")
	made := b.w.sent("CREATE TEMPORARY")
	require.Len(t, made, 1)
	require.Contains(t, made[0], " WITH SERDEPROPERTIES ("+own+strings.Replace(serde, "%", "", 1)+" STORED AS")
	require.True(t, strings.HasSuffix(made[0], " TBLPROPERTIES ("+own+`'field.delim'=',', 'serialization.null.format'='', 'skip.header.line.count'='0')`), made[0])
}

// A table from which rows that a query wrote could not be read as an INSERT would
// leave them, or not alike by all readers, is refused when the load is planned.
func TestTablesThatAQueryCannotWriteFor(t *testing.T) {
	t.Parallel()
	table := func(props ...string) func(*fakeTable) {
		return func(f *fakeTable) {
			for i := 0; i < len(props); i += 2 {
				f.params[props[i]] = props[i+1]
			}
		}
	}
	lines := func(l ...[2]string) func(*fakeTable) { return func(f *fakeTable) { f.layout = l } }
	const insert = "use hive.insert_overwrite"
	for name, c := range map[string]struct {
		tune       func(*fakeTable)
		says, hint string
	}{
		"bucketed":       {lines([2]string{"Num Buckets:", "4"}, [2]string{"Bucket Columns:", "[id]"}, [2]string{"Sort Columns:", "[]"}), "it is bucketed by [id] into 4", insert},
		"sorted":         {lines([2]string{"Num Buckets:", "-1"}, [2]string{"Bucket Columns:", "[]"}, [2]string{"Sort Columns:", "[Order(col:id, order:1)]"}), "it is sorted by [Order(col:id, order:1)]", insert},
		"skewed":         {lines([2]string{"Skewed Columns:", "[id]"}, [2]string{"Skewed Values:", "[[1], [5]]"}), "it is skewed by [id]", insert},
		"list bucketing": {lines([2]string{"Stored As SubDirectories:", "Yes"}, [2]string{"Skewed Columns:", "[id]"}), "it is skewed by [id]", insert},
		"header":         {table("skip.header.line.count", "1"), `"skip.header.line.count" is "1"`, insert},
		"header of the storage": {func(f *fakeTable) { f.serdeProps = map[string]string{"skip.header.line.count": "1"} },
			`"skip.header.line.count" is "1"`, insert},
		"footer":          {table("skip.footer.line.count", "2"), `"skip.footer.line.count" is "2"`, insert},
		"odd header":      {table("skip.header.line.count", "one"), `"skip.header.line.count" is "one"`, insert},
		"storage handler": {table("storage_handler", "org.example.Handler"), "org.example.Handler, and not in the files", insert},
		"other input": {func(f *fakeTable) { f.input = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat" },
			"SymlinkTextInputFormat", insert},
		"two values": {func(f *fakeTable) {
			f.serdeProps = map[string]string{"field.delim": "|"}
			f.params["field.delim"] = ","
		}, `"field.delim" is "," in TBLPROPERTIES and "|" in its storage properties`, "give both one value"},
		"partition of its own": {func(f *fakeTable) {
			f.serdeProps = map[string]string{"field.delim": ";"}
			f.partProps = map[string]string{"field.delim": "|"}
		}, `the partition's property "field.delim" is "|", the table's ";"`, insert},
		// Kept when the table's were changed without CASCADE.
		"older type": {func(f *fakeTable) {
			f.kept = slices.Clone(f.columns)
			f.kept[0].Type = "smallint"
		}, "the table was changed, and the partition was not", "CHANGE COLUMN"},
		"older name": {func(f *fakeTable) {
			f.kept = slices.Clone(f.columns)
			f.kept[0].Name = "was"
		}, "its column 1 is was ", "CHANGE COLUMN"},
		"older columns": {func(f *fakeTable) {
			f.kept = slices.Clone(f.columns)
			f.columns = append(f.columns, column{"added", "int"})
			f.kept = f.kept[:len(f.kept)-1]
		}, "the query gives", "ADD COLUMNS"},
		"storage blank": {func(f *fakeTable) { f.serdeProps = map[string]string{"serialization.null.format": ""} }, "is blank", insert},
		"table blank":   {table("field.delim", " "), "is blank", insert}, // not told from a line that ends
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _ := onDisk(t)
			w := newWarehouse()
			c.tune(w.facts())
			_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), commitstep.NewPlan("j", "d").Step(StageAndSwap(stageParams())))
			var pe *commitstep.PlanError
			require.ErrorAs(t, err, &pe)
			require.ErrorContains(t, err, "sales.facts")
			require.ErrorContains(t, err, c.says)
			require.Contains(t, pe.Hint, c.hint)
			require.Empty(t, w.sent("INSERT"))
		})
	}
}

// A table that was changed since its rows were counted would be read otherwise: the
// partition stays where it is. Changed back, it is published without another query.
func TestATableThatWasChangedIsNotSwapped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change, back func(*fakeTable)
		says         string
	}{
		"property": {func(f *fakeTable) { f.params["field.delim"] = ";" }, func(f *fakeTable) { f.params["field.delim"] = "," }, `the property "field.delim" is ";" now, and was ","`},
		"gone":     {func(f *fakeTable) { delete(f.params, "field.delim") }, func(f *fakeTable) { f.params["field.delim"] = "," }, `"field.delim" is "" now`},
		"header":   {func(f *fakeTable) { f.params["skip.header.line.count"] = "1" }, func(f *fakeTable) { delete(f.params, "skip.header.line.count") }, "skip.header.line.count"},
		"format":   {func(f *fakeTable) { f.serde = triedFormats[1][0] }, func(f *fakeTable) { f.serde = "" }, "rows are read with " + triedFormats[1][0]},
		"columns":  {func(f *fakeTable) { f.columns = f.columns[:1] }, func(f *fakeTable) { f.columns = f.columns[:2] }, "its columns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The blank is told exactly when it is planned, and not afterwards.
			b := stageBench(t, stageParams(), func(w *warehouse) {
				w.facts().params["field.delim"], w.facts().params["serialization.null.format"] = ",", "  "
			})
			tune := func(f func(*fakeTable)) {
				b.w.mu.Lock()
				defer b.w.mu.Unlock()
				f(b.w.facts())
			}
			tune(c.change)
			before := b.w.location()
			err := b.process().Execute(t.Context())
			require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, before, b.w.location())
			b.want(commitstep.NotDone)
			tune(c.back)
			v, err := b.process().Finish(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.Done, v.Outcome)
			require.Len(t, b.w.sent("INSERT OVERWRITE DIRECTORY"), 1)
			require.Len(t, b.w.sent("SET LOCATION"), 1)
		})
	}
}

// Lines that say nothing of the kind refuse nothing, also a partition with a format
// of its own that is not text.
func TestOrdinaryTablesAreTaken(t *testing.T) {
	t.Parallel()
	d := described{serde: triedFormats[4][0], input: triedFormats[4][1], output: triedFormats[4][2], params: map[string]string{"orc.compress": "ZLIB"},
		layout: map[string]string{"Num Buckets": "0", "Bucket Columns": "[]", "Sort Columns": "[]"}}
	part := d
	part.params, part.serdeProps = map[string]string{"numRows": "3"}, map[string]string{"orc.compress": "NONE"}
	f, _, err := read(d, state{described: part, there: true})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"orc.compress": "NONE"}, f.Properties)
	require.Equal(t, map[string]string{"orc.compress": "ZLIB"}, f.Table)
}
