package commitstep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// CommitStep is one effect that can be checked and repeated. Methods of one
// value are called from one goroutine at a time; different steps run in
// parallel.
type CommitStep interface {
	// Verify only reads, at any time, on any path. It answers whether this very
	// effect is in place. An error means that it could not look: that is
	// retried with pauses, reported as waiting and never parks; wrap
	// [ErrInProgress] while the effect is still running elsewhere. The verdict
	// [Unknown] means it looked and cannot tell.
	Verify(ctx context.Context, a *Attempt) (Verdict, error)
	// Execute runs only on a fresh NotDone. It may run again after a crash, a
	// lost answer or in another process, and must be harmless then. Its error
	// says how it failed: [NotSent], [Refused], [Permanent]; any other error is
	// an unknown outcome, which only Verify can settle. One that wraps
	// [ErrInProgress] is no failure: a part of the effect goes on without the
	// call, and Verify is asked until it is over. If Verify says NotDone then,
	// Execute is called again, without a failure being counted: to go on, or to
	// say how that part failed.
	Execute(ctx context.Context, a *Attempt) error
}

// Resolver brings a step's parameters into the form in which they are stored
// and hashed: addresses resolved, defaults filled in. It does no I/O beyond
// what its resource needs to name things, and runs before Prepare; a plan id
// that is known is compared by the resolved plan alone, since its sources are
// gone by then. The step that resolved is the one that is then asked to Prepare.
type Resolver interface {
	Resolve(p *Preparation) error
}

// Preparer gathers evidence and refuses bad plans. It only reads (and makes
// what it read durable), before the sequence is stored.
type Preparer interface {
	Prepare(ctx context.Context, p *Preparation) error
}

// Settler makes effects durable before their done marks, for every step that
// Verify found done without a mark. s is shared by a batch of steps of one
// stage, so that a directory is synced once.
type Settler interface {
	Settle(ctx context.Context, s *Settling) error
}

// Irreversible marks a step whose call cannot be taken back and must not be
// repeated unless it certainly did not happen. Its Execute calls
// [Attempt.PointOfNoReturn] right before that call. Such a step is alone in
// its stage.
type Irreversible interface {
	Irreversible()
}

// StoreStep has its effect in the commit store itself: the store applies
// Move and the done mark in one transaction. The driver never calls Execute on
// a step whose Move returns true; moves that the store refuses are conflicts.
type StoreStep interface {
	Move() (WatermarkMove, bool)
}

// Guard is a check that an earlier step offers to later ones ("the claim is
// still ours"). It runs before each of their effects once the step is done.
type Guard interface {
	// Check returns nil while the claim holds, an error wrapping ErrFenced when
	// it is lost, and any other error when it could not look.
	Check(ctx context.Context, a *Attempt) error
	// Renew is called by the driver's heartbeat.
	Renew(ctx context.Context, a *Attempt) error
}

// Discarder removes what a step of an abandoned sequence left staged, if it is
// still exactly what was recorded; it reports what stays. Called only by a
// person's command, long after.
type Discarder interface {
	Discard(ctx context.Context, a *Attempt) (stays []string, err error)
}

// Cleaner is a cleanup step. After Execute, Report says what stays in place
// and why ("" when nothing does); that is no failure. KeepSteps names steps
// whose staging ([StagedBy]) is not touched: those of the sequence that a person
// declared published. It is called before Verify and Execute, and may be called often.
type Cleaner interface {
	KeepSteps(steps []Step)
	Report() string
}

// SharedCleaner is a Cleaner that may meet what other sequences staged. While
// Shared reports true, the driver calls KeepSteps with the steps of every other
// sequence that is pending or parked too, and cleans nothing as long as one of
// them cannot be read.
type SharedCleaner interface {
	Cleaner
	Shared() bool
}

// Reattacher takes up what an earlier call of the step left open at its target: a
// statement that may still run, a session in which one may still arrive. The
// driver that holds the claim calls it before each of its looks, so it may note
// what it found; it never begins the effect, and it is repeatable. Looks by
// others do without it. An error means that the look could not be taken, like one
// of Verify.
type Reattacher interface {
	Reattach(ctx context.Context, a *Attempt) error
}

// Withdrawer makes certain that an effect which nobody saw take place cannot take
// place later. It is called for every step of a sequence that is not done, before
// a person's decision "not-published" or "abandon" is stored; its error refuses
// the decision, and says what to do. It may Note what it saw for the next time,
// unless the attempt is ReadOnly, and must then not be more easily satisfied. It is
// repeatable, and harmless for a step that was never executed. gone is the person's word that the target's server is
// gone for good, so that nothing can be asked of it.
type Withdrawer interface {
	Withdraw(ctx context.Context, a *Attempt, gone bool) error
}

