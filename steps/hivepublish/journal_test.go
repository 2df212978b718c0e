package hivepublish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// forgetful is a journal that refuses notes while it is told to.
type forgetful struct {
	refuse bool
	note   json.RawMessage
	mark   json.RawMessage
	// open is the first note with an ALTER that may land.
	open json.RawMessage
}

var errRefused = errors.New("the store is away")

func (f *forgetful) Note(_ context.Context, _ int, note json.RawMessage) error {
	if f.refuse {
		return errRefused
	}
	f.note = note
	if f.open == nil && bytes.Contains(note, []byte(`"open":true`)) {
		f.open = note
	}
	return nil
}

func (f *forgetful) PointOfNoReturn(_ context.Context, _ int, mark json.RawMessage) error {
	f.mark = mark
	return nil
}

// The store does not take what is known of the statement. As long as this process
// lives it knows it, says nothing that is not durable, and notes it later.
func TestWhatCouldNotBeNotedIsNotedLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		op   func() *fakeOp
		want commitstep.Outcome
	}{
		"its handle":               {func() *fakeOp { return &fakeOp{} }, commitstep.Done},
		"that it was not accepted": {func() *fakeOp { return &fakeOp{refuse: semantic("Table not found src")} }, commitstep.NotDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, insertSpec(), scripted(c.op))
			j := &forgetful{refuse: true}
			attempt := func() (*commitstep.Attempt, commitstep.CommitStep) {
				p := b.process()
				a := commitstep.NewAttempt(p.Attempt.Sequence, p.Attempt.Key, p.Attempt.Index, commitstep.Progress{Note: j.note, NoReturn: j.mark}, j)
				a.Number = 1
				return a, p.Step
			}
			a, step := attempt()
			err := step.Execute(t.Context(), a)
			require.ErrorIs(t, err, errRefused)
			require.Equal(t, commitstep.ClassUnknown, commitstep.ClassOf(err))
			require.ErrorIs(t, step.(commitstep.Reattacher).Reattach(t.Context(), a), errRefused)
			// A process that died now would leave a mark and nothing else.
			other, fresh := attempt()
			v, err := fresh.Verify(t.Context(), other)
			require.NoError(t, err)
			require.Equal(t, commitstep.Unknown, v.Outcome)

			j.refuse = false
			require.NoError(t, step.(commitstep.Reattacher).Reattach(t.Context(), a))
			for _, again := range []bool{false, true} {
				if again {
					a, step = attempt()
				}
				v, err = step.Verify(t.Context(), a)
				require.NoError(t, err)
				require.Equal(t, c.want, v.Outcome, "%s", v)
			}
			require.LessOrEqual(t, b.w.submissions(), 1)
		})
	}
}

// A state of a newer server is not taken for the end.
func TestAStateThatIsNotKnownIsNotTheEnd(t *testing.T) {
	t.Parallel()
	op := &fakeOp{status: hs2.Status{State: hs2.State(42)}}
	b := newBench(t, insertSpec(), scripted(func() *fakeOp { return op }))
	require.Error(t, b.process().Execute(t.Context()))
	b.want(commitstep.Unknown)
	b.w.mu.Lock()
	_, _ = op.apply()
	op.status = hs2.Status{State: hs2.Finished}
	b.w.mu.Unlock()
	b.want(commitstep.Done)
}
