package store

import (
	"context"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// HistoryNotes is what the driver adds to a history record.
type HistoryNotes struct {
	// Already counts steps that were found in place although their call had
	// failed or its answer was lost; Executed those that this driver executed.
	Already  int    `json:"already,omitempty"`
	Executed int    `json:"executed,omitempty"`
	Recovers int    `json:"recovers,omitempty"`
	Driver   string `json:"driver,omitempty"`
	// PartialVisible lists what had taken effect when the sequence was abandoned.
	PartialVisible []string `json:"partialVisible,omitempty"`
	// DeclaredPublished are the steps, from 0, that a person had declared published
	// before the sequence ended: their word stands for a look. What they staged is
	// never removed.
	DeclaredPublished []int `json:"declaredPublished,omitempty"`
}

// HistoryEntry is a sequence with an outcome. History is append-only.
type HistoryEntry struct {
	ID uuid.UUID `json:"id"`
	commitstep.Key
	PlanID   string                     `json:"planId,omitempty"`
	PlanHash string                     `json:"planHash"`
	State    commitstep.State           `json:"state"` // completed or abandoned
	Created  time.Time                  `json:"created"`
	Ended    time.Time                  `json:"ended"`
	Steps    int                        `json:"steps"`
	Stages   int                        `json:"stages"`
	Epoch    uint64                     `json:"epoch"`
	Moves    []commitstep.WatermarkMove `json:"moves,omitempty"`
	Locks    []string                   `json:"locks,omitempty"`
	Cleanup  []commitstep.Step          `json:"cleanup,omitempty"`
	// AcceptReusedPaths is the plan's reason for using earlier paths.
	AcceptReusedPaths string `json:"acceptReusedPaths,omitempty"`
	// Detail holds the steps of small sequences, up to HistoryDetailSteps; of
	// abandoned ones that fit one page, since they tell what is still staged.
	Detail []commitstep.Step `json:"detail,omitempty"`
	Notes  HistoryNotes      `json:"notes"`
	// CleanupReport says what the cleanup left in place, once it ran.
	CleanupReport string `json:"cleanupReport,omitempty"`
	Message       string `json:"message,omitempty"`
}

// HistoryDetailSteps is the largest sequence whose steps stay in its history.
const HistoryDetailSteps = 64

// HistoryFilter narrows History.List; newest first.
type HistoryFilter struct {
	Job   string
	Match func(dataset string) bool
	Limit int // 0 is all
}

// History reads outcomes. Damage that hides entries ends the range with an
// error, after the entries that could be read.
type History interface {
	ListHistory(ctx context.Context, f HistoryFilter) iter.Seq2[HistoryEntry, error]
	// LookupHistory finds the outcome of a sequence; ErrNotFound without one.
	LookupHistory(ctx context.Context, id uuid.UUID) (HistoryEntry, error)
}

// Person is who decides, as recorded in the audit.
type Person struct {
	Name   string `json:"name"`
	Host   string `json:"host,omitempty"`
	Tool   string `json:"tool,omitempty"` // program and version
	Reason string `json:"reason"`         // at least MinReason characters
}

// MinReason is the shortest reason of a decision, in characters.
const MinReason = 5

// AuditEntry is one decision of a person. Audit is append-only, and written in
// the transaction of what it records.
type AuditEntry struct {
	Number uint64    `json:"number"` // from 1, without gaps
	At     time.Time `json:"at"`
	Person
	// Action: resolve, watermark.set, watermark.accept, store.adopt,
	// quarantine.release, staging.remove …
	Action   string         `json:"action"`
	Key      commitstep.Key `json:"key,omitzero"`
	Sequence uuid.UUID      `json:"sequence,omitzero"`
	Decision string         `json:"decision,omitempty"`
	Before   string         `json:"before,omitempty"`
	After    string         `json:"after,omitempty"`
}

// Audit reads decisions, oldest first.
type Audit interface {
	ListAudit(ctx context.Context) iter.Seq2[AuditEntry, error]
}

// DecisionKind is what a person decides about a parked sequence.
type DecisionKind string

// Decisions; which one is possible when is the driver's table (design of
// resolve), not the store's.
const (
	DecideRetry        DecisionKind = "retry"
	DecidePublished    DecisionKind = "published"
	DecideNotPublished DecisionKind = "not-published"
	DecideAbandon      DecisionKind = "abandon"
)

// Decision changes one sequence on behalf of a person.
type Decision struct {
	Key  commitstep.Key
	ID   uuid.UUID
	Kind DecisionKind
	// Step is the index that published and not-published speak of.
	Step int
	// Version is what the person saw; ErrVersion if it is another now.
	Version uint64
	Person  Person
	// State is what the sequence becomes: Pending or Abandoned.
	State commitstep.State
	// ResetAttempts sets the failed counts of all steps to 0.
	ResetAttempts bool
	// MarkDone marks Step done and declares it published.
	MarkDone bool
	// ClearNoReturn removes the point-of-no-return mark and the note of Step,
	// so that it is executed anew.
	ClearNoReturn bool
	// Force takes a live lease away first; without it: *BusyError.
	Force bool
	Notes HistoryNotes
}

// Decider applies decisions.
type Decider interface {
	// Decide raises the epoch, applies the decision and writes its audit row in
	// one durable transaction. ErrNotFound, ErrVersion, *BusyError.
	Decide(ctx context.Context, d Decision) (commitstep.Condition, error)
	// ReleaseQuarantine reads a quarantined record again. When it can be read
	// now it counts again; ErrDamaged otherwise. AbandonQuarantine gives it up,
	// keeping the damaged bytes aside.
	ReleaseQuarantine(ctx context.Context, key commitstep.Key, p Person) error
	AbandonQuarantine(ctx context.Context, key commitstep.Key, p Person) error
}

// Watermarks of the commit store.
type Watermarks interface {
	// Watermark returns ErrNotFound when none was ever set, and ErrDamaged,
	// never none, when the record cannot be read. Beside ErrNotFound the value
	// says Unaccepted of the job: in a copy that lacks a watermark it may have
	// been set since.
	Watermark(ctx context.Context, k commitstep.WatermarkKey) (commitstep.WatermarkValue, error)
	// ListWatermarks yields them by job and source; job "" is all.
	ListWatermarks(ctx context.Context, job string) iter.Seq2[commitstep.WatermarkValue, error]
	// SetWatermark by hand: compare-and-set from what the person saw, audited.
	// *PendingError while a live sequence names the key, *StaleError when from
	// is not what is stored.
	SetWatermark(ctx context.Context, m commitstep.WatermarkMove, p Person) error
	// AcceptWatermarks lets a job of an adopted store ingest again.
	AcceptWatermarks(ctx context.Context, job string, p Person) (int, error)
	// Unaccepted reports whether the job may not ingest yet because the store
	// was adopted.
	Unaccepted(ctx context.Context, job string) (bool, error)
}

// Admin is maintenance of a whole store.
type Admin interface {
	// Check reads everything and yields every problem found.
	Check(ctx context.Context) iter.Seq2[string, error]
	// Backup writes a stamped copy.
	Backup(ctx context.Context, path string) error
	// Adopt lifts the stamp: live sequences are parked ADOPTED, and no job may
	// ingest before its watermarks are accepted. ErrDecision when it has none,
	// ErrSealed when the store was copied to another, which goes on.
	Adopt(ctx context.Context, p Person) (parked int, err error)
	// RecordAudit appends an entry for an action that happened outside the
	// store (staging removed).
	RecordAudit(ctx context.Context, e AuditEntry) error
}

// Full is everything a store offers; both stores implement it.
type Full interface {
	Store
	History
	Audit
	Decider
	Watermarks
	Admin
}

// StepKeeper is implemented by stores whose Steps goes on serving the pages of
// abandoned sequences that are too long for HistoryEntry.Detail, until what
// they staged was removed.
type StepKeeper interface {
	// DropSteps removes the kept steps of an abandoned sequence. Repeating it is
	// fine. ErrNotFound unless history says that the sequence was abandoned.
	DropSteps(ctx context.Context, id uuid.UUID) error
}

// Noter is implemented by stores whose surroundings can make an acknowledged
// write go missing, such as the replication of a server.
type Noter interface {
	// Notes says what an operator should know, beside the problems of
	// Admin.Check: nothing is wrong with what the store holds.
	Notes(ctx context.Context) ([]string, error)
}
