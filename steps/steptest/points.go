package steptest

import (
	"errors"
	"fmt"
	"sync"
)

// ErrInjected is what an interrupted operation returns. It is not classified:
// to the step it is an unknown outcome.
var ErrInjected = errors.New("steptest: injected failure")

// Fault is how an operation is interrupted.
type Fault int

// Faults. "Before": the operation does not happen. "After": it happens, and
// its caller does not learn so.
const (
	FailBefore Fault = iota + 1
	FailAfter        // the lost answer
	CrashBefore
	CrashAfter
	CancelBefore // the context ends, then the operation runs
	CancelAfter
)

var faults = []Fault{FailBefore, FailAfter, CrashBefore, CrashAfter, CancelBefore, CancelAfter}

func (f Fault) String() string {
	return [...]string{"none", "fail before", "fail after", "crash before", "crash after", "cancel before", "cancel after"}[f]
}

// crash is the panic that stands for the death of the process. The kit catches
// it, forgets everything the process knew, and starts another.
type crash struct{ point string }

func (c crash) String() string { return "steptest: the process died at " + c.point }

// Points are the operations of a world at which the kit may interrupt a step.
// A world wraps each call that its step makes to the outside with Do. A nil
// *Points interrupts nothing. Safe for concurrent use.
type Points struct {
	mu     sync.Mutex
	left   int
	fault  Fault
	cancel func()
	hit    string
}

// Do runs op, or interrupts it when the kit has armed this point. name is for
// messages. op must be one effect: what it does is taken to happen wholly or
// not at all.
func (p *Points) Do(name string, op func() error) error {
	if p == nil {
		return op()
	}
	p.mu.Lock()
	fault, cancel := Fault(0), p.cancel
	if p.fault != 0 {
		if p.left == 0 {
			fault, p.fault, p.hit = p.fault, 0, name
		}
		p.left--
	}
	p.mu.Unlock()
	switch fault {
	case FailBefore:
		return fmt.Errorf("%s: %w", name, ErrInjected)
	case FailAfter:
		if err := op(); err != nil {
			return err
		}
		return fmt.Errorf("%s: %w", name, ErrInjected)
	case CrashBefore:
		panic(crash{"before " + name})
	case CrashAfter:
		_ = op() // the process dies before it could read the answer
		panic(crash{"after " + name})
	case CancelBefore:
		cancel()
	case CancelAfter:
		defer cancel()
	}
	return op()
}

// arm interrupts the n-th operation from now, from 0.
func (p *Points) arm(n int, f Fault, cancel func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.fault, p.cancel, p.hit = n, f, cancel, ""
}

// disarm ends the interruption and names the operation that was hit, "" when
// none was.
func (p *Points) disarm() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = 0
	return p.hit
}
