package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// maxCleanups bounds the cleanup list of one plan; it is kept in the header.
const maxCleanups = 1000

// preparation is one pass over a plan: it turns specs into steps, page by
// page, and collects what the header needs.
type preparation struct {
	e        *Engine
	plan     *commitstep.Plan
	id       uuid.UUID
	planning *commitstep.Planning
	hasher   *commitstep.PlanHasher
	// evidence false only resolves, to compare a plan id.
	evidence bool

	header commitstep.Header
	roots  []commitstep.StagingRoot // known once it is finished

	dataStage    int // of the last data step, -1 if none
	stage        int
	stageSteps   int
	irreversible string // Where of the irreversible step of the stage
}

func (e *Engine) newPreparation(plan *commitstep.Plan, evidence bool) (*preparation, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("driver: new sequence id: %w", err)
	}
	pl, err := commitstep.NewPlanning(id, plan.Key, plan.Locks)
	if err != nil {
		return nil, err
	}
	return &preparation{e: e, plan: plan, id: id, planning: pl, hasher: commitstep.NewPlanHasher(plan), evidence: evidence, dataStage: -1,
		header: commitstep.Header{ID: id, Key: plan.Key, PlanID: plan.ID, Created: e.now(), FirstWatermark: -1, PageSize: store.PageSize}}, nil
}

