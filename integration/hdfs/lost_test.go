package hdfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/stretchr/testify/require"
)

// behind puts a proxy between the world and its name node.
func (w *world) behind(t testing.TB) *faultproxy.Proxy {
	t.Helper()
	var target *string
	if w.transport == "webhdfs" {
		w.http = append([]string(nil), w.http...)
		target = &w.http[0]
	} else {
		w.rpc = append([]string(nil), w.rpc...)
		target = &w.rpc[0]
	}
	p, err := faultproxy.Listen(*target, faultproxy.Raw)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	*target = p.Addr()
	return p
}

// renames are the requests that rename, in both protocols.
func renames(m faultproxy.Message) bool {
	return bytes.Contains(m.Data, []byte("rename2")) || bytes.Contains(m.Data, []byte("op=RENAME"))
}

// hasty gives up on an answer soon, and waits for a name node.
var hasty = patience{call: 2 * time.Second, wait: 10 * time.Second}

// publish publishes until it is done: one that was refused before anything was
// promised may be made again.
func (w *world) publish(t testing.TB, s settings) driver.Result {
	t.Helper()
	e := w.open(t, s)
	defer e.shut(t)
	res, err := e.Publish(t.Context(), w.plan())
	if err != nil {
		require.Empty(t, res.Status, "%v", err)
		res, err = e.Publish(t.Context(), w.plan())
	}
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	return res
}

// TestLostAnswerOfARename loses the answer of each rename: it was made, and is
// found to be.
func TestLostAnswerOfARename(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		for nth := 1; nth <= 3; nth++ {
			for name, do := range map[string]faultproxy.Action{"reply lost": faultproxy.DropReply, "cut after the request": faultproxy.DropAfter, "silence": faultproxy.BlackHole, "cut before the request": faultproxy.DropBefore} {
				t.Run(fmt.Sprintf("%d %s", nth, name), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, c, transport, "files")
					p := w.behind(t)
					// Parents that are there: then there is one rename for each file.
					require.NoError(t, w.client.MkdirAll(w.final()+"/2015-12-09", 0o755))
					require.NoError(t, w.client.MkdirAll(w.final()+"/2015-12-10", 0o755))
					hook := p.On(faultproxy.Rule{Match: renames, Nth: nth, Do: do})
					res := w.publish(t, settings{patience: hasty})
					require.Equal(t, 1, hook.Count(), "the answer was not lost")
					if do == faultproxy.DropReply {
						// Also the one whose attributes were still to be set.
						require.Equal(t, 1, res.Recovered, "%+v", res)
						require.Equal(t, 2+2, res.Executed, "%+v", res)
						for _, s := range res.Steps {
							require.LessOrEqual(t, s.Attempts, 1, "a lost answer counts as a failure: %+v", s)
						}
					}
					w.check(t)
				})
			}
		}
	})
}

// TestAnyMessageLost loses each message of a publish, and each answer.
func TestAnyMessageLost(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		calm := newWorld(t, c, transport, "files")
		p := calm.behind(t)
		calm.publish(t, settings{patience: hasty})
		messages := p.Messages()
		require.Greater(t, messages, 12)
		for n := 1; n <= messages; n++ {
			for name, do := range map[string]faultproxy.Action{"message": faultproxy.DropBefore, "answer": faultproxy.DropReply} {
				t.Run(fmt.Sprintf("%s %d", name, n), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, c, transport, "files")
					// Parallel calls do not make the same messages in every run.
					w.behind(t).On(faultproxy.Rule{Nth: n, Do: do})
					w.publish(t, settings{patience: hasty})
					w.check(t)
				})
			}
		}
	})
}

// TestForeignFileAtTheDestination lets somebody else publish under the same
// name before each look and each change of ours.
func TestForeignFileAtTheDestination(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *hadoopkit.Cluster, transport string) {
		const name = "2015-12-09/2.avro"
		count := func(w *world, at int) (calls int, placed bool, err error) {
			var mu sync.Mutex
			s := settings{wrap: func(f filesys.FS) filesys.FS {
				return fstest.Hooked(f, func(op string, p commitstep.Address, do func() error) error {
					mu.Lock()
					if calls++; calls == at {
						switch perr := create(w, w.final()+"/"+name, "foreign"); {
						case perr == nil:
							placed = true
						case !errors.Is(perr, fs.ErrExist):
							t.Errorf("the foreign file: %v", perr)
						}
					}
					mu.Unlock()
					return do()
				})
			}}
			e := w.open(t, s)
			defer e.shut(t)
			_, err = e.Publish(t.Context(), w.plan())
			return calls, placed, err
		}
		calls, _, err := count(newWorld(t, c, transport, "files"), 0)
		require.NoError(t, err)
		for at := 1; at <= calls; at++ {
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, c, transport, "files")
				_, placed, err := count(w, at)
				if !placed { // ours was there already, and kept its place
					require.NoError(t, err)
					w.check(t)
					return
				}
				require.Error(t, err, "overwritten, or not reported")
				got, rerr := w.client.ReadFile(w.final() + "/" + name)
				require.NoError(t, rerr)
				require.Equal(t, "foreign", string(got))
				ours, rerr := w.client.ReadFile(w.staged() + "/" + name)
				require.NoError(t, rerr, "our file is gone")
				require.Equal(t, contents()[name], string(ours))
				var nf *driver.NotFinishedError
				if errors.As(err, &nf) {
					require.Equal(t, commitstep.ConflictFound, nf.Result.Reason, "%v", err)
				} else {
					require.ErrorIs(t, err, fs.ErrExist)
				}
			})
		}
	})
}

// create makes a file that must not be there.
func create(w *world, p, content string) error {
	if hadoopkit.FileID(w.client, p) != 0 {
		return fs.ErrExist
	}
	f, err := w.client.Create(p)
	if errors.Is(err, fs.ErrNotExist) {
		return hadoopkit.Put(w.client, p, content)
	}
	if err != nil {
		return err
	}
	if _, err := f.Write([]byte(content)); err != nil {
		return err
	}
	return hadoopkit.Finish(f)
}
