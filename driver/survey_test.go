package driver_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// TestABatchIsSurveyed: a kind sees the steps of a batch together before they
// are prepared, and again before they are verified.
func TestABatchIsSurveyed(t *testing.T) {
	t.Parallel()
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	w := newWorld()
	var mu sync.Mutex
	var surveys []int
	kinds := w.kinds()
	kinds[0].Survey = func(_ context.Context, steps []commitstep.CommitStep) {
		mu.Lock()
		surveys = append(surveys, len(steps))
		mu.Unlock()
		panic("only the help is lost")
	}
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(kinds...)})
	require.NoError(t, err)
	res, err := e.Publish(t.Context(), plan(put("a"), put("b"), put("c")))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.NoError(t, e.Close(t.Context()))
	require.Equal(t, []int{3, 3}, surveys)
}
