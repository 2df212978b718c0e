package hive_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func (w where) key() commitstep.Key { return commitstep.Key{Job: job, Dataset: w.dataset()} }

// insertOf selects the submission of a partition's statement.
func insertOf(w *world) func(faultproxy.Message) bool {
	return func(m faultproxy.Message) bool {
		text := string(m.Data)
		return faultproxy.ThriftMethod(m.Data) == "ExecuteStatement" && strings.Contains(text, "INSERT OVERWRITE") && strings.Contains(text, w.Day)
	}
}

// decide is what a person does who has just looked.
func (l *lane) decide(t testing.TB, key commitstep.Key, kind store.DecisionKind, change func(*driver.Resolution)) (driver.Resolved, error) {
	t.Helper()
	insp, err := l.e.Inspect(t.Context(), key, false)
	require.NoError(t, err)
	q := driver.Resolution{Key: key, Decision: kind, Step: -1, Version: insp.Version, Person: store.Person{Name: "anna", Reason: "looked at the table"}}
	if change != nil {
		change(&q)
	}
	return l.e.Resolve(t.Context(), q)
}

// notPublished decides that, and has the patience that is asked for where the server
// has forgotten the statement.
func (l *lane) notPublished(t testing.TB, key commitstep.Key, change func(*driver.Resolution)) driver.Resolved {
	t.Helper()
	var out driver.Resolved
	soon(t, "it is never decided", func() (decided bool) {
		var err error
		out, err = l.decide(t, key, store.DecideNotPublished, change)
		if err != nil && strings.Contains(err.Error(), "does not show any more") {
			return false
		}
		require.NoError(t, err)
		return true
	})
	return out
}

func again(q *driver.Resolution)      { q.Again = true }
func serverGone(q *driver.Resolution) { q.ServerGone = true }

// stepOf is the Hive step of a live sequence as it is stored.
func (l *lane) stepOf(t testing.TB, key commitstep.Key) driver.StepView {
	t.Helper()
	insp, err := l.e.Inspect(t.Context(), key, false)
	require.NoError(t, err)
	for _, v := range insp.StepViews {
		if v.Kind == hivepublish.InsertOverwriteName {
			return v
		}
	}
	t.Fatal("no Hive step")
	return driver.StepView{}
}

// evidence is the pack that is stored with a parked step.
func (l *lane) evidence(t testing.TB, key commitstep.Key) hivepublish.Pack {
	t.Helper()
	var n struct {
		Evidence *hivepublish.Pack `json:"evidence"`
	}
	require.NoError(t, json.Unmarshal(l.stepOf(t, key).Progress.Note, &n))
	require.NotNil(t, n.Evidence)
	return *n.Evidence
}

// suggests wants what the evidence speaks for, once all of it could be gathered:
// its parts have time limits, and the first may have met no server.
func (l *lane) suggests(t testing.TB, key commitstep.Key, as string) {
	t.Helper()
	soon(t, "the evidence does not speak for "+as, func() bool {
		if l.evidence(t, key).Suggestion.As == as {
			return true
		}
		require.NoError(t, l.e.TellParked(t.Context(), key))
		return false
	})
}

// sessionAlive asks the server for the session in which a step's statement was
// sent.
func (l *lane) sessionAlive(t testing.TB, key commitstep.Key) bool {
	t.Helper()
	var mark struct {
		Session struct {
			Handle string `json:"handle"`
		} `json:"session"`
	}
	live, err := l.e.store.Get(t.Context(), key)
	require.NoError(t, err)
	page, err := l.e.store.Steps(t.Context(), live.ID, 0) // what is shown leaves the handle out
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(page.Progress[l.stepOf(t, key).Index].NoReturn, &mark))
	var h hs2.SessionHandle
	require.NoError(t, h.UnmarshalText([]byte(mark.Session.Handle)))
	c, err := hs2.New(hivesql.Config(t, l.server))
	require.NoError(t, err)
	defer c.Close()
	alive, err := c.Session(h).Alive(t.Context())
	require.NoError(t, err)
	return alive
}

