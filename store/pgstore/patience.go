package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Nothing is waited for without end here: a server that takes connections and
// never answers, because it is frozen or something on the way swallows what is
// sent, says nothing that could end the waiting, and its own time limits cannot
// help. What was not sent yet ends with the caller's patience. What was sent is
// given up later: a slow answer is worth more than none.

const (
	// answerMargin is what an answer may need beside the server's time limits.
	answerMargin = 5 * time.Second
	// leastAnswer and leastConnect are what a try has, however little is left.
	leastAnswer  = 5 * time.Second
	leastConnect = 2 * time.Second
)

// patience is how long a transaction is tried.
type patience struct {
	started time.Time
	giveUp  time.Duration
	// An answer is waited for as long as that takes, but at least and at most so
	// long.
	least, most time.Duration
}

// patience is that of everything a driver or person does.
func (s *Store) patience() patience {
	return patience{started: time.Now(), giveUp: s.o.GiveUp, least: min(leastAnswer, s.fullAnswer()), most: s.fullAnswer()}
}

// fullAnswer is the longest that a transaction of a few statements can take while
// the server keeps its time limits.
func (s *Store) fullAnswer() time.Duration {
	return s.o.StatementTimeout + s.o.LockTimeout + answerMargin
}

// longPatience is patience with transactions of many statements.
func (s *Store) longPatience() patience {
	p := s.patience()
	p.least = p.most
	return p
}

// leasePatience is patience with what has no use after the lease: the next try
// comes while there is time for it.
func (s *Store) leasePatience() patience {
	p := s.patience()
	p.giveUp = min(p.giveUp, s.o.LeaseTTL)
	p.most = min(p.most, max(s.o.LeaseTTL/3, time.Second))
	p.least = p.most
	return p
}

// limit bounds one try.
type limit struct {
	connect     time.Time // when a connection must be there
	end         time.Time
	least, most time.Duration
}

// limit is that of a try which starts now. A store that is being closed hurries.
func (s *Store) limit(p patience) limit {
	end := p.started.Add(p.giveUp)
	if s.open() != nil {
		end = earlier(end, p.started.Add(closeBudget))
	}
	return limit{connect: latest(end, time.Now().Add(leastConnect)), end: end, least: p.least, most: p.most}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// answer is how long what is sent now may stay without answer.
func (l limit) answer() time.Duration {
	return min(max(time.Until(l.end), l.least), l.most)
}

// errSilent is why a context of ours ended before the caller's did.
var errSilent = errors.New("no answer")

// acquireError is a failure before anything was sent.
type acquireError struct{ err error }

func (e *acquireError) Error() string     { return e.err.Error() }
func (e *acquireError) Unwrap() error     { return e.err }
func (e *acquireError) SafeToRetry() bool { return true }

// acquire takes a connection, or makes one.
func (s *Store) acquire(ctx context.Context, l limit) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, l.connect, errSilent)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err == nil {
		return conn, nil
	}
	if context.Cause(ctx) == errSilent {
		err = fmt.Errorf("no connection could be made in the time there was: %w", err)
	}
	return nil, &acquireError{err}
}

// on runs fn with a connection. fn's context ends when the answers must be
// there; what was sent then is of unknown outcome, and no other connection of that
// time is trusted.
func (s *Store) on(ctx context.Context, l limit, fn func(ctx context.Context, conn *pgxpool.Conn) error) error {
	conn, err := s.acquire(ctx, l)
	if err != nil {
		return err
	}
	defer conn.Release()
	wait := l.answer()
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errSilent)
	defer cancel()
	err = fn(ctx, conn)
	if _, ours := err.(*verdictError); err == nil || ours || context.Cause(ctx) != errSilent {
		return err
	}
	s.pool.Reset()
	return fmt.Errorf("the server did not answer within %s: %w", wait.Round(time.Millisecond), err)
}
