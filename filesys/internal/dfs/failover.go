package dfs

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Failover finds the name node that serves. It never repeats a call that may
// have been executed, unless that only reads. Safe for concurrent use.
type Failover struct {
	// Resource is the file system's name, for messages.
	Resource string
	// Addresses of the name nodes of one name service, never of several: two
	// name services have files of the same path.
	Addresses []string
	// Wait bounds how long a call waits while no name node serves: both are
	// standby, one is starting, or in safe mode.
	Wait time.Duration

	// Vouch, unless nil, says whether an address may be used, before anything is
	// asked of it, and again after a call on it came to nothing.
	Vouch func(ctx context.Context, address string) error

	active  atomic.Int32 // the one that served last
	vouched sync.Map     // addresses
}

// on makes a call on one address, once that was vouched for.
func (f *Failover) on(ctx context.Context, address string, call func(ctx context.Context, address string) error) error {
	if f.Vouch == nil {
		return call(ctx, address)
	}
	if _, ok := f.vouched.Load(address); !ok {
		if err := f.Vouch(ctx, address); err != nil {
			return NotExecuted(err)
		}
		f.vouched.Store(address, true)
	}
	err := call(ctx, address)
	if wasNotExecuted(err) || wasLost(err) {
		f.vouched.Delete(address)
	}
	return err
}

// First pause between two rounds, and the longest one.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Do makes a call on the name node that serves. With read a call without an
// answer is made again too. The error is that of the last call, or wraps
// *UnavailableError and says that nothing was executed.
func (f *Failover) Do(ctx context.Context, read bool, call func(ctx context.Context, address string) error) error {
	start := time.Now()
	pause := firstPause
	for {
		first := int(f.active.Load())
		tried := make([]error, 0, len(f.Addresses))
		for i := range f.Addresses {
			n := (first + i) % len(f.Addresses)
			err := f.on(ctx, f.Addresses[n], call)
			if err == nil {
				f.active.Store(int32(n))
				return nil
			}
			var remote *RemoteError
			answered := errors.As(err, &remote)
			again := wasNotExecuted(err) || read && wasLost(err)
			if !again {
				if answered {
					f.active.Store(int32(n)) // it serves, it only says no
				}
				return err
			}
			tried = append(tried, err)
			if cerr := ended(ctx); cerr != nil {
				return NotExecuted(errors.Join(cerr, f.unavailable(tried)))
			}
			if answered && remote.safeMode() {
				f.active.Store(int32(n))
				break // the other one cannot help
			}
		}
		left := f.Wait - time.Since(start)
		if left <= 0 {
			return NotExecuted(f.unavailable(tried))
		}
		// Jitter, so that many clients do not knock together.
		t := time.NewTimer(min(left, pause/2+rand.N(pause/2+1)))
		select {
		case <-ctx.Done():
			t.Stop()
			return NotExecuted(errors.Join(ctx.Err(), f.unavailable(tried)))
		case <-t.C:
		}
		pause = min(2*pause, lastPause)
	}
}

// unavailable hides classes of the single errors: together they mean that
// nothing was executed, and a missing file of one is no missing file.
func (f *Failover) unavailable(tried []error) error {
	return &UnavailableError{Resource: f.Resource, Tried: tried}
}
