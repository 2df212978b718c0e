package hive_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/stretchr/testify/require"
)

// once ends with the first failure that is sure.
var once = driver.Policy{MaxAttempts: 1, FirstPause: 10 * time.Millisecond, MaxPause: 200 * time.Millisecond, UnknownBudget: time.Second, WaitBudget: 10 * time.Minute, RecoverBudget: 10 * time.Minute}

// compiling are sessions that compile in the submission, or behind it.
func compiling(async bool) hivepublish.Config {
	return hivepublish.Config{Session: map[string]string{"hive.server2.async.exec.async.compile": fmt.Sprint(async)}}
}

// ending is what is noted of a statement.
type ending struct {
	Never string `json:"never"`
	Final *hivepublish.Outcome
}

func (l *lane) ending(t testing.TB, w *world) ending {
	t.Helper()
	var n ending
	if note := l.stepOf(t, w.key()).Progress.Note; note != nil {
		require.NoError(t, json.Unmarshal(note, &n))
	}
	return n
}

// TestErrorsHaveTheirClass makes a real server fail in every way that it offers.
// What it refuses, and what ends before anything is moved, certainly had no effect
// and may be tried again; what was interrupted nobody can know. Where an error
// arrives, at the submission or behind it, changes nothing.
func TestErrorsHaveTheirClass(t *testing.T) {
	t.Parallel()
	g := newGround(t, hivekit.Shared(t))
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprintf("async compile %v", async), func(t *testing.T) {
			t.Parallel()
			l := g.lane(t, settings{conf: driver.Config{Policy: once}, hive: compiling(async)})
			t.Run("of the text", func(t *testing.T) {
				for what, query := range map[string]string{
					"syntax":         "SELECT id, version FROM ${stage} WHERE WHERE",
					"missing table":  "SELECT id, version FROM nowhere.nothing",
					"missing column": "SELECT id, nothing FROM ${stage}",
				} {
					w := l.part(t)
					res, err := l.publish(t, w.publishing(w.selecting(query, newRows, nil)))
					require.Equal(t, driver.StatusParked, res.Status, "%s: %v", what, err)
					require.Equal(t, commitstep.AttemptsExhausted, res.Reason, "%s: %s", what, res.Message)
					end := l.ending(t, w)
					if async {
						require.NotNil(t, end.Final, "%s: %+v", what, end)
						require.Equal(t, "ended before it touched the target", end.Final.Fate)
					} else {
						require.NotEmpty(t, end.Never, what)
					}
					require.Empty(t, w.executed(t), what)
					l.untouched(t, w)
				}
			})
			t.Run("no permission", func(t *testing.T) {
				w := l.part(t)
				require.NoError(t, l.client.Chown(w.path(w.Day), "root", "root"))
				res, err := l.publish(t, w.publishing(w.overwrite()))
				require.Equal(t, driver.StatusParked, res.Status, "%v", err)
				require.Equal(t, commitstep.AttemptsExhausted, res.Reason, res.Message)
				require.Contains(t, strings.ToLower(res.Message), "permission")
				l.untouched(t, w)
			})
			t.Run("of a function", func(t *testing.T) {
				w := l.part(t)
				res, err := l.publish(t, w.publishing(w.selecting("SELECT id, version FROM ${stage} WHERE assert_true(version = 0) IS NULL", newRows, nil)))
				require.Equal(t, driver.StatusParked, res.Status, "%v", err)
				require.Equal(t, commitstep.AttemptsExhausted, res.Reason, res.Message)
				end := l.ending(t, w)
				require.NotNil(t, end.Final)
				require.Equal(t, "ended before it touched the target", end.Final.Fate)
				require.Equal(t, "not begun", end.Final.Moved)
				require.Len(t, w.executed(t), 1)
				l.untouched(t, w)
			})
			t.Run("cancelled by an operator", func(t *testing.T) {
				w := l.part(t)
				f := l.start(t, w, w.publishing(w.selecting(slow(longTime), newRows, nil)))
				q := w.listed(t, hs2.Running)
				w.sql.Exec(t, "KILL QUERY '"+q.QueryID+"'")
				l.unknown(t, f, 1)
				require.Equal(t, "CANCELED", l.evidence(t, w.key()).Last.State)
				l.untouched(t, w)
			})
			t.Run("out of time", func(t *testing.T) {
				w := l.part(t)
				// It counts from the submission on: whose time ends while it is compiled is
				// refused.
				f := l.start(t, w, w.publishing(w.selecting(slow(longTime), newRows, map[string]string{"hive.query.timeout.seconds": "20s"})))
				l.unknown(t, f, 1)
				require.Equal(t, "TIMEDOUT", l.evidence(t, w.key()).Last.State)
				l.untouched(t, w)
			})
		})
	}
}

