package hive_test

import (
	"errors"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/stretchr/testify/require"
)

// TestInsertOverwrite publishes a partition by the driver, and publishes the same
// plan again.
func TestInsertOverwrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hivekit.Shared(t))
	require.Equal(t, want(0, oldRows), w.holds(t))
	e := w.open(t, settings{})
	plan := w.plan(w.overwrite()).WithID("load 1")
	res, err := e.Publish(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	again, err := e.Publish(t.Context(), plan)
	require.NoError(t, err)
	require.True(t, again.Already)
	e.shut(t)

	require.Equal(t, want(1, newRows), w.holds(t))
	require.Len(t, w.submitted(t), 1)
	require.Equal(t, []commitstep.State{commitstep.Completed}, w.outcomes(t))
	require.Equal(t, commitstep.Int(100), w.watermark(t))
}

// TestAnswerOfTheSubmissionIsLost cuts the connection when the server has
// accepted the statement and its handle is on the way: nobody can know what
// becomes of it, so a person is asked, and the statement is not sent again.
func TestAnswerOfTheSubmissionIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hivekit.Shared(t))
	hook := w.behind(t).On(faultproxy.Rule{Match: calls("ExecuteStatement", "INSERT OVERWRITE"), Nth: 1, Do: faultproxy.DropReply})
	e := w.open(t, settings{})
	_, err := e.Publish(t.Context(), w.plan(w.overwrite()))
	var unfinished *driver.NotFinishedError
	require.True(t, errors.As(err, &unfinished), "%v", err)
	require.Equal(t, 1, hook.Count())
	require.Equal(t, driver.StatusParked, unfinished.Result.Status, "%v", err)
	require.Equal(t, commitstep.PublishUnknown, unfinished.Result.Reason)
	e.shut(t)
	require.Equal(t, driver.StatusParked, w.recover(t, settings{}).Status)
	require.Len(t, w.submitted(t), 1)
	require.Empty(t, w.outcomes(t))
	require.True(t, w.watermark(t).IsNone())
}
