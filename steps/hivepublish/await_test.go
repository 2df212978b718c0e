package hivepublish

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// runningOn makes the statements with match run for ever.
func runningOn(match string) func(*warehouse) {
	return func(w *warehouse) {
		w.script = func(sql string) *fakeOp {
			if strings.Contains(sql, match) {
				return &fakeOp{status: hs2.Status{State: hs2.Running, Tasks: beforeMove, TasksKnown: true}}
			}
			return nil
		}
	}
}

// stoppedClock is a clock of notes that never gets on: whoever waits for a time to be
// over waits for ever.
func stoppedClock(s *Server) {
	at := time.Now()
	s.now = func() time.Time { return at }
}

// hurry is a clock by which nobody waits for long.
func hurry(s *Server) {
	at := time.Now()
	s.now = func() time.Time { at = at.Add(time.Minute); return at }
}

// While a statement runs, nobody waits longer than the caller's patience, and what
// was left is taken up later.
func TestWaitingEndsWithTheCallersPatience(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql   string
		bench func(t *testing.T, sql string) *stepBench
		// execute: its error, if Execute is what waits.
		execute error
	}{
		"insert": {"INSERT OVERWRITE TABLE", func(t *testing.T, sql string) *stepBench { return newBench(t, insertSpec(), runningOn(sql)) }, nil},
		"stage":  {"INSERT OVERWRITE DIRECTORY", func(t *testing.T, sql string) *stepBench { return stageBench(t, stageParams(), runningOn(sql)) }, commitstep.ErrInProgress},
		"alter":  {"SET LOCATION", func(t *testing.T, sql string) *stepBench { return stageBench(t, stageParams(), runningOn(sql)) }, commitstep.ErrInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := c.bench(t, c.sql)
			stoppedClock(b.server)
			var looks atomic.Int32
			over := make(chan struct{})
			b.w.looked = func(_ context.Context, sql string) {
				if strings.Contains(sql, c.sql) && looks.Add(1) == 3 {
					close(over)
				}
			}
			p := b.process()
			p.Attempt.Patience = over
			require.ErrorIs(t, p.Execute(t.Context()), c.execute)
			require.GreaterOrEqual(t, looks.Load(), int32(3), "it was waited for before")
			took := looks.Load()
			_, err := p.Verify(t.Context())
			require.ErrorIs(t, err, commitstep.ErrInProgress)
			require.Equal(t, took, looks.Load(), "there is no time to ask again")
			// Another process has its own.
			next := b.process()
			next.Attempt.Patience = over
			_, err = next.Verify(t.Context())
			require.ErrorIs(t, err, commitstep.ErrInProgress)
		})
	}
}

// An ALTER that ends a moment later is seen to end.
func TestAnAlterIsSeenToItsEnd(t *testing.T) {
	t.Parallel()
	var op *fakeOp
	b := stageBench(t, stageParams(), func(w *warehouse) {
		w.script = func(sql string) *fakeOp {
			if !strings.Contains(sql, "SET LOCATION") {
				return nil
			}
			op = &fakeOp{status: hs2.Status{State: hs2.Running}}
			return op
		}
	})
	stoppedClock(b.server)
	b.server.slack = time.Minute
	over := make(chan struct{})
	var looks atomic.Int32
	b.w.looked = func(_ context.Context, sql string) {
		if !strings.Contains(sql, "SET LOCATION") {
			return
		}
		switch looks.Add(1) {
		case 1:
			close(over)
		case 2:
			b.w.mu.Lock()
			_, _ = op.apply()
			op.status = hs2.Status{State: hs2.Finished}
			b.w.mu.Unlock()
		}
	}
	p := b.process()
	p.Attempt.Patience = over
	require.NoError(t, p.Execute(t.Context()))
	v, err := p.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
}

// A server that holds its answer, as a real one does while the statement runs, is
// not waited for either: what was seen before stands.
func TestALookThatIsHeldIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), runningOn("INSERT OVERWRITE TABLE"))
	stoppedClock(b.server)
	over := make(chan struct{})
	var looks atomic.Int32
	b.w.looked = func(ctx context.Context, _ string) {
		if looks.Add(1) == 2 {
			close(over)
			<-ctx.Done() // for as long as the caller lets it
		}
	}
	p := b.process()
	p.Attempt.Patience = over
	require.NoError(t, p.Execute(t.Context()))
	_, err := p.Verify(t.Context())
	require.ErrorIs(t, err, commitstep.ErrInProgress)

	// Held from the first look on, nothing was seen, and that is said.
	b.w.looked = func(ctx context.Context, _ string) { <-ctx.Done() }
	next := b.process()
	next.Attempt.Patience = over
	_, err = next.Verify(t.Context())
	require.Error(t, err)
	require.NotErrorIs(t, err, commitstep.ErrInProgress)
	require.Equal(t, 1, b.w.submissions())
}

// The whole: a recover with a budget comes back while the statement runs, and
// one after its end completes the sequence.
func TestARecoverComesBackWhileAStatementRuns(t *testing.T) {
	t.Parallel()
	w := newWarehouse()
	op := &fakeOp{status: hs2.Status{State: hs2.Running, Tasks: beforeMove, TasksKnown: true}}
	server := w.server(t, Config{})
	st, err := boltstore.Init(t.TempDir()+"/commit.db", nil)
	require.NoError(t, err)
	defer st.Close()
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(Kinds(server)...), Grace: time.Hour})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(context.Background())) }()
	stoppedClock(server)

	ctx, cancel := context.WithCancel(t.Context())
	scripted(func() *fakeOp {
		w.looked = func(context.Context, string) { cancel() } // the statement runs; the caller ends
		return op
	})(w)
	res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(insertSpec()))
	require.Error(t, err)
	require.Equal(t, driver.StatusStopped, res.Status, res.Message)
	w.mu.Lock()
	w.looked = nil
	w.mu.Unlock()

	rep, err := e.Recover(t.Context(), "j", driver.Budget(50*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, driver.StatusWaiting, rep.Results[0].Status)
	require.Contains(t, rep.Results[0].Message, "in progress")

	w.mu.Lock()
	_, _ = op.apply()
	op.status = hs2.Status{State: hs2.Finished}
	w.mu.Unlock()
	rep, err = e.Recover(t.Context(), "j")
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, rep.Results[0].Status)
	require.Equal(t, driver.DidRecovered, rep.Results[0].Steps[0].Did)
	require.Equal(t, 1, w.submissions())
}
