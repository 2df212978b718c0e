// Package store is the contract between drivers and the places where
// sequences are kept. It defines interfaces and plain data only; boltstore and
// pgstore implement it, storetest proves that they do. It must not know any
// step kind, file system or driver policy: it keeps what it is told, in order,
// and refuses writes that are not the caller's to make.
//
// Every method is safe for concurrent use and honours its context while it
// waits. Once a write was handed to the commit it is finished regardless of
// the context, so that an answer is never lost by impatience.
package store

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// PageSize is the number of steps kept in one value.
const PageSize = 512

// Info describes an open store.
type Info struct {
	ID       uuid.UUID `json:"id"`
	Location string    `json:"location"` // "bolt:/var/lib/x.db"
	Format   int       `json:"format"`
	Created  time.Time `json:"created"`
	// LeaseTTL is how long a lease lasts after Join and Renew.
	LeaseTTL time.Duration `json:"leaseTTL,omitempty"`
	// SealedFor names the store that this one was copied to; then every put and
	// watermark write is refused with ErrSealed.
	SealedFor string `json:"sealedFor,omitempty"`
	// Stamped says why and when this copy was stamped; then nothing runs until
	// Adopt (ErrStamped).
	Stamped string `json:"stamped,omitempty"`
	// Unfinished: the stamp is that of a copy into this store that has not ended.
	// It ends with the same copy, and not with Adopt.
	Unfinished bool `json:"unfinished,omitempty"`
}

// Fence is a driver's right to write one sequence: the epoch of its claim, and
// the instance that claimed.
type Fence struct {
	ID    uuid.UUID
	Epoch uint64
	// Owner tells two claims with one epoch apart, which there can be where a
	// database that lost its newest writes goes on: the one that was lost, and the
	// one that was made since. The write is refused unless Owner made the newest
	// claim. Stores of which a running driver cannot lose a claim need not look at
	// it; the zero id asks for the epoch alone.
	Owner uuid.UUID
}

// Store is what a driver needs.
type Store interface {
	Info() Info

	// Join registers a driver instance and starts its lease. It does not write
	// in stores that only one process can open. Leave ends the lease; sequences
	// that the instance still holds become free.
	Join(ctx context.Context, in commitstep.Instance) (until time.Time, err error)
	// Renew prolongs the lease. ErrFenced: it had ended.
	Renew(ctx context.Context, instance uuid.UUID) (until time.Time, err error)
	Leave(ctx context.Context, instance uuid.UUID) error

	// LookupPlan answers what is known of a plan id of a dataset. ErrNotFound
	// when it was never used; PlanRecord.Hash tells whether it is the same plan.
	LookupPlan(ctx context.Context, key commitstep.Key, planID string) (PlanRecord, error)

	// Put stores a sequence, claimed by owner with epoch 1, atomically and
	// durably. Pages of a long one are written before, unseen, and count only
	// once the header is sealed; after an error or a crash they are collected.
	//
	// The same sequence (same id and plan hash) again is success and returns it
	// as it is. Another live sequence for the key or one of the locks:
	// *PendingError. In the same transaction the plan id is checked again
	// (ErrAbandoned, ErrPlanConflict, or *AlreadyError with the record when the
	// same plan is known) and every move (ErrStale), and the paths of a
	// [PathKeeper] (*UsedPathError). Nothing is stored then.
	// ErrSealed, ErrStamped, ErrStoreFailed, ErrOutcomeUnknown as their
	// comments say.
	Put(ctx context.Context, d Draft, owner uuid.UUID) (commitstep.Live, error)

	// Claim gives owner up to limit pending sequences, or completed ones that
	// are still cleaning, that no live lease holds, in key order after the
	// given key, raising their epochs. Sequences that cannot be read are left
	// out (see Quarantine). An empty result means there are no more. Busy ones
	// are skipped; Scan shows them. Parked ones are only claimed when
	// ClaimFilter.Parked asks for them, to tell OnPark.
	Claim(ctx context.Context, owner uuid.UUID, f ClaimFilter) ([]commitstep.Live, error)
	// ClaimOne claims one sequence by its key. ErrNotFound, or *BusyError.
	ClaimOne(ctx context.Context, owner uuid.UUID, key commitstep.Key) (commitstep.Live, error)
	// Release gives a claim back: the sequence is free for anyone, its state
	// unchanged. Releasing what one no longer holds does nothing.
	Release(ctx context.Context, f Fence) error

	// Steps returns page n (from 0) of a live or cleaning sequence with its
	// progress. ErrNotFound past the end or when the sequence is gone;
	// ErrDamaged (*FormatError) when the page cannot be read. Marks that were
	// recorded behind are included. It needs no fence.
	Steps(ctx context.Context, id uuid.UUID, n int) (Page, error)

	// Record writes events of one sequence, all or none, in order. durable
	// false queues events for the next durable write of the sequence or a short
	// delay, whichever comes first, and returns at once; they are lost if the
	// process dies before, which must be harmless. ErrFenced: the claim is not
	// the newest or the sequence has an outcome; nothing was written. A Move
	// event that finds another watermark: *StaleError, nothing written.
	Record(ctx context.Context, f Fence, durable bool, events ...Event) error

	// Complete ends a sequence as completed, in one durable write together with
	// all queued events, the given last events, the release of key and locks,
	// the plan id and the history record. With cleaning the cleanup steps are
	// kept until Cleaned. Completing again with the same fence is success.
	Complete(ctx context.Context, f Fence, cleaning bool, h HistoryNotes, events ...Event) error
	// Cleaned ends the cleaning state; written behind. report says what stayed.
	Cleaned(ctx context.Context, f Fence, report string) error

	// Park stops a sequence durably until a person decides, and releases the
	// claim.
	Park(ctx context.Context, f Fence, p Parking, events ...Event) error
	// ParkTold notes that every OnPark succeeded for the current park.
	ParkTold(ctx context.Context, f Fence) error

	// Get returns one live or cleaning sequence by key, whoever holds it;
	// ErrNotFound without one, ErrDamaged when it is quarantined.
	Get(ctx context.Context, key commitstep.Key) (commitstep.Live, error)
	// Find is Get by sequence id. ErrNotFound also when it has an outcome; ask
	// History.Lookup then.
	Find(ctx context.Context, id uuid.UUID) (commitstep.Live, error)
	// Scan yields live and cleaning sequences in key order, streaming. It never
	// shows half a sequence. After an error of one record (ErrDamaged,
	// ErrNewerFormat) it may go on with the next.
	Scan(ctx context.Context, f Filter) iter.Seq2[commitstep.Live, error]
	// Holder tells which live lease holds the sequence, and until when. ok is
	// false when it is free.
	Holder(ctx context.Context, l commitstep.Live) (in commitstep.Instance, until time.Time, ok bool, err error)
	// Quarantine lists what cannot be read. A dataset that is named here must
	// not be ingested; an entry without a name blocks all jobs.
	Quarantine(ctx context.Context) ([]commitstep.Quarantined, error)

	// Close ends the use of the store; queued events are written first.
	Close() error
}

