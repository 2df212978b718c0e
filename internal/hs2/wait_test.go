package hs2_test

import (
	"context"
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

// TestWaitSurvivesLostConnections, and gives up when there is nobody to ask.
func TestWaitSurvivesLostConnections(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.Statement("INSERT", hs2test.Run{Steps: []hs2test.Step{hs2test.Running(), hs2test.Running(), hs2test.Moving(), hs2test.Finished(3)}})
	op, err := session.Execute(t.Context(), "INSERT", nil)
	require.NoError(t, err)
	srv.On("GetOperationStatus", 1, hs2test.CutBefore)
	srv.On("GetOperationStatus", 2, hs2test.CutBefore)
	var seen []hs2.State
	st, err := op.Wait(bounded(t), func(s hs2.Status) { seen = append(seen, s.State) })
	require.NoError(t, err)
	require.Equal(t, []hs2.State{hs2.Running, hs2.Running, hs2.Running, hs2.Finished}, seen)
	require.EqualValues(t, 3, *st.ModifiedRows)

	srv.On("GetOperationStatus", 0, hs2test.CutBefore)
	_, err = c.Operation(op.Handle()).Wait(bounded(t), nil)
	transportError(t, err, true)
	require.Equal(t, 1, srv.Count("INSERT"))
}

// TestWaitEndsWithItsContextAndLeavesTheStatementAlone.
func TestWaitEndsWithItsContextAndLeavesTheStatementAlone(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.Statement("INSERT", hs2test.Run{Steps: []hs2test.Step{hs2test.Running()}})
	op, err := session.Execute(t.Context(), "INSERT", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = op.Wait(ctx, func(hs2.Status) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, c.Close())
	require.Zero(t, srv.Calls("CancelOperation")+srv.Calls("CloseOperation")+srv.Calls("CloseSession"))
	require.Len(t, srv.Sessions(), 1)
	again := connect(t, srv.Addr(), hs2.Config{})
	st, err := again.Operation(op.Handle()).Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, hs2.Running, st.State)
}

// TestQueryLeavesAloneWhatItLost: closing would cancel what may still run.
func TestQueryLeavesAloneWhatItLost(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.On("GetOperationStatus", 0, hs2test.CutAfter)
	_, err := c.Query(bounded(t), session, "INSERT")
	transportError(t, err, true)
	require.Zero(t, srv.Calls("CloseOperation"))
}

// TestAnErrorsReasonMayComeLate: the state is shown a moment before the reason.
func TestAnErrorsReasonMayComeLate(t *testing.T) {
	t.Parallel()
	srv, c, session := fake(t)
	srv.Statement("late", hs2test.Run{Steps: []hs2test.Step{hs2test.ErrorBare(), hs2test.FailedMap()}})
	srv.Statement("never", hs2test.Run{Steps: []hs2test.Step{hs2test.ErrorBare()}})
	_, err := c.Query(bounded(t), session, "late")
	var se *hs2.StatementError
	require.ErrorAs(t, err, &se)
	require.EqualValues(t, 2, se.Status.Code)
	require.Equal(t, "08S01", se.Status.SQLState)
	_, err = c.Query(bounded(t), session, "never")
	require.ErrorAs(t, err, &se)
	require.Equal(t, hs2.Error, se.Status.State)
	require.Zero(t, se.Status.Code)
}
