package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// overwrite is a statement on a server that cannot be taken back: the client
// gives up, the server goes on.
type overwrite struct {
	calls    atomic.Int32
	finished atomic.Bool
}

func (o *overwrite) kind() commitstep.Kind {
	return kindOf("test.overwrite", irreversible{&scripted{
		verify: func(a *commitstep.Attempt) (commitstep.Verdict, error) {
			switch sent, err := a.NoReturn(nil); {
			case err != nil:
				return commitstep.Verdict{}, err
			case o.finished.Load():
				return commitstep.IsDone("the target's metrics are those of the plan"), nil
			case sent:
				return commitstep.IsUnknown("the statement was sent and its answer was lost"), nil
			}
			return commitstep.IsNotDone("it was never sent"), nil
		},
		execute: func(ctx context.Context, a *commitstep.Attempt) error {
			if err := a.PointOfNoReturn(ctx, "query-1"); err != nil {
				return err
			}
			o.calls.Add(1)
			return errors.New("read timed out")
		},
	}})
}

// The client times out, the server will finish, the driver is restarted in
// between: the statement is not sent again, the dataset is parked. When it
// shows that it took place, it goes on.
func TestCaseC35TimeoutThenRestart(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	o := &overwrite{}
	s := settings{kinds: []commitstep.Kind{o.kind()}}
	plan := commitstep.NewPlan("j", "d").Step(specOf("test.overwrite")).Then(watermark.Set("w/d", commitstep.None(), commitstep.Int(100)))
	b.publishUntil("execute.after#0", plan, s)
	for range 3 {
		res, free := b.recover("d", s)
		require.Equal(t, driver.StatusParked, res.Status)
		require.Equal(t, commitstep.PublishUnknown, res.Reason)
		require.False(t, free)
	}
	require.EqualValues(t, 1, o.calls.Load())
	require.True(t, b.mark("d").IsNone())
	o.finished.Store(true)
	e := b.open(s)
	live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "d"})
	require.NoError(t, err)
	_, err = e.Resolve(t.Context(), driver.Resolution{Key: live.Key, Decision: store.DecideRetry, Step: -1, Version: live.Version, Person: person("the server has finished")})
	require.NoError(t, err)
	e.shut(t)
	res, free := b.recover("d", s)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	require.EqualValues(t, 1, o.calls.Load())
	require.Equal(t, commitstep.Int(100), b.mark("d"))
}

// A cosmetic step fails for good after one that replaced the data: nothing is
// rolled back, and giving up needs a word about what stays visible.
func TestCaseC38NothingIsRolledBack(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "new data")
	statistics := kindOf("test.statistics", &scripted{
		verify: func(*commitstep.Attempt) (commitstep.Verdict, error) {
			return commitstep.IsNotDone("no statistics"), nil
		},
		execute: func(context.Context, *commitstep.Attempt) error { return commitstep.Refused(errors.New("timed out")) },
	})
	s := settings{kinds: []commitstep.Kind{statistics}}
	e := b.open(s)
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(fsrename.Move("in", "out/f")).Then(specOf("test.statistics")).
		Then(watermark.Set("w/d", commitstep.None(), commitstep.Int(100))))
	require.Error(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
	require.Equal(t, "new data", b.get("out/f"))
	live, err := e.store.Get(t.Context(), res.Key)
	require.NoError(t, err)
	give := driver.Resolution{Key: live.Key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: person("statistics are broken")}
	_, err = e.Resolve(t.Context(), give)
	var partial *driver.PartialError
	require.ErrorAs(t, err, &partial)
	require.Len(t, partial.Visible, 1)
	give.AcceptPartial = true
	_, err = e.Resolve(t.Context(), give)
	require.NoError(t, err)
	require.Equal(t, commitstep.Abandoned, e.outcomes(t)["d"].State)
	e.shut(t)
	require.Equal(t, "new data", b.get("out/f"))
	require.True(t, b.mark("d").IsNone())
}

