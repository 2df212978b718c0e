package integration_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// Every allowed name can be the job, the dataset, the plan id, a lock and the
// source of one load, the longest included; all stay apart and come back byte
// for byte.
func TestAnyNameCanBePublished(t *testing.T) {
	t.Parallel()
	names := []string{"a", "A", "a ", " ", "a/b", "a:b", "a b", "a_b", "..", ".", "/abs", "%2F", "_x", ".x", "%", "\x00", "\n", "default_dataset_urn",
		"caf\u00e9", "cafe\u0301", strings.Repeat("\ud55c", 100), strings.Repeat("\ud55c", 341), strings.Repeat("x", commitstep.MaxNameBytes)}
	st, err := boltstore.Init(filepath.Join(t.TempDir(), "commit.db"), nil)
	require.NoError(t, err)
	defer st.Close()
	eng, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(watermark.Kind(st))})
	require.NoError(t, err)
	defer func() { require.NoError(t, eng.Close(t.Context())) }()
	for i, n := range names {
		plan := commitstep.NewPlan(n, n).WithID(n).Lock(n).Step(watermark.Set(n, commitstep.None(), commitstep.Int(int64(i))))
		res, err := eng.Publish(t.Context(), plan)
		require.NoErrorf(t, err, "%q", n)
		require.Equal(t, driver.StatusCompleted, res.Status)
	}
	for i, n := range names {
		v, err := st.Watermark(t.Context(), commitstep.WatermarkKey{Job: n, Source: n})
		require.NoErrorf(t, err, "%q", n)
		require.Equal(t, commitstep.Int(int64(i)), v.Watermark)
		report, err := eng.Recover(t.Context(), n)
		require.NoError(t, err)
		require.Truef(t, report.MayIngest(n), "%q: %+v", n, report)
	}
	listed := map[string]bool{}
	for h, err := range st.ListHistory(t.Context(), historyOf("")) {
		require.NoError(t, err)
		require.Equal(t, h.Job, h.Dataset)
		require.Equal(t, h.Job, h.PlanID)
		listed[h.Job] = true
	}
	require.Len(t, listed, len(names))
	for _, n := range names {
		require.Truef(t, listed[n], "%q is not listed", n)
	}
}