// pages ranges over the prepared steps. An error ends it.
func (p *preparation) pages(ctx context.Context) func(yield func([]commitstep.Step, error) bool) {
	return func(yield func([]commitstep.Step, error) bool) {
		var page []commitstep.Step
		flush := func() bool {
			out, err := p.prepare(ctx, page)
			if err != nil {
				yield(nil, err)
				return false
			}
			page = nil
			return yield(out, nil)
		}
		for spec, err := range p.plan.Steps() {
			if err == nil && ctx.Err() != nil {
				err = notStored(ctx.Err())
			}
			var s commitstep.Step
			if err == nil {
				s, err = p.step(spec)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if page == nil {
				page = make([]commitstep.Step, 0, 8) // most plans are short
			}
			page = append(page, s)
			if len(page) == store.PageSize && !flush() {
				return
			}
		}
		if len(page) > 0 {
			flush()
		}
	}
}

// step applies the rules that need no look at the world: known kind, order of
// classes, no secrets.
func (p *preparation) step(spec commitstep.StagedSpec) (commitstep.Step, error) {
	h := &p.header
	where := func() string { return commitstep.Where(spec.Stage, h.Steps, spec.Kind) }
	k, ok := p.e.cfg.Kinds.Kind(spec.Kind)
	if !ok {
		return commitstep.Step{}, &commitstep.PlanError{Where: where(), Problem: "has a kind that this program does not know", Hint: fmt.Sprintf("known kinds are %v", p.e.cfg.Kinds.Names()), Err: commitstep.ErrUnsupported}
	}
	// What is no JSON is refused by its kind, or by the store.
	if commitstep.MayHoldSecret(spec.Params) {
		if err := commitstep.CheckNoSecrets(where(), spec.Params); err != nil {
			return commitstep.Step{}, err
		}
	}
	s := commitstep.Step{Index: h.Steps, Stage: spec.Stage, Kind: k.Name, Version: k.Version, Class: k.Class, Params: spec.Params}
	switch {
	case k.Class == commitstep.WatermarkStep && p.dataStage == spec.Stage:
		// Steps of one stage have no order: it could move before its data did.
		return s, &commitstep.PlanError{Where: where(), Problem: "shares a stage with data steps, and steps of one stage have no order", Hint: "give watermarks a stage of their own behind the data"}
	case k.Class == commitstep.WatermarkStep && h.FirstWatermark < 0:
		h.FirstWatermark = s.Index
	case k.Class == commitstep.DataStep && h.FirstWatermark >= 0:
		return s, &commitstep.PlanError{Where: where(), Problem: "is a data step after a watermark step", Hint: "publish all data first, then say how far the source was read"}
	}
	if k.Class == commitstep.DataStep {
		p.dataStage = spec.Stage
	}
	h.Steps++
	h.Stages = spec.Stage + 1
	return s, nil
}

// prepare resolves a page and gathers its evidence, steps in parallel.
func (p *preparation) prepare(ctx context.Context, page []commitstep.Step) ([]commitstep.Step, error) {
	out := make([]commitstep.Step, len(page))
	behaviours := make([]commitstep.CommitStep, len(page))
	for i, s := range page {
		b, err := p.e.cfg.Kinds.Build(s)
		out[i], behaviours[i] = s, b
		if r, ok := b.(commitstep.Resolver); ok && err == nil {
			pr := p.planning.For(s)
			pr.BaseDir, pr.Now = p.plan.BaseDir, p.header.Created
			err = guardPanic("Resolve", func() error { return r.Resolve(pr) })
			out[i] = pr.Step
		}
		if err == nil {
			err = p.alone(out[i], b)
		}
		if err != nil {
			return nil, whereErr(ctx, s, err)
		}
	}
	if p.evidence {
		caller := ctx // the group's own ends with the first failure
		p.e.survey(ctx, len(out), func(i int) (string, commitstep.CommitStep) { return out[i].Kind, behaviours[i] })
		var g *errgroup.Group
		for i := range out {
			b, ok := behaviours[i].(commitstep.Preparer)
			if !ok {
				continue
			}
			work := func() error {
				pr := p.planning.For(out[i])
				pr.BaseDir, pr.Now = p.plan.BaseDir, p.header.Created
				if err := guardPanic("Prepare", func() error { return b.Prepare(ctx, pr) }); err != nil {
					return whereErr(caller, out[i], err)
				}
				out[i] = pr.Step
				return nil
			}
			if len(out) == 1 {
				if err := work(); err != nil {
					return nil, err
				}
				continue
			}
			if g == nil {
				g, ctx = errgroup.WithContext(ctx)
				g.SetLimit(p.e.cfg.StepConcurrency)
			}
			g.Go(work)
		}
		if g != nil {
			if err := g.Wait(); err != nil {
				return nil, err
			}
		}
		if p.header.Steps > store.PageSize {
			p.e.observe(ctx, Event{Type: EventPrepared, Key: p.plan.Key, Sequence: p.id, Step: -1, Count: p.header.Steps})
		}
	}
	for _, s := range out {
		p.hasher.Step(s)
	}
	return out, nil
}

// survey lets every kind look at its steps of a batch together.
func (e *Engine) survey(ctx context.Context, n int, step func(int) (kind string, b commitstep.CommitStep)) {
	if n < 2 {
		return
	}
	var byKind map[string][]commitstep.CommitStep
	for i := range n {
		name, b := step(i)
		if k, _ := e.cfg.Kinds.Kind(name); k.Survey == nil {
			continue
		}
		if byKind == nil {
			byKind = map[string][]commitstep.CommitStep{}
		}
		byKind[name] = append(byKind[name], b)
	}
	for name, steps := range byKind {
		k, _ := e.cfg.Kinds.Kind(name)
		// It only helps: a panic leaves the looks to the steps.
		_ = guardPanic("Survey", func() error { k.Survey(ctx, steps); return nil })
	}
}

// alone holds that an irreversible step is alone in its stage.
func (p *preparation) alone(s commitstep.Step, b commitstep.CommitStep) error {
	if s.Stage != p.stage {
		p.stage, p.stageSteps, p.irreversible = s.Stage, 0, ""
	}
	p.stageSteps++
	if _, ok := b.(commitstep.Irreversible); ok {
		p.irreversible = where(s)
	}
	if p.irreversible != "" && p.stageSteps > 1 {
		return &commitstep.PlanError{Where: p.irreversible, Problem: "cannot be taken back and shares its stage with other steps", Hint: "give it a stage of its own"}
	}
	return nil
}

// finish prepares the cleanup and completes the header. It runs after the last
// page.
func (p *preparation) finish(ctx context.Context) (commitstep.Header, error) {
	h := p.header
	if h.Steps == 0 {
		return h, &commitstep.PlanError{Where: "plan", Problem: "has no steps", Hint: "an empty load still says how far its source was read: give it a watermark or ledger step"}
	}
	if len(p.plan.CleanupSteps) > maxCleanups {
		return h, &commitstep.PlanError{Where: "cleanup", Problem: fmt.Sprintf("lists %d paths, more than the %d allowed", len(p.plan.CleanupSteps), maxCleanups), Hint: "name their common parent"}
	}
	for i, spec := range p.plan.CleanupSteps {
		s, err := p.cleanupStep(ctx, i, spec)
		if err != nil {
			return h, err
		}
		h.Cleanup = append(h.Cleanup, s)
	}
	h.PlanHash = p.hasher.Sum()
	p.header.PlanHash = h.PlanHash
	h.Locks = p.planning.Locks()
	h.Moves = p.planning.Moves()
	h.Used, p.roots = p.planning.UsedPaths()
	h.AcceptReusedPaths = p.plan.AcceptReusedPaths
	h.Writer = "commitstep"
	return h, nil
}

func (p *preparation) cleanupStep(ctx context.Context, i int, spec commitstep.StepSpec) (commitstep.Step, error) {
	where := fmt.Sprintf("cleanup %d (%s)", i+1, spec.Kind)
	bad := func(err error) (commitstep.Step, error) {
		var pe *commitstep.PlanError
		if errors.As(err, &pe) {
			// A kind knows its step by a number that no plan shows.
			named := *pe
			named.Where = where
			return commitstep.Step{}, &named
		}
		if ctx.Err() != nil {
			return commitstep.Step{}, notStored(err)
		}
		return commitstep.Step{}, &commitstep.PlanError{Where: where, Problem: "cannot be prepared", Err: err}
	}
	if spec.Err != nil {
		return bad(spec.Err)
	}
	k, ok := p.e.cfg.Kinds.Kind(spec.Kind)
	if !ok {
		return commitstep.Step{}, &commitstep.PlanError{Where: where, Problem: "needs a kind that this program does not know", Hint: fmt.Sprintf("known kinds are %v", p.e.cfg.Kinds.Names()), Err: commitstep.ErrUnsupported}
	}
	if err := commitstep.CheckNoSecrets(where, spec.Params); err != nil {
		return bad(err)
	}
	// Indexes behind the steps keep every token unique.
	s := commitstep.Step{Index: p.header.Steps + i, Stage: p.header.Stages, Kind: k.Name, Version: k.Version, Params: spec.Params}
	pr := p.planning.For(s)
	pr.BaseDir, pr.Now, pr.Cleanup = p.plan.BaseDir, p.header.Created, true
	b, err := p.e.cfg.Kinds.Build(s)
	if err != nil {
		return bad(err)
	}
	if r, ok := b.(commitstep.Resolver); ok {
		if err := guardPanic("Resolve", func() error { return r.Resolve(pr) }); err != nil {
			return bad(err)
		}
	}
	p.hasher.Cleanup(pr.Step)
	if pb, ok := b.(commitstep.Preparer); ok && p.evidence {
		if err := guardPanic("Prepare", func() error { return pb.Prepare(ctx, pr) }); err != nil {
			return bad(err)
		}
	}
	return pr.Step, nil
}

// whereErr says which step err is about. Only the caller's own context stops a
// preparation; a server's answer that is late is that step's trouble.
func whereErr(caller context.Context, s commitstep.Step, err error) error {
	var pe *commitstep.PlanError
	switch {
	case errors.As(err, &pe):
		return err
	case caller.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		return notStored(err)
	case strings.HasPrefix(err.Error(), where(s)):
		return fmt.Errorf("plan: %w", err)
	}
	return fmt.Errorf("plan: %s: %w", where(s), err)
}

// notStored is the answer when the caller's context ended while a plan was
// prepared.
func notStored(err error) error {
	cause := context.Canceled
	if errors.Is(err, context.DeadlineExceeded) {
		cause = context.DeadlineExceeded
	}
	return fmt.Errorf("stopped while the plan was prepared, nothing was stored; publish it again: %w", cause)
}

// guardPanic turns a panic of a step's code into an error.
func guardPanic(what string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(what, p)
		}
	}()
	return fn()
}

