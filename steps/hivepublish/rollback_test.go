package hivepublish

import (
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