// TestAFullServerAndItsTimeouts takes a server that runs one statement at a time and
// soon forgets what nobody uses.
func TestAFullServerAndItsTimeouts(t *testing.T) {
	t.Parallel()
	// One of the threads looks for idle sessions all the time.
	g := newGround(t, hivekit.Private(t, hivekit.Options{AsyncThreads: 2, AsyncQueue: 1, IdleSession: 20 * time.Second, IdleOperation: 20 * time.Second}))
	insistent := enduring
	insistent.conf.Policy.MaxAttempts = 100
	insistent.conf.Policy.FirstPause, insistent.conf.Policy.MaxPause = 5*time.Second, 5*time.Second
	l := g.lane(t, insistent)
	timedOut := regexp.MustCompile(`(?i)session.*(timed[- ]?out|idle)`)

	t.Run("no thread", func(t *testing.T) {
		w := l.part(t)
		at := l.proxy.On(faultproxy.Rule{Match: insertOf(w), Nth: 1, Do: faultproxy.Hold})
		f := l.start(t, w, w.publishing(w.overwrite()))
		fired(t, at)
		// One runs, one waits.
		busy := make(chan error, 2)
		for n := range 2 {
			go func() {
				_, err := w.sql.Try(t.Context(), fmt.Sprintf("SELECT count(reflect('java.lang.Thread', 'sleep', 10000L)) + %d AS busy FROM %s WHERE id = 0", n, w.staged(1)))
				busy <- err
			}()
		}
		soon(t, "the server is not full", func() bool { return len(w.sql.Submitted(t, "AS busy FROM "+w.staged(1))) == 2 })
		at.Release()
		soon(t, "nothing is refused", func() bool { return l.ending(t, w).Never != "" })
		require.Contains(t, l.ending(t, w).Never, "threadpool")
		f.flying(t)
		require.NoError(t, <-busy)
		require.NoError(t, <-busy)
		// A refusal is no effect, so it is tried again.
		require.Equal(t, driver.StatusCompleted, f.landed(t).Status)
		require.Equal(t, want(1, newRows), w.holds(t))
		require.Len(t, w.executed(t), 1)
	})
	t.Run("a session that was not used", func(t *testing.T) {
		w := l.part(t)
		at := l.proxy.On(faultproxy.Rule{Match: insertOf(w), Nth: 1, Do: faultproxy.Hold})
		f := l.start(t, w, w.publishing(w.overwrite()))
		fired(t, at)
		from := g.logSize(t)
		soon(t, "no session is closed", func() bool { return g.logged(t, from, timedOut) != nil })
		at.Release()
		require.Equal(t, driver.StatusCompleted, f.landed(t).Status)
		require.Equal(t, want(1, newRows), w.holds(t))
		require.Len(t, w.executed(t), 1)
	})
	t.Run("a result that nobody fetched", func(t *testing.T) {
		w := l.part(t)
		at := l.proxy.On(faultproxy.Rule{Match: after(w, "GetQueryId"), Nth: 1, Do: faultproxy.Hold})
		f := l.start(t, w, w.publishing(w.overwrite()))
		fired(t, at)
		soon(t, "the statement is not closed", func() bool {
			for _, q := range w.submitted(t) {
				if q.State == hs2.Finished && !q.Running {
					return true
				}
			}
			return false
		})
		at.Release()
		l.unknown(t, f, 1)
		require.Equal(t, want(1, newRows), w.holds(t))
		l.published(t, w, 1)
	})
}
