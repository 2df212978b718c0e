package boltstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// Store is an open store. It implements [store.Full]; all methods are safe for
// concurrent use.
type Store struct {
	path string
	o    Options
	own  *ownership
	q    *batch.Queue[op]

	// dbmu is held for reading while a transaction runs, and for writing while
	// the file is closed and opened again.
	dbmu sync.RWMutex
	db   *bbolt.DB // nil while it is closed

	mu        sync.Mutex
	info      storeRecord
	seqs      map[uuid.UUID]*seq
	leases    map[uuid.UUID]*lease
	putting   map[uuid.UUID]chan struct{} // closed when that put has ended
	bad       []*badRecord
	queued    map[*seq]struct{} // sequences with events recorded behind
	behind    []op              // posted writes that the next commit carries
	flushing  bool              // a flush is scheduled
	timer     *time.Timer
	garbage   []orphan
	dropIDs   []dropped
	collects  bool   // a collection is posted
	cold      []*seq // released; their caches may go
	failed    error
	closed    bool
	closeOnce sync.Once
	closeErr  error

	// Only the committer touches these: as of the last commit.
	sums   sums
	newest uuid.UUID
	// zeroed is up to where the file is known to have room, lastSize where the
	// pages ended at the commit before; see ahead.go.
	zeroed, lastSize int64
	zeros            []byte
	paths            livePaths

	scratch sync.Pool // of *[]byte, for encoding

	stop      chan struct{} // closed by Close, ends the wait for a failed file
	reopening sync.WaitGroup
}

var _ store.Full = (*Store)(nil)

// op is a write on its way through the queue. It is called by the committer
// once; an error means that it has written nothing.
type op func(t *txn) error

// Info describes the store.
func (s *Store) Info() store.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.Info{ID: s.info.ID, Location: "bolt:" + s.path, Format: s.info.Format, Created: s.info.Created,
		LeaseTTL: s.o.LeaseTTL, SealedFor: s.info.SealedFor, Stamped: s.info.Stamped, Unfinished: s.info.Importing}
}

// Close writes the queued events, ends all leases and closes the file. Calls
// that still run end with ErrClosed. Closing again returns the same error.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closed = true
		if s.timer != nil {
			s.timer.Stop()
		}
		s.mu.Unlock()
		// Queued events are worth a write; if it fails, Verify finds the effects.
		if err := s.q.Do(context.Background(), s.flushOp); err != nil && !errors.Is(err, commitstep.ErrStoreFailed) {
			s.closeErr = fmt.Errorf("boltstore: write the queued events: %w", err)
		}
		close(s.stop)
		s.q.Close()
		s.reopening.Wait()
		s.dbmu.Lock()
		defer s.dbmu.Unlock()
		if s.db != nil {
			if err := s.db.Close(); err != nil && s.closeErr == nil {
				s.closeErr = fmt.Errorf("boltstore: close %s: %w", s.path, err)
			}
			s.db = nil
		}
		s.own.release()
	})
	return s.closeErr
}

// write hands op to the committer and waits for its result.
func (s *Store) write(ctx context.Context, o op) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return ErrClosed
	}
	err := s.q.Do(ctx, o)
	if errors.Is(err, batch.ErrClosed) {
		return ErrClosed
	}
	return err
}

// view runs fn in a read transaction. Keep it short: a long one keeps old
// pages from being used again.
func (s *Store) view(ctx context.Context, fn func(tx *bbolt.Tx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.dbmu.RLock()
	defer s.dbmu.RUnlock()
	if s.db == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return ErrClosed
		}
		return s.failure()
	}
	defer guard(&err)()
	return s.db.View(fn)
}

// guard turns a panic of bbolt, or a fault in the mapped file, into an error:
// the file was sound when it was opened, so it has been damaged since.
func guard(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			*err = damaged("the file was damaged while it was open: %v; close the program and run `commitstep store check`", p)
		}
	}
}

// failure is the refusal after a failed commit. s.mu must be held.
func (s *Store) failure() error {
	return fmt.Errorf("store %q: %w (%v); it is being opened and read again", s.path, commitstep.ErrStoreFailed, s.failed)
}

// commit is the committer: it carries out a batch in one transaction.
func (s *Store) commit(ops []op, results []error) {
	s.mu.Lock()
	if s.failed != nil {
		err := s.failure()
		s.mu.Unlock()
		for i := range results {
			results[i] = err
		}
		return
	}
	ops = append(ops, s.behind...)
	s.behind = nil
	s.mu.Unlock()
	if err := s.transact(ops, results); err != nil {
		err = fmt.Errorf("store %q: %w: %w", s.path, commitstep.ErrOutcomeUnknown, err)
		for i := range results {
			results[i] = err
		}
		s.recover(err)
	}
}

