package hive_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// enduring waits for a server that is started again on a busy machine, with calls
// that are held meanwhile.
var enduring = settings{
	conf: driver.Config{Policy: driver.Policy{FirstPause: 10 * time.Millisecond, MaxPause: 200 * time.Millisecond, UnknownBudget: time.Second, WaitBudget: 15 * time.Minute, RecoverBudget: 15 * time.Minute}},
	hive: hivepublish.Config{CallTimeout: 15 * time.Minute, SubmitTimeout: 15 * time.Minute},
}

// flight is a publish under way.
type flight struct {
	*world
	res chan driver.Result
}

func (l *lane) start(t testing.TB, w *world, p *commitstep.Plan) *flight {
	f := &flight{world: w, res: make(chan driver.Result, 1)}
	go func() {
		res, err := l.publish(t, p)
		if res.Status == "" {
			res.Message = fmt.Sprint(err)
		}
		f.res <- res
	}()
	return f
}

// landed waits for its result.
func (f *flight) landed(t testing.TB) driver.Result {
	t.Helper()
	select {
	case res := <-f.res:
		return res
	case <-time.After(2 * patient):
		t.Fatalf("the publish of %s does not end", f.Day)
	}
	return driver.Result{}
}

// reaches waits until a rule has met a message of it.
func (f *flight) reaches(t testing.TB, h *faultproxy.Hook) {
	t.Helper()
	select {
	case <-h.Fired():
	case res := <-f.res:
		t.Fatalf("the publish of %s has ended: %+v", f.Day, res)
	case <-time.After(2 * patient):
		t.Fatalf("no message of the publish of %s met the rule", f.Day)
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// flying wants no result yet.
func (f *flight) flying(t testing.TB) {
	t.Helper()
	select {
	case res := <-f.res:
		t.Fatalf("the publish of %s has ended: %+v", f.Day, res)
	default:
	}
}

// after selects the first call of a method that follows the submission of a
// partition's statement. Nothing else may call it meanwhile.
func after(w *world, method string) func(faultproxy.Message) bool {
	var mu sync.Mutex
	sent := false
	submission := insertOf(w)
	return func(m faultproxy.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		if submission(m) {
			sent = true
			return false
		}
		return sent && faultproxy.ThriftMethod(m.Data) == method
	}
}

// noted waits until the handle of a partition's statement is durable.
func (l *lane) noted(t testing.TB, w *world) {
	t.Helper()
	soon(t, "the handle is not noted", func() bool {
		insp, err := l.e.Inspect(t.Context(), w.key(), false)
		if err != nil {
			return false // not stored yet
		}
		for _, v := range insp.StepViews {
			if strings.Contains(string(v.Progress.Note), `"submitted"`) {
				return true
			}
		}
		return false
	})
}

// logged finds the first line of the server's log, from an offset on, that matches.
func (g *ground) logged(t testing.TB, from int64, re *regexp.Regexp) []string {
	t.Helper()
	b, err := os.ReadFile(g.server.Log())
	require.NoError(t, err)
	for line := range bytes.Lines(b[min(from, int64(len(b))):]) {
		if m := re.FindSubmatch(line); m != nil {
			var out []string
			for _, s := range m {
				out = append(out, string(s))
			}
			return out
		}
	}
	return nil
}

func (g *ground) logSize(t testing.TB) int64 {
	t.Helper()
	fi, err := os.Stat(g.server.Log())
	require.NoError(t, err)
	return fi.Size()
}

// unknown wants a sequence that waits for a person, whose statement the server began
// to execute so often.
func (l *lane) unknown(t testing.TB, f *flight, ran int) {
	t.Helper()
	res := f.landed(t)
	require.Equal(t, driver.StatusParked, res.Status, "%s: %s", f.Day, res.Message)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	require.Len(t, f.executed(t), ran)
	require.Empty(t, l.ended(t, f.world))
	require.True(t, l.moved(t, f.world).IsNone())
}

// abandoned decides that a statement was not published: its partition stays as it
// is, what was staged stays too, and the dataset is free.
func (l *lane) abandoned(t testing.TB, w *world, holds []string) {
	t.Helper()
	out := l.notPublished(t, w.key(), nil)
	require.Equal(t, commitstep.Abandoned, out.After.State)
	ran := len(w.executed(t))
	require.Empty(t, l.again(t, w).Status, "something is left of it")
	require.Equal(t, []commitstep.State{commitstep.Abandoned}, l.ended(t, w))
	require.Equal(t, holds, w.holds(t))
	require.Len(t, w.executed(t), ran)
	require.True(t, l.moved(t, w).IsNone())
	require.Equal(t, want(1, newRows), w.stagedRows(t))
}

// published decides that it was: the remaining steps run, and nothing else.
func (l *lane) published(t testing.TB, w *world, ran int) {
	t.Helper()
	_, err := l.decide(t, w.key(), store.DecidePublished, nil)
	require.NoError(t, err)
	l.completed(t, w, ran)
}

// completed goes on with a sequence to its end.
func (l *lane) completed(t testing.TB, w *world, ran int) {
	t.Helper()
	got := l.again(t, w)
	require.Equal(t, driver.StatusCompleted, got.Status, got.Message)
	require.Equal(t, []commitstep.State{commitstep.Completed}, l.ended(t, w))
	require.Equal(t, want(1, newRows), w.holds(t))
	require.Len(t, w.executed(t), ran)
	require.Equal(t, commitstep.Int(100), l.moved(t, w))
}

// byHand is what a person does to a partition with another tool.
func (w *world) byHand(t testing.TB, version int) {
	t.Helper()
	w.sql.Exec(t, "INSERT OVERWRITE TABLE "+w.table()+" PARTITION (dt='"+w.Day+"') SELECT id, version FROM "+w.staged(version))
}

// TestHiveServer2IsKilled kills HiveServer2 once while it has publishes in every
// phase, and once in the middle of a move. What is known goes on by itself, what is
// not is parked; after the decision the partition holds what was decided.
func TestHiveServer2IsKilled(t *testing.T) {
	t.Parallel()
	g := newGround(t, hivekit.Victim(t))
	l := g.lane(t, enduring)
	p := l.parts(t, 11)
	before, sentA, sentB, compiling, runningA, runningB, finishedA, finishedB, seen, gone, late := p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10]
	hold := func(match func(faultproxy.Message) bool) *faultproxy.Hook {
		return l.proxy.On(faultproxy.Rule{Match: match, Nth: 1, Do: faultproxy.Hold})
	}
	plan := func(w *world) *commitstep.Plan { return w.publishing(w.overwrite()) }

	// Its server is killed when it is parked.
	l.proxy.On(faultproxy.Rule{Match: insertOf(gone), Nth: 1, Do: faultproxy.DropBefore})
	res, err := l.publish(t, plan(gone))
	require.Equal(t, driver.StatusParked, res.Status, "%v", err)
	// Done and seen to be, the rows not counted.
	at := hold(after(seen, "ExecuteStatement"))
	fSeen := l.start(t, seen, plan(seen))
	fSeen.reaches(t, at)
	seen.listed(t, hs2.Finished)
	// Done, and not seen to be.
	at = hold(after(finishedA, "GetQueryId"))
	fFinishedA := l.start(t, finishedA, plan(finishedA))
	fFinishedA.reaches(t, at)
	at = hold(after(finishedB, "GetQueryId"))
	fFinishedB := l.start(t, finishedB, plan(finishedB))
	fFinishedB.reaches(t, at)
	finishedA.listed(t, hs2.Finished)
	finishedB.listed(t, hs2.Finished)
	// Running, with a noted handle.
	long := func(w *world) *commitstep.Plan { return w.publishing(w.selecting(slow(patient), newRows, nil)) }
	fRunningA, fRunningB := l.start(t, runningA, long(runningA)), l.start(t, runningB, long(runningB))
	l.noted(t, runningA)
	l.noted(t, runningB)
	runningA.listed(t, hs2.Running)
	runningB.listed(t, hs2.Running)
	// A session, and no statement; a statement on its way.
	at = hold(calls("OpenSession", "hive.query.tag"))
	fBefore := l.start(t, before, plan(before))
	fBefore.reaches(t, at)
	at = hold(insertOf(sentA))
	fSentA := l.start(t, sentA, plan(sentA))
	fSentA.reaches(t, at)
	at = hold(insertOf(sentB))
	fSentB := l.start(t, sentB, plan(sentB))
	fSentB.reaches(t, at)
	// A statement that takes long to compile.
	var union []string
	for n := range 60 {
		union = append(union, fmt.Sprintf("SELECT id + %d AS id, version FROM ${stage} WHERE id < %d", n, -n))
	}
	from := g.logSize(t)
	fCompiling := l.start(t, compiling, compiling.publishing(compiling.selecting("SELECT * FROM ("+strings.Join(union, " UNION ALL ")+") u", 0, nil)))
	compile := regexp.MustCompile(`Compiling command\(queryId=([^)]+)\): /\* commitstep token=.*` + compiling.Day)
	var query []string
	soon(t, "nothing is compiled", func() bool { query = g.logged(t, from, compile); return query != nil })
	require.NoError(t, g.server.Kill())
	require.Nil(t, g.logged(t, from, regexp.MustCompile(`Completed compiling command\(queryId=`+regexp.QuoteMeta(query[1]))), "it was killed too late")

	// Nobody can be asked.
	l.proxy.Clear()
	for _, f := range []*flight{fBefore, fRunningA, fRunningB, fFinishedA, fFinishedB, fSeen} {
		f.flying(t)
	}
	res, err = l.publish(t, plan(late))
	require.Error(t, err)
	require.Empty(t, res.Status, "something was promised without a look")
	_, err = l.decide(t, gone.key(), store.DecideNotPublished, nil)
	require.ErrorIs(t, err, commitstep.ErrDecision)
	require.ErrorContains(t, err, "--server-gone")
	out, err := l.decide(t, gone.key(), store.DecideNotPublished, serverGone)
	require.NoError(t, err)
	require.Equal(t, commitstep.Abandoned, out.After.State)
	require.NoError(t, g.server.Restart())

	// What nobody had sent, and what was seen to be finished, goes on by itself.
	require.Equal(t, driver.StatusCompleted, fBefore.landed(t).Status)
	l.done(t, before)
	require.Equal(t, driver.StatusCompleted, fSeen.landed(t).Status)
	require.Equal(t, want(1, newRows), seen.holds(t))
	require.Len(t, seen.executed(t), 1)
	require.Equal(t, commitstep.Int(100), l.moved(t, seen))
	require.Equal(t, want(0, oldRows), gone.holds(t))

	for f, ran := range map[*flight]int{fSentA: 0, fSentB: 0, fCompiling: 0, fRunningA: 1, fRunningB: 1} {
		l.unknown(t, f, ran)
		require.Equal(t, want(0, oldRows), f.holds(t))
		l.suggests(t, f.key(), "not-published")
	}
	for _, f := range []*flight{fFinishedA, fFinishedB} {
		l.unknown(t, f, 1)
		require.Equal(t, want(1, newRows), f.holds(t))
		l.suggests(t, f.key(), "published")
	}
	l.abandoned(t, sentA, want(0, oldRows))
	l.abandoned(t, compiling, want(0, oldRows))
	l.abandoned(t, runningA, want(0, oldRows))
	finishedB.byHand(t, 0) // the load was wrong, and is taken back
	l.abandoned(t, finishedB, want(0, oldRows))
	l.notPublished(t, sentB.key(), again)
	l.completed(t, sentB, 1)
	runningB.byHand(t, 1) // the rows were written with another tool
	l.published(t, runningB, 1)
	l.published(t, finishedA, 1)

	// The move is over in a second or two; a machine that is so busy that the kill
	// comes too late has more than one chance.
	for range 5 {
		if l.killInMove(t) {
			return
		}
	}
	t.Fatal("the move had ended each time")
}

// killInMove kills HiveServer2 when it replaces a partition of many files, one by
// one, and reports whether it was in the middle of that.
func (l *lane) killInMove(t *testing.T) bool {
	w := l.part(t)
	const old = 1200
	for n := range old {
		require.NoError(t, l.hive.CreateEmptyFile(fmt.Sprintf("%s/old%04d", w.path(w.Day), n)))
	}
	left := func() (n int) {
		files, err := l.hive.ReadDir(w.path(w.Day))
		require.NoError(t, err)
		for _, f := range files {
			if strings.HasPrefix(f.Name(), "old") {
				n++
			}
		}
		return n
	}
	at := l.proxy.On(faultproxy.Rule{Match: after(w, "GetQueryId"), Nth: 1, Do: faultproxy.Hold})
	f := l.start(t, w, w.publishing(w.overwrite()))
	f.reaches(t, at)
	for until := time.Now().Add(patient); left() == old; {
		require.True(t, time.Now().Before(until), "nothing is moved")
	}
	require.NoError(t, l.server.Kill())
	n := left()
	l.proxy.Clear()
	require.NoError(t, l.server.Restart())
	l.unknown(t, f, 1)
	if n > 0 {
		// Old rows, if their file is still there, or none; nothing of the new ones.
		require.Subset(t, want(0, oldRows), w.holds(t))
		var pack hivepublish.Pack
		soon(t, "the evidence is not complete", func() bool {
			require.NoError(t, l.e.TellParked(t.Context(), w.key()))
			pack = l.evidence(t, w.key())
			return pack.Now.Known && len(pack.Leftovers) > 0
		})
		require.Less(t, pack.Now.Files.Files, pack.Before.Files.Files)
		require.NotEqual(t, "published", pack.Suggestion.As)
	}
	// Whatever is there, an overwrite replaces all of it.
	l.notPublished(t, w.key(), again)
	l.completed(t, w, 2)
	return n > 0
}
