package hdfs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/stretchr/testify/require"
)

// A child writes one line per event to its journal before the event goes on:
// named points of the driver, and both sides of every change to the file
// system.
type journal struct {
	mu    sync.Mutex
	file  *os.File
	n     int
	dieAt int
}

func (j *journal) event(format string, a ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.n++
	if _, err := fmt.Fprintf(j.file, format+"\n", a...); err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(4)
	}
	if j.n == j.dieAt {
		testkit.Die()
	}
}

// changes are the calls whose both sides are events.
var changes = map[string]bool{"MkdirAll": true, "Rename": true, "SetAttributes": true, "Remove": true, "RemoveDir": true, "Sweep": true}

// runChild publishes or recovers one world: DIR ROOT SHAPE TRANSPORT RPC HTTP
// publish|recover JOURNAL DIE-AT.
func runChild(c *testkit.Child) int {
	a := c.Args
	w := &world{dir: a[0], root: a[1], shape: a[2], where: where{transport: a[3], rpc: strings.Split(a[4], ","), http: strings.Split(a[5], ","), jmx: strings.Split(a[5], ",")}}
	dieAt, err := strconv.Atoi(a[8])
	if err != nil {
		return c.Fail("%v", err)
	}
	file, err := os.OpenFile(a[7], os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return c.Fail("%v", err)
	}
	j := &journal{file: file, dieAt: dieAt}
	var s settings
	s.conf.KillPoint = func(point string) { j.event("point %s", point) }
	s.wrap = func(f filesys.FS) filesys.FS {
		return fstest.Hooked(f, func(op string, p commitstep.Address, do func() error) error {
			if !changes[op] {
				return do()
			}
			j.event("op before %s", op)
			err := do()
			j.event("op after %s", op)
			return err
		})
	}
	e, err := w.openEngine(s)
	if err != nil {
		return c.Fail("open: %v", err)
	}
	if a[6] == "publish" {
		_, err = e.Publish(context.Background(), w.plan())
	} else {
		_, err = e.Recover(context.Background(), job)
	}
	if err != nil {
		return c.Fail("%s: %v", a[6], err)
	}
	if err := e.close(); err != nil {
		return c.Fail("close: %v", err)
	}
	return 0
}

// run starts a child on a world and waits for its end. It returns the child's
// events and whether it was killed.
func (w *world) run(t testing.TB, what string, dieAt int) (events []string, killed bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "journal")
	p := testkit.Start(t, "run", w.dir, w.root, w.shape, w.transport, strings.Join(w.rpc, ","), strings.Join(w.http, ","), what, name, strconv.Itoa(dieAt))
	code, by := p.Exit()
	killed = by != 0
	if !killed {
		require.Zero(t, code, p.Output())
	}
	b, err := os.ReadFile(name)
	require.NoError(t, err, p.Output())
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), killed
}

// TestCrashAtEveryPoint kills a real process at every event of the main job,
// and a recovery of it too, and looks at the result.
func TestCrashAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, shape := range []string{"files", "dirs"} {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
				calm := newWorld(t, c, transport, shape)
				events, killed := calm.run(t, "publish", 0)
				require.False(t, killed)
				calm.check(t)
				all := strings.Join(events, "\n")
				for _, e := range []string{"point put.before", "point put.after", "point execute.before#0", "point execute.after#0", "op before Rename", "op after Rename",
					"op before SetAttributes", "op before MkdirAll", "point complete.before", "point complete.after", "op after RemoveDir", "point cleaned.after"} {
					require.Contains(t, all, e)
				}
				var live atomic.Int64
				t.Run("kill", func(t *testing.T) {
					for n := 1; n <= len(events); n++ {
						t.Run(fmt.Sprintf("%03d %s", n, events[n-1]), func(t *testing.T) {
							t.Parallel()
							w := newWorld(t, c, transport, shape)
							_, killed := w.run(t, "publish", n)
							require.True(t, killed, "there was no event %d", n)
							e := w.open(t, settings{})
							if _, err := e.store.Get(t.Context(), w.key()); err == nil {
								live.Add(1)
							}
							e.shut(t)
							w.run(t, "recover", 1+rand.New(rand.NewPCG(uint64(n), 1)).IntN(20))
							w.recoverAll(t)
							w.check(t)
						})
					}
				})
				require.Greater(t, live.Load(), int64(10), "kills that left the sequence in the store")
			})
		})
	}
}
