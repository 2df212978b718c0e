package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestExitCodeOrder holds the order in which outcomes hide each other: it is a
// contract with scripts.
func TestExitCodeOrder(t *testing.T) {
	t.Parallel()
	all := outcome{failed: true, unreachable: true, locked: true, decision: true, partial: true, pending: true}
	require.Equal(t, 9, all.code())
	all.unreachable = false
	require.Equal(t, 5, all.code())
	all.locked = false
	require.Equal(t, 4, all.code())
	all.decision = false
	require.Equal(t, 3, all.code())
	all.partial = false
	require.Equal(t, 8, all.code())
	all.pending = false
	require.Equal(t, 1, all.code())
	require.Equal(t, 0, outcome{}.code())
	require.Equal(t, 2, outcome{usage: true, failed: true}.code())
	require.Equal(t, 130, outcome{interrupted: true, pending: true, unreachable: true}.code())
}

func TestErrorsHaveTheirExitCode(t *testing.T) {
	t.Parallel()
	notFinished := func(s driver.Status) error {
		return &driver.NotFinishedError{Result: driver.Result{Status: s}}
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{errors.New("anything"), 1},
		{usagef("wrong"), 2},
		{&store.BusyError{}, 5},
		{commitstep.ErrFenced, 5},
		{commitstep.ErrNotFound, 6},
		{commitstep.ErrVersion, 7},
		{&store.StaleError{}, 7},
		{commitstep.ErrPlanConflict, 7},
		{commitstep.ErrAbandoned, 7},
		{&commitstep.PendingError{State: commitstep.Pending}, 8},
		{&commitstep.PendingError{State: commitstep.Parked}, 4},
		{commitstep.ErrStoreFailed, 9},
		{commitstep.ErrOutcomeUnknown, 9},
		{commitstep.ErrDamaged, 9},
		{commitstep.ErrNewerFormat, 9},
		{commitstep.ErrSealed, 9},
		{pgstore.ErrUnreachable, 9},
		{pgstore.ErrSchema, 9},
		{pgstore.ErrForbidden, 9},
		{commitstep.ErrStamped, 4},
		{context.Canceled, 130},
		{notFinished(driver.StatusParked), 4},
		{notFinished(driver.StatusBusy), 5},
		{notFinished(driver.StatusFenced), 5},
		{notFinished(driver.StatusWaiting), 8},
		{notFinished(driver.StatusStopped), 8},
		{notFinished(driver.StatusUnsupported), 8},
		{&commitstep.PlanError{Problem: "is wrong"}, 1},
		{&commitstep.PlanError{Problem: "is late", Err: commitstep.ErrStale}, 7},
	} {
		require.Equal(t, c.want, outcomeOf(fmt.Errorf("context: %w", c.err)).code(), "%v", c.err)
		// Joined with another error it keeps its weight.
		require.Equal(t, c.want, outcomeOf(errors.Join(errors.New("and more"), c.err)).code(), "%v", c.err)
	}
	two := errors.Join(&cliError{out: outcome{pending: true}}, &cliError{out: outcome{partial: true}})
	require.Equal(t, 3, outcomeOf(two).code(), "every joined error counts")
}

// TestEveryCommandExplainsItself: a command without example or exit codes is
// not finished.
func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	var walk func(c *cobra.Command)
	n := 0
	walk = func(c *cobra.Command) {
		for _, s := range c.Commands() {
			walk(s)
		}
		if c.HasSubCommands() || !c.Runnable() {
			require.NotEmpty(t, c.Long, c.CommandPath())
			return
		}
		n++
		require.Contains(t, c.Long, "EXIT STATUS", c.CommandPath())
		require.Contains(t, c.Example, c.CommandPath(), c.CommandPath())
		require.NotEmpty(t, c.Short, c.CommandPath())
		for l := range strings.Lines(c.Long) {
			require.LessOrEqual(t, len([]rune(strings.TrimRight(l, "\n"))), 90, "%s: %s", c.CommandPath(), l)
		}
	}
	walk((&App{}).invocation().root())
	require.Greater(t, n, 20)
}
