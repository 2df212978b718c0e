package hive_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// ledger stands for the table of another system in which a load is claimed before
// it is published, and in which people look for what became of it.
type ledger struct {
	mu    sync.Mutex
	taken bool
	lost  error    // what Check answers
	away  int      // how often OnPark fails yet
	tells int      // calls of OnPark
	told  []string // reasons that were recorded
	trail []string // what happened in which order
}

func (l *ledger) with(fn func(*ledger)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn(l)
}

func (l *ledger) note(what string) { l.with(func(l *ledger) { l.trail = append(l.trail, what) }) }

// claimStep claims a run of the ledger. It is the smallest step that uses both
// seams which a ledger needs.
type claimStep struct{ *ledger }

var (
	_ commitstep.Guard  = claimStep{}
	_ commitstep.OnPark = claimStep{}
)

func (s claimStep) Verify(context.Context, *commitstep.Attempt) (v commitstep.Verdict, err error) {
	s.with(func(l *ledger) {
		v = commitstep.IsNotDone("not claimed")
		if l.taken {
			v = commitstep.IsDone("claimed")
		}
	})
	return v, nil
}

func (s claimStep) Execute(context.Context, *commitstep.Attempt) error {
	s.with(func(l *ledger) { l.taken = true })
	return nil
}

func (s claimStep) Check(context.Context, *commitstep.Attempt) (err error) {
	s.with(func(l *ledger) { l.trail, err = append(l.trail, "check"), l.lost })
	return err
}

func (s claimStep) Renew(context.Context, *commitstep.Attempt) error { return nil }

func (s claimStep) OnPark(_ context.Context, _ *commitstep.Attempt, reason commitstep.ParkReason, message string) (err error) {
	s.with(func(l *ledger) {
		l.tells++
		if l.away > 0 {
			l.away--
			err = errors.New("the ledger is away")
			return
		}
		if message == "" {
			err = errors.New("no message")
			return
		}
		l.told = append(l.told, string(reason))
	})
	return err
}

// claims adds the kind that claims in a ledger.
func claims(l *ledger) settings {
	return settings{kinds: func(kinds []commitstep.Kind) []commitstep.Kind {
		return append(kinds, commitstep.Kind{Name: "test.claim", Version: 1, Class: commitstep.LedgerStep, Guards: true, WantsPark: true,
			New: func(commitstep.Step) (commitstep.CommitStep, error) { return claimStep{l}, nil }})
	}}
}

// claimed is a plan that claims, publishes and moves the watermark.
func (w where) claimed(step commitstep.StepSpec) *commitstep.Plan {
	return commitstep.NewPlan(job, w.dataset()).Step(commitstep.NewSpec("test.claim", nil)).Then(step).
		Then(watermark.Set(w.mark(), commitstep.None(), commitstep.Int(100)))
}

// TestTheClaimIsCheckedBeforeThePointOfNoReturn: the claim is lost when everything
// is ready for the statement, and it is not sent. With the claim back it is sent, and
// the check is the last thing before.
func TestTheClaimIsCheckedBeforeThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	book := &ledger{}
	l := newGround(t, hivekit.Shared(t)).lane(t, claims(book))
	w := l.part(t)
	lose := sync.OnceFunc(func() {
		book.with(func(b *ledger) { b.lost = fmt.Errorf("run 17 is somebody else's: %w", commitstep.ErrFenced) })
	})
	l.proxy.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool {
		switch {
		case calls("OpenSession", "hive.query.tag")(m):
			book.note("session")
			lose()
		case insertOf(w)(m):
			book.note("statement")
		}
		return false
	}})
	res, err := l.publish(t, w.claimed(w.overwrite()))
	require.Equal(t, driver.StatusFenced, res.Status, "%v", err)
	require.Contains(t, res.Message, "run 17 is somebody else's")
	require.Empty(t, w.submitted(t))
	require.Nil(t, l.stepOf(t, w.key()).Progress.NoReturn, "there is a mark, and nothing was sent")
	l.untouched(t, w)

	book.with(func(b *ledger) { b.lost, b.trail = nil, nil })
	got := l.again(t, w)
	require.Equal(t, driver.StatusCompleted, got.Status, got.Message)
	l.done(t, w)
	at := slices.Index(book.trail, "statement")
	require.GreaterOrEqual(t, at, 2, "%v", book.trail)
	require.Equal(t, []string{"session", "check"}, book.trail[at-2:at])
}

// TestTheLedgerIsToldThatNobodyKnows: the ledger hears of PUBLISH_UNKNOWN, again at
// every recovery until it took it, and not once more. What a person decides then is
// carried out under the claim.
func TestTheLedgerIsToldThatNobodyKnows(t *testing.T) {
	t.Parallel()
	book := &ledger{away: 2}
	l := newGround(t, hivekit.Shared(t)).lane(t, claims(book))
	w := l.part(t)
	l.proxy.On(faultproxy.Rule{Match: insertOf(w), Nth: 1, Do: faultproxy.DropReply})
	res, err := l.publish(t, w.claimed(w.overwrite()))
	require.Equal(t, driver.StatusParked, res.Status, "%v", err)
	require.Equal(t, 1, book.tells)
	for n := 2; n <= 4; n++ {
		if n == 3 {
			l.reopen(t) // it is remembered in the store
		}
		require.Equal(t, driver.StatusParked, l.again(t, w).Status)
		require.Equal(t, min(n, 3), book.tells)
	}
	require.Equal(t, []string{string(commitstep.PublishUnknown)}, book.told)
	w.listed(t, hs2.Finished)

	_, err = l.decide(t, w.key(), store.DecideNotPublished, again)
	require.ErrorIs(t, err, commitstep.ErrDecision)
	require.ErrorContains(t, err, "ledger")
	_, err = l.decide(t, w.key(), store.DecidePublished, nil)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, l.again(t, w).Status)
	l.done(t, w)
	require.True(t, strings.HasPrefix(book.trail[len(book.trail)-1], "check"), "%v", book.trail)
}
