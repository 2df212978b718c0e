package hivepublish

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// Nothing goes back to rows that were removed meanwhile: the plan is refused, and
// not parked after some tries.
func TestNothingGoesBackToADirectoryThatIsGone(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	mkdir(t, b.w.disk, "wh/facts/dt=2024-01-01")
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	step, err := b.planned.Step(0)
	require.NoError(t, err)
	spec, err := RollbackSpec(step)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(b.w.disk, "wh/facts/dt=2024-01-01")))
	_, err = steptest.Plan(t.Context(), b.kinds(), commitstep.NewPlan("j", "rollback").Step(spec))
	require.ErrorContains(t, err, "is gone")
	var pe *commitstep.PlanError
	require.ErrorAs(t, err, &pe)
}

// Hive's own directory of a timestamp has a blank in its name, and Hive takes no such
// location: there is no plan that could only fail.
func TestNothingGoesBackToALocationThatHiveRefuses(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	v, err := b.process().Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome)
	step, err := b.planned.Step(0)
	require.NoError(t, err)
	_, err = RollbackSpec(step)
	require.NoError(t, err)
	var ev evidence
	require.NoError(t, json.Unmarshal(step.Evidence, &ev))
	ev.Location = "hdfs://nn:8020/wh/facts/ts=2026-01-01 10%3A00%3A00"
	step.Evidence, err = json.Marshal(ev)
	require.NoError(t, err)
	_, err = RollbackSpec(step)
	require.ErrorContains(t, err, `Hive takes none with " " in it`)
	require.ErrorContains(t, err, "publish the old rows anew")
}