// NoteRedactor leaves credentials out of a step's notes before they are shown.
// note may be anything that Note or PointOfNoReturn stored, also of an older
// version.
type NoteRedactor interface {
	RedactNote(note json.RawMessage) json.RawMessage
}

// OnPark is told the reason after parking, and again at each recover until it
// returns nil. It must be repeatable. It may Note what it gathered. Once the attempt's
// Patience is over it notes what it has, and says in there what it lacks: recover is
// waited for, and soon afterwards ctx ends.
type OnPark interface {
	OnPark(ctx context.Context, a *Attempt, reason ParkReason, message string) error
}

// Journal is what an Attempt writes to; the driver implements it.
type Journal interface {
	Note(ctx context.Context, step int, note json.RawMessage) error
	PointOfNoReturn(ctx context.Context, step int, note json.RawMessage) error
}

// Attempt is the context of one look at, or one try of, one step.
type Attempt struct {
	Sequence uuid.UUID
	Key      Key
	Index    int
	// Token is unique to the step and the same at every repetition. Every
	// remote call carries it.
	Token uuid.UUID
	// Number of this attempt, from 1; 0 during a look that belongs to none.
	Number int
	// Epoch of the claim under which it runs.
	Epoch uint64
	// Patience is closed when the caller has no more time to wait: an effect that
	// runs elsewhere is then left to run, and told as [ErrInProgress]. It says
	// nothing about calls that are under way. nil is never closed.
	Patience <-chan struct{}

	mu       sync.Mutex
	note     json.RawMessage
	noReturn json.RawMessage
	journal  Journal
}

// NewAttempt is for drivers and test kits. A nil journal refuses notes, as
// during a look by an operator.
func NewAttempt(id uuid.UUID, key Key, index int, p Progress, j Journal) *Attempt {
	return &Attempt{Sequence: id, Key: key, Index: index, Token: StepToken(id, index), note: p.Note, noReturn: p.NoReturn, journal: j}
}

// ReadOnly reports that this is a look only, in which nothing can be noted.
func (a *Attempt) ReadOnly() bool { return a.journal == nil }

// ErrReadOnly is returned by Note and PointOfNoReturn during a look.
var ErrReadOnly = errors.New("commitstep: this attempt may only look")

// Note makes a small value durable before it returns; the next Verify gets it
// from [Attempt.LastNote], on whatever machine it runs. After an error the
// step must not go on with its effect.
func (a *Attempt) Note(ctx context.Context, v any) error {
	return a.write(ctx, v, false)
}

// PointOfNoReturn is Note for irreversible steps: it is called right before
// the call that cannot be taken back, stores the mark, and checks lease and
// guards once more. A mark without an outcome is never executed again by
// itself.
func (a *Attempt) PointOfNoReturn(ctx context.Context, v any) error {
	return a.write(ctx, v, true)
}

func (a *Attempt) write(ctx context.Context, v any, noReturn bool) error {
	if a.journal == nil {
		return ErrReadOnly
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("commitstep: note: %w", err)
	}
	if noReturn {
		err = a.journal.PointOfNoReturn(ctx, a.Index, b)
	} else {
		err = a.journal.Note(ctx, a.Index, b)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if noReturn {
		a.noReturn = b
	} else {
		a.note = b
	}
	return nil
}

// LastNote decodes the last note into v and reports whether there was one.
func (a *Attempt) LastNote(v any) (bool, error) { return a.read(v, false) }

// NoReturn decodes the value of PointOfNoReturn and reports whether the point
// was ever passed.
func (a *Attempt) NoReturn(v any) (bool, error) { return a.read(v, true) }

func (a *Attempt) read(v any, noReturn bool) (bool, error) {
	a.mu.Lock()
	b := a.note
	if noReturn {
		b = a.noReturn
	}
	a.mu.Unlock()
	if b == nil {
		return false, nil
	}
	if v == nil {
		return true, nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return true, fmt.Errorf("commitstep: note of step %d: %w: %w", a.Index, ErrDamaged, err)
	}
	return true, nil
}

// OnceSet runs a function once per key and gives every caller its result. Safe
// for concurrent use; the zero value is ready.
type OnceSet struct {
	mu sync.Mutex
	m  map[string]func() error
}

// Do calls fn unless a call with the same key was made before, and returns
// that call's error.
func (o *OnceSet) Do(key string, fn func() error) error {
	o.mu.Lock()
	f := o.m[key]
	if f == nil {
		if o.m == nil {
			o.m = make(map[string]func() error)
		}
		f = sync.OnceValue(fn)
		o.m[key] = f
	}
	o.mu.Unlock()
	return f()
}

// Settling is shared by the steps of a stage that are settled together.
type Settling struct{ OnceSet }

// Clock is the time source of drivers and stores, so that tests need not wait.
type Clock interface {
	Now() time.Time
	// Sleep waits for d or until ctx ends, and then returns ctx.Err().
	Sleep(ctx context.Context, d time.Duration) error
}
