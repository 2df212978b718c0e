package hive_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/stretchr/testify/require"
)

// What hive.stage_and_swap publishes reads as what an INSERT of the same SELECT
// leaves, whatever the table says of its rows outside of its storage's properties, and
// whether a reader starts a job or not. A table where that cannot be is refused.
func TestStagedRowsReadAsInserted(t *testing.T) {
	t.Parallel()
	w := newBase(t, hivekit.Shared(t))
	w.makeAttempts(t)
	w.ownStore(t)
	// The text is NULL, empty, and a word.
	words := "SELECT id, CASE id WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'word' END FROM " + w.staged(1)
	step := func(table, query string) commitstep.StepSpec {
		rows := int64(newRows)
		return hivepublish.StageAndSwap(hivepublish.Stage{Target: hivepublish.Target{Hive: "dw", Table: w.DB + "." + table, Partition: map[string]string{"dt": "staged"}},
			Query: query, Under: w.attempts(), Rows: &rows,
			// No value may be lost on its way, which a count of rows does not see.
			Metrics: []hivepublish.Metric{{Name: "ids", Query: "SELECT count(id) FROM ${table} WHERE ${partition_filter}", Source: &hivepublish.Source{Query: "SELECT count(id) FROM (" + query + ") q"}}}})
	}
	create := func(table, as string) {
		w.sql.Exec(t, "CREATE EXTERNAL TABLE "+w.DB+"."+table+" (id INT, word STRING) PARTITIONED BY (dt STRING) "+as)
	}
	e := w.open(t, settings{})

	queries := map[string]string{"delimited": words, "nulls": words, "avro": "SELECT id, CASE WHEN id < 3 THEN 'few' ELSE 'many' END FROM " + w.staged(1)}
	create("delimited", "STORED AS TEXTFILE TBLPROPERTIES ('field.delim'=',')")
	create("nulls", "STORED AS TEXTFILE TBLPROPERTIES ('serialization.null.format'='')")
	// An enum is read from no file that was written with Hive's own schema.
	create("avro", `STORED AS AVRO TBLPROPERTIES ('avro.schema.literal'='{"type":"record","name":"r","fields":[`+
		`{"name":"id","type":["null","int"]},{"name":"word","type":{"type":"enum","name":"w","symbols":["few","many"]}}]}')`)
	w.sql.Exec(t, "ALTER TABLE "+w.DB+".delimited ADD PARTITION (dt='staged')") // the others are added by the publish
	plan := commitstep.NewPlan(job, "reading")
	for table, query := range queries {
		plan.Step(step(table, query))
	}
	res, err := e.Publish(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status, res.Message)
	for table, query := range queries {
		table = w.DB + "." + table
		w.sql.Exec(t, "INSERT OVERWRITE TABLE "+table+" PARTITION (dt='inserted') "+query)
		by := map[string][]string{}
		for _, dt := range []string{"staged", "inserted"} {
			sel := "SELECT id, word FROM " + table + " WHERE dt='" + dt + "'"
			by[dt] = sorted(w.sql.Rows(t, sel))
			require.Len(t, by[dt], newRows, table)
			require.Equal(t, by[dt], sorted(w.sql.Rows(t, sel+" ORDER BY id")), "%s, by a job", table)
		}
		require.Equal(t, by["inserted"], by["staged"], table)
		require.False(t, strings.HasPrefix(by["staged"][0], "NULL"), "%s: %s", table, by["staged"])
	}

	for table, c := range map[string]struct{ as, says string }{
		"header":   {"STORED AS TEXTFILE TBLPROPERTIES ('skip.header.line.count'='1')", `"skip.header.line.count" is "1"`},
		"bucketed": {"CLUSTERED BY (id) SORTED BY (word) INTO 4 BUCKETS", "bucketed by [id] into 4"},
		"skewed":   {"SKEWED BY (id) ON (1) STORED AS DIRECTORIES", "skewed by [id]"},
		"two":      {"ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' TBLPROPERTIES ('field.delim'=',')", `"field.delim" is "," in TBLPROPERTIES and "|"`},
	} {
		create(table, c.as)
		_, err := e.Publish(t.Context(), commitstep.NewPlan(job, table).Step(step(table, words)))
		var refused *commitstep.PlanError
		require.ErrorAs(t, err, &refused, table)
		require.ErrorContains(t, err, c.says)
	}

	// The partition keeps its columns when the table's are changed without CASCADE.
	changed := w.DB + ".changed"
	create("changed", "STORED AS ORC")
	w.sql.Exec(t, "ALTER TABLE "+changed+" ADD PARTITION (dt='staged')", "ALTER TABLE "+changed+" CHANGE COLUMN id id BIGINT")
	big := commitstep.NewPlan(job, "changed").Step(step("changed", "SELECT id + 5000000000 AS id, CAST(NULL AS STRING) AS word FROM "+w.staged(1)))
	_, err = e.Publish(t.Context(), big)
	var refused *commitstep.PlanError
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "its column 1 is id int, and the table's is id bigint")
	w.sql.Exec(t, "ALTER TABLE "+changed+" PARTITION (dt='staged') CHANGE COLUMN id id BIGINT") // as the hint says
	_, err = e.Publish(t.Context(), big)
	require.NoError(t, err)
	require.Equal(t, []string{fmt.Sprint(7*5000000000 + 21)}, w.sql.Rows(t, "SELECT sum(id) FROM "+changed+" WHERE dt='staged'"))
}
