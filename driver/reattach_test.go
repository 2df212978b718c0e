package driver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// remote is a step whose call goes on at its target after the caller is gone.
type remote struct {
	mu        sync.Mutex
	open      bool  // a call may still land
	running   int   // looks until it is over
	away      error // the target cannot be reached
	withdrawn []bool
	calls     int
	numbers   []int // of the calls' attempts
	clean     bool  // a call ends without an error, its effect goes on
	reattach  int
}

type remoteStep struct{ r *remote }

func (*remoteStep) Irreversible() {}

func (s *remoteStep) Reattach(ctx context.Context, a *commitstep.Attempt) error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.reattach++
	if passed, err := a.NoReturn(nil); err != nil || !passed {
		return err
	}
	if s.r.away != nil {
		return s.r.away
	}
	if s.r.running > 0 {
		s.r.running--
		if s.r.running > 0 {
			return nil
		}
		s.r.open = false
		return a.Note(ctx, map[string]string{"outcome": "finished", "handle": "secret"})
	}
	return nil
}

func (s *remoteStep) Verify(_ context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	passed, err := a.NoReturn(nil)
	if err != nil || !passed {
		return commitstep.IsNotDone("never sent"), err
	}
	var note map[string]string
	if _, err := a.LastNote(&note); err != nil {
		return commitstep.Verdict{}, err
	}
	switch {
	case note["outcome"] == "finished":
		return commitstep.IsDone("it finished"), nil
	case s.r.away != nil:
		return commitstep.Verdict{}, s.r.away
	case s.r.running > 0:
		return commitstep.Verdict{}, fmt.Errorf("it runs: %w", commitstep.ErrInProgress)
	}
	return commitstep.IsUnknown("nobody knows"), nil
}

func (s *remoteStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := a.PointOfNoReturn(ctx, map[string]string{"handle": "secret"}); err != nil {
		return err
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.calls++
	s.r.numbers = append(s.r.numbers, a.Number)
	if s.r.clean {
		return nil
	}
	return errors.New("the answer is lost")
}

func (s *remoteStep) Withdraw(_ context.Context, _ *commitstep.Attempt, gone bool) error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.r.open && !gone {
		return errors.New("it is still running there")
	}
	s.r.withdrawn = append(s.r.withdrawn, gone)
	return nil
}

func (*remoteStep) RedactNote(note json.RawMessage) json.RawMessage {
	var m map[string]string
	if json.Unmarshal(note, &m) != nil {
		panic("odd note")
	}
	delete(m, "handle")
	out, _ := json.Marshal(m)
	return out
}

func (s *remoteStep) OnPark(ctx context.Context, a *commitstep.Attempt, reason commitstep.ParkReason, _ string) error {
	if err := a.PointOfNoReturn(ctx, "again"); !errors.Is(err, commitstep.ErrReadOnly) {
		return fmt.Errorf("a parked sequence passes a point of no return: %w", err)
	}
	return a.Note(ctx, map[string]string{"evidence": string(reason)})
}

func (r *remote) kind() commitstep.Kind {
	return commitstep.Kind{Name: "test.remote", Version: 1, WantsPark: true, New: func(commitstep.Step) (commitstep.CommitStep, error) { return &remoteStep{r}, nil }}
}

func remoteBed(t *testing.T, r *remote) (*driver.Engine, *boltstore.Store) {
	t.Helper()
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(r.kind()), Clock: &clock{now: time.Now()}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close(context.Background()))
		require.NoError(t, st.Close())
	})
	return e, st
}

func TestAStepTakesUpWhatItLeftOpen(t *testing.T) {
	t.Parallel()
	r := &remote{open: true, running: 5}
	e, _ := remoteBed(t, r)
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.remote", nil)))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.Equal(t, 1, r.calls)
	require.Less(t, res.Took, 10*time.Second, "an effect in progress is looked at often")
}

func TestADecisionWaitsForWhatMayStillLand(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, gone := range []bool{false, true} {
		r := &remote{open: true}
		e, st := remoteBed(t, r)
		res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.remote", nil)))
		require.Error(t, err)
		require.Equal(t, commitstep.PublishUnknown, res.Reason)
		reattached := r.reattach

		insp, err := e.Inspect(ctx, res.Key, true)
		require.NoError(t, err)
		require.Equal(t, reattached, r.reattach, "a look by a person takes nothing up")
		require.JSONEq(t, `{"evidence":"PUBLISH_UNKNOWN"}`, string(insp.StepViews[0].Progress.Note))
		require.JSONEq(t, `{}`, string(insp.StepViews[0].Progress.NoReturn), "the handle is not shown")

		q := driver.Resolution{Key: res.Key, Decision: store.DecideNotPublished, Step: -1, Version: insp.Version, ServerGone: gone, Person: store.Person{Name: "ann", Reason: "looked at the table"}}
		dry := q
		dry.DryRun = true
		_, err = e.Resolve(ctx, dry)
		require.NoError(t, err)
		require.Empty(t, r.withdrawn, "a dry run withdraws nothing")
		_, err = e.Resolve(ctx, q)
		if !gone {
			require.ErrorIs(t, err, commitstep.ErrDecision)
			require.ErrorContains(t, err, "still running")
			live, err := st.Get(ctx, res.Key)
			require.NoError(t, err)
			require.Equal(t, insp.Version, live.Version, "nothing was decided")
			r.mu.Lock()
			r.open = false
			r.mu.Unlock()
			_, err = e.Resolve(ctx, q)
			require.NoError(t, err)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, []bool{gone}, r.withdrawn)
		_, err = st.Get(ctx, res.Key)
		require.ErrorIs(t, err, commitstep.ErrNotFound)
		require.Equal(t, 1, r.calls)
	}
}