// TestNotPublishedIsShownNotToRun: the answer to the submission of a long statement
// is lost. "Not published" is refused while it runs, and cuts nothing off. A person ends
// it at the server; once it has ended by the server's list, nothing of it
// lands any more, and the partition is free for the next plan.
func TestNotPublishedIsShownNotToRun(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	w := l.part(t)
	lost := l.proxy.On(faultproxy.Rule{Match: insertOf(w), Nth: 1, Do: faultproxy.DropReply})
	res, err := l.publish(t, w.publishing(w.selecting(slow(longTime), newRows, nil)))
	require.Equal(t, driver.StatusParked, res.Status, "%v", err)
	require.Equal(t, 1, lost.Count())
	l.suggests(t, w.key(), "wait")
	require.True(t, l.sessionAlive(t, w.key()))
	running := w.listed(t, hs2.Running)
	soon(t, "it has no task", func() bool {
		running = w.listed(t, hs2.Running)
		return len(running.Tasks) > 0
	})

	_, err = l.decide(t, w.key(), store.DecideNotPublished, nil)
	require.ErrorIs(t, err, commitstep.ErrDecision)
	require.ErrorContains(t, err, "still lists query "+running.QueryID)
	_, err = l.decide(t, w.key(), store.DecideNotPublished, func(q *driver.Resolution) { q.ServerGone, q.Again = true, true })
	require.ErrorIs(t, err, commitstep.ErrDecision)
	require.ErrorContains(t, err, "decide without --server-gone")
	require.True(t, l.sessionAlive(t, w.key()))
	require.True(t, w.listed(t, hs2.Running).Running)
	w.sql.Exec(t, "KILL QUERY '"+running.QueryID+"'")

	// Closing waits for the statement, on a busy machine longer than a call may last;
	// then the person tries again.
	var out driver.Resolved
	soon(t, "it is never decided", func() bool {
		out, err = l.decide(t, w.key(), store.DecideNotPublished, nil)
		if err == nil {
			return true
		}
		require.ErrorIs(t, err, commitstep.ErrDecision)
		listed := strings.Contains(err.Error(), "still lists query "+running.QueryID)
		require.True(t, listed || strings.Contains(err.Error(), "could not be closed"), "%v", err)
		return false
	})
	require.Equal(t, commitstep.Abandoned, out.After.State)
	for _, q := range w.submitted(t) {
		require.False(t, q.Running)
		for _, task := range q.Tasks {
			require.False(t, task.End.IsZero(), "%+v", task)
		}
	}
	l.untouched(t, w)
	require.Len(t, w.executed(t), 1)
	require.Equal(t, want(1, newRows), w.stagedRows(t), "staged rows are gone")

	res, err = l.publish(t, w.publishing(w.overwrite()))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, []commitstep.State{commitstep.Abandoned, commitstep.Completed}, sorted(l.ended(t, w)))
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Len(t, w.executed(t), 2)
}

// stagedRows are the rows that are published from.
func (w *world) stagedRows(t testing.TB) []string {
	t.Helper()
	return sorted(w.sql.Rows(t, "SELECT id, version FROM "+w.staged(1)))
}

// TestAParkedPartitionBlocksItselfOnly: what is parked is in the way of newer plans
// for its dataset and, over all jobs and however it is spelled, for its partition,
// and of nothing else.
func TestAParkedPartitionBlocksItselfOnly(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	table := "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
	l.sql.Exec(t, "CREATE EXTERNAL TABLE default."+table+" (id INT, version INT) PARTITIONED BY (hr INT) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' LOCATION '"+l.dir("")+"_default'")
	t.Cleanup(func() {
		if _, err := l.sql.Try(context.WithoutCancel(t.Context()), "DROP TABLE default."+table); err != nil {
			t.Log(err)
		}
	})
	rows := int64(newRows)
	plan := func(job, dataset, table, col, value string) *commitstep.Plan {
		return commitstep.NewPlan(job, dataset).Step(hivepublish.InsertOverwrite(hivepublish.Insert{
			Target:    hivepublish.Target{Hive: "dw", Table: table, Partition: map[string]string{col: value}},
			Bindings:  hivepublish.Bindings{Stage: l.staged(1)},
			Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT id, version FROM ${stage}",
			Rows:      &rows,
		})).Then(watermark.Set(job+"/"+dataset, commitstep.None(), commitstep.Int(1)))
	}
	cut := l.proxy.On(faultproxy.Rule{Match: calls("ExecuteStatement", "INSERT OVERWRITE"), Nth: 1, Do: faultproxy.DropBefore})
	res, err := l.publish(t, plan("one", "hour 7", table, "hr", "7"))
	require.Equal(t, driver.StatusParked, res.Status, "%v", err)
	require.Equal(t, 1, cut.Count())
	for what, p := range map[string]*commitstep.Plan{
		"its dataset":                plan("one", "hour 7", l.table(), "dt", "2030-01-01"),
		"another job":                plan("two", "a", table, "hr", "7"),
		"upper case":                 plan("two", "b", strings.ToUpper(table), "HR", "7"),
		"quoted, with the database":  plan("two", "c", "`Default`.`"+table+"`", "`hr`", "7"),
		"the value written longer":   plan("two", "d", "default."+table, "hr", "07"),
		"another dataset of the job": plan("one", "hour seven", "DEFAULT."+table, "hr", "+7"),
	} {
		got, err := l.publish(t, p)
		require.ErrorIs(t, err, commitstep.ErrPending, "%s: %+v", what, got)
		require.ErrorContains(t, err, res.ID.String(), what)
	}
	for _, p := range []*commitstep.Plan{
		plan("two", "hour 8", table, "hr", "8"),
		plan("two", "same value, other table", l.table(), "dt", "7"),
	} {
		got, err := l.publish(t, p)
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, got.Status)
	}
	// The decision frees both.
	key := commitstep.Key{Job: "one", Dataset: "hour 7"}
	l.notPublished(t, key, nil)
	got, err := l.publish(t, plan("two", "b", strings.ToUpper(table), "HR", "7"))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, got.Status)
	require.Equal(t, want(1, newRows), sorted(l.sql.Rows(t, "SELECT id, version FROM default."+table+" WHERE hr=7")))
}
