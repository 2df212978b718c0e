package integration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/stretchr/testify/require"
)

// TestCrashAtEveryPointOfMyTopic kills a real process at every event of the
// main job, kills two recoveries of it at random, and looks at the result. The
// events are all there are: they come from a run that nothing disturbs.
func TestCrashAtEveryPointOfMyTopic(t *testing.T) {
	t.Parallel()
	events := observe(t, "mytopic")
	for _, point := range []string{"put.before", "put.after", "execute.before#0", "execute.after#0", "settle.after#0",
		"execute.before#2", "execute.after#2", "settle.after#2", "record.after#2", "execute.before#3", "execute.before#4",
		"complete.before", "complete.after", "cleanup.before", "cleanup.after", "cleaned.before", "cleaned.after"} {
		require.GreaterOrEqual(t, indexOf(events, "point "+point), 0, "the run does not pass %s any more:\n%s", point, strings.Join(events, "\n"))
	}
	for _, kind := range []string{"mkdir", "rename", "syncfile", "syncdir", "rmdir"} {
		for _, side := range []string{"before", "after"} {
			n := 0
			for _, e := range events {
				if strings.HasPrefix(e, "op "+side+" "+kind) {
					n++
				}
			}
			require.Positive(t, n, "the run reports no %s %s", side, kind)
		}
	}
	seen := &sightings{}
	t.Run("kill", func(t *testing.T) {
		for n := 1; n <= len(events); n++ {
			t.Run(fmt.Sprintf("%03d %s", n, short(events[n-1])), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(uint64(n), 3))
				w, killed := crash(t, "mytopic", n, r, seen)
				require.True(t, killed, "a run of the same plan had no event %d", n)
				w.check(t)
			})
		}
	})
	// The log is really used: killed between put and completion, it holds the
	// sequence, and killed before it holds nothing.
	require.Greater(t, seen.live.Load(), int64(20), "kills that left the sequence in the store")
	require.Greater(t, seen.nothing.Load(), int64(5), "kills that left nothing in the store")
	require.Greater(t, seen.ended.Load(), int64(5), "kills that left it completed")
}

// sightings counts what the store held right after a kill.
type sightings struct{ nothing, live, ended atomic.Int64 }

func short(event string) string {
	f := strings.Fields(event)
	return strings.Join(f[:min(3, len(f))], " ")
}

// observe runs a layout undisturbed and returns its events.
func observe(t *testing.T, text string) []string {
	t.Helper()
	w := newWorld(t, t.TempDir(), text)
	events, killed := w.run(t, "publish", 0)
	require.False(t, killed)
	w.check(t)
	return events
}

// crash publishes in a child that dies at event n, lets two recoveries die
// too, and recovers to the end.
func crash(t *testing.T, text string, n int, r *rand.Rand, seen *sightings) (*world, bool) {
	t.Helper()
	w := newWorld(t, t.TempDir(), text)
	lines, killed := w.run(t, "publish", n)
	if !killed {
		return w, false
	}
	w.checkLog(t, lines, seen)
	for range 2 {
		// Most recoveries are as long as what is left of the publish, or end
		// before: then it was the last one.
		if _, died := w.run(t, "recover", 1+r.IntN(max(4, 2*w.steps()))); !died {
			break
		}
	}
	w.recoverAll(t, settings{})
	return w, true
}

// checkLog compares the store with the journal of the process that just died.
func (w *world) checkLog(t *testing.T, lines []string, seen *sightings) {
	t.Helper()
	ctx := t.Context()
	put, done := indexOf(lines, "point put.after"), indexOf(lines, "point complete.after")
	for i, l := range lines {
		f := strings.Fields(l)
		if f[0] != "op" || strings.HasPrefix(f[2], "sync") {
			continue
		}
		require.True(t, put >= 0 && i > put, "an effect before the plan was stored: %s", l)
	}
	e := w.open(t, settings{})
	defer e.shut(t)
	live, err := e.store.Get(ctx, w.key())
	switch {
	case done >= 0:
		require.Equal(t, 1, w.historyEntries(t, e), "completed, and no outcome in the store")
		seen.ended.Add(1)
	case put >= 0 && indexOf(lines, "point complete.before") < 0:
		require.NoError(t, err, "promised, and not in the store")
		require.Equal(t, commitstep.Pending, live.State)
		require.Equal(t, w.steps(), live.Steps)
		n := 0
		for page := 0; n < live.Steps; page++ {
			p, err := e.store.Steps(ctx, live.ID, page)
			require.NoError(t, err)
			n += len(p.Steps)
		}
		require.Equal(t, w.steps(), n)
		seen.live.Add(1)
	case indexOf(lines, "point put.before") < 0:
		require.ErrorIs(t, err, commitstep.ErrNotFound)
		require.Zero(t, w.historyEntries(t, e))
		w.checkUntouched(t, e)
		seen.nothing.Add(1)
	}
}

// TestCrashOfRandomPlans makes plans of random sizes, stages, directories,
// attributes, watermarks and leftovers, and kills each at a few of its events.
func TestCrashOfRandomPlans(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			randomRound(t, seed, 16, 1)
		})
	}
}

// TestSoakCrashOfRandomPlans goes on for as long as COMMITSTEP_SOAK says
// ("2h"), and otherwise makes one short round.
func TestSoakCrashOfRandomPlans(t *testing.T) {
	t.Parallel()
	var length time.Duration
	if s := os.Getenv("COMMITSTEP_SOAK"); s != "" {
		var err error
		length, err = time.ParseDuration(s)
		require.NoError(t, err, "COMMITSTEP_SOAK is a duration, as in 2h")
	}
	start := time.Now()
	seed, rounds := uint64(start.UnixNano()), 0
	for ok := true; ok && (rounds == 0 || time.Since(start) < length); rounds++ {
		ok = t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { randomRound(t, seed, 4, 1) })
		seed++
	}
	t.Logf("%d rounds in %s", rounds, time.Since(start).Round(time.Second))
}

// randomRound kills a random plan at some of its events, and a long plan at
// fewer.
func randomRound(t *testing.T, seed uint64, kills, longKills int) {
	for _, round := range []struct {
		name  string
		kills int
	}{{"random", kills}, {"long", longKills}} {
		text := fmt.Sprintf("%s:%d", round.name, seed)
		r := rand.New(rand.NewPCG(seed, 4))
		events := observe(t, text)
		seen := &sightings{}
		reached := 0
		for range round.kills {
			n := 1 + r.IntN(len(events))
			t.Run(fmt.Sprintf("%s dies at %d of %d", text, n, len(events)), func(t *testing.T) {
				w, killed := crash(t, text, n, r, seen)
				if killed {
					reached++
				}
				w.check(t)
			})
		}
		// Steps in parallel do not make the same events in every run.
		require.Positive(t, reached, "no child died")
	}
}