// An older position is refused with both values; nothing goes back.
func TestCaseC47PositionNeverGoesBack(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.open(settings{})
	set := func(from, to commitstep.Watermark) error {
		_, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(watermark.Set("w/d", from, to)))
		return err
	}
	require.NoError(t, set(commitstep.None(), commitstep.Int(100)))
	err := set(commitstep.None(), commitstep.Int(90))
	require.ErrorIs(t, err, commitstep.ErrStale)
	require.Contains(t, err.Error(), "90")
	require.Contains(t, err.Error(), "100")
	require.Error(t, set(commitstep.Int(100), commitstep.Int(90)))
	e.shut(t)
	require.Equal(t, commitstep.Int(100), b.mark("d"))
	// A replay whose target moved on meanwhile is a conflict, before any data
	// moved.
	dir := t.TempDir()
	files, err := watermark.Files("state", dir, watermark.Create())
	require.NoError(t, err)
	s := settings{target: files}
	b.put("in", "data")
	plan := commitstep.NewPlan("j", "old").Step(fsrename.Move("in", "out/f")).Then(watermark.Set("w", commitstep.None(), commitstep.Int(90), watermark.In("state")))
	b.publishUntil("put.after", plan, s)
	m := commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: "w"}, To: commitstep.Int(100), Token: commitstep.StepToken([16]byte{1}, 1)}
	require.NoError(t, files.CompareAndSet(t.Context(), m, [16]byte{1}))
	res, _ := b.recover("old", s)
	require.Equal(t, commitstep.ConflictFound, res.Reason)
	require.Contains(t, res.Message, "90")
	require.Contains(t, res.Message, "100")
	require.Equal(t, "data", b.get("in"), "the conflict was seen before anything moved")
	v, err := files.Watermark(t.Context(), m.WatermarkKey)
	require.NoError(t, err)
	require.Equal(t, commitstep.Int(100), v.Watermark)
}

// Writers that all read the same position: one moves it.
func TestCaseC48OneWriterWins(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.open(settings{})
	other, err := engineOn(e.store, b.root, settings{})
	require.NoError(t, err)
	from := commitstep.None()
	for round := range int64(10) {
		var wg sync.WaitGroup
		var won atomic.Int64
		for i := range int64(8) {
			eng := []*engine{e, other}[i%2]
			to := from.Next((round+1)*100 + i)
			wg.Go(func() {
				_, err := eng.Publish(t.Context(), commitstep.NewPlan("j", fmt.Sprint("writer ", i)).Step(watermark.Set("shared", from, to)))
				if err == nil {
					v, _ := to.Int64()
					if !won.CompareAndSwap(0, v) {
						t.Errorf("a second writer moved the position in round %d", round)
					}
				} else if !errors.Is(err, commitstep.ErrStale) && !errors.Is(err, commitstep.ErrPending) {
					t.Errorf("refused for another reason: %v", err)
				}
			})
		}
		wg.Wait()
		v, err := e.Watermark(t.Context(), "j", "shared")
		require.NoError(t, err)
		require.Equal(t, from.Next(won.Load()), v)
		from = v
	}
	require.NoError(t, other.Engine.Close(t.Context()))
	require.NoError(t, other.files.Close())
	e.shut(t)
}

// The source was made anew and counts from 0 again: a lower position in a
// higher source epoch is right; without the epoch it is refused, and an old
// epoch never comes back.
func TestCaseC49RecreatedSource(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.open(settings{})
	set := func(from, to commitstep.Watermark) error {
		_, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(watermark.Set("w/d", from, to)))
		return err
	}
	require.NoError(t, set(commitstep.None(), commitstep.Int(1000)))
	require.Error(t, set(commitstep.Int(1000), commitstep.Int(10)))
	require.NoError(t, set(commitstep.Int(1000), commitstep.Int(10).InEpoch(1)))
	require.Error(t, set(commitstep.Int(1000), commitstep.Int(2000)))
	require.Error(t, set(commitstep.Int(10).InEpoch(1), commitstep.Int(2000)))
	e.shut(t)
	require.Equal(t, commitstep.Int(10).InEpoch(1), b.mark("d"))
}

