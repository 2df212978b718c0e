package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
)

// Exit codes, a contract with scripts. `commitstep help exit-codes` prints
// them.
const (
	ExitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitPartial     = 3
	ExitDecision    = 4
	ExitLocked      = 5
	ExitNotFound    = 6
	ExitStale       = 7
	ExitPending     = 8
	ExitStore       = 9
	ExitInterrupted = 130
)

type exitText struct {
	code int
	name string // in JSON errors
	text string
}

func exitTexts() []exitText {
	return []exitText{
		{ExitOK, "ok", "done; an empty list is fine too"},
		{ExitError, "error", "the command failed; the message says what to do"},
		{ExitUsage, "usage", "wrong flags or arguments; nothing was done"},
		{ExitPartial, "partial", "part of it was done, part failed"},
		{ExitDecision, "decision", "a person must decide: something is parked, unreadable, or a copy to adopt"},
		{ExitLocked, "locked", "a live owner holds the store, the dataset or a lock; try again later"},
		{ExitNotFound, "notFound", "no such sequence, dataset, watermark or record"},
		{ExitStale, "stale", "stale version or conflict: it changed since you looked, or the plan id is taken"},
		{ExitPending, "pending", "something is still pending; the next recover goes on with it"},
		{ExitStore, "store", "the store cannot be used: absent, damaged, no store, out of reach, no permission"},
		{ExitInterrupted, "interrupted", "interrupted by a signal; the message says what is left pending"},
	}
}

func exitName(code int) string {
	for _, e := range exitTexts() {
		if e.code == code {
			return e.name
		}
	}
	return "error"
}

