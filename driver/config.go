package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// Config of an Engine. Store and Kinds are required; every other zero value
// means its default.
type Config struct {
	Store store.Store
	Kinds *commitstep.Registry

	// Owner is the name that people see as the holder of a sequence. Default:
	// the program's name.
	Owner string

	Policy Policy

	// Concurrency is how many sequences Recover runs at once. Default 64.
	Concurrency int
	// StepConcurrency is how many steps of one stage run at once. Default 8.
	StepConcurrency int

	// Heartbeat is the time between renewals of the lease; default a third of
	// the store's LeaseTTL. The driver starts no effect later than Margin
	// (default a sixth of it) before the lease ends.
	Heartbeat time.Duration
	Margin    time.Duration
	// Grace is how long an effect in flight may go on after the caller's
	// context ended. Default 5 s.
	Grace time.Duration

	// CloseBudget bounds how long Close waits for cleanups. Default 30 s.
	CloseBudget time.Duration

	// Observer is told what happens; nil tells nobody. It must not block.
	Observer Observer
	// Clock is the time source; nil is the machine's.
	Clock commitstep.Clock
	// KillPoint is called at every named point of a run, for crash tests. It
	// kills the process, or panics with a value that has a Killed method, which
	// no guard around a step's code holds back.
	KillPoint func(point string)

	leaseTTL time.Duration
}

// Policy says how often and how long a step is tried before its sequence is
// parked. Zero fields are the defaults.
type Policy struct {
	// MaxAttempts that failed, per step, before ATTEMPTS_EXHAUSTED. Default 4.
	MaxAttempts int
	// MaxElapsed since this driver's first failure of a step, waiting not
	// counted. Default 30 min.
	MaxElapsed time.Duration
	// FirstPause after a failure, doubled up to MaxPause, each with full
	// jitter over its upper half. Defaults 200 ms and 30 s.
	FirstPause time.Duration
	MaxPause   time.Duration
	// UnknownBudget is how long an Unknown verdict is looked at again before
	// the sequence is parked. It goes on from run to run while every look says
	// the same. Default 2 min.
	UnknownBudget time.Duration
	// WaitBudget is how long Publish waits for a server that cannot be reached
	// before it returns with the state waiting. Default 2 min.
	WaitBudget time.Duration
	// RecoverBudget bounds one Recover, also when something still waits.
	// Default 2 min. What steps gather over a parking ends with this or the
	// WaitBudget, and always has half of it, at least Config.Grace.
	RecoverBudget time.Duration
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (p *Policy) defaults() {
	def(&p.MaxAttempts, 4)
	def(&p.MaxElapsed, 30*time.Minute)
	def(&p.FirstPause, 200*time.Millisecond)
	def(&p.MaxPause, 30*time.Second)
	def(&p.UnknownBudget, 2*time.Minute)
	def(&p.WaitBudget, 2*time.Minute)
	def(&p.RecoverBudget, 2*time.Minute)
}

// Pause is the wait after the n-th failure in a row, n from 1: the upper half
// of the capped exponential is random, so that drivers do not march in step.
func (p Policy) Pause(n int) time.Duration {
	d := p.FirstPause
	for i := 1; i < n && d < p.MaxPause; i++ {
		d *= 2
	}
	d = min(d, p.MaxPause)
	half := d / 2
	return half + rand.N(d-half+1)
}

func (c *Config) validate() error {
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("driver: Config.Store is required"))
	}
	if c.Kinds == nil {
		errs = append(errs, errors.New("driver: Config.Kinds is required"))
	}
	c.Policy.defaults()
	def(&c.Owner, programName())
	def(&c.Concurrency, 64)
	def(&c.StepConcurrency, 8)
	ttl := 30 * time.Second
	if c.Store != nil {
		if t := c.Store.Info().LeaseTTL; t > 0 {
			ttl = t
		}
	}
	c.leaseTTL = ttl
	def(&c.Heartbeat, ttl/3)
	def(&c.Margin, ttl/6)
	def(&c.Grace, 5*time.Second)
	def(&c.CloseBudget, 30*time.Second)
	if c.Clock == nil {
		c.Clock = SystemClock{}
	}
	if c.Concurrency < 1 || c.StepConcurrency < 1 || c.Policy.MaxAttempts < 1 {
		errs = append(errs, errors.New("driver: Concurrency, StepConcurrency and MaxAttempts must be positive"))
	}
	if c.Policy.FirstPause > c.Policy.MaxPause {
		errs = append(errs, fmt.Errorf("driver: FirstPause %s is longer than MaxPause %s", c.Policy.FirstPause, c.Policy.MaxPause))
	}
	if c.Heartbeat+c.Margin >= ttl {
		errs = append(errs, fmt.Errorf("driver: Heartbeat %s plus Margin %s must be shorter than the store's lease of %s", c.Heartbeat, c.Margin, ttl))
	}
	return errors.Join(errs...)
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now is the wall clock with its monotonic reading.
func (SystemClock) Now() time.Time { return time.Now() }

// Sleep waits for d or until ctx ends.
func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
