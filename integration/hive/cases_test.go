package hive_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newDirectory writes version 1 into a directory of its own, and gives its location.
func (g *ground) newDirectory(t testing.TB, w *world) string {
	t.Helper()
	at := g.server.Root + "/" + g.DB + "/published/" + w.Day + "/token=" + uuid.NewString()
	require.NoError(t, hadoopkit.Put(g.hive, at+"/rows", "0,1\n1,1\n2,1\n3,1\n4,1\n5,1\n6,1\n"))
	return g.FS + at
}

// The metastore had made the swap, and its answer was lost: the location is looked
// at, and is the proof.
func TestCaseC27AppliedAndAnsweredByAnError(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	w := l.part(t)
	loc := l.newDirectory(t, w)
	hook := l.proxy.On(faultproxy.Rule{Match: calls("ExecuteStatement", "SET LOCATION"), Nth: 1, Do: faultproxy.DropReply})
	res, err := l.publish(t, w.publishing(hivepublish.SwapLocation(hivepublish.Swap{Target: w.target(), Location: loc})))
	require.NoError(t, err)
	require.Equal(t, 1, hook.Count())
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, loc, w.location(t))
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Equal(t, commitstep.Int(100), l.moved(t, w))
}

// The submission takes longer than its time limit, a look shows nothing, and the
// statement lands afterwards. That nothing was there was no proof: nothing is sent
// again, nothing is given up, not even when somebody asks for it.
func TestCaseC28LandsAfterTheLook(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{hive: hivepublish.Config{SubmitTimeout: 15 * time.Second}})
	w := l.part(t)
	late := l.proxy.On(faultproxy.Rule{Match: insertOf(w), Nth: 1, Do: faultproxy.Hold})
	res, err := l.publish(t, w.publishing(w.overwrite()))
	require.Equal(t, driver.StatusParked, res.Status, "%v", err)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	l.suggests(t, w.key(), "not-published")
	l.untouched(t, w)
	_, err = l.decide(t, w.key(), store.DecideAbandon, nil)
	require.ErrorIs(t, err, commitstep.ErrDecision)
	l.reopen(t)
	require.Equal(t, driver.StatusParked, l.again(t, w).Status)
	late.Release()
	w.listed(t, hs2.Finished)
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Equal(t, driver.StatusParked, l.again(t, w).Status)
	l.suggests(t, w.key(), "published")
	_, err = l.decide(t, w.key(), store.DecidePublished, nil)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, l.again(t, w).Status)
	l.done(t, w)
}

// hiveStep is all that hive.insert_overwrite is to a driver.
type hiveStep interface {
	commitstep.CommitStep
	commitstep.Resolver
	commitstep.Preparer
	commitstep.Irreversible
	commitstep.Reattacher
	commitstep.Withdrawer
	commitstep.OnPark
	commitstep.NoteRedactor
}

// panics breaks down once its call has taken effect.
type panics struct{ hiveStep }

func (s panics) Execute(ctx context.Context, a *commitstep.Attempt) error {
	err := s.hiveStep.Execute(ctx, a)
	panic(err)
}

// The code breaks down with the success in its hands: a look finds it.
func TestCaseC32PanicAfterTheStatement(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{kinds: func(kinds []commitstep.Kind) []commitstep.Kind {
		for i, k := range kinds {
			if k.Name == hivepublish.InsertOverwriteName {
				kinds[i].New = func(s commitstep.Step) (commitstep.CommitStep, error) {
					b, err := k.New(s)
					if err != nil {
						return nil, err
					}
					return panics{b.(hiveStep)}, nil
				}
			}
		}
		return kinds
	}})
	w := l.part(t)
	res, err := l.publish(t, w.publishing(w.overwrite()))
	require.NoError(t, err)
	require.Equal(t, 1, res.Recovered)
	l.done(t, w)
}

