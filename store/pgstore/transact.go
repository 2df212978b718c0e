package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Every transaction starts with this, in the same round trip: a setting that
// was made when a connection started would be lost behind a pooler, or
// refused. synchronous_commit is raised where a role or database lowered it, and
// nothing here runs long enough to be worth compiling. A statement sees what was
// committed before it began, or else the transaction is not carried out: what is
// looked at after a lock was waited for must be of now. The level of a transaction
// cannot be set any more once a statement runs.
const settingsSQL = `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
	set_config('idle_in_transaction_session_timeout', $3, true),
	set_config('jit', 'off', true),
	set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on' ELSE current_setting('synchronous_commit') END, true),
	CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN 0 ELSE ('isolation ' || current_setting('transaction_isolation'))::int END`

// genericSQL has statements that come after it planned once, for any values:
// those of a commit find their rows by key, and are planned longer than they
// run. Such a plan is kept while the tables grow, so it must not be one that is
// only good for the small tables it was made on.
const genericSQL = `, set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

// orderedSQL has statements that read in key order do so by the index, and stop:
// sorting all of a table whose size the planner does not know seems cheap to it.
const orderedSQL = genericSQL + `, set_config('enable_sort', 'off', true)`

// maxAgain bounds how often a transaction that lost a race is run.
const maxAgain = 50

// closeBudget bounds all waiting once the store is being closed.
const closeBudget = 5 * time.Second

// send runs one transaction in one round trip: the statements that fill queues,
// after the settings. Their results are read by the functions that are attached to
// them.
func (s *Store) send(ctx context.Context, l limit, settings string, fill func(b *pgx.Batch)) error {
	return s.on(ctx, l, func(ctx context.Context, conn *pgxpool.Conn) error {
		b := &pgx.Batch{}
		b.Queue(settings, s.settings...)
		fill(b)
		// Close reads everything, including the answer to the commit.
		return conn.SendBatch(ctx, b).Close()
	})
}

// session runs a transaction that has to look before it writes: fn may be
// called several times, and must be harmless when an earlier call was committed
// without an answer.
func (s *Store) session(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return s.sessionWith(ctx, s.patience(), fn)
}

// longSession is session for transactions of many statements.
func (s *Store) longSession(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return s.sessionWith(ctx, s.longPatience(), fn)
}

func (s *Store) sessionWith(ctx context.Context, p patience, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.repeatWith(ctx, p, true, func(ctx context.Context, l limit) error {
		// What was begun is ended whatever the caller's context says.
		return s.on(context.WithoutCancel(ctx), l, func(ctx context.Context, conn *pgxpool.Conn) error {
			tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
			if err != nil {
				return &acquireError{err}
			}
			if _, err = tx.Exec(ctx, settingsSQL, s.settings...); err == nil {
				err = fn(ctx, tx)
			}
			if err != nil {
				_ = tx.Rollback(ctx)
				if _, ours := err.(*verdictError); ours || classify(err) != unknown {
					return err
				}
				return &acquireError{err} // the commit was never sent
			}
			return tx.Commit(ctx)
		})
	})
}

// read runs statements that change nothing, in one round trip.
func (s *Store) read(ctx context.Context, fill func(b *pgx.Batch)) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.repeat(ctx, false, func(ctx context.Context, l limit) error { return s.send(ctx, l, settingsSQL, fill) })
}

// readInOrder is read for statements that list a part in key order.
func (s *Store) readInOrder(ctx context.Context, fill func(b *pgx.Batch)) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.repeat(ctx, false, func(ctx context.Context, l limit) error { return s.send(ctx, l, settingsSQL+orderedSQL, fill) })
}

// write runs one transaction that is harmless when it runs twice.
func (s *Store) write(ctx context.Context, fill func(b *pgx.Batch)) error {
	return s.writeWith(ctx, s.patience(), settingsSQL, fill)
}

// writeInOrder is write for statements that take what comes first in key order.
func (s *Store) writeInOrder(ctx context.Context, fill func(b *pgx.Batch)) error {
	return s.writeWith(ctx, s.patience(), settingsSQL+orderedSQL, fill)
}

// writeLease is write for what has no use once the lease is over.
func (s *Store) writeLease(ctx context.Context, fill func(b *pgx.Batch)) error {
	return s.writeWith(ctx, s.leasePatience(), settingsSQL, fill)
}

func (s *Store) writeWith(ctx context.Context, p patience, settings string, fill func(b *pgx.Batch)) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.repeatWith(ctx, p, true, func(ctx context.Context, l limit) error { return s.send(context.WithoutCancel(ctx), l, settings, fill) })
}

// repeat tries until there is an answer, the caller is gone, or the time is up.
// While a write may have happened already, a caller who is gone is not asked.
func (s *Store) repeat(ctx context.Context, writes bool, try func(ctx context.Context, l limit) error) error {
	return s.repeatWith(ctx, s.patience(), writes, try)
}

func (s *Store) repeatWith(ctx context.Context, p patience, writes bool, try func(ctx context.Context, l limit) error) error {
	maybe := false
	for n := 1; ; n++ {
		asking := maybe
		l := s.limit(p)
		err := try(ctx, l)
		if maybe {
			err = s.kept(ctx, l, err)
		}
		if err == nil {
			if writes && !s.wrote.Load() {
				s.wrote.Store(true)
			}
			return nil
		}
		if v, ok := err.(*verdictError); ok {
			return v.err
		}
		kind := classify(err)
		if isLostStatement(err) && s.mode.prepared.CompareAndSwap(true, false) {
			s.pool.Reset()
			kind = again
		}
		if ctx.Err() != nil && !maybe && (kind != unknown || !writes) {
			return ctx.Err()
		}
		if isReadOnly(err) && !s.wrote.Load() {
			return s.readOnly(err)
		}
		switch kind {
		case final:
			if maybe {
				return fmt.Errorf("store %s: %w: it was being written when the connection broke, and asking again failed: %w", s.location, commitstep.ErrOutcomeUnknown, s.refusal(err))
			}
			return s.refusal(err)
		case again:
			if n >= maxAgain {
				return s.gaveUp(fmt.Errorf("%d tries lost a race against other writers: %w", n, err), p.giveUp, maybe)
			}
		case unknown:
			maybe = maybe || writes
		}
		if kind != again {
			s.o.Log.Warn("the database is in trouble, trying again", "store", s.location, "error", err, "try", n)
		}
		left := time.Until(s.limit(p).end)
		if left <= 0 && (asking || !maybe) {
			return s.gaveUp(err, p.giveUp, maybe)
		}
		// What may have been written is asked for at least once.
		if !s.pause(ctx, kind, n, left, maybe) {
			return ctx.Err()
		}
	}
}

// pause waits before the next try; false when the caller is gone.
func (s *Store) pause(ctx context.Context, kind trouble, n int, left time.Duration, maybe bool) bool {
	d := min(5*time.Millisecond<<min(n, 9), 2*time.Second)
	switch {
	case kind == again:
		d = min(d, 100*time.Millisecond)
	case kind == unknown && n == 1:
		d = time.Millisecond // most often only that one connection broke
	}
	d = max(0, min(d/2+rand.N(d/2+1), left))
	t := time.NewTimer(d)
	defer t.Stop()
	done := ctx.Done()
	if maybe {
		done = nil
	}
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}
