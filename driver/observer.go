package driver

import (
	"context"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Observer is told what an Engine does, for logs, metrics and traces. Observe
// is called from many goroutines and must return quickly; it cannot influence
// the run. An Event's meaning is additive: ignore types you do not know.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc makes a function an Observer.
type ObserverFunc func(context.Context, Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// EventType names what happened.
type EventType string

// Event types.
const (
	EventStored    EventType = "stored"    // the plan is a promise now
	EventClaimed   EventType = "claimed"   // a pending sequence is ours
	EventVerified  EventType = "verified"  // Verdict or Err
	EventExecuted  EventType = "executed"  // Err nil or its class
	EventSettled   EventType = "settled"   // a stage's effects are durable
	EventDone      EventType = "done"      // a step is done; Did says how
	EventRetry     EventType = "retry"     // Pause until the next try
	EventWaiting   EventType = "waiting"   // could not look, or not sent
	EventParked    EventType = "parked"    // Reason, Message
	EventCompleted EventType = "completed" // all steps took effect
	EventCleaned   EventType = "cleaned"   // Message says what stayed
	EventFenced    EventType = "fenced"    // the lease is lost
	EventPrepared  EventType = "prepared"  // Count steps prepared so far
)

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Type     EventType
	At       time.Time
	Key      commitstep.Key
	Sequence uuid.UUID
	Step     int // -1 when the event is about the whole sequence
	Kind     string
	Summary  string
	Attempt  int
	Verdict  commitstep.Verdict
	Did      string
	Err      error
	Took     time.Duration
	Pause    time.Duration
	Reason   commitstep.ParkReason
	Message  string
	Count    int
}