// exitStatus is the EXIT STATUS section of a command's help.
func exitStatus(codes ...int) string {
	codes = append([]int{ExitOK, ExitError, ExitUsage}, codes...)
	var b strings.Builder
	b.WriteString("\n\nEXIT STATUS\n")
	for _, e := range exitTexts() {
		for _, c := range codes {
			if c == e.code {
				fmt.Fprintf(&b, "  %-4d%s\n", e.code, e.text)
			}
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// outcome is everything that a command found out; several may hold at once.
type outcome struct {
	failed      bool
	usage       bool
	interrupted bool
	unreachable bool
	locked      bool
	decision    bool
	partial     bool
	pending     bool
	notFound    bool
	stale       bool
}

// code decides the exit code; this switch is the only place that does. Its
// order is part of the contract: what hides the rest comes first.
func (o outcome) code() int {
	switch {
	case o.usage:
		return ExitUsage
	case o.interrupted:
		return ExitInterrupted
	case o.unreachable:
		return ExitStore
	case o.locked:
		return ExitLocked
	case o.decision:
		return ExitDecision
	case o.partial:
		return ExitPartial
	case o.pending:
		return ExitPending
	case o.notFound:
		return ExitNotFound
	case o.stale:
		return ExitStale
	case o.failed:
		return ExitError
	}
	return ExitOK
}

func (o *outcome) add(p outcome) {
	o.failed = o.failed || p.failed
	o.usage = o.usage || p.usage
	o.interrupted = o.interrupted || p.interrupted
	o.unreachable = o.unreachable || p.unreachable
	o.locked = o.locked || p.locked
	o.decision = o.decision || p.decision
	o.partial = o.partial || p.partial
	o.pending = o.pending || p.pending
	o.notFound = o.notFound || p.notFound
	o.stale = o.stale || p.stale
}

// status adds what the status of one sequence means.
func (o *outcome) status(s driver.Status) {
	switch s {
	case driver.StatusCompleted:
	case driver.StatusParked:
		o.decision = true
	case driver.StatusBusy, driver.StatusFenced:
		o.locked = true
	case driver.StatusAbandoned:
		o.stale = true
	default: // waiting, stopped, unsupported
		o.pending = true
	}
}

// cliError is an error with its outcome and what to do next.
type cliError struct {
	out  outcome
	msg  string
	hint string
	err  error
}

func (e *cliError) Error() string {
	s := e.msg
	if e.err != nil {
		if s != "" {
			s += ": "
		}
		s += e.err.Error()
	}
	return s
}

func (e *cliError) Unwrap() error { return e.err }

// usagef is a wrong call of the command: one line, exit code 2.
func usagef(format string, a ...any) error {
	return &cliError{out: outcome{usage: true}, msg: fmt.Sprintf(format, a...)}
}

// failf is a plain failure with what to do next.
func failf(hint, format string, a ...any) error {
	return &cliError{out: outcome{failed: true}, msg: fmt.Sprintf(format, a...), hint: hint}
}

// outcomeOf sorts an error.
func outcomeOf(err error) outcome {
	if err == nil {
		return outcome{}
	}
	o := outcome{failed: true}
	o.addAll(err)
	var nf *driver.NotFinishedError
	if errors.As(err, &nf) {
		o.status(nf.Result.Status)
	}
	is := func(target error) bool { return errors.Is(err, target) }
	o.locked = o.locked || is(commitstep.ErrBusy) || is(commitstep.ErrFenced)
	o.notFound = o.notFound || is(commitstep.ErrNotFound)
	o.stale = o.stale || is(commitstep.ErrVersion) || is(commitstep.ErrStale) || is(commitstep.ErrPlanConflict) || is(commitstep.ErrAbandoned) || is(commitstep.ErrPathReused)
	o.decision = o.decision || is(commitstep.ErrStamped) || is(watermark.ErrUnaccepted)
	o.unreachable = o.unreachable || is(commitstep.ErrStoreFailed) || is(commitstep.ErrSealed) || is(commitstep.ErrOutcomeUnknown) ||
		is(commitstep.ErrDamaged) || is(commitstep.ErrNewerFormat) ||
		is(pgstore.ErrUnreachable) || is(pgstore.ErrSchema) || is(pgstore.ErrForbidden)
	var pe *commitstep.PendingError
	if errors.As(err, &pe) {
		// A running holder is found out by the command, which can ask the store.
		if pe.State == commitstep.Parked {
			o.decision = true
		} else {
			o.pending = true
		}
	}
	if is(context.Canceled) {
		o.interrupted = true
	}
	return o
}

// addAll adds the outcomes of every cliError in the tree, since several errors
// may be joined.
func (o *outcome) addAll(err error) {
	if ce, ok := err.(*cliError); ok {
		o.add(ce.out)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		o.addAll(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			o.addAll(one)
		}
	}
}

// hintOf is what to do next about err, "" when its text says so itself.
func hintOf(err error) string {
	var ce *cliError
	if errors.As(err, &ce) && ce.hint != "" {
		return ce.hint
	}
	var pe *commitstep.PlanError
	var nf *driver.NotFinishedError
	var pending *commitstep.PendingError
	switch {
	case errors.As(err, &pe), errors.As(err, &nf), errors.As(err, &pending):
		return "" // say so themselves
	case errors.Is(err, commitstep.ErrStoreFailed):
		return "free the disk or repair it, then run the command again; it opens the store and reads it again"
	case errors.Is(err, commitstep.ErrFenced):
		return "the lease of this driver ended; run the command again. `commitstep pending list` shows what is held, and by whom"
	case errors.Is(err, store.ErrUnfinished):
		return "repeat `commitstep store copy` with the same two stores"
	case errors.Is(err, commitstep.ErrStamped):
		return "`commitstep store adopt --reason TEXT` makes a copy usable"
	case errors.Is(err, commitstep.ErrSealed):
		return "use the store that the message names"
	case errors.Is(err, commitstep.ErrNewerFormat):
		return "use the program version that wrote it, or a newer one"
	case errors.Is(err, commitstep.ErrDamaged):
		return "`commitstep store check` lists the damage, `commitstep quarantine list` what it hides"
	}
	return ""
}
