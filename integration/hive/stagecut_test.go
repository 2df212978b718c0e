package hive_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/stretchr/testify/require"
)

// trail names the calls of a publish by swapped location, as route does for
// INSERT OVERWRITE: "alter/ExecuteStatement".
type trail struct {
	mu     sync.Mutex
	about  string
	phases map[string]int
}

func (r *trail) next(m faultproxy.Message) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	method, text := faultproxy.ThriftMethod(m.Data), string(m.Data)
	switch method {
	case "":
		return fmt.Sprintf("login/%d", m.Index)
	case "OpenSession":
		r.about = "session"
		if strings.Contains(text, "hive.query.tag") {
			r.about = "alter session"
		}
	case "ExecuteStatement":
		r.about = r.statement(text)
	}
	return r.about + "/" + method
}

// statement says what one is for. Looks at the partition are told apart by what
// was sent before.
func (r *trail) statement(text string) string {
	if r.phases == nil {
		r.phases = map[string]int{}
	}
	for _, k := range []struct{ part, name string }{
		{"*/ EXPLAIN ", "explain"},
		{"INSERT OVERWRITE DIRECTORY", "stage"},
		{"CREATE TEMPORARY", "temporary"},
		{"commitstep metric", "count"},
		{"DROP TABLE", "drop"},
		{"ALTER TABLE", "alter"},
		{"SELECT * FROM (", "columns"},
	} {
		if strings.Contains(text, k.part) {
			r.phases[k.name]++
			return k.name
		}
	}
	what := "table"
	if strings.Contains(text, "PARTITION") {
		what = "partition"
	}
	switch {
	case r.phases["alter"] > 0:
		return what + " after alter"
	case r.phases["stage"] > 0:
		return what + " before alter"
	case r.phases["columns"] > 0:
		return what + " before stage"
	}
	return what + " when planned"
}

// recordTrail publishes a partition undisturbed and gives the calls in their
// order, each once.
func (l *lane) recordTrail(t testing.TB) []string {
	t.Helper()
	var r trail
	var places []string
	l.proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool {
		if p := r.next(m); !slices.Contains(places, p) {
			places = append(places, p)
		}
		return false
	}})
	w := l.part(t)
	_, err := l.e.Publish(t.Context(), w.publishing(w.stageAndSwap()))
	require.NoError(t, err)
	l.proxy.Clear()
	l.swapped(t, w)
	return places
}

// onTrail is a rule for the first call of a name.
func onTrail(place string, do faultproxy.Action) faultproxy.Rule {
	var r trail
	return faultproxy.Rule{Nth: 1, Do: do, Match: func(m faultproxy.Message) bool { return r.next(m) == place }}
}

// decisive are the cuts that a publish each is cut at: around the calls with an
// effect, and those whose answers decide what is done next.
var decisive = []cut{
	{place: "stage/ExecuteStatement", do: faultproxy.DropBefore},
	{place: "alter/ExecuteStatement", do: faultproxy.DropReply},
	{place: "stage/ExecuteStatement", do: faultproxy.DropReply},
	{place: "alter/ExecuteStatement", do: faultproxy.DropBefore},
	{place: "stage/GetOperationStatus", do: faultproxy.DropReply},
	{place: "alter/GetOperationStatus", do: faultproxy.DropReply},
	{place: "count/FetchResults", do: faultproxy.DropReply},
	{place: "alter session/OpenSession", do: faultproxy.DropReply},
	{place: "partition after alter/FetchResults", do: faultproxy.DropReply},
	{place: "alter/CloseSession", do: faultproxy.DropReply},
}

// isDecisive tells whether a call has cuts of its own, so that it is not one of
// several that a publish survives.
func isDecisive(place string, do faultproxy.Action) bool {
	return slices.ContainsFunc(decisive, func(c cut) bool { return c.place == place && c.do == do })
}

// stagingCuts are at every call of a publish. Those that decide nothing share a
// publish, one behind another, where there is no time for each alone.
func stagingCuts(fresh, warm []string) []cut {
	cuts := slices.Clone(decisive)
	actions := []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropReply}
	if soaking() {
		actions = append(actions, faultproxy.DropAfter)
	}
	for _, do := range actions {
		var survived []string
		for _, p := range fresh {
			new := !slices.Contains(warm, p)
			switch {
			case isDecisive(p, do):
			case new || soaking():
				cuts = append(cuts, cut{place: p, do: do, fresh: new})
			default:
				survived = append(survived, p)
			}
		}
		for several := range slices.Chunk(survived, 8) {
			cuts = append(cuts, cut{place: several[0], also: several[1:], do: do})
		}
	}
	return cuts
}

// TestStageAndSwapCutAtEveryCall cuts the connection at the calls of a publish,
// before they reach the server and when their answers are on the way, while
// somebody reads: the partition shows the old rows or the new ones, and the publish
// ends by itself.
func TestStageAndSwapCutAtEveryCall(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	patience := impatient
	patience.MaxAttempts = 100 // of one publish that is cut at many calls
	with := settings{conf: driver.Config{Policy: patience}}
	first := g.lane(t, with)
	fresh := first.recordTrail(t)
	warm := first.recordTrail(t)
	for _, c := range decisive {
		require.Contains(t, warm, c.place)
	}
	cuts := stagingCuts(fresh, warm)
	lanes := []*lane{first, g.lane(t, with)}
	// The reader ends after the lanes.
	t.Run("lanes", func(t *testing.T) {
		r := g.watch(t, nil)
		t.Cleanup(func() { r.stop(t) })
		for i, l := range lanes {
			t.Run(fmt.Sprint("engine ", i+1), func(t *testing.T) {
				t.Parallel()
				for n := i; n < len(cuts); n += len(lanes) {
					t.Run(cuts[n].String(), func(t *testing.T) { l.cutStaging(t, cuts[n]) })
				}
			})
		}
	})
}

// cutStaging publishes partitions that are disturbed, until every call was cut: one
// that only cleans up is not made again, nor what follows it.
func (l *lane) cutStaging(t *testing.T, c cut) {
	if c.fresh {
		l.reopen(t)
	}
	w := l.part(t)
	for places := c.places(); ; {
		plan := w.publishing(w.stageAndSwap())
		rule, left := cutting(&trail{}, places, c.do)
		l.proxy.On(rule)
		res, err := l.publish(t, plan)
		if res.Status != "" && err != nil {
			require.Equal(t, driver.StatusWaiting, res.Status, "%v", err)
			l.follow(t)
		}
		l.proxy.Clear()
		require.Less(t, len(left()), max(1, len(places)), "calls that were not made: %v", left())
		places = left()
		if res.Status == "" {
			// Nothing was promised, so nothing was done, and the next run may publish.
			require.Error(t, err)
			require.Empty(t, w.dirsOf(t))
			continue // undisturbed, if there is nothing more to cut
		}
		l.swapped(t, w)
		// Every attempt wrote into a directory of its own, and the loser's stays.
		dirs := w.dirsOf(t)
		require.NotEmpty(t, dirs)
		require.LessOrEqual(t, len(dirs), 2+len(c.also))
		if len(places) == 0 {
			return
		}
		w = l.part(t)
	}
}
