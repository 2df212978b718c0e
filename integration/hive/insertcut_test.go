package hive_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// route names the calls of one publish by what they are for, so that the same call
// is found again in the next publish however often a server is asked meanwhile.
type route struct {
	mu    sync.Mutex
	about string
	login int
	sent  bool // the INSERT OVERWRITE
}

// next names a message: "insert/GetOperationStatus".
func (r *route) next(m faultproxy.Message) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	method, text := faultproxy.ThriftMethod(m.Data), string(m.Data)
	switch method {
	case "":
		r.login++
		return fmt.Sprintf("login/%d", m.Index)
	case "OpenSession":
		r.about = "session for reading"
		if strings.Contains(text, "hive.query.tag") {
			r.about = "session"
		}
	case "ExecuteStatement":
		r.about = "statement"
		switch {
		case strings.Contains(text, "INSERT OVERWRITE"):
			r.about, r.sent = "insert", true
		case strings.Contains(text, "commitstep metric") && r.sent:
			r.about = "count after"
		case strings.Contains(text, "commitstep metric"):
			r.about = "count before"
		case strings.Contains(text, "DESCRIBE FORMATTED") && strings.Contains(text, "PARTITION ("):
			r.about = "partition"
		case strings.Contains(text, "DESCRIBE FORMATTED"):
			r.about = "table"
		}
	}
	return r.about + "/" + method
}

// record publishes a partition undisturbed and gives the calls in their order, each
// once.
func (l *lane) record(t testing.TB) []string {
	t.Helper()
	var r route
	var places []string
	l.proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool {
		if p := r.next(m); !slices.Contains(places, p) {
			places = append(places, p)
		}
		return false
	}})
	defer l.proxy.Clear()
	w := l.part(t)
	_, err := l.e.Publish(t.Context(), w.publishing(w.overwrite()))
	require.NoError(t, err)
	l.done(t, w)
	return places
}

// namer names the calls of one publish.
type namer interface {
	next(faultproxy.Message) string
}

// cutting is a rule for the first call of each of the names. left gives those that
// it has not met.
func cutting(r namer, places []string, do faultproxy.Action) (rule faultproxy.Rule, left func() []string) {
	var mu sync.Mutex
	wanted := slices.Clone(places)
	rule = faultproxy.Rule{Do: do, Match: func(m faultproxy.Message) bool {
		place := r.next(m)
		mu.Lock()
		defer mu.Unlock()
		i := slices.Index(wanted, place)
		if i >= 0 {
			wanted = slices.Delete(wanted, i, i+1)
		}
		return i >= 0
	}}
	return rule, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(wanted)
	}
}

var actionNames = map[faultproxy.Action]string{
	faultproxy.DropBefore: "before it is forwarded",
	faultproxy.DropAfter:  "while the server works",
	faultproxy.DropReply:  "before its answer",
}

// TestInsertOverwriteCutAtEveryCall cuts the connection at every call of a publish,
// before it reaches the server and when its answer is on the way. The outcome is
// right, or parked where nobody can know it; the statement runs at most once, by the
// server's list of statements and by its log.
func TestInsertOverwriteCutAtEveryCall(t *testing.T) {
	t.Parallel()
	g := newGround(t, hivekit.Shared(t))
	first := g.lane(t, settings{})
	fresh := first.record(t)
	warm := first.record(t)
	for _, p := range []string{"table/ExecuteStatement", "partition/FetchResults", "count before/FetchResults", "session/OpenSession", "insert/ExecuteStatement", "insert/GetQueryId", "insert/GetOperationStatus", "insert/CloseOperation", "insert/CloseSession", "count after/FetchResults"} {
		require.Contains(t, warm, p)
	}
	for _, p := range []string{"login/1", "login/2", "session for reading/OpenSession"} {
		require.Contains(t, fresh, p)
	}
	actions := []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropReply}
	if soaking() {
		actions = append(actions, faultproxy.DropAfter)
	}
	var cuts []cut
	for _, do := range actions {
		var survived []string
		for _, p := range fresh {
			c := cut{place: p, do: do, fresh: strings.HasPrefix(p, "login") || !slices.Contains(warm, p)}
			// What ends a plan's look is cheap. What a publish survives is cut in one,
			// and singly only where there is time.
			if soaking() || p == submission || p == "insert/CloseOperation" || c.fresh || c.ends() {
				cuts = append(cuts, c)
			} else {
				survived = append(survived, p)
			}
		}
		if len(survived) > 0 {
			cuts = append(cuts, cut{place: survived[0], also: survived[1:], do: do})
		}
	}
	// Two engines share the work; a cut ends the connections of its own only.
	lanes := []*lane{first, g.lane(t, settings{})}
	for i, l := range lanes {
		t.Run(fmt.Sprint("engine ", i+1), func(t *testing.T) {
			t.Parallel()
			for n := i; n < len(cuts); n += len(lanes) {
				t.Run(cuts[n].String(), func(t *testing.T) { l.cut(t, cuts[n]) })
			}
		})
	}
}