// panicked is the error for a recovered panic.
func panicked(what string, p any) error {
	if k, ok := p.(interface{ Killed() }); ok {
		panic(k) // a kill point of a test: this process is dead
	}
	return &panicError{what: what, value: p}
}

type panicError struct {
	what  string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("panic in %s: %v", e.what, e.value) }

// resolvedHash is the hash of a plan as resolved, without evidence.
func (e *Engine) resolvedHash(ctx context.Context, plan *commitstep.Plan) (string, error) {
	p, err := e.newPreparation(plan, false)
	if err != nil {
		return "", err
	}
	for _, err := range p.pages(ctx) {
		if err != nil {
			return "", err
		}
	}
	h, err := p.finish(ctx)
	return h.PlanHash, err
}

// PlanReport is what Validate found.
type PlanReport struct {
	Key    commitstep.Key             `json:"key"`
	PlanID string                     `json:"planId,omitempty"`
	Hash   string                     `json:"hash"`
	Steps  int                        `json:"steps"`
	Stages int                        `json:"stages"`
	Locks  []string                   `json:"locks,omitempty"`
	Moves  []commitstep.WatermarkMove `json:"moves,omitempty"`
	// Known is set when the plan id is known already.
	Known *store.PlanRecord `json:"known,omitempty"`
	// Reused is an earlier path that the plan accepts; there may be more.
	Reused *ReusedPath `json:"reused,omitempty"`
}

