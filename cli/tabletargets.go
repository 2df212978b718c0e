package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"github.com/google/uuid"
)

// tableTarget is a table of watermarks in a database of the user's own, as the
// configuration names it. It is connected when it is first needed, and again if
// that failed: a database that is down must not keep the commands from
// everything else, and its sequences wait for it.
type tableTarget struct {
	cfg pgtarget.Config

	mu      sync.Mutex
	open    *pgtarget.Target
	opening *tableOpening // nil while nobody opens it
}

// tableOpening is one try to open a table, whose outcome all share who need it: a
// server that is silent costs a time limit, once.
type tableOpening struct {
	done  chan struct{}
	table *pgtarget.Target
	err   error
}

var _ watermark.Planner = (*tableTarget)(nil)

func (t *tableTarget) table(ctx context.Context) (*pgtarget.Target, error) {
	for {
		t.mu.Lock()
		if t.open != nil {
			defer t.mu.Unlock()
			return t.open, nil
		}
		o, mine := t.opening, t.opening == nil
		if mine {
			o = &tableOpening{done: make(chan struct{})}
			t.opening = o
		}
		t.mu.Unlock()
		if mine {
			o.table, o.err = pgtarget.Open(ctx, t.cfg)
			t.mu.Lock()
			t.open, t.opening = o.table, nil
			t.mu.Unlock()
			close(o.done)
			return o.table, o.err
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The end of another caller's time is not that of this one's.
		if !errors.Is(o.err, context.Canceled) && !errors.Is(o.err, context.DeadlineExceeded) {
			return o.table, o.err
		}
	}
}

func (t *tableTarget) Name() string { return t.cfg.Name }

func (t *tableTarget) Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	o, err := t.table(ctx)
	if err != nil {
		return commitstep.WatermarkValue{}, err
	}
	return o.Watermark(ctx, k)
}

func (t *tableTarget) Plan(ctx context.Context, m commitstep.WatermarkMove) (commitstep.WatermarkValue, error) {
	o, err := t.table(ctx)
	if err != nil {
		return commitstep.WatermarkValue{}, err
	}
	return o.Plan(ctx, m)
}

func (t *tableTarget) CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	o, err := t.table(ctx)
	if err != nil {
		return commitstep.NotSent(err)
	}
	return o.CompareAndSet(ctx, m, sequence)
}

func (t *tableTarget) Settle(ctx context.Context, k commitstep.WatermarkKey, s *commitstep.Settling) error {
	o, err := t.table(ctx)
	if err != nil {
		return err
	}
	return o.Settle(ctx, k, s)
}

func (t *tableTarget) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		return nil
	}
	return t.open.Close()
}

// list is pgtarget.Target.List.
func (t *tableTarget) list(ctx context.Context, job string) iter.Seq2[commitstep.WatermarkValue, error] {
	return func(yield func(commitstep.WatermarkValue, error) bool) {
		o, err := t.table(ctx)
		if err != nil {
			yield(commitstep.WatermarkValue{}, err)
			return
		}
		o.List(ctx, job)(yield)
	}
}

// tableTarget is the table that is bound under a name, nil if none is.
func (s *session) tableTarget(n string) *tableTarget {
	for _, t := range s.tables {
		if t.Name() == n {
			return t
		}
	}
	return nil
}

// tableTargets are those of the configuration file.
func (in *invocation) tableTargets() ([]*tableTarget, error) {
	conf, path, err := in.readConfig()
	if err != nil {
		return nil, err
	}
	var out []*tableTarget
	for _, n := range slices.Sorted(maps.Keys(conf.WatermarkTables)) {
		if err := commitstep.CheckName("watermark target", n); err != nil {
			return nil, failf("rename it", "configuration %s: %v", path, err)
		}
		cfg := conf.WatermarkTables[n]
		cfg.Name = n
		out = append(out, &tableTarget{cfg: cfg})
	}
	return out, nil
}

// bindTables adds the tables to the directories that are bound.
func (s *session) bindTables(bound []watermark.Target) ([]watermark.Target, error) {
	var err error
	if s.tables, err = s.in.tableTargets(); err != nil {
		return nil, err
	}
	for _, t := range s.tables {
		if slices.ContainsFunc(bound, func(b watermark.Target) bool { return b.Name() == t.Name() }) {
			return nil, usagef("watermark target %s is bound to a directory and to a table; rename one", name(t.Name()))
		}
		bound = append(bound, t)
	}
	return bound, nil
}

func (s *session) closeTables() (err error) {
	for _, t := range s.tables {
		if cerr := t.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("close watermark target %s: %w", t.Name(), cerr))
		}
	}
	return err
}
