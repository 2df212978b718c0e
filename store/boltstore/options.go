package boltstore

import (
	"context"
	"time"

	"github.com/commitstep/engine/commitstep"
)

// Options of Open and Init. Nil, or any zero field, means the defaults.
type Options struct {
	// LeaseTTL is how long a driver instance may stay silent before its
	// sequences are free for others. Default 30 s.
	LeaseTTL time.Duration
	// MarkDelay is how long an event recorded behind may wait for company
	// before it is written on its own. Default 100 ms. More of it is lost, and
	// found again by Verify, when the process dies.
	MarkDelay time.Duration
	// Linger is how long a commit waits for further writes after the first one
	// arrived. Default 0: commits take what queued up during the last one.
	Linger time.Duration
	// LockWait is how long Open waits for a file that another process has open.
	// Default 1500 ms.
	LockWait time.Duration
	// Clock is the time source of leases and time stamps. Default: the machine's.
	Clock commitstep.Clock
	// CommitHook is for tests of failure: it is called around every commit, and
	// its error is taken for an error of that commit.
	CommitHook func(CommitPoint) error
}

// Rejoin is how long a commit waits at least for those who were in the last one. Without
// it, callers fall into two halves that take turns, with twice as many commits.
// A lone caller never waits, and callers that stay away cost it once.
//
// On a disk that is slow, or busy, it waits as long as a commit takes, up to
// RejoinMost.
const (
	Rejoin     = 200 * time.Microsecond
	RejoinMost = time.Millisecond
)

// CommitPoint says where in a commit a CommitHook is called.
type CommitPoint uint8

// Commit points.
const (
	// BeforeCommit: an error here means that nothing was written.
	BeforeCommit CommitPoint = iota + 1
	// AfterCommit: the commit is durable; an error here is a lost answer.
	AfterCommit
	// Reopening: the store is about to open its file again after a failed
	// commit; an error here lets that try fail.
	Reopening
)

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	if d.LeaseTTL <= 0 {
		d.LeaseTTL = 30 * time.Second
	}
	if d.MarkDelay <= 0 {
		d.MarkDelay = 100 * time.Millisecond
	}
	if d.LockWait <= 0 {
		d.LockWait = 1500 * time.Millisecond
	}
	if d.Clock == nil {
		d.Clock = machineClock{}
	}
	if d.CommitHook == nil {
		d.CommitHook = func(CommitPoint) error { return nil }
	}
	return d
}

type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