// Draft is a sequence to be stored.
type Draft struct {
	ID  uuid.UUID
	Key commitstep.Key
	// Pages yields the steps, PageSize in every page but the last. It is ranged
	// over once. An error ends the put with that error, nothing stored.
	Pages iter.Seq2[[]commitstep.Step, error]
	// Header is called once, after Pages was exhausted.
	Header func() (commitstep.Header, error)
	// Roots is called once, after Header: what a [PathKeeper] remembers of the
	// sequence. nil is nothing.
	Roots func() []commitstep.StagingRoot
}

// ClaimFilter narrows Claim.
type ClaimFilter struct {
	Job string // "" is every job
	// Match further selects by dataset; nil takes all.
	Match func(dataset string) bool
	After *commitstep.Key // exclusive
	Limit int
	// Parked claims parked sequences whose OnPark was not told, instead.
	Parked bool
}

// Filter narrows Scan.
type Filter struct {
	Job    string
	Match  func(dataset string) bool
	States []commitstep.State // empty is all; completed means still cleaning
}

// Page is a run of steps with what is known of them.
type Page struct {
	Number   int
	Steps    []commitstep.Step
	Progress []commitstep.Progress // same length as Steps
}

// EventType says what an Event means.
type EventType uint8

// Event types.
const (
	// EventDone marks Step done.
	EventDone EventType = iota + 1
	// EventAttempt starts attempt Attempt of Step; it counts as failed until an
	// outcome says otherwise.
	EventAttempt
	// EventOutcome ends attempt Attempt.Number of Step with its Outcome, Class,
	// Error and Ended. "done", "stopped" and "waiting" do not count as failed.
	EventOutcome
	// EventNote replaces the note of Step by Data.
	EventNote
	// EventNoReturn stores Data as the point-of-no-return mark of Step.
	EventNoReturn
	// EventMove applies Move to the watermarks, compare-and-set, and marks Step
	// done. Finding our own token is success.
	EventMove
	// EventMessage sets the sequence's message to Message: what it waits for.
	EventMessage
)

// Event is one thing that happened to a step.
type Event struct {
	Type    EventType
	Step    int
	Attempt commitstep.AttemptRecord
	Data    json.RawMessage
	Move    commitstep.WatermarkMove
	Message string
}

// Parking says why a sequence is parked.
type Parking struct {
	Reason  commitstep.ParkReason
	Step    int // -1 if no step is to blame
	Message string
}

// BusyError says who holds a sequence. It matches commitstep.ErrBusy.
type BusyError struct {
	Key    commitstep.Key
	ID     uuid.UUID
	Holder commitstep.Instance
	Until  time.Time
}

// StaleError names the watermark that was not what the plan expects. It
// matches commitstep.ErrStale.
type StaleError struct {
	Move    commitstep.WatermarkMove
	Stored  commitstep.Watermark
	Verdict commitstep.Verdict
}

// AlreadyError says that the same plan id with the same content is known.
type AlreadyError struct{ Record PlanRecord }

// PlanRecord is what is kept of a plan id for ever.
type PlanRecord struct {
	Key      commitstep.Key   `json:"key"`
	PlanID   string           `json:"planId"`
	Hash     string           `json:"hash"`
	Sequence uuid.UUID        `json:"sequence"`
	State    commitstep.State `json:"state"`
}
