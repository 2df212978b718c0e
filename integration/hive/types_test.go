package hive_test

import (
	"fmt"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/stretchr/testify/require"
)

// TestPartitionsOfOtherTypes: both kinds publish partitions that Hive does not
// compare with a text, and two spellings of one are one, for Hive and for the lock.
func TestPartitionsOfOtherTypes(t *testing.T) {
	t.Parallel()
	l := newStaging(t, hivekit.Shared(t)).lane(t, settings{})
	for i, c := range []struct{ typ, value, longer, name, other string }{
		{"BIGINT", "2026010100", "02026010100", "p=2026010100", "2026010101"},
		{"TIMESTAMP", "2026-01-01 00:00:00", "2026-01-01 00:00:00.0", "p=2026-01-01 00%3A00%3A00", "2026-01-01 01:00:00"},
		{"DECIMAL(10,2)", "1.5", "1.50", "p=1.5", "15"},
		{"BOOLEAN", "false", "FALSE", "p=false", "true"},
	} {
		table := fmt.Sprintf("%s.typed_%d", l.DB, i)
		// The rows of the other partition must not be counted.
		l.sql.Exec(t, "CREATE EXTERNAL TABLE "+table+" (id INT, version INT) PARTITIONED BY (p "+c.typ+") ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' LOCATION '"+l.dir("")+"_"+fmt.Sprint(i)+"'",
			"ALTER TABLE "+table+" ADD PARTITION (p='"+c.other+"') LOCATION '"+l.FS+l.server.Root+"/"+l.DB+"/0'")
		target := func(value string) hivepublish.Target {
			return hivepublish.Target{Hive: "dw", Table: table, Partition: map[string]string{"p": value}}
		}
		stage := func(value string) commitstep.StepSpec {
			n := int64(newRows)
			return hivepublish.StageAndSwap(hivepublish.Stage{Target: target(value), Query: "SELECT id, version FROM " + l.staged(1), Under: l.attempts(), Rows: &n})
		}
		insert := func(value string) commitstep.StepSpec {
			n := int64(thirdRows)
			return hivepublish.InsertOverwrite(hivepublish.Insert{Target: target(value), Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT id, version FROM " + l.staged(2), Rows: &n})
		}
		plan := func(what string, step commitstep.StepSpec) *commitstep.Plan {
			return commitstep.NewPlan(job, c.typ+" "+what).Step(step)
		}
		_, err := l.publish(t, plan("stage", stage(c.longer)))
		require.NoError(t, err, c.typ)
		read := "SELECT id, version FROM " + table + " WHERE version > 0"
		require.Equal(t, want(1, newRows), sorted(l.sql.Rows(t, read)), c.typ)
		if i == 0 { // one is enough: planning the others asks them the same
			_, err = l.publish(t, plan("insert", insert(c.value)))
			require.NoError(t, err, c.typ)
			require.Equal(t, want(2, thirdRows), sorted(l.sql.Rows(t, read)), c.typ)
		}
		names := l.sql.Rows(t, "SHOW PARTITIONS "+table)
		require.Len(t, names, 2, c.typ)
		require.Contains(t, names, c.name, c.typ)

		cut := l.proxy.On(faultproxy.Rule{Match: calls("ExecuteStatement", "INSERT OVERWRITE TABLE"), Nth: 1, Do: faultproxy.DropBefore})
		res, err := l.publish(t, plan("older", insert(c.value)))
		require.Equal(t, driver.StatusParked, res.Status, "%s: %v", c.typ, err)
		require.Equal(t, 1, cut.Count(), c.typ)
		l.proxy.Clear()
		newer := insert
		if i%2 == 1 { // the kinds take turns, since planning one costs seconds
			newer = stage
		}
		_, err = l.publish(t, plan("newer", newer(c.longer)))
		require.ErrorIs(t, err, commitstep.ErrPending, c.typ)
		require.ErrorContains(t, err, res.ID.String(), c.typ)
	}
}