// A partition is added before its table is there, or before its files are: the plan
// is refused, and the watermark stays until they are there and it is published again.
func TestCaseC53PartitionWithoutTableOrFiles(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	w := l.part(t)
	w.sql.Exec(t, "ALTER TABLE "+w.table()+" DROP PARTITION (dt='"+w.Day+"')")
	loc := l.newDirectory(t, w)
	dir := strings.TrimPrefix(loc, w.FS)
	require.NoError(t, l.hive.Rename(dir, dir+".later"))
	swap := hivepublish.Swap{Target: w.target(), Location: loc}
	early := swap
	early.Target.Table += "_not_yet"
	res, err := l.publish(t, w.publishing(hivepublish.AddPartition(early)))
	require.ErrorContains(t, err, "is not there")
	require.Empty(t, res.Status)

	res, err = l.publish(t, w.publishing(hivepublish.AddPartition(swap)))
	require.ErrorContains(t, err, loc+" is not there")
	require.Empty(t, res.Status)
	require.Empty(t, w.sql.Rows(t, "SHOW PARTITIONS "+w.table()))
	require.True(t, l.moved(t, w).IsNone())
	require.NoError(t, l.hive.Rename(dir+".later", dir))
	res, err = l.publish(t, w.publishing(hivepublish.AddPartition(swap)))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Equal(t, commitstep.Int(100), l.moved(t, w))
}

// conflict wants a statement that finished and left other rows than planned.
func (l *lane) conflict(t testing.TB, w *world, query string, says string) {
	t.Helper()
	res, err := l.publish(t, w.publishing(w.selecting(query, newRows, nil)))
	require.Equal(t, driver.StatusParked, res.Status, "%v", err)
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	require.Contains(t, res.Message, says)
	require.True(t, l.moved(t, w).IsNone())
	require.Equal(t, driver.StatusParked, l.again(t, w).Status)
	require.Len(t, w.executed(t), 1)
}

// A partition was dropped, and its old file is there beside the new ones when the
// statement has finished, as servers were seen to leave it; here it is put back.
func TestCaseC54OldFilesOfADroppedPartition(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	w := l.part(t)
	w.sql.Exec(t, "ALTER TABLE "+w.table()+" DROP PARTITION (dt='"+w.Day+"')")
	count := l.proxy.On(faultproxy.Rule{Match: after(w, "ExecuteStatement"), Nth: 1, Do: faultproxy.Hold})
	var late sync.WaitGroup
	late.Go(func() {
		select {
		case <-count.Fired():
		case <-t.Context().Done():
			return
		}
		assert.NoError(t, hadoopkit.Put(l.hive, w.path(w.Day)+"/old", "0,0\n1,0\n2,0\n3,0\n4,0\n"))
		count.Release()
	})
	t.Cleanup(late.Wait)
	l.conflict(t, w, "SELECT id, version FROM ${stage}", "rows is 12, expected 7")
	require.Equal(t, sorted(append(want(0, oldRows), want(1, newRows)...)), w.holds(t))
}

// A statement finishes and leaves every row twice.
func TestCaseC55RowsTwice(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	l.conflict(t, l.part(t), "SELECT id, version FROM (SELECT * FROM ${stage} UNION ALL SELECT * FROM ${stage}) twice", "rows is 14, expected 7")
}

// A load without rows is published like any other: its partition is there, and the
// steps behind it are run.
func TestCaseC57EmptyLoadIsPublished(t *testing.T) {
	t.Parallel()
	l := newGround(t, hivekit.Shared(t)).lane(t, settings{})
	w := l.part(t)
	w.sql.Exec(t, "ALTER TABLE "+w.table()+" DROP PARTITION (dt='"+w.Day+"')")
	require.NoError(t, l.client.RemoveAll(w.path(w.Day)))
	res, err := l.publish(t, w.publishing(w.selecting("SELECT id, version FROM ${stage} WHERE id < 0", 0, nil)))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, []string{"dt=" + w.Day}, w.sql.Rows(t, "SHOW PARTITIONS "+w.table()+" PARTITION (dt='"+w.Day+"')"))
	require.Empty(t, w.holds(t))
	require.Equal(t, commitstep.Int(100), l.moved(t, w))
}
