package hivepublish

import (
	"encoding/json"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// What was gathered when the sequence was parked is kept when it is gathered
// again: a server that is gone says nothing any more.
func TestTheFirstEvidenceIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, insertSpec(), scripted(func() *fakeOp {
		return &fakeOp{status: hs2.Status{State: hs2.Canceled}}
	}))
	p := b.process()
	require.Error(t, p.Execute(t.Context()))
	on := p.Step.(commitstep.OnPark)
	note := func() (n insertNote) {
		require.NoError(t, on.OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told"))
		_, err := p.Attempt.LastNote(&n)
		require.NoError(t, err)
		return n
	}
	first := note().Evidence
	require.Nil(t, first.First)
	require.True(t, first.Now.Known)
	require.NotEmpty(t, first.Queries)

	b.w.restart()
	b.w.mu.Lock()
	b.w.down = true
	b.w.mu.Unlock()
	note()
	last := note().Evidence
	require.False(t, last.Now.Known)
	require.Nil(t, last.First.First, "only the first is kept")
	kept, err := json.Marshal(last.First)
	require.NoError(t, err)
	want, err := json.Marshal(first)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(kept))
}
