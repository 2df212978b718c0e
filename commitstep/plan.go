package commitstep

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// APIVersion marks plan documents and the JSON that the commands print.
const APIVersion = "commitstep/v1"

// StepSpec is a step as a caller asks for it, before it is resolved. Step
// packages offer constructors (fsrename.Move, watermark.Set).
type StepSpec struct {
	Kind   string
	Params json.RawMessage
	// Err is a constructor's complaint; Publish returns it.
	Err error
}

// NewSpec marshals params into a spec of the given kind. A failure is kept in
// the spec.
func NewSpec(kind string, params any) StepSpec {
	b, err := json.Marshal(params)
	return StepSpec{Kind: kind, Params: b, Err: err}
}

// StagedSpec is one element of a plan's stream of steps.
type StagedSpec struct {
	// Stage counts from 0; it never falls and never skips.
	Stage int
	StepSpec
}

// Plan is what the caller asks for: which dataset of which job, and the
// ordered stages of steps that publish it. Build one with [NewPlan], or read
// one with [ParsePlan]. A Plan is not safe for concurrent mutation.
type Plan struct {
	// ID is optional and the caller's own: unique per (job, dataset).
	ID string
	Key
	// Locks are texts of which one live sequence may hold each, over all jobs.
	Locks []string
	// CleanupSteps run after the sequence completed.
	CleanupSteps []StepSpec
	// BaseDir is where relative paths start; "" is the root given to the file
	// system (local.New), the plan file's directory for plans read by the
	// command line.
	BaseDir string
	// AcceptReusedPaths is the reason for using paths that an earlier sequence
	// of this store used; see docs/operations.md.
	AcceptReusedPaths string
	// Stream gives the steps when they are too many to hold; it then replaces
	// those added by Step and Then. It is ranged over once.
	Stream iter.Seq2[StagedSpec, error]

	stages [][]StepSpec
	errs   []error
}

// NewPlan starts a plan. Mistakes are kept and returned by Publish.
func NewPlan(job, dataset string) *Plan {
	return &Plan{Key: Key{Job: job, Dataset: dataset}}
}

// WithID sets the caller's plan id.
func (p *Plan) WithID(id string) *Plan { p.ID = id; return p }

// Lock adds locks.
func (p *Plan) Lock(locks ...string) *Plan { p.Locks = append(p.Locks, locks...); return p }

// Step adds steps to the current stage, whose steps have no order among
// themselves.
func (p *Plan) Step(steps ...StepSpec) *Plan {
	if len(p.stages) == 0 {
		p.stages = append(p.stages, nil)
	}
	last := len(p.stages) - 1
	if p.stages[last] == nil && len(steps) == 1 {
		p.stages[last] = make([]StepSpec, 0, 8) // they are added one by one
	}
	p.stages[last] = append(p.stages[last], steps...)
	return p
}

// Then starts a new stage with these steps; it begins when the stage before it
// is done.
func (p *Plan) Then(steps ...StepSpec) *Plan {
	if len(p.stages) == 0 || len(p.stages[len(p.stages)-1]) > 0 {
		p.stages = append(p.stages, nil)
	}
	return p.Step(steps...)
}

// CleanupKind is the kind that Cleanup and the `cleanup` list of a plan
// document ask for.
const CleanupKind = "fs.remove"

// CleanupParams are the parameters of a cleanup step.
type CleanupParams struct {
	Path string `json:"path"`
	// Leftovers: "" refuses the plan when anything but the plan's own sources
	// lies below Path, "delete" removes what was there when it was planned.
	Leftovers string `json:"leftovers,omitempty"`
}

// Cleanup names a staging directory to clear once the sequence completed.
func (p *Plan) Cleanup(path string) *Plan {
	return p.CleanupWith(CleanupParams{Path: path})
}

// CleanupWith is Cleanup with options.
func (p *Plan) CleanupWith(c CleanupParams) *Plan {
	p.CleanupSteps = append(p.CleanupSteps, NewSpec(CleanupKind, c))
	return p
}

// Fail keeps an error for Publish; for constructors of steps.
func (p *Plan) Fail(err error) *Plan { p.errs = append(p.errs, err); return p }

// Err joins the mistakes made so far.
func (p *Plan) Err() error { return errors.Join(p.errs...) }

