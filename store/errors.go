package store

import (
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
)

func (e *BusyError) Error() string {
	who := e.Holder.Name
	if e.Holder.Host != "" {
		who += fmt.Sprintf(" on %s (pid %d)", e.Holder.Host, e.Holder.PID)
	}
	until := ""
	if !e.Until.IsZero() {
		until = " until " + e.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("dataset %s (sequence %s) is run by %s%s; wait for it", e.Key, e.ID, who, until)
}

// Is makes errors.Is(err, commitstep.ErrBusy) true.
func (e *BusyError) Is(target error) bool { return target == commitstep.ErrBusy }

func (e *StaleError) Error() string {
	return fmt.Sprintf("%s; read the watermark again and make a new plan", e.Verdict)
}

// Is makes errors.Is(err, commitstep.ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == commitstep.ErrStale }

func (e *AlreadyError) Error() string {
	return fmt.Sprintf("plan %q of %s is known: sequence %s is %s", e.Record.PlanID, e.Record.Key, e.Record.Sequence, e.Record.State)
}
