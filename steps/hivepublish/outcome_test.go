package hivepublish

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/stretchr/testify/require"
)

// Every answer that HiveServer2 was seen to give, and every way to get none. The
// texts and SQL states are the server's; swapping them changes nothing.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	said := func(state string, code int32, text string) error {
		return &hs2.ServerError{RPC: "ExecuteStatement", SQLState: state, Code: code, Message: text}
	}
	cut := func(sent bool, err error) error { return &hs2.TransportError{RPC: "x", Sent: sent, Err: err} }
	for name, c := range map[string]struct {
		err  error
		want fate
	}{
		"syntax":                        {said("42000", 40000, "Error while compiling statement: FAILED: ParseException"), fateRefused},
		"missing table":                 {said("42S02", 10001, "Error while compiling statement: FAILED: SemanticException"), fateRefused},
		"refused with a runtime state":  {said("08S01", 2, "Execution Error, return code 2"), fateRefused},
		"permission":                    {said("42000", 20009, "Permission denied"), fateRefused},
		"full thread pool":              {said("", 0, "The background threadpool cannot accept new task for execution, please retry the operation"), fateRefused},
		"session gone":                  {unknownHandle("ExecuteStatement"), fateRefused},
		"dial failed":                   {cut(false, errors.New("connection refused")), fateNeverSent},
		"a time-out":                    {cut(true, hs2.ErrCallTimeout), fateUnknown},
		"EOF":                           {cut(true, errors.New("EOF")), fateUnknown},
		"an exception of the transport": {cut(true, errors.New("TApplicationException: Internal error processing ExecuteStatement")), fateUnknown},
		"caller in a hurry":             {cut(true, context.Canceled), fateUnknown},
		"an error nobody knows":         {errors.New("what"), fateUnknown},
		"a bare context error":          {context.DeadlineExceeded, fateUnknown},
	} {
		require.Equal(t, c.want, submitted(c.err), name)
	}
	none := []hs2.Task{{ID: "Stage-1", Type: "MAPRED", State: "RUNNING", Begin: time.Unix(1, 0)}, {ID: "Stage-0", Type: "MOVE", State: "INITIALIZED"}}
	begun := []hs2.Task{{ID: "Stage-0", Type: "MOVE", State: "RUNNING", Begin: time.Unix(1, 0)}}
	for name, c := range map[string]struct {
		st   hs2.Status
		err  error
		want fate
	}{
		"pending":                  {st: hs2.Status{State: hs2.Pending}, want: fateRunning},
		"running":                  {st: hs2.Status{State: hs2.Running, Tasks: begun, TasksKnown: true}, want: fateRunning},
		"initialized":              {st: hs2.Status{State: hs2.Initialized}, want: fateRunning},
		"finished":                 {st: hs2.Status{State: hs2.Finished}, want: fateFinished},
		"failed in the map phase":  {st: hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 2, Tasks: none, TasksKnown: true}, want: fateUntouched},
		"failed in MOVE":           {st: hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 1, Tasks: begun, TasksKnown: true}, want: fateUnknown},
		"failed, tasks not told":   {st: hs2.Status{State: hs2.Error, SQLState: "42000", Code: 40000, Message: "Error while compiling statement"}, want: fateUnknown},
		"cancelled":                {st: hs2.Status{State: hs2.Canceled, Tasks: none, TasksKnown: true}, want: fateUnknown},
		"timed out":                {st: hs2.Status{State: hs2.TimedOut, Tasks: none, TasksKnown: true}, want: fateUnknown},
		"closed":                   {st: hs2.Status{State: hs2.Closed}, want: fateUnknown},
		"a state nobody knows":     {st: hs2.Status{}, want: fateUnknown},
		"invalid operation handle": {err: unknownHandle("GetOperationStatus"), want: fateUnknown},
		"another no":               {err: said("", 0, "internal"), want: fateUnknown},
		"cannot be reached":        {err: cut(false, errors.New("connection refused")), want: fateUnseen},
		"cut":                      {err: cut(true, errors.New("EOF")), want: fateUnseen},
	} {
		require.Equal(t, c.want, polled(c.st, c.err), name)
	}
	// Whatever else there is, unknown is the default.
	require.Equal(t, fateUnknown, report{call: 99}.sort())
	require.Equal(t, fateNeverSent, report{call: beforeSubmit, reply: lost}.sort())
}