// Steps ranges over the steps in order. Errors of specs and of the order of
// stages are yielded as *PlanError and end the range.
func (p *Plan) Steps() iter.Seq2[StagedSpec, error] {
	src := p.Stream
	if src == nil {
		src = func(yield func(StagedSpec, error) bool) {
			for i, st := range p.stages {
				for _, s := range st {
					if !yield(StagedSpec{Stage: i, StepSpec: s}, nil) {
						return
					}
				}
			}
		}
	}
	return func(yield func(StagedSpec, error) bool) {
		stage, n := 0, 0
		for s, err := range src {
			switch {
			case err != nil:
			case s.Err != nil:
				err = &PlanError{Where: Where(s.Stage, n, s.Kind), Problem: "is wrong", Err: s.Err}
			case s.Stage < stage || s.Stage > stage+1 || (n == 0 && s.Stage != 0):
				err = &PlanError{Where: Where(s.Stage, n, s.Kind), Problem: fmt.Sprintf("says \"stage\": %d after stage %d", s.Stage, stage), Hint: "in the document stages count from 0, in order, without gaps"}
			}
			if err != nil {
				yield(StagedSpec{}, err)
				return
			}
			stage = s.Stage
			n++
			if !yield(s, nil) {
				return
			}
		}
	}
}

// Where names a step in messages: stages and steps are counted from 1 for
// people.
func Where(stage, index int, kind string) string {
	// By hand: kinds call it whenever a step is built.
	b := append(make([]byte, 0, 64), "stage "...)
	b = append(strconv.AppendInt(b, int64(stage)+1, 10), " step "...)
	b = append(strconv.AppendInt(b, int64(index)+1, 10), " ("...)
	return string(append(append(b, kind...), ')'))
}

// PathUse says what a plan does with a path.
type PathUse uint8

// Uses. A Tree use covers everything below the path.
const (
	SourceFile PathUse = iota
	SourceTree
	DestinationFile
	DestinationTree
	// CleanupTree is claimed while cleanup steps are prepared, when all other
	// claims are made: no destination may be the path, hold it or lie in it,
	// and cleanup paths may not overlap.
	CleanupTree
)

// Preparation is what a Preparer gets for one step, and what it fills in. It
// is used by one goroutine; what is shared with other steps of the plan
// (claims, locks, Once) is safe for concurrent use.
type Preparation struct {
	Sequence uuid.UUID
	Key      Key
	// Step holds the parameters as given. The Preparer replaces Params by the
	// resolved ones and sets Evidence.
	Step Step
	// Cleanup is set while a cleanup step is prepared, after all others.
	Cleanup bool
	// BaseDir is the plan's; "" stands for the root of the file system.
	BaseDir string
	// Now is the driver's time.
	Now time.Time

	plan *Planning
}

// Token is the step's token.
func (p *Preparation) Token() uuid.UUID { return StepToken(p.Sequence, p.Step.Index) }

// Where names the step in messages.
func (p *Preparation) Where() string { return Where(p.Step.Stage, p.Step.Index, p.Step.Kind) }

// Errorf builds a *PlanError for this step.
func (p *Preparation) Errorf(hint string, format string, a ...any) error {
	return &PlanError{Where: p.Where(), Problem: fmt.Sprintf(format, a...), Hint: hint}
}

// Set replaces the step's parameters by their resolved form and stores its
// evidence. A nil evidence leaves it empty.
func (p *Preparation) Set(params, evidence any) error {
	b, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("%s: parameters: %w", p.Where(), err)
	}
	p.Step.Params = b
	if evidence == nil {
		return nil
	}
	if b, err = json.Marshal(evidence); err != nil {
		return fmt.Errorf("%s: evidence: %w", p.Where(), err)
	}
	p.Step.Evidence = b
	return nil
}

// Claim registers the use of a path. It returns a *PlanError when the plan
// uses it twice as a destination or twice as a source, or when a destination
// lies inside another step's source tree.
func (p *Preparation) Claim(a Address, use PathUse) error {
	return p.plan.claim(p.Where(), a, use)
}

// IsSource reports whether a step of the plan moves this very path away, or a
// tree that it lies in. Only complete while a cleanup step is prepared.
func (p *Preparation) IsSource(a Address) bool { return p.plan.isSource(a) }

// IsDestination reports whether a step of the plan puts something at this path.
func (p *Preparation) IsDestination(a Address) bool { return p.plan.isDestination(a) }

// AddLock adds a lock to the sequence. Exclusive locks may be named by one step
// of the plan only.
func (p *Preparation) AddLock(lock string, exclusive bool) error {
	return p.plan.addLock(p.Where(), lock, exclusive)
}

// AddMove adds a watermark of the commit store that the plan moves.
func (p *Preparation) AddMove(m WatermarkMove) { p.plan.addMove(m) }

// Once runs fn once per key and plan: the fsync of a staging directory.
func (p *Preparation) Once(key string, fn func() error) error { return p.plan.once.Do(key, fn) }