// The last step fails: the whole is not completed, whatever the others did.
func TestCaseC52LastStepFails(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	last := kindOf("test.last", &scripted{
		verify:  func(*commitstep.Attempt) (commitstep.Verdict, error) { return commitstep.IsNotDone("no"), nil },
		execute: func(context.Context, *commitstep.Attempt) error { return commitstep.Refused(errLost) },
	})
	s := settings{kinds: []commitstep.Kind{last}}
	e := b.open(s)
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(fsrename.Move("in", "out/f")).Then(specOf("test.last")))
	var unfinished *driver.NotFinishedError
	require.ErrorAs(t, err, &unfinished)
	require.Equal(t, driver.StatusParked, res.Status)
	require.Equal(t, 1, res.Executed)
	require.Empty(t, e.outcomes(t))
	e.shut(t)
	_, free := b.recover("d", s)
	require.False(t, free)
}

// A process dies after the last rename and before the watermark: the replay
// runs what is left. Nothing to publish still says how far it was read.
func TestCaseC57RemainingStepsAreRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), "mytopic")
	events := observe(t, "mytopic")
	last := 0
	for i, e := range events {
		if len(e) > 16 && e[:16] == "op after rename " {
			last = i + 1
		}
	}
	require.Positive(t, last)
	_, killed := w.run(t, "publish", last)
	require.True(t, killed)
	e := w.open(t, settings{})
	for _, m := range w.marks {
		v, err := e.Watermark(t.Context(), w.job, m.source)
		require.NoError(t, err)
		require.True(t, v.IsNone())
	}
	e.shut(t)
	w.recoverAll(t, settings{})
	w.check(t)

	b := newBox(t)
	e = b.open(settings{})
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(watermark.Set("w/d", commitstep.None(), commitstep.Int(100))))
	require.NoError(t, err)
	require.Equal(t, 1, res.Executed)
	e.shut(t)
	require.Equal(t, commitstep.Int(100), b.mark("d"))
}

// Tries are counted over restarts, and end; and so does time.
func TestCaseC65TriesAndTimeAreCapped(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	var calls atomic.Int32
	failing := faulty{onRename: func(_, _ commitstep.Address, _ func() error) error {
		calls.Add(1)
		return commitstep.Refused(errLost)
	}}
	s := failing.with()
	s.conf.Policy = impatient
	s.conf.Policy.MaxAttempts = 3
	b.publishUntil("execute.after#0", b.move("d", "in", "out/f"), s)
	var res driver.Result
	for range 5 {
		res, _ = b.recover("d", s)
	}
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
	require.LessOrEqual(t, calls.Load(), int32(3+1), "the first try of a plan costs no write, so a stop may forget it")

	b.put("in2", "data")
	calls.Store(0)
	s = failing.with()
	s.conf.Policy = impatient
	s.conf.Policy.MaxAttempts = 1 << 20
	s.conf.Policy.MaxElapsed = 100 * time.Millisecond
	e := b.open(s)
	start := time.Now()
	res, err := e.Publish(t.Context(), b.move("e", "in2", "out/f2"))
	took := time.Since(start)
	require.Error(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
	require.GreaterOrEqual(t, took, 100*time.Millisecond)
	require.Greater(t, calls.Load(), int32(1))
	// Tries are paced: the pauses grow to 20 ms, so that there is no storm.
	require.Less(t, calls.Load(), int32(100))
	e.shut(t)
	require.True(t, b.mark("e").IsNone())
}

// One dataset can never succeed. It is parked, all others of each run are
// published, and the only way on is a person's decision, which is audited.
func TestCaseC66OneBadDatasetOthersGoOn(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("bad", "bad")
	s := faulty{onRename: func(from, _ commitstep.Address, next func() error) error {
		if from.Base() == "bad" {
			return commitstep.Refused(errLost)
		}
		return next()
	}}.with()
	b.promise(b.move("m bad", "bad", "out/bad"))
	for run := range 4 {
		var names []string
		for i := range 5 {
			// Some are listed before the bad one, some behind.
			d := fmt.Sprintf("%c%d-%d", 'a'+byte(i)*5, run, i)
			names = append(names, d)
			b.put(d, d)
			b.promise(b.move(d, d, "out/"+d))
		}
		e := b.open(s)
		rep, err := e.Recover(t.Context(), "j")
		require.NoError(t, err)
		require.False(t, rep.MayIngest("m bad"))
		for _, d := range names {
			require.True(t, rep.MayIngest(d))
			require.Equal(t, d, b.get("out/"+d))
		}
		e.shut(t)
	}
	e := b.open(s)
	defer e.shut(t)
	live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "m bad"})
	require.NoError(t, err)
	require.Equal(t, commitstep.AttemptsExhausted, live.Reason)
	q := driver.Resolution{Key: live.Key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: store.Person{Name: "operator", Reason: "no"}}
	_, err = e.Resolve(t.Context(), q)
	require.ErrorIs(t, err, commitstep.ErrDecision, "a decision without a reason")
	q.Person = person("source is gone for good")
	_, err = e.Resolve(t.Context(), q)
	require.NoError(t, err)
	n := 0
	for a, err := range e.store.ListAudit(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, "source is gone for good", a.Reason)
		require.Equal(t, live.ID, a.Sequence)
		n++
	}
	require.Equal(t, 1, n)
	rep, err := e.Recover(t.Context(), "j")
	require.NoError(t, err)
	require.True(t, rep.MayIngest("m bad"))
	require.Equal(t, "bad", b.get("bad"), "what was staged is kept")
}

