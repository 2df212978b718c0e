package commitstep

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// State of a sequence. Pending and parked are live.
type State string

// States.
const (
	Pending   State = "pending"
	Parked    State = "parked"
	Completed State = "completed"
	Abandoned State = "abandoned"
)

// Live means not yet an outcome.
func (s State) Live() bool { return s == Pending || s == Parked }

// ParkReason says why a sequence waits for a person.
type ParkReason string

// Park reasons.
const (
	PublishUnknown    ParkReason = "PUBLISH_UNKNOWN"
	AttemptsExhausted ParkReason = "ATTEMPTS_EXHAUSTED"
	ConflictFound     ParkReason = "CONFLICT"
	Unreadable        ParkReason = "UNREADABLE"
	Adopted           ParkReason = "ADOPTED"
)

// Step is one effect as it is stored: kind, version, parameters and the
// evidence gathered when it was planned. Index counts over the whole sequence
// from 0; Stage from 0.
type Step struct {
	Index    int             `json:"-"`
	Stage    int             `json:"stage"`
	Kind     string          `json:"kind"`
	Version  int             `json:"version"`
	Class    StepClass       `json:"class,omitempty"`
	Params   json.RawMessage `json:"params,omitempty"`
	Evidence json.RawMessage `json:"evidence,omitempty"`
}

// StepClass places a step in the order rule: every data step stands before the
// first watermark step; ledger steps may stand anywhere.
type StepClass string

// Classes. The zero value is a data step.
const (
	DataStep      StepClass = ""
	WatermarkStep StepClass = "watermark"
	LedgerStep    StepClass = "ledger"
)

// Header is a stored sequence without its steps. It never changes after Put.
type Header struct {
	ID uuid.UUID `json:"id"`
	Key
	// PlanID is the caller's, may be empty; PlanHash is over the plan as
	// resolved, without evidence.
	PlanID   string    `json:"planId,omitempty"`
	PlanHash string    `json:"planHash"`
	Created  time.Time `json:"created"`
	// Steps and Stages count; PageSize is the number of steps in every page
	// but the last.
	Steps    int `json:"steps"`
	Stages   int `json:"stages"`
	PageSize int `json:"pageSize,omitempty"`
	// FirstWatermark is the index of the first watermark step, -1 if none.
	FirstWatermark int      `json:"firstWatermark"`
	Locks          []string `json:"locks,omitempty"`
	// Moves are the watermarks of the commit store that the plan moves. Put
	// checks them again in its own transaction.
	Moves []WatermarkMove `json:"moves,omitempty"`
	// Cleanup are the steps that run after completion.
	Cleanup []Step `json:"cleanup,omitempty"`
	// Used are the source and cleanup paths, nil without any. Put refuses those
	// of another live sequence.
	Used *UsedPaths `json:"used,omitempty"`
	// AcceptReusedPaths is the reason that the plan gave for using paths that an
	// earlier sequence used.
	AcceptReusedPaths string `json:"acceptReusedPaths,omitempty"`
	// Writer is the program version that wrote the record.
	Writer string `json:"writer,omitempty"`
}

// StepToken is the token of step index of sequence id: the same at every
// repetition, different for every step (a name-based UUID of the two).
func StepToken(id uuid.UUID, index int) uuid.UUID {
	var name [len(id) + 8]byte
	copy(name[:], id[:])
	binary.BigEndian.PutUint64(name[len(id):], uint64(index))
	sum := sha1.Sum(name[:])
	token := uuid.UUID(sum[:len(id)])
	token[6] = token[6]&0x0f | 0x50 // version 5: made from a name
	token[8] = token[8]&0x3f | 0x80 // variant of RFC 9562
	return token
}

// Condition is the part of a live (or cleaning) sequence that changes.
type Condition struct {
	State  State      `json:"state"`
	Reason ParkReason `json:"reason,omitempty"`
	// ParkStep is the index of the step that parked it, -1 if none did.
	ParkStep int `json:"parkStep"`
	// Message is the last error or the evidence behind the park.
	Message string `json:"message,omitempty"`
	// Version grows with every change of State, Reason, ParkStep, Message,
	// Cleaning and DeclaredPublished, and with every decision; decisions are
	// conditional on it. Claims and the progress of steps leave it as it is:
	// while a sequence is parked there is none.
	Version uint64 `json:"version"`
	// Epoch grows with every claim, also by the same owner, and with every
	// decision; driver writes are conditional on it.
	Epoch uint64 `json:"epoch"`
	// Owner is the driver instance of the newest claim; zero if none was made, or
	// a person has decided since.
	Owner   Instance  `json:"owner,omitzero"`
	Updated time.Time `json:"updated"`
	// Cleaning: completed, and its cleanup still has to run.
	Cleaning bool `json:"cleaning,omitempty"`
	// ParkTold: every OnPark of the sequence has succeeded for this park.
	ParkTold bool `json:"parkTold,omitempty"`
	// DeclaredPublished are steps that a person declared published. Their
	// sources are never cleaned.
	DeclaredPublished []int `json:"declaredPublished,omitempty"`
}

// Instance is one running driver.
type Instance struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name,omitempty"` // owner name, for people
	Host string    `json:"host,omitempty"`
	PID  int       `json:"pid,omitempty"`
}

// Live is a sequence that has no outcome yet, or is still cleaning.
type Live struct {
	Header
	Condition
}

// Attempt outcomes as recorded.
const (
	AttemptDone    = "done"
	AttemptFailed  = "failed"
	AttemptStopped = "stopped" // ended by a clean stop, not counted
	AttemptWaiting = "waiting" // not sent, not counted
	// AttemptUnknown: no look can tell what became of it, since Ended. Counted,
	// as one without an outcome.
	AttemptUnknown = "unknown"
)

// AttemptRecord is one try to execute one step.
type AttemptRecord struct {
	Number  int       `json:"number"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Outcome is empty while it runs, and stays so if the process died.
	Outcome string `json:"outcome,omitempty"`
	Class   string `json:"class,omitempty"`
	Error   string `json:"error,omitempty"`
	Driver  string `json:"driver,omitempty"`
}

// KeptAttempts is how many attempt records of a step are kept; the counts go on.
const KeptAttempts = 16

// Progress is what a store knows of one step besides the step itself.
type Progress struct {
	Done bool `json:"done,omitempty"`
	// Note is the last one from Attempt.Note; NoReturn the value of
	// PointOfNoReturn, nil without a mark.
	Note     json.RawMessage `json:"note,omitempty"`
	NoReturn json.RawMessage `json:"noReturn,omitempty"`
	// Attempts holds the newest KeptAttempts; Count all there ever were;
	// Failed those that count against the cap since the last reset, including
	// the ones that ended without an outcome.
	Attempts []AttemptRecord `json:"attempts,omitempty"`
	Count    int             `json:"count,omitempty"`
	Failed   int             `json:"failed,omitempty"`
}

// Quarantined is a record that cannot be read. Its dataset is parked
// UNREADABLE; without a readable name no job of the store may ingest.
type Quarantined struct {
	// Key is the dataset, if NameKnown.
	Key       Key       `json:"key"`
	NameKnown bool      `json:"nameKnown"`
	ID        uuid.UUID `json:"id,omitzero"`
	Where     string    `json:"where"` // bucket/table and key of the record
	Problem   string    `json:"problem"`
	// Newer is set when the record is intact but in a newer format.
	Newer bool `json:"newer,omitempty"`
}
