package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
)

// lease is one membership in the store. When it is lost the engine joins anew
// under another instance id; runs that began under the old one are fenced.
type lease struct {
	instance commitstep.Instance
	holder   string       // instance, for people
	until    atomic.Int64 // boot-time nanoseconds
	lost     atomic.Bool
}

// BootClock is implemented by clocks that tell the time since boot, suspended
// time included: a machine that slept must not believe in its old lease.
type BootClock interface{ Boot() time.Duration }

func (e *Engine) boot() time.Duration {
	b, ok := e.cfg.Clock.(BootClock)
	if !ok {
		return time.Duration(e.cfg.Clock.Now().UnixNano())
	}
	return e.booted.now(e.cfg.Clock, b)
}

// bootCache spares the system call for most readings of the boot-time clock.
// Between two readings a few milliseconds apart it counts on with the cheap
// clocks, as long as wall clock and monotonic clock agree: a suspension stops
// the monotonic one only, a step of the wall clock moves that one only.
type bootCache struct {
	mu   sync.Mutex
	at   time.Time
	boot time.Duration
}

const (
	bootFresh = 5 * time.Millisecond
	bootSkew  = time.Millisecond
)

func (c *bootCache) now(clock commitstep.Clock, b BootClock) time.Duration {
	t := clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := t.Sub(c.at)
	wall := time.Duration(t.UnixNano() - c.at.UnixNano())
	if !c.at.IsZero() && mono >= 0 && mono < bootFresh && wall-mono < bootSkew && mono-wall < bootSkew {
		return c.boot + mono
	}
	c.boot, c.at = b.Boot(), t
	return c.boot
}

func (e *Engine) currentLease() *lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease
}

func (e *Engine) join(ctx context.Context) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	l := &lease{instance: e.name}
	l.instance.ID = id
	l.holder = holderText(l.instance)
	// Taken before the call: the store's own clock starts later.
	t0 := e.boot()
	if _, err := e.cfg.Store.Join(ctx, l.instance); err != nil {
		return err
	}
	l.until.Store(int64(t0 + e.cfg.leaseTTL))
	e.mu.Lock()
	e.lease = l
	e.mu.Unlock()
	return nil
}

// rejoin begins a new lease in place of one that ended. Only the first of several
// who find that out does; the others go on with its.
func (e *Engine) rejoin(ctx context.Context, ended *lease) error {
	e.joining.Lock()
	defer e.joining.Unlock()
	if e.currentLease() != ended {
		return nil
	}
	if !ended.lost.Swap(true) {
		e.observe(ctx, Event{Type: EventFenced, Step: -1, Message: "the lease of this driver ended"})
	}
	return e.join(ctx)
}

func (e *Engine) heartbeat() {
	defer e.beat.Done()
	for e.cfg.Clock.Sleep(e.ctx, e.cfg.Heartbeat) == nil {
		l := e.currentLease()
		t0 := e.boot()
		_, err := e.cfg.Store.Renew(e.ctx, l.instance.ID)
		switch {
		case err == nil:
			l.until.Store(int64(t0 + e.cfg.leaseTTL))
		case errors.Is(err, commitstep.ErrFenced):
			// A failed join is tried again at the next beat.
			_ = e.rejoin(e.ctx, l)
		}
		e.renewGuards()
	}
}

func (e *Engine) renewGuards() {
	e.mu.Lock()
	fns := make([]func(context.Context) error, 0, len(e.guards))
	for _, f := range e.guards {
		fns = append(fns, f)
	}
	e.mu.Unlock()
	for _, f := range fns {
		// A guard that cannot be renewed is noticed by its Check before the
		// next effect.
		_ = f(e.ctx)
	}
}

// fence is the right of l to write what it claimed.
func (l *lease) fence(live commitstep.Live) store.Fence {
	return store.Fence{ID: live.ID, Epoch: live.Epoch, Owner: l.instance.ID}
}

// ours returns nil while effects may begin under l.
func (e *Engine) ours(l *lease) error {
	if err := e.over(l); err != nil {
		return err
	}
	if left := time.Duration(l.until.Load()) - e.boot(); left < e.cfg.Margin {
		return fmt.Errorf("%w: the lease ends in %s, less than the margin of %s", commitstep.ErrFenced, left.Round(time.Millisecond), e.cfg.Margin)
	}
	return nil
}

// over returns nil as long as l may last: it tells what certainly has ended.
func (e *Engine) over(l *lease) error {
	if l.lost.Load() {
		return fmt.Errorf("%w: the lease of this driver ended", commitstep.ErrFenced)
	}
	if left := time.Duration(l.until.Load()) - e.boot(); left <= 0 {
		return fmt.Errorf("%w: the lease ended %s ago", commitstep.ErrFenced, -left.Round(time.Millisecond))
	}
	return nil
}