// Validate makes all plan-time checks and stores nothing. Errors are those of
// Publish before its put.
func (e *Engine) Validate(ctx context.Context, plan *commitstep.Plan) (PlanReport, error) {
	if err := e.enter(); err != nil {
		return PlanReport{}, err
	}
	if plan == nil {
		return PlanReport{}, errNoPlan
	}
	if err := plan.Validate(); err != nil {
		return PlanReport{}, err
	}
	if rec, ok, err := e.known(ctx, plan); err != nil || ok {
		return PlanReport{Key: plan.Key, PlanID: plan.ID, Hash: rec.Hash, Known: &rec}, err
	}
	p, err := e.newPreparation(plan, true)
	if err != nil {
		return PlanReport{}, err
	}
	for _, err := range p.pages(ctx) {
		if err != nil {
			return PlanReport{}, err
		}
	}
	h, err := p.finish(ctx)
	rep := PlanReport{Key: h.Key, PlanID: h.PlanID, Hash: h.PlanHash, Steps: h.Steps, Stages: h.Stages, Locks: h.Locks, Moves: h.Moves}
	if err == nil {
		rep.Reused, err = e.checkPaths(ctx, p, h)
	}
	return rep, err
}

// known looks a plan id up. ok means the same plan is known; the same id with
// another content is ErrPlanConflict.
func (e *Engine) known(ctx context.Context, plan *commitstep.Plan) (store.PlanRecord, bool, error) {
	if plan.ID == "" {
		return store.PlanRecord{}, false, nil
	}
	rec, err := e.cfg.Store.LookupPlan(ctx, plan.Key, plan.ID)
	if errors.Is(err, commitstep.ErrNotFound) {
		return rec, false, nil
	}
	if err != nil {
		return rec, false, err
	}
	hash, err := e.resolvedHash(ctx, plan)
	if err != nil {
		return rec, false, err
	}
	if hash != rec.Hash {
		return rec, false, fmt.Errorf("plan %q of dataset %s: %w: sequence %s (%s) has other content; give the new plan a new id", plan.ID, plan.Key, commitstep.ErrPlanConflict, rec.Sequence, rec.State)
	}
	return rec, true, nil
}
