// Package driver publishes plans and recovers sequences: it decides when a
// step is verified, executed, settled, recorded, tried again or parked, and
// holds the lease under which it may. It knows steps and stores only through
// the interfaces of commitstep and store; it must not import an
// implementation of either, nor a command-line, metrics or tracing library.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// ErrClosed is returned by every method of an Engine after Close.
var ErrClosed = errors.New("driver: the engine is closed")

// Engine publishes and recovers with one store and one lease. Create it with
// New, end it with Close. Safe for concurrent use.
type Engine struct {
	cfg  Config
	name commitstep.Instance

	stop     context.CancelFunc // ends heartbeat and cleanups
	ctx      context.Context
	beat     sync.WaitGroup
	cleanups sync.WaitGroup
	crews    crews
	// staging is held for reading while a plan is prepared and stored, for
	// writing while a cleanup removes what other plans might name.
	staging sync.RWMutex
	booted  bootCache
	joining sync.Mutex // held while a new lease is begun

	mu     sync.Mutex
	closed bool
	lease  *lease
	guards map[*run]func(context.Context) error
}

// New checks the configuration, joins the store and starts the heartbeat.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	e := &Engine{cfg: cfg, guards: map[*run]func(context.Context) error{}}
	e.name = commitstep.Instance{Name: cfg.Owner, Host: host, PID: os.Getpid()}
	e.ctx, e.stop = context.WithCancel(context.Background())
	if err := e.join(e.ctx); err != nil {
		e.stop()
		return nil, fmt.Errorf("driver: join store %s: %w", cfg.Store.Info().Location, err)
	}
	e.beat.Add(1)
	go e.heartbeat()
	return e, nil
}

func programName() string {
	if len(os.Args) == 0 {
		return "commitstep"
	}
	return filepath.Base(os.Args[0])
}

// Close waits for cleanups within Config.CloseBudget (or until ctx ends), ends
// the heartbeat and gives the lease back. What is not cleaned yet is cleaned by
// the next Recover. It does not close the store.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.mu.Unlock()

	done := make(chan struct{})
	go func() { e.cleanups.Wait(); close(done) }()
	wait, cancel := context.WithTimeout(ctx, e.cfg.CloseBudget)
	defer cancel()
	select {
	case <-done:
	case <-wait.Done():
	}
	e.stop()
	<-done // cleanups end soon after stop; nothing outlives Close
	e.beat.Wait()
	err := e.cfg.Store.Leave(context.WithoutCancel(ctx), e.currentLease().instance.ID)
	if err != nil && !errors.Is(err, commitstep.ErrFenced) {
		return fmt.Errorf("driver: leave store: %w", err)
	}
	return nil
}

// Watermark reads a watermark of the commit store: none when it was never set.
// A damaged one is an error, never none.
func (e *Engine) Watermark(ctx context.Context, job, source string) (commitstep.Watermark, error) {
	ws, ok := e.cfg.Store.(store.Watermarks)
	if !ok {
		return commitstep.None(), fmt.Errorf("driver: store %s keeps no watermarks: %w", e.cfg.Store.Info().Location, errors.ErrUnsupported)
	}
	v, err := ws.Watermark(ctx, commitstep.WatermarkKey{Job: job, Source: source})
	if errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.None(), nil
	}
	return v.Watermark, err
}

func (e *Engine) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	return nil
}

func (e *Engine) observe(ctx context.Context, ev Event) {
	if e.cfg.Observer == nil {
		return
	}
	ev.At = e.cfg.Clock.Now()
	// What looks on must not decide: a panic of the observer is dropped.
	defer func() {
		if p := recover(); p != nil {
			_ = panicked("Observe", p)
		}
	}()
	e.cfg.Observer.Observe(ctx, ev)
}

func (e *Engine) kill(point string) {
	if e.cfg.KillPoint != nil {
		e.cfg.KillPoint(point)
	}
}

func (e *Engine) now() time.Time { return e.cfg.Clock.Now() }
