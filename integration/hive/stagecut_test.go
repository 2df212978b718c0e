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

// decisive are the cuts of every run: around the calls with an effect, and those
// whose answers decide what is done next. The long run cuts at all calls.
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

// testStageAndSwapCutAtEveryCall cuts the connection at the calls of a publish,
// before they reach the server and when their answers are on the way, while
// somebody reads: the partition shows the old rows or the new ones, and the publish
// ends by itself.
func testStageAndSwapCutAtEveryCall(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	first := g.lane(t, settings{})
	cuts := decisive
	if soaking() {
		cuts = nil
		fresh := first.recordTrail(t)
		warm := first.recordTrail(t)
		for _, c := range decisive {
			require.Contains(t, warm, c.place)
		}
		for _, p := range fresh {
			for _, do := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropAfter, faultproxy.DropReply} {
				cuts = append(cuts, cut{place: p, do: do, fresh: !slices.Contains(warm, p)})
			}
		}
	}
	lanes := []*lane{first, g.lane(t, settings{})}
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

// cutStaging publishes a partition with one cut.
func (l *lane) cutStaging(t *testing.T, c cut) {
	if c.fresh {
		l.reopen(t)
	}
	w := l.part(t)
	hook := l.proxy.On(onTrail(c.place, c.do))
	plan := w.publishing(w.stageAndSwap())
	res, err := l.publish(t, plan)
	require.Equal(t, 1, hook.Count(), "%v", err)
	l.proxy.Clear()
	if res.Status == "" {
		// Nothing was promised, so nothing was done, and the next run may publish.
		require.Empty(t, w.dirsOf(t))
		_, err = l.publish(t, plan)
		require.NoError(t, err)
	} else if err != nil {
		require.Equal(t, driver.StatusWaiting, res.Status, "%v", err)
		l.follow(t)
	}
	l.swapped(t, w)
	// Every attempt wrote into a directory of its own, and the loser's stays.
	dirs := w.dirsOf(t)
	switch c.place {
	case "stage/ExecuteStatement", "stage/GetOperationStatus":
		require.NotEmpty(t, dirs)
	default:
		require.LessOrEqual(t, len(dirs), 2)
	}
}
