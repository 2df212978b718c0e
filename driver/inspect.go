package driver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
)

// StepView is one step as a person looks at it.
type StepView struct {
	commitstep.Step
	Index    int                 `json:"index"`
	Summary  string              `json:"summary,omitempty"`
	Progress commitstep.Progress `json:"progress"`
	// Verdict is what Verify says now, if it was asked; LookError why it could
	// not look; Unsupported why the step cannot be built here.
	Verdict     *commitstep.Verdict `json:"verdict,omitempty"`
	LookError   string              `json:"lookError,omitempty"`
	Unsupported string              `json:"unsupported,omitempty"`
}

// Inspection is a live sequence with everything known of it.
type Inspection struct {
	commitstep.Live
	Holder      *commitstep.Instance `json:"holder,omitempty"`
	HolderUntil time.Time            `json:"holderUntil,omitzero"`
	// Steps holds the first MaxStepReports.
	StepViews []StepView `json:"stepViews"`
	// Decisions are those that Resolve takes for it now.
	Decisions []store.DecisionKind `json:"decisions,omitempty"`
}

// Inspect shows a live or cleaning sequence. With verify it asks every step's
// Verify, which never writes. ErrNotFound without a live sequence.
func (e *Engine) Inspect(ctx context.Context, key commitstep.Key, verify bool) (Inspection, error) {
	if err := e.enter(); err != nil {
		return Inspection{}, err
	}
	live, err := e.cfg.Store.Get(ctx, key)
	if err != nil {
		return Inspection{}, err
	}
	var views []StepView
	insp, err := e.inspect(ctx, live, verify, func(v StepView) {
		if len(views) < MaxStepReports {
			views = append(views, v)
		}
	})
	insp.StepViews = views
	return insp, err
}

// inspect calls each for every step, in order.
func (e *Engine) inspect(ctx context.Context, live commitstep.Live, verify bool, each func(StepView)) (Inspection, error) {
	insp := Inspection{Live: live}
	if in, until, held, err := e.cfg.Store.Holder(ctx, live); err != nil {
		return insp, err
	} else if held {
		insp.Holder, insp.HolderUntil = &in, until
	}
	if live.State == commitstep.Parked {
		insp.Decisions = decisionsFor(live, e.irreversible(ctx, live))
	}
	r := &run{e: e, live: live}
	for n := 0; n*r.pageSize() < live.Steps; n++ {
		page, err := e.cfg.Store.Steps(ctx, live.ID, n)
		if err != nil {
			return insp, err
		}
		views := make([]StepView, len(page.Steps))
		r.parallel(len(views), func(i int) { views[i] = r.view(ctx, page, i, verify) })
		for _, v := range views {
			each(v)
		}
	}
	return insp, ctx.Err()
}

func (r *run) view(ctx context.Context, page store.Page, i int, verify bool) StepView {
	s := page.Steps[i]
	v := StepView{Step: s, Index: s.Index, Progress: page.Progress[i]}
	b, err := r.e.cfg.Kinds.Build(s)
	if err != nil {
		v.Unsupported = err.Error()
		// Only the step knows what in its notes is a credential.
		v.Progress.Note, v.Progress.NoReturn = hide(v.Progress.Note), hide(v.Progress.NoReturn)
		return v
	}
	v.Summary = summary(b)
	progress := v.Progress
	if red, ok := b.(commitstep.NoteRedactor); ok {
		v.Progress.Note, v.Progress.NoReturn = redact(red, progress.Note), redact(red, progress.NoReturn)
	}
	if !verify || v.Progress.Done {
		return v
	}
	it := &item{step: s, progress: progress, behave: b}
	it.attempt = commitstep.NewAttempt(r.live.ID, r.live.Key, s.Index, progress, nil)
	it.attempt.Epoch = r.live.Epoch
	verdict, err := r.verify(ctx, it)
	if err != nil {
		v.LookError = err.Error()
		if errors.Is(err, commitstep.ErrInProgress) {
			v.LookError = "in progress: " + v.LookError
		}
		return v
	}
	v.Verdict = &verdict
	return v
}

// hide keeps that there is a note, and nothing of it.
func hide(note json.RawMessage) json.RawMessage {
	if note == nil {
		return nil
	}
	return json.RawMessage(`"not shown"`)
}

// redact leaves out what a kind does not want shown. One that panics over a note
// shows nothing of it.
func redact(b commitstep.NoteRedactor, note json.RawMessage) json.RawMessage {
	if note == nil {
		return nil
	}
	out := hide(note)
	_ = guardPanic("RedactNote", func() error { out = b.RedactNote(note); return nil })
	return out
}

// irreversible reports whether the step that parked the sequence cannot be
// taken back.
func (e *Engine) irreversible(ctx context.Context, live commitstep.Live) bool {
	s, _, ok := e.stepAt(ctx, live, live.ParkStep)
	if !ok {
		return false
	}
	b, err := e.cfg.Kinds.Build(s)
	if err != nil {
		return false
	}
	_, yes := b.(commitstep.Irreversible)
	return yes
}

func (e *Engine) stepAt(ctx context.Context, live commitstep.Live, index int) (commitstep.Step, commitstep.Progress, bool) {
	if index < 0 || index >= live.Steps {
		return commitstep.Step{}, commitstep.Progress{}, false
	}
	size := (&run{live: live}).pageSize()
	page, err := e.cfg.Store.Steps(ctx, live.ID, index/size)
	if err != nil || index%size >= len(page.Steps) {
		return commitstep.Step{}, commitstep.Progress{}, false
	}
	return page.Steps[index%size], page.Progress[index%size], true
}