const submission = "insert/ExecuteStatement"

// cut is where a publish is disturbed.
type cut struct {
	place string
	also  []string // further calls, in the same publish
	do    faultproxy.Action
	fresh bool // only an engine without sessions comes by
}

func (c cut) places() []string { return append([]string{c.place}, c.also...) }

func (c cut) String() string {
	where := strings.ReplaceAll(c.place, "/", " ")
	if len(c.also) > 0 {
		where += fmt.Sprintf(" and %d more", len(c.also))
	}
	return where + " " + actionNames[c.do]
}

// ends tells that the plan cannot be looked at, so that nothing is promised. A look
// at the table is taken twice, and what only asks again is asked again.
func (c cut) ends() bool {
	about, call, _ := strings.Cut(c.place, "/")
	return (about == "partition" || about == "count before") && (call == "ExecuteStatement" || call == "FetchResults")
}

// cut publishes a partition that is disturbed.
func (l *lane) cut(t *testing.T, c cut) {
	if c.fresh {
		l.reopen(t)
	}
	w := l.part(t)
	plan := w.publishing(w.overwrite())
	var res driver.Result
	var err error
	for places := c.places(); len(places) > 0; {
		rule, left := cutting(&route{}, places, c.do)
		l.proxy.On(rule)
		res, err = l.publish(t, plan)
		l.proxy.Clear()
		if res.Status != "" {
			require.Empty(t, left(), "calls that were not made; %v", err)
		}
		require.Less(t, len(left()), len(places), "%v", err)
		places = left() // the plan was looked at, and that was cut too often
	}
	if len(c.also) > 0 {
		if res.Status == "" {
			res, err = l.publish(t, plan)
		}
	} else if !strings.HasPrefix(c.place, "login/") { // a connection is tried again where nothing was sent
		require.Equal(t, c.ends(), res.Status == "", "%v", err)
	}
	if res.Status == "" {
		// Nothing was promised, so nothing was sent, and the next run may publish.
		require.Error(t, err)
		require.Empty(t, w.submitted(t))
		l.untouched(t, w)
		require.Empty(t, l.ended(t, w))
		return
	}
	if c.place != submission {
		// Whoever reads, opens, polls or closes goes on.
		require.NoError(t, err)
		require.Equal(t, driver.StatusCompleted, res.Status)
		l.done(t, w)
		return
	}
	// It may run, and nobody has its handle.
	require.Equal(t, driver.StatusParked, res.Status, res.Message)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	ran := 0
	if c.do != faultproxy.DropBefore {
		ran = 1
		w.listed(t, hs2.Finished)
		require.Equal(t, want(1, newRows), w.holds(t))
	} else {
		require.Equal(t, want(0, oldRows), w.holds(t))
	}
	require.Equal(t, driver.StatusParked, l.again(t, w).Status)
	require.Len(t, w.submitted(t), ran)
	require.Len(t, w.executed(t), ran)
	require.Empty(t, l.ended(t, w))
	require.True(t, l.moved(t, w).IsNone())
}

// again is what a recovery says of a dataset.
func (l *lane) again(t testing.TB, w *world) driver.Result {
	t.Helper()
	var got driver.Result
	_, err := l.e.Recover(t.Context(), job, driver.Each(func(r driver.Result) {
		if r.Key.Dataset == w.dataset() {
			got = r
		}
	}))
	require.NoError(t, err)
	return got
}

// TestAnotherProcessFindsTheResult cuts the connection at every call that follows
// the submission, and ends the engine there: once the handle is noted, another
// process finds by itself what became of the statement.
func TestAnotherProcessFindsTheResult(t *testing.T) {
	t.Parallel()
	g := newGround(t, hivekit.Shared(t))
	l := g.lane(t, settings{})
	var cuts []cut
	for _, p := range []string{"insert/GetQueryId", "insert/GetOperationStatus", "insert/CloseOperation", "count after/ExecuteStatement", "count after/FetchResults"} {
		for _, do := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropReply} {
			cuts = append(cuts, cut{place: p, do: do})
		}
	}
	for _, c := range cuts {
		t.Run(c.String(), func(t *testing.T) {
			w := l.part(t)
			rule, _ := cutting(&route{}, c.places(), c.do)
			hook := l.proxy.On(rule)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var away sync.WaitGroup
			away.Go(func() { // the whole server is out of reach, and the job gives up
				fired(t, hook)
				l.proxy.Refuse(true)
				cancel()
			})
			res, err := l.e.Publish(ctx, w.publishing(w.overwrite()))
			away.Wait()
			require.Error(t, err)
			require.Contains(t, []driver.Status{driver.StatusStopped, driver.StatusWaiting}, res.Status, "%v", err)
			l.e.shut(t)
			l.e = nil
			l.proxy.Clear()
			l.proxy.Refuse(false)
			_, killed := w.run(t, "insert_overwrite", "recover", 0)
			require.False(t, killed)
			l.reopen(t)
			l.done(t, w)
		})
	}
}
