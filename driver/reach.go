package driver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/commitstep/engine/commitstep"
)

// reaches counts how often in a row the steps of one run could not reach what
// they work on.
type reaches struct {
	mu     sync.Mutex
	failed int
	last   error
	// running is how many steps were left while their effects went on elsewhere.
	running int
}

// leave counts one.
func (x *reaches) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running++
}

// note takes what came of one look, or of a call that was not sent.
func (x *reaches) note(err error) {
	if errors.Is(err, commitstep.ErrInProgress) {
		err = nil // it was reached
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil {
		x.failed, x.last = 0, nil
		return
	}
	x.failed++
	x.last = err
}

// spent reports that the budget for waiting is over while nothing can be
// reached. Every step that was still tried would wait for its own time limit,
// and a stage can have thousands: none is begun any more. Steps that get
// through, be it now and then, keep the run going.
func (r *run) spent() bool {
	r.reaches.mu.Lock()
	failed := r.reaches.failed
	r.reaches.mu.Unlock()
	// As many as are tried at once: one server that is down must not keep the
	// steps on others from being tried.
	return failed >= max(2, r.e.cfg.StepConcurrency) && !r.e.now().Before(r.waitUntil)
}

// crowded reports that the time for waiting is over, and that as many effects as
// may run at once were left to run without this process. What is begun now would be
// left as well, and run beside them: the queries of a stage of thousands of steps
// would all be at a slow server at once.
func (r *run) crowded() bool {
	r.reaches.mu.Lock()
	defer r.reaches.mu.Unlock()
	return r.reaches.running >= r.e.cfg.StepConcurrency
}

// untried ends a step that was not begun because of spent or crowded.
func (r *run) untried(s commitstep.Step) ending {
	r.reaches.mu.Lock()
	last := r.reaches.last
	r.reaches.mu.Unlock()
	message := where(s) + " was not tried, the time for waiting is over"
	if last != nil {
		message += fmt.Sprintf(": %v", last)
	}
	return ending{status: StatusWaiting, step: s.Index, message: message}
}
