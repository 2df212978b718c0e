package commitstep

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Sentinels. Each says when it appears; all arrive wrapped with context, so
// compare with errors.Is.
var (
	// ErrPending: another live sequence holds the key or one of the locks.
	// Arrives as *PendingError with its id and state. Returned by Put.
	ErrPending = errors.New("another sequence is still live")
	// ErrStale: a commit-store watermark that the plan moves is not what the
	// plan expects. Nothing was stored. Returned by Put.
	ErrStale = errors.New("the watermark has moved since the plan was made")
	// ErrAbandoned: the plan id belongs to a sequence that a person abandoned.
	ErrAbandoned = errors.New("this plan was abandoned")
	// ErrPlanConflict: the plan id is known with another content.
	ErrPlanConflict = errors.New("this plan id was used for another plan")
	// ErrPathReused: an earlier sequence used a source or cleanup path of the
	// plan, which does not accept that. Nothing was stored.
	ErrPathReused = errors.New("an earlier sequence used this path")
	// ErrFenced: a write carried an epoch that is no longer the newest, or the
	// lease is gone. The driver must stop that sequence and touch nothing.
	ErrFenced = errors.New("this driver does not hold it any more")
	// ErrVersion: a person's decision was made on a version of the sequence
	// that is no longer current. Look again and decide again.
	ErrVersion = errors.New("the sequence has changed since it was shown")
	// ErrNotFound: no such sequence, watermark or record.
	ErrNotFound = errors.New("not found")
	// ErrBusy: a live lease holds the sequence.
	ErrBusy = errors.New("a driver is running this sequence")
	// ErrOutcomeUnknown: a write failed in a way that does not tell whether it
	// happened. Ask by id.
	ErrOutcomeUnknown = errors.New("the outcome of the write is unknown")
	// ErrStoreFailed: the store had a failed commit and has not been opened and
	// read again yet; nothing is written.
	ErrStoreFailed = errors.New("the store refuses writes after a failed commit")
	// ErrSealed: the store was copied elsewhere and refuses puts and watermark
	// writes for ever; the text names the new one.
	ErrSealed = errors.New("the store was sealed")
	// ErrStamped: the store is a backup or an export and runs nothing until a
	// person adopts it.
	ErrStamped = errors.New("the store is a stamped copy")
	// ErrDecision: the decision is not allowed for this sequence in its state.
	ErrDecision = errors.New("the decision is not possible here")
	// ErrUnsupported: a step's kind is not registered, or its version is newer
	// than the registered one. The sequence is left pending, nothing counted.
	ErrUnsupported = errors.New("unsupported step kind or version")
	// ErrInProgress is returned (wrapped) by Verify, and by an Execute that does
	// not wait for its own end, while the effect is still running elsewhere. It is
	// polled without limit and reported as waiting.
	ErrInProgress = errors.New("the effect is still in progress")
	// ErrUnavailable: a server that a step needs does not answer, or serves nothing
	// yet. The call had no effect, and may be made again later. A driver waits
	// for it while it prepares a plan.
	ErrUnavailable = errors.New("the server cannot be reached or does not serve yet")
	// ErrDamaged: a record's checksum or structure is wrong.
	ErrDamaged = errors.New("damaged record")
	// ErrNewerFormat: a record or store was written by a newer version.
	ErrNewerFormat = errors.New("written in a newer format")
)

// PlanError is one clear refusal of a plan: where, what, and what to do next.
type PlanError struct {
	Where   string // "dataset", "stage 1 step 2 (fs.rename)", a path
	Problem string
	Hint    string
	Err     error // underlying cause, may be nil
}

func (e *PlanError) Error() string {
	s := "plan: "
	if e.Where != "" {
		s += e.Where + " "
	}
	s += e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

func (e *PlanError) Unwrap() error { return e.Err }

// PendingError says which sequence is in the way. It matches ErrPending.
type PendingError struct {
	Key   Key
	ID    uuid.UUID
	State State
	// Reason is set when that sequence is parked.
	Reason ParkReason
	// Lock is the lock in the way, Path the source or cleanup path; both are
	// empty when it is the key itself.
	Lock string
	Path string
}

func (e *PendingError) Error() string {
	what := fmt.Sprintf("dataset %s", e.Key)
	if e.Lock != "" {
		what = fmt.Sprintf("lock %q of dataset %s", e.Lock, e.Key)
	}
	if e.Path != "" {
		what = fmt.Sprintf("%s is a source or cleanup path of dataset %s too, and", e.Path, e.Key)
	}
	state := string(e.State)
	if e.Reason != "" {
		state += " " + string(e.Reason)
	}
	return fmt.Sprintf("%s is held by sequence %s (%s); recover or resolve it first", what, e.ID, state)
}

// Is makes errors.Is(err, ErrPending) true.
func (e *PendingError) Is(target error) bool { return target == ErrPending }

// Class says how much is known about a failed Execute.
type Class uint8

const (
	// ClassUnknown: it may or may not have happened. The class of every error
	// that nobody classified.
	ClassUnknown Class = iota
	// ClassNotSent: certainly no effect; retried freely, not counted.
	ClassNotSent
	// ClassRefused: a definite no to this call. An earlier call may have won,
	// so Verify follows.
	ClassRefused
)

func (c Class) String() string {
	return [...]string{"unknown", "not sent", "refused"}[min(int(c), 2)]
}

type classified struct {
	class     Class
	permanent bool
	err       error
}

func (e *classified) Error() string { return e.err.Error() }
func (e *classified) Unwrap() error { return e.err }

// NotSent marks err: the call certainly had no effect.
func NotSent(err error) error { return classify(err, ClassNotSent, false) }

// Refused marks err: a definite no to this call.
func Refused(err error) error { return classify(err, ClassRefused, false) }

// Permanent marks err as refused and hopeless: trying again cannot help, so
// after a look by Verify the step is parked without burning its attempts.
func Permanent(err error) error { return classify(err, ClassRefused, true) }

func classify(err error, c Class, permanent bool) error {
	if err == nil {
		return nil
	}
	return &classified{class: c, permanent: permanent, err: err}
}

// ClassOf returns the class of an error from Execute; unclassified is unknown.
func ClassOf(err error) Class {
	if err == nil {
		return ClassUnknown
	}
	var c *classified
	if errors.As(err, &c) {
		return c.class
	}
	return ClassUnknown
}

// IsPermanent reports whether err was marked by [Permanent].
func IsPermanent(err error) bool {
	var c *classified
	return errors.As(err, &c) && c.permanent
}