// transact returns an error only if the transaction as a whole failed.
func (s *Store) transact(ops []op, results []error) (err error) {
	var tx *bbolt.Tx
	defer func() {
		// Rollback, and not the rollback that bbolt does by itself after a
		// panic: that one walks the whole file once more.
		if tx != nil && tx.DB() != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	defer guard(&err)()
	if tx, err = s.db.Begin(true); err != nil {
		return err
	}
	s.ahead(tx.Size())
	t := &txn{s: s, tx: tx, sums: s.sums, newest: s.newest}
	for i, o := range ops {
		err := o(t)
		if t.err != nil {
			return t.err
		}
		if i < len(results) {
			results[i] = err
		}
	}
	if t.wrote {
		t.put(tabMeta, keySums, commitstep.SealBuffer(commitstep.RecordMeta, keySums, encodeSums(&t.sums)))
		if t.err != nil {
			return t.err
		}
		if err := s.o.CommitHook(BeforeCommit); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		if err := s.o.CommitHook(AfterCommit); err != nil {
			return err
		}
		s.sums, s.newest = t.sums, t.newest
	}
	s.mu.Lock()
	for _, f := range t.after {
		f()
	}
	for _, q := range s.cold {
		if q.holder == nil && q.taken == 0 {
			q.header, q.record, q.cond = nil, nil, nil
		}
	}
	s.cold = s.cold[:0]
	s.mu.Unlock()
	return nil
}

// recover follows a failed commit: nobody knows what of it reached the disk,
// so everything in memory is dropped, the file is opened and read again, and
// all leases end. It runs in the committer and returns once one try was made;
// later tries are made in the background, so that callers get their answers.
func (s *Store) recover(cause error) {
	s.mu.Lock()
	s.failed = cause
	s.leases = make(map[uuid.UUID]*lease)
	s.queued = make(map[*seq]struct{})
	s.mu.Unlock()
	s.dbmu.Lock()
	if s.db != nil {
		// What Close reports now is the trouble that is known already.
		_ = closeQuietly(s.db)
		s.db = nil
	}
	s.dbmu.Unlock()
	s.reopening.Go(s.reopen)
}

func closeQuietly(db *bbolt.DB) (err error) {
	defer guard(&err)()
	return db.Close()
}

// reopen tries to open the file again until it succeeds or the store is closed.
func (s *Store) reopen() {
	pause := 10 * time.Millisecond
	for {
		if err := s.openAgain(); err == nil {
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-s.stop:
			t.Stop()
			return
		case <-t.C:
		}
		pause = min(2*pause, 2*time.Second)
	}
}

func (s *Store) openAgain() error {
	if err := s.o.CommitHook(Reopening); err != nil {
		return err
	}
	db, x, err := openFile(s.path, &s.o, s.own)
	if err != nil {
		return err
	}
	s.dbmu.Lock()
	defer s.dbmu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return db.Close()
	}
	// Epochs that were given out are never given out again, also those that
	// only memory knew: their holders may still be in the middle of an effect.
	old := s.seqs
	s.db = db
	s.install(x)
	for id, q := range s.seqs {
		if o := old[id]; o != nil && o.epoch > q.epoch {
			q.epoch = o.epoch
		}
	}
	s.failed = nil
	return nil
}

// install takes over what the file says. s.mu must be held, or the store not
// yet be shared.
func (s *Store) install(x *index) {
	s.zeroed, s.lastSize = 0, 0
	s.paths.forget()
	s.info, s.sums, s.newest, s.seqs, s.bad = x.info, x.sums, x.newest, x.seqs, nil
	s.leases = make(map[uuid.UUID]*lease)
	s.queued = make(map[*seq]struct{})
	s.behind = nil
	s.garbage, s.dropIDs = nil, nil
	// What was posted before a failed commit was refused.
	s.flushing, s.collects = false, false
	s.quarantine(x)
	// Records without a header are rests of an interrupted put or removal. But
	// if a header cannot be read, they may be its.
	if !x.hasBad(tabLive, tabCleaning) {
		for _, o := range x.orphans {
			if id, _, err := parsePageKey(o.key); err == nil {
				if _, running := s.putting[id]; running {
					continue
				}
			}
			s.garbage = append(s.garbage, o)
		}
		s.collect()
	}
}

// snapshotSeqs copies the index, for loops that must not hold s.mu.
func (s *Store) snapshotSeqs() map[uuid.UUID]*seq {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.seqs)
}
