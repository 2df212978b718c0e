package hdfs_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/stretchr/testify/require"
)

// The name node is frozen within a stage of many renames. Publish gives up when
// its budget is over; it does not try every rename that is left, each with its
// own time limit. The recovery finishes it.
func TestFrozenNameNodeEndsAStage(t *testing.T) {
	t.Parallel()
	const steps, before = 200, 6
	c := hadoopkit.Private(t, hadoopkit.Options{})
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			w := newWorld(t, c, transport, "files")
			p := commitstep.NewPlan(job, "frozen")
			for i := range steps {
				w.put(t, fmt.Sprintf("in/%d", i), "")
				p.Step(fsrename.Move(w.address(fmt.Sprintf("%s/in/%d", w.dir, i)), w.address(fmt.Sprintf("%s/out/%d", w.dir, i)), fsrename.Length(0)))
			}
			brief := impatient
			brief.WaitBudget = 3 * time.Second
			var renames, tried atomic.Int64 // tried: calls of all kinds since it was frozen
			var freeze sync.Once
			var frozen atomic.Bool
			e := w.open(t, settings{conf: driver.Config{Policy: brief}, patience: patience{call: 5 * time.Second, wait: time.Second}, wrap: func(f filesys.FS) filesys.FS {
				return fstest.Hooked(f, func(op string, at commitstep.Address, do func() error) error {
					if op == "Rename" && strings.Contains(at.Path, w.dir) && renames.Add(1) == before {
						freeze.Do(func() {
							check(t, c.Freeze(hadoopkit.NameNode))
							frozen.Store(true)
						})
					}
					if frozen.Load() {
						tried.Add(1)
					}
					return do()
				})
			}})
			res, err := e.Publish(t.Context(), p)
			for range 20 {
				if res.Status != "" {
					break
				}
				// On a busy machine five seconds may be too short for a plan.
				res, err = e.Publish(t.Context(), p)
			}
			check(t, c.Thaw(hadoopkit.NameNode))
			require.Equal(t, driver.StatusWaiting, res.Status, "%+v %v", res, err)
			require.Less(t, tried.Load(), int64(steps/2), "calls after it was frozen")
			e.shut(t)

			w.client = c.Client(t, "root") // the old one has seen too much
			e = w.open(t, settings{})
			rep, err := e.Recover(t.Context(), job)
			require.NoError(t, err)
			require.True(t, rep.MayIngest("frozen"), "%+v", rep)
			list, err := w.client.ReadDir(w.dir + "/out")
			require.NoError(t, err)
			require.Len(t, list, steps)
			e.shut(t)
		})
	}
}
