package hs2_test

import (
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

// TestWhetherAMoveBegan for each form that the list of tasks has, or may have.
func TestWhetherAMoveBegan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tasks        string
		began, known bool
	}{
		"not sent":                        {"", false, false},
		"null":                            {"null", false, false},
		"no JSON":                         {"[{", false, false},
		"no list":                         {`{"taskId":"Stage-0"}`, false, false},
		"a list of texts":                 {`["MOVE"]`, false, false},
		"nothing has begun":               {hs2test.TasksNone, false, true},
		"map runs":                        {hs2test.TasksMap, false, true},
		"map failed":                      {hs2test.TasksMapFailed, false, true},
		"move runs":                       {hs2test.TasksMove, true, true},
		"all done":                        {hs2test.TasksDone, true, true},
		"move is planned only":            {`[{"taskId":"Stage-0","taskType":"MOVE","taskState":"INITIALIZED"}]`, false, true},
		"move is queued":                  {`[{"taskId":"Stage-0","taskType":"MOVE","taskState":"QUEUED","beginTime":null}]`, false, true},
		"move is queued, but has a begin": {`[{"taskId":"Stage-0","taskType":"MOVE","taskState":"QUEUED","beginTime":5}]`, true, true},
		"move in a state nobody knows":    {`[{"taskId":"Stage-0","taskType":"MOVE","taskState":"PARKING"}]`, true, true},
		"a type nobody knows":             {`[{"taskId":"Stage-0","taskType":"TELEPORT","taskState":"RUNNING"}]`, true, true},
		"only statistics are left":        {`[{"taskId":"Stage-3","taskType":"STATS","taskState":"RUNNING","beginTime":5}]`, true, true},
		"a task without a type":           {`[{"taskId":"Stage-0","taskState":"RUNNING"}]`, false, false},
		"a task without a state":          {`[{"taskId":"Stage-0","taskType":"MOVE"}]`, false, false},
		"a state of another type":         {`[{"taskId":"Stage-0","taskType":"MOVE","taskState":4}]`, false, false},
		"a task that is null":             {`[null]`, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, _, session := fake(t)
			srv.Statement("", hs2test.Run{Steps: []hs2test.Step{{State: hs2.Running, Tasks: c.tasks}}})
			op, err := session.Execute(t.Context(), "INSERT", nil)
			require.NoError(t, err)
			st, err := op.Status(bounded(t))
			require.NoError(t, err)
			began, known := st.MoveBegan()
			require.Equal(t, c.began, began)
			require.Equal(t, c.known, known)
		})
	}
}

// TestAStatusIsWhole: every field arrives.
func TestAStatusIsWhole(t *testing.T) {
	t.Parallel()
	srv, _, session := fake(t)
	for state := hs2.Unknown; state <= hs2.TimedOut; state++ {
		srv.Statement("INSERT", hs2test.Run{Steps: []hs2test.Step{{State: state, Failure: hs2test.Failure{SQLState: "HY000", Code: 7, Message: "why"}, Tasks: hs2test.TasksDone, Modified: new(int64)}}})
		op, err := session.Execute(t.Context(), "INSERT", nil)
		require.NoError(t, err)
		st, err := op.Status(bounded(t))
		require.NoError(t, err)
		require.Equal(t, state, st.State)
		require.Equal(t, state >= hs2.Finished, st.State.Final())
		require.Equal(t, "HY000", st.SQLState)
		require.EqualValues(t, 7, st.Code)
		require.Equal(t, "why", st.Message)
		require.Zero(t, *st.ModifiedRows)
		require.WithinDuration(t, time.Now(), st.Started, time.Hour)
		require.Equal(t, st.State.Final(), !st.Completed.IsZero())
		require.False(t, st.HasResult)
		require.True(t, st.TasksKnown)
		require.Len(t, st.Tasks, 4)
		move := st.Tasks[2]
		zero := int64(0)
		require.Equal(t, hs2.Task{ID: "Stage-0", Type: "MOVE", Name: "MOVE", State: "FINISHED", ReturnValue: &zero,
			Begin: time.UnixMilli(1796097039849).UTC(), End: time.UnixMilli(1796097040686).UTC()}, move)
	}
}
