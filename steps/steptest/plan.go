package steptest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Planned is a plan as a store keeps it: every step in its stored bytes, with
// its notes. It stands for the store between one process and the next, and is
// safe for concurrent use.
type Planned struct {
	ID    uuid.UUID
	Key   commitstep.Key
	Locks []string
	Moves []commitstep.WatermarkMove

	stored [][]byte // of the steps, then of the cleanup steps

	mu       sync.Mutex
	epoch    uint64
	progress []commitstep.Progress
}

// Plan resolves and prepares a plan as the driver does, cleanup steps last, and
// keeps what a store would. Errors are those of the plan and of its kinds.
func Plan(ctx context.Context, kinds *commitstep.Registry, plan *commitstep.Plan) (*Planned, error) {
	if err := plan.Validate(); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	planning, err := commitstep.NewPlanning(id, plan.Key, plan.Locks)
	if err != nil {
		return nil, err
	}
	p := &Planned{ID: id, Key: plan.Key}
	now := time.Now()
	prepare := func(stage int, spec commitstep.StepSpec, cleanup bool) error {
		if spec.Err != nil {
			return spec.Err
		}
		where := commitstep.Where(stage, len(p.stored), spec.Kind)
		k, ok := kinds.Kind(spec.Kind)
		if !ok {
			return &commitstep.PlanError{Where: where, Problem: "has a kind that is not registered", Err: commitstep.ErrUnsupported}
		}
		if err := commitstep.CheckNoSecrets(where, spec.Params); err != nil {
			return err
		}
		pr := planning.For(commitstep.Step{Index: len(p.stored), Stage: stage, Kind: k.Name, Version: k.Version, Class: k.Class, Params: spec.Params})
		pr.BaseDir, pr.Now, pr.Cleanup = plan.BaseDir, now, cleanup
		b, err := kinds.Build(pr.Step)
		if err != nil {
			return err
		}
		if r, ok := b.(commitstep.Resolver); ok {
			if err := r.Resolve(pr); err != nil {
				return err
			}
		}
		if prep, ok := b.(commitstep.Preparer); ok {
			if err := prep.Prepare(ctx, pr); err != nil {
				return err
			}
		}
		raw, err := json.Marshal(pr.Step)
		if err != nil {
			return fmt.Errorf("%s cannot be stored: %w", where, err)
		}
		p.stored = append(p.stored, raw)
		return nil
	}
	stages := 0
	for s, err := range plan.Steps() {
		if err != nil {
			return nil, err
		}
		if err := prepare(s.Stage, s.StepSpec, false); err != nil {
			return nil, err
		}
		stages = s.Stage + 1
	}
	for _, s := range plan.CleanupSteps {
		if err := prepare(stages, s, true); err != nil {
			return nil, err
		}
	}
	p.Locks, p.Moves = planning.Locks(), planning.Moves()
	p.progress = make([]commitstep.Progress, len(p.stored))
	return p, nil
}

// Len is the number of steps, those of the cleanup included.
func (p *Planned) Len() int { return len(p.stored) }

// Step decodes step index from its stored bytes.
func (p *Planned) Step(index int) (commitstep.Step, error) {
	s := commitstep.Step{}
	if err := json.Unmarshal(p.stored[index], &s); err != nil {
		return s, fmt.Errorf("steptest: stored step %d: %w", index, err)
	}
	s.Index = index
	return s, nil
}

// Process is one driver process that holds the newest claim on a step: it has
// a behaviour of its own, built from the stored bytes. It is used by one
// goroutine.
type Process struct {
	Step    commitstep.CommitStep
	Attempt *commitstep.Attempt
}

// Process claims step index anew, as a driver does after a restart: the epoch
// rises, and notes by older processes are refused from now on.
func (p *Planned) Process(kinds *commitstep.Registry, index int) (*Process, error) {
	s, err := p.Step(index)
	if err != nil {
		return nil, err
	}
	b, err := kinds.Build(s)
	if err != nil {
		return nil, err
	}
	if c, ok := b.(commitstep.Cleaner); ok {
		c.KeepSteps(nil) // nobody declared anything published
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	pg := &p.progress[index]
	pg.Count++
	a := commitstep.NewAttempt(p.ID, p.Key, index, *pg, &journal{p: p, epoch: p.epoch})
	a.Number, a.Epoch = pg.Count, p.epoch
	return &Process{Step: b, Attempt: a}, nil
}

// journal keeps notes in the plan, while its epoch is the newest.
type journal struct {
	p     *Planned
	epoch uint64
}

func (j *journal) Note(ctx context.Context, step int, note json.RawMessage) error {
	return j.write(ctx, func() { j.p.progress[step].Note = note })
}

func (j *journal) PointOfNoReturn(ctx context.Context, step int, note json.RawMessage) error {
	return j.write(ctx, func() { j.p.progress[step].NoReturn = note })
}

func (j *journal) write(ctx context.Context, set func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j.p.mu.Lock()
	defer j.p.mu.Unlock()
	if j.epoch != j.p.epoch {
		return fmt.Errorf("epoch %d, newest is %d: %w", j.epoch, j.p.epoch, commitstep.ErrFenced)
	}
	set()
	return nil
}

// Verify looks once, after the step took up what an earlier call left open.
func (p *Process) Verify(ctx context.Context) (commitstep.Verdict, error) {
	if r, ok := p.Step.(commitstep.Reattacher); ok && !p.Attempt.ReadOnly() {
		if err := r.Reattach(ctx, p.Attempt); err != nil {
			return commitstep.Verdict{}, err
		}
	}
	return p.Step.Verify(ctx, p.Attempt)
}

// Execute tries once, without a look before it.
func (p *Process) Execute(ctx context.Context) error { return p.Step.Execute(ctx, p.Attempt) }

// Settle makes the effect durable, if the kind knows how to.
func (p *Process) Settle(ctx context.Context) error {
	if s, ok := p.Step.(commitstep.Settler); ok {
		return s.Settle(ctx, &commitstep.Settling{})
	}
	return nil
}

// maxTurns bounds Finish: verify, execute, verify is two; more are needed when
// a step works in several pieces.
const maxTurns = 16

// Finish does what the driver does with a step that is not recorded done, and
// returns the verdict it ends with: Done (and settled), Unknown or Conflict.
// An error of Execute is not returned, since only Verify can tell what it
// meant. Steps whose effect is in the commit store need [World.Apply].
func (p *Process) Finish(ctx context.Context) (commitstep.Verdict, error) {
	return p.finish(ctx, func() error { return p.Execute(ctx) })
}

func (p *Process) finish(ctx context.Context, execute func() error) (commitstep.Verdict, error) {
	var last error
	for range maxTurns {
		v, err := p.Verify(ctx)
		switch {
		case err != nil:
			return v, err
		case v.Outcome == commitstep.Done:
			return v, p.Settle(ctx)
		case v.Outcome != commitstep.NotDone:
			return v, nil
		}
		if err := execute(); err != nil {
			if ctx.Err() != nil {
				return v, err
			}
			last = err
		}
	}
	return commitstep.Verdict{}, fmt.Errorf("steptest: still not done after %d tries; the last error is: %w", maxTurns, last)
}
