package hive_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// TestStageAndSwapCrashes kills a publishing process at every named point, and goes
// on in another process as the job's next run does: nobody has to decide anything,
// and who reads meanwhile sees the old rows or the new ones.
func TestStageAndSwapCrashes(t *testing.T) {
	t.Parallel()
	g := newStaging(t, hivekit.Shared(t))
	w := g.alone(t)
	points, killed := w.run(t, "stage_and_swap", "publish", 0)
	require.False(t, killed)
	require.Equal(t, want(1, newRows), w.holds(t))
	index := func(prefix string) int {
		i := slices.IndexFunc(points, func(p string) bool { return strings.HasPrefix(p, prefix) })
		require.GreaterOrEqual(t, i, 0, "no point %s in %v", prefix, points)
		return i + 1
	}
	promised, execute, executed := index("put.after"), index("execute.before"), index("execute.after")
	require.Less(t, promised, execute)
	t.Run("points", func(t *testing.T) {
		r := g.watch(t, nil)
		t.Cleanup(func() { r.stop(t) })
		for n := 1; n <= len(points); n++ {
			t.Run(fmt.Sprintf("%02d %s", n, points[n-1]), func(t *testing.T) {
				t.Parallel()
				w := g.alone(t)
				passed, killed := w.run(t, "stage_and_swap", "publish", n)
				require.True(t, killed)
				require.Equal(t, points[:n], passed)
				if n < executed {
					require.Equal(t, want(0, oldRows), w.holds(t))
					require.Empty(t, w.dirsOf(t))
				}
				if n < promised {
					require.Empty(t, w.outcomes(t), "nothing was promised")
					_, killed = w.run(t, "stage_and_swap", "publish", 0)
				} else {
					_, killed = w.run(t, "stage_and_swap", "recover", 0)
				}
				require.False(t, killed)
				require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
				require.Equal(t, want(1, newRows), w.holds(t))
				require.Equal(t, "attempt=1", w.stagedHere(t))
				require.Len(t, w.altersOf(t), 1)
				require.Equal(t, commitstep.Int(100), w.watermark(t))
			})
		}
	})
}

// closingAfterAlter holds the first session back that is to be closed once an ALTER
// was sent.
func closingAfterAlter() faultproxy.Rule {
	var sent atomic.Bool
	alter := calls("ExecuteStatement", "ALTER TABLE")
	return faultproxy.Rule{Nth: 1, Do: faultproxy.Hold, Match: func(m faultproxy.Message) bool {
		if alter(m) {
			sent.Store(true)
		}
		return sent.Load() && faultproxy.ThriftMethod(m.Data) == "CloseSession"
	}}
}

// TestStageAndSwapServerKilled kills HiveServer2 while publishes stand in every
// phase of theirs. They wait for it, and end by themselves when it is back.
func TestStageAndSwapServerKilled(t *testing.T) {
	t.Parallel()
	s := hivekit.Victim(t)
	g := newStaging(t, s)
	patience := impatient
	patience.MaxAttempts, patience.WaitBudget = 100, 20*time.Minute
	with := settings{conf: driver.Config{Policy: patience}, hive: enduring.hive}
	r := g.watch(t, func(err error) bool { // it is away for a while
		var te *hs2.TransportError
		return errors.As(err, &te) || errors.Is(err, hs2.ErrUnknownHandle)
	})
	type publish struct {
		lane *lane
		part *world
	}
	var all []publish
	var ends sync.WaitGroup
	begin := func(phase string, rules ...faultproxy.Rule) []*faultproxy.Hook {
		l := g.lane(t, with)
		p := publish{l, l.part(t)}
		var hooks []*faultproxy.Hook
		for _, rule := range rules {
			hooks = append(hooks, l.proxy.On(rule))
		}
		step := p.part.stageAndSwap()
		if phase == "while the query runs" {
			step = p.part.staging(slow(2*time.Second), newRows)
		}
		all = append(all, p)
		ends.Go(func() {
			if _, err := l.e.Publish(t.Context(), p.part.publishing(step)); err != nil {
				t.Errorf("killed %s: %v", phase, err)
			}
		})
		return hooks
	}
	t.Cleanup(ends.Wait)
	var hooks []*faultproxy.Hook
	for phase, rules := range map[string][]faultproxy.Rule{
		"before the query":               {onTrail("stage/ExecuteStatement", faultproxy.Hold)},
		"when the query had finished":    {onTrail("count/ExecuteStatement", faultproxy.Hold)},
		"before SET LOCATION":            {onTrail("alter/ExecuteStatement", faultproxy.Hold)},
		"after a SET LOCATION, unseen":   {closingAfterAlter(), onTrail("alter/ExecuteStatement", faultproxy.DropReply)},
		"after a SET LOCATION, answered": {onTrail("partition after alter/ExecuteStatement", faultproxy.Hold)},
	} {
		hooks = append(hooks, begin(phase, rules...)...)
	}
	for _, h := range hooks {
		fired(t, h)
	}
	begin("while the query runs")
	all[len(all)-1].part.listed(t, hs2.Running)
	require.NoError(t, s.Kill())
	for _, h := range hooks {
		h.Release()
	}
	require.NoError(t, s.Restart())
	ends.Wait()
	for _, p := range all {
		p.lane.swapped(t, p.part)
	}
	r.await(t, 2)
	r.stop(t)
}
