package pgstore

import (
	"log/slog"
	"time"
)

// DefaultSchema is the schema that is used when none is named.
const DefaultSchema = "commitstep"

// Options of Open and Migrate. Nil, or any zero field, means the defaults. The
// address may name schema, give_up, lease, statement_timeout, lock_timeout and
// idle_in_transaction_session_timeout too, and has the last word.
type Options struct {
	// Schema that holds the tables; several engines share a database by using
	// one each. Default "commitstep", or the schema parameter of the address.
	Schema string
	// LeaseTTL is how long a driver instance may stay silent before its
	// sequences are free for others. The driver renews it every third of that.
	// All drivers of a store should use the same. Default 30 s, at most 1 h.
	LeaseTTL time.Duration
	// MarkDelay is how long an event recorded behind may wait for company before
	// it is written on its own. Default 100 ms.
	MarkDelay time.Duration
	// Linger is how long a commit waits for further writes after the first one
	// arrived. Default 0: commits take what queued up during the last one.
	Linger time.Duration
	// Rejoin is how long a commit waits for the callers of the last one to come
	// back, which makes fewer and larger commits of many callers; a lone caller
	// does not wait. Default 1 ms; negative is none.
	Rejoin time.Duration
	// MaxConns is the most connections of this process. Default 8.
	MaxConns int32
	// GiveUp is how long writes and reads are repeated while the server cannot
	// be reached, does not answer, restarts, or is full. What was sent is asked for
	// at least once more. Default 2 min.
	GiveUp time.Duration
	// StatementTimeout, LockTimeout and IdleTimeout are
	// statement_timeout, lock_timeout and idle_in_transaction_session_timeout of
	// everything that is sent. Defaults 60 s, 20 s and 60 s; the first and the
	// last at least 100 ms.
	StatementTimeout time.Duration
	LockTimeout      time.Duration
	IdleTimeout      time.Duration
	// Log is told of trouble that is being waited out; nil tells nobody.
	Log *slog.Logger
}

func orDefault(v *time.Duration, d time.Duration) {
	if *v <= 0 {
		*v = d
	}
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	orDefault(&d.LeaseTTL, 30*time.Second)
	if d.Rejoin == 0 {
		d.Rejoin = time.Millisecond
	}
	orDefault(&d.MarkDelay, 100*time.Millisecond)
	orDefault(&d.GiveUp, 2*time.Minute)
	orDefault(&d.StatementTimeout, time.Minute)
	orDefault(&d.LockTimeout, 20*time.Second)
	orDefault(&d.IdleTimeout, time.Minute)
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	return d
}