// The work of a recovery grows with what is pending, not with what was ever
// published.
func TestCaseC69RecoveryCostIsThatOfThePending(t *testing.T) {
	t.Parallel()
	const pending = 20
	cost := func(history int) time.Duration {
		b := newBox(t)
		e := b.open(settings{})
		var wg sync.WaitGroup
		for g := range 32 {
			wg.Go(func() {
				for i := g; i < history; i += 32 {
					d := fmt.Sprint("old ", i)
					if _, err := e.Publish(t.Context(), commitstep.NewPlan("j", d).WithID("once").Step(watermark.Set(d, commitstep.None(), commitstep.Int(1)))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		e.shut(t)
		best := time.Hour
		for try := range 3 {
			for i := range pending {
				d := fmt.Sprintf("new %d %d", try, i)
				b.put(d, d)
				b.promise(b.move(d, d, "out/"+d))
			}
			e := b.open(settings{})
			start := time.Now()
			rep, err := e.Recover(t.Context(), "j")
			took := time.Since(start)
			require.NoError(t, err)
			require.Equal(t, pending, rep.Counts[driver.StatusCompleted])
			best = min(best, took)
			e.shut(t)
		}
		return best
	}
	few, many := cost(10), cost(2000)
	t.Logf("recovery of %d: %s with a history of 10, %s with one of 2000", pending, few, many)
	require.Less(t, many, 5*few+100*time.Millisecond)
}

// A watermark step that took effect is done for ever: no recovery runs it
// again.
func TestWatermarkIsMovedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), "mytopic")
	w.recoverAll(t, settings{})
	e := w.open(t, settings{})
	first := map[string]time.Time{}
	for v, err := range e.store.ListWatermarks(t.Context(), w.job) {
		require.NoError(t, err)
		first[v.Source] = v.SetAt
	}
	require.Len(t, first, 2)
	e.shut(t)
	for range 3 {
		w.recoverAll(t, settings{})
	}
	e = w.open(t, settings{})
	for v, err := range e.store.ListWatermarks(t.Context(), w.job) {
		require.NoError(t, err)
		require.Equal(t, first[v.Source], v.SetAt)
	}
	e.shut(t)
}

// Every plan goes through the log: a driver that dies right after it stored
// one leaves a promise that the next one finds, however small the plan.
func TestTheLogIsUsed(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	b.promise(b.move("d", "in", "out/f"))
	e := b.open(settings{})
	live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "d"})
	require.NoError(t, err)
	page, err := e.store.Steps(t.Context(), live.ID, 0)
	require.NoError(t, err)
	require.Len(t, page.Steps, 2)
	require.Equal(t, []string{"fs.rename", "watermark.set"}, []string{page.Steps[0].Kind, page.Steps[1].Kind})
	require.NotEmpty(t, page.Steps[0].Evidence)
	e.shut(t)
	require.Equal(t, "data", b.get("in"))
	_, err = os.Stat(b.path("out"))
	require.ErrorIs(t, err, os.ErrNotExist, "not even the directory is made before")
}
