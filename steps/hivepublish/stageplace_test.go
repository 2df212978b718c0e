package hivepublish

import (
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/stretchr/testify/require"
)

// A step that was stored before the table's name was in the path goes on where its
// evidence says, and nowhere else.
func TestStageGoesOnInThePlaceOfItsEvidence(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	p := b.process()
	token := "dt=2024-01-01/token=" + p.Attempt.Token.String()
	ev := p.Step.(*stageStep).ev
	require.Equal(t, "hdfs://nn:8020/data/facts/sales.facts/"+token, ev.Base)
	ev.Base = strings.Replace(ev.Base, "sales.facts/", "", 1)
	v, err := p.Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.Done, v.Outcome, v.Evidence)
	require.Equal(t, "hdfs://nn:8020/data/facts/"+token+"/attempt=1", b.w.location())

	b = stageBench(t, stageParams(), nil)
	p = b.process()
	p.Step.(*stageStep).ev.Base = "hdfs://nn:8020/data/elsewhere/" + token
	_, err = p.Step.Verify(t.Context(), p.Attempt)
	require.ErrorIs(t, err, commitstep.ErrDamaged)
}