// A server that was lost behind the point of no return leaves the sequence waiting
// and never parks it; a person can say that it is gone.
func TestADecisionWithoutTheServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, as := range []store.DecisionKind{store.DecideNotPublished, store.DecidePublished, store.DecideRetry, store.DecideAbandon} {
		for _, again := range []bool{false, true} {
			if again && as != store.DecideNotPublished {
				continue
			}
			t.Run(fmt.Sprint(as, again), func(t *testing.T) {
				t.Parallel()
				r := &remote{open: true, running: 1 << 30}
				e, st := remoteBed(t, r)
				res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.remote", nil)))
				require.Error(t, err)
				require.Equal(t, driver.StatusWaiting, res.Status)
				resolve := func(gone bool, step int) error {
					live, err := st.Get(ctx, res.Key)
					require.NoError(t, err)
					require.Equal(t, commitstep.Pending, live.State)
					_, err = e.Resolve(ctx, driver.Resolution{Key: res.Key, Decision: as, Step: step, Version: live.Version, Again: again, ServerGone: gone, Person: store.Person{Name: "ann", Reason: "the disk is lost"}})
					return err
				}
				err = resolve(true, -1)
				require.ErrorIs(t, err, commitstep.ErrDecision, "the server answers")
				if as == store.DecideNotPublished || as == store.DecidePublished {
					require.ErrorContains(t, err, "recover waits for its end")
				}
				r.mu.Lock()
				r.away = errors.New("connection refused")
				r.mu.Unlock()
				rep, err := e.Recover(ctx, "j")
				require.NoError(t, err)
				require.Equal(t, driver.StatusWaiting, rep.Results[0].Status)
				err = resolve(false, -1)
				require.ErrorIs(t, err, commitstep.ErrDecision)
				require.ErrorContains(t, err, "--server-gone")
				require.ErrorIs(t, resolve(true, 7), commitstep.ErrDecision)

				err = resolve(true, -1)
				if as == store.DecideRetry || as == store.DecideAbandon {
					require.ErrorIs(t, err, commitstep.ErrDecision)
					require.ErrorContains(t, err, "only published and not-published")
					return
				}
				require.NoError(t, err)
				r.mu.Lock()
				r.away, r.running = nil, 2 // another server
				r.mu.Unlock()
				var said []store.AuditEntry
				for a, err := range st.ListAudit(ctx) {
					require.NoError(t, err)
					said = append(said, a)
				}
				require.Len(t, said, 1)
				require.Contains(t, said[0].Reason, "gone for good")
				require.Equal(t, "pending", said[0].Before)
				if as == store.DecideNotPublished && !again {
					_, err = st.Get(ctx, res.Key)
					require.ErrorIs(t, err, commitstep.ErrNotFound)
					require.Equal(t, 1, r.calls)
					return
				}
				rep, err = e.Recover(ctx, "j")
				require.NoError(t, err)
				require.Equal(t, driver.StatusCompleted, rep.Results[0].Status, rep.Results[0].Message)
				if again {
					require.Equal(t, 2, r.calls)
				} else {
					require.Equal(t, 1, r.calls, "what was said to be published is not called")
				}
			})
		}
	}
}

// What a person lets be made anew is an attempt of its own, by its number, and counts
// as executed although its end was seen only later.
func TestWhatIsMadeAnewIsAnotherAttempt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := &remote{open: true}
	e, _ := remoteBed(t, r)
	res, err := e.Publish(ctx, commitstep.NewPlan("j", "d").Step(commitstep.NewSpec("test.remote", nil)))
	require.Error(t, err)
	require.Equal(t, commitstep.PublishUnknown, res.Reason)
	insp, err := e.Inspect(ctx, res.Key, false)
	require.NoError(t, err)
	_, err = e.Resolve(ctx, driver.Resolution{Key: res.Key, Decision: store.DecideNotPublished, Step: -1, Version: insp.Version, Again: true, ServerGone: true, Person: store.Person{Name: "ann", Reason: "the old rows are there"}})
	require.NoError(t, err)
	r.mu.Lock()
	r.running, r.clean = 5, true
	r.mu.Unlock()
	rep, err := e.Recover(ctx, "j")
	require.NoError(t, err)
	got := rep.Results[0]
	require.Equal(t, driver.StatusCompleted, got.Status, got.Message)
	require.Equal(t, []int{1, 2}, r.numbers)
	require.Equal(t, driver.DidExecuted, got.Steps[0].Did)
	require.Equal(t, 1, got.Executed)
	require.Zero(t, got.Recovered+got.InPlace)
}
