package watermark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/google/uuid"
)

// Reader tells what is stored. A commit store is one.
type Reader interface {
	// Watermark returns an error wrapping commitstep.ErrNotFound when none was
	// ever set; of the value beside it only Unaccepted counts. Every other error means that it could not be read; that is
	// never taken for none.
	Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error)
}

// Target keeps watermarks outside the commit store. It is safe for concurrent
// use, also by several processes.
type Target interface {
	Reader
	// Name is the resource name that plans use.
	Name() string
	// CompareAndSet stores m.To with m.Token if m.From is what is stored, as one
	// effect. Finding both stored already is success. Finding anything else
	// is commitstep.Refused, wrapping ErrStale. Errors are those of
	// CommitStep.Execute: commitstep.NotSent when certainly nothing happened,
	// unclassified when it may have.
	CompareAndSet(ctx context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error
	// Settle makes the stored value of k durable, also when another process
	// stored it. It is repeatable.
	Settle(ctx context.Context, k commitstep.WatermarkKey, s *commitstep.Settling) error
}

// Planner is a Target that can tell, before anything of a plan takes effect, what
// would keep a move from being made.
type Planner interface {
	Target
	// Plan is Watermark for a plan that makes the move m. A move that could never
	// be made is a *commitstep.PlanError; its Where is the caller's to fill in. It
	// only reads. An error that wraps commitstep.ErrUnavailable may be over when it
	// is asked again.
	Plan(ctx context.Context, m commitstep.WatermarkMove) (commitstep.WatermarkValue, error)
}

// Kind is the behaviour of "watermark.set" with a commit store and further
// targets. st may be nil in a process that keeps every watermark elsewhere.
func Kind(st Reader, targets ...Target) commitstep.Kind {
	byName := make(map[string]Target, len(targets))
	var wrong error
	for _, t := range targets {
		switch _, dup := byName[t.Name()]; {
		case t.Name() == "":
			wrong = errors.New("a watermark target was bound without a name")
		case dup:
			wrong = fmt.Errorf("two watermark targets are bound as %q", t.Name())
		}
		byName[t.Name()] = t
	}
	return commitstep.Kind{Name: KindName, Version: Version, Class: commitstep.WatermarkStep,
		New: func(s commitstep.Step) (commitstep.CommitStep, error) {
			if wrong != nil {
				return nil, wrong
			}
			p, err := decodeParams(s)
			if err != nil {
				return nil, err
			}
			st := &step{params: p, where: commitstep.Where(s.Stage, s.Index, s.Kind), reader: st}
			unbound := func(what string) error {
				return &commitstep.PlanError{Where: st.where, Problem: what, Hint: "bind it when the program starts, or use a program that does", Err: commitstep.ErrUnsupported}
			}
			if p.Target != "" {
				if st.target = byName[p.Target]; st.target == nil {
					return nil, unbound(fmt.Sprintf("names the watermark target %q, which this program has not bound", p.Target))
				}
				st.reader = st.target
			}
			if st.reader == nil {
				return nil, unbound("keeps its watermark in the commit store, which this program has not bound")
			}
			if len(s.Evidence) == 0 {
				return st, nil
			}
			if st.evidence.quick(s.Evidence) {
				return st, nil
			}
			st.evidence = evidence{}
			if err := json.Unmarshal(s.Evidence, &st.evidence); err != nil {
				return nil, fmt.Errorf("%s: evidence: %w: %w", st.where, commitstep.ErrDamaged, err)
			}
			return st, nil
		}}
}

// step implements commitstep.CommitStep, Resolver, Preparer, Settler and
// StoreStep.
type step struct {
	params
	evidence evidence
	where    string
	reader   Reader
	target   Target // nil is the commit store
}

// Summary says in one line what the step does.
func (s *step) Summary() string {
	text := fmt.Sprintf("watermark %q: %s -> %s", s.Source, s.From, s.To)
	if s.Target != "" {
		text += " in " + s.Target
	}
	return text
}

// Resolve writes the parameters in their full form, so that the short forms of
// a document (100 for {"value": 100}) are the same plan.
func (s *step) Resolve(p *commitstep.Preparation) error { return p.Set(s.params, nil) }

// acceptCommand is what lets the job go on. Whether it has another watermark is
// not looked at: without any, the command asks whether its name is right.
func acceptCommand(job string, at commitstep.Watermark) string {
	text := "`commitstep watermark accept --job " + shell.Quote(job) + " --reason TEXT`"
	if at.IsNone() {
		text += " (with --without-watermarks if the store has none of this job)"
	}
	return text
}

// Prepare refuses a move that is malformed or late, and takes the watermark's
// lock: one live sequence moves it at a time.
func (s *step) Prepare(ctx context.Context, p *commitstep.Preparation) error {
	m := s.move(p.Key.Job, p.Token())
	if err := m.Check(); err != nil {
		return err
	}
	if err := p.AddLock(m.Lock(), true); err != nil {
		return err
	}
	v, err := s.plan(ctx, m)
	var pe *commitstep.PlanError
	if errors.As(err, &pe) && pe.Where == "" {
		named := *pe
		named.Where = s.where
		return &named
	}
	if err != nil {
		return fmt.Errorf("%s: the watermark cannot be read, so nothing is planned: %w", s.where, err)
	}
	if v.Unaccepted {
		return &commitstep.PlanError{Where: s.where, Err: ErrUnaccepted,
			Problem: fmt.Sprintf("moves watermark %q, which stands at %s in a restored store and may be old", m.Source, v.Watermark),
			Hint:    "look at it, then " + acceptCommand(m.Job, v.Watermark)}
	}
	if v.Watermark != m.From {
		return &commitstep.PlanError{Where: s.where, Err: commitstep.ErrStale,
			Problem: fmt.Sprintf("moves watermark %q of job %q from %s to %s, but it stands at %s%s", m.Source, m.Job, m.From, m.To, v.Watermark, origin(v, s.target == nil)),
			Hint:    "read the watermark again, read the source from there, and make a new plan"}
	}
	if s.target == nil {
		p.AddMove(m)
	}
	return p.Set(s.params, evidence{Job: m.Job, Token: m.Token.String()})
}

// origin says for people where a stored watermark came from. A target need not
// keep which sequence set a value, nor when; certain is that it does.
func origin(v commitstep.WatermarkValue, certain bool) string {
	switch {
	case v.Watermark.IsNone(), v.Sequence == uuid.Nil && v.SetAt.IsZero():
		return ""
	case v.SetAt.IsZero():
		return fmt.Sprintf(" (set by sequence %s)", v.Sequence)
	case v.Sequence == uuid.Nil && !certain:
		return fmt.Sprintf(" (set %s)", v.SetAt.UTC().Format(time.RFC3339))
	case v.Sequence == uuid.Nil:
		return fmt.Sprintf(" (set by hand, %s)", v.SetAt.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf(" (set by sequence %s, %s)", v.Sequence, v.SetAt.UTC().Format(time.RFC3339))
}

func (s *step) move(job string, token uuid.UUID) commitstep.WatermarkMove {
	return commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: job, Source: s.Source}, From: s.From, To: s.To, Token: token}
}

// read returns the zero value for a watermark that was never set. That nobody
// accepted is also true of one that a restored store lacks: it may have been
// set first after the copy was made.
func (s *step) read(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error) {
	v, err := s.reader.Watermark(ctx, k)
	return orNone(k, v, err)
}

// plan is read for a plan that makes the move.
func (s *step) plan(ctx context.Context, m commitstep.WatermarkMove) (commitstep.WatermarkValue, error) {
	p, ok := s.target.(Planner)
	if !ok {
		return s.read(ctx, m.WatermarkKey)
	}
	v, err := p.Plan(ctx, m)
	return orNone(m.WatermarkKey, v, err)
}

func orNone(k commitstep.WatermarkKey, v commitstep.WatermarkValue, err error) (commitstep.WatermarkValue, error) {
	if !errors.Is(err, commitstep.ErrNotFound) {
		return v, err
	}
	return commitstep.WatermarkValue{WatermarkKey: k, Unaccepted: v.Unaccepted}, nil
}

// Move is the effect when the watermark lives in the commit store.
func (s *step) Move() (commitstep.WatermarkMove, bool) {
	// An evidence that cannot be used makes Verify fail before a store is asked
	// to apply the move; the zero token is never accepted for done.
	token, err := uuid.Parse(s.evidence.Token)
	if err != nil {
		token = uuid.Nil
	}
	return s.move(s.evidence.Job, token), s.target == nil
}

// planned is the move with the token it was planned with. Evidence of another
// step in this one's place is damage: acting on it would move the wrong mark.
func (s *step) planned(a *commitstep.Attempt) (commitstep.WatermarkMove, error) {
	token, err := uuid.Parse(s.evidence.Token)
	if err == nil && (token != a.Token || s.evidence.Job != a.Key.Job) {
		err = fmt.Errorf("it is that of job %q with token %s, this is job %q with token %s", s.evidence.Job, s.evidence.Token, a.Key.Job, a.Token)
	}
	if err != nil {
		return commitstep.WatermarkMove{}, fmt.Errorf("%s: evidence: %w: %w", s.where, commitstep.ErrDamaged, err)
	}
	m := s.move(a.Key.Job, token)
	if err := m.Check(); err != nil {
		return m, fmt.Errorf("%s: %w: %w", s.where, commitstep.ErrDamaged, err)
	}
	return m, nil
}

// Verify compares what is stored with the move. It never takes a watermark that
// cannot be read for none.
func (s *step) Verify(ctx context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	m, err := s.planned(a)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	v, err := s.read(ctx, m.WatermarkKey)
	if err != nil {
		return commitstep.Verdict{}, fmt.Errorf("%s: read watermark %q of job %q: %w", s.where, m.Source, m.Job, err)
	}
	verdict := m.Judge(v.Watermark, v.Token)
	if s.target != nil {
		verdict = Judge(m, v)
	}
	if s.Target != "" {
		verdict.Evidence += fmt.Sprintf(" (target %q)", s.Target)
	}
	if verdict.Outcome == commitstep.Conflict {
		verdict.Evidence += origin(v, s.target == nil)
	}
	return verdict, nil
}

// Judge is the verdict on a move in a target, which may be written by others too:
// a trigger, or a hand that leaves the token. Our token beside a value that is not
// ours says that the move was made, and that it did not bring about what was
// planned.
func Judge(m commitstep.WatermarkMove, v commitstep.WatermarkValue) commitstep.Verdict {
	verdict := m.Judge(v.Watermark, v.Token)
	if verdict.Outcome == commitstep.Done && v.Watermark != m.To {
		return commitstep.InConflict("watermark %q of job %q carries our token, but is another: stored %s, planned from %s to %s; "+
			"something changed what was written, as a trigger does", m.Source, m.Job, v.Watermark, m.From, m.To)
	}
	return verdict
}

// Execute moves a watermark that lives in a target.
func (s *step) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if s.target == nil {
		return commitstep.Permanent(fmt.Errorf("%s: the move is applied by the commit store together with its done mark; this driver does not do that", s.where))
	}
	m, err := s.planned(a)
	if err != nil {
		return commitstep.NotSent(err)
	}
	if err := s.target.CompareAndSet(ctx, m, a.Sequence); err != nil {
		return fmt.Errorf("%s: target %q: %w", s.where, s.Target, err)
	}
	return nil
}

// Settle makes a target's value durable. The commit store's is.
func (s *step) Settle(ctx context.Context, st *commitstep.Settling) error {
	if s.target == nil {
		return nil
	}
	k := commitstep.WatermarkKey{Job: s.evidence.Job, Source: s.Source}
	if err := s.target.Settle(ctx, k, st); err != nil {
		return fmt.Errorf("%s: target %q: %w", s.where, s.Target, err)
	}
	return nil
}
