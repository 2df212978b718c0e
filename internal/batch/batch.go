// Package batch is group commit: operations of many goroutines are collected
// and handed, in the order of their arrival, to one function that makes them
// durable together. It must not know what an operation is or where it goes;
// stores put a transaction behind it.
package batch

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrClosed is returned for operations that arrive after Close.
var ErrClosed = errors.New("batch: the queue is closed")

// CommitFunc carries out ops and fills in results, which has the same length
// and starts out all nil. It decides alone what failed: a refused operation
// gets its error in results and must not disturb the others; when the common
// commit fails, the function gives every operation that error. It is called
// from one goroutine at a time and must not keep the slices.
type CommitFunc[T any] func(ops []T, results []error)

// Options of a Queue. The zero value commits at once whatever has queued up
// while the last commit ran, which is the best choice when commits take longer
// than operations take to arrive.
type Options struct {
	// Linger is how long the queue waits for company after the first operation
	// of a batch arrived. 0 does not wait. It trades latency for fewer commits.
	Linger time.Duration
	// Rejoin is how long the queue waits, after a commit, for its callers to come
	// back with their next operations. It waits for as many as were waiting and
	// committed when the commit ended, so a lone caller is never kept, and when
	// callers stay away it costs this much once. 0 does not wait. Worth it where
	// a commit has a price of its own, such as a round trip.
	Rejoin time.Duration
	// RejoinMost lets the queue wait longer than Rejoin: as long as commits have
	// taken lately, but at most so long. Waiting for company then costs at most
	// as much as the commit that it saves. 0 is Rejoin.
	RejoinMost time.Duration
	// MaxBatch is the most operations of one commit; a full batch does not
	// linger. Default 1024.
	MaxBatch int
}

// Queue collects operations of type T. All methods are safe for concurrent use.
type Queue[T any] struct {
	commit CommitFunc[T]
	o      Options

	mu      sync.Mutex
	waiting []*item[T]
	expect  int // full when so many wait; 0 until a commit has ended
	closed  bool
	wake    chan struct{} // holds a token while there may be work
	full    chan struct{} // holds a token once a batch is full
	stopped chan struct{}
	took    time.Duration // a commit, lately; only the committer touches it

	items sync.Pool
}

type item[T any] struct {
	op    T
	state state
	// result is nil for posted operations. It has room for one, so that the
	// committer never waits for a caller.
	result chan error
}

type state uint8

const (
	queued state = iota
	taken
	withdrawn
)

// New starts a queue and its committer goroutine; end it with Close.
func New[T any](o Options, commit CommitFunc[T]) *Queue[T] {
	if o.MaxBatch <= 0 {
		o.MaxBatch = 1024
	}
	q := &Queue[T]{
		commit: commit, o: o,
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	q.items.New = func() any { return &item[T]{result: make(chan error, 1)} }
	go q.run()
	return q
}

// Do queues op and waits for its result. The context is honoured only while op
// waits in the queue: it is then withdrawn, ctx's error is returned, and op was
// not and will not be carried out. Once a commit has taken op, Do waits for the
// outcome, so that an answer is never lost by impatience. ErrClosed after Close.
func (q *Queue[T]) Do(ctx context.Context, op T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	it := q.items.Get().(*item[T])
	it.op, it.state = op, queued
	if !q.push(it) {
		return ErrClosed
	}
	var err error
	if ctx.Done() == nil {
		err = <-it.result
		return q.done(it, err)
	}
	select {
	case err = <-it.result:
	case <-ctx.Done():
		q.mu.Lock()
		if it.state == queued {
			// The item stays in the slice until the committer drops it, so it
			// cannot go back to the pool here.
			it.state = withdrawn
			q.mu.Unlock()
			return ctx.Err()
		}
		q.mu.Unlock()
		err = <-it.result
	}
	return q.done(it, err)
}

// done gives back an item whose result was received.
func (q *Queue[T]) done(it *item[T], err error) error {
	var zero T
	it.op = zero
	q.items.Put(it)
	return err
}

// Post queues op without waiting; its result is dropped. ErrClosed after Close.
func (q *Queue[T]) Post(op T) error {
	if !q.push(&item[T]{op: op}) {
		return ErrClosed
	}
	return nil
}

func (q *Queue[T]) push(it *item[T]) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.waiting = append(q.waiting, it)
	n, expect := len(q.waiting), q.expect
	q.mu.Unlock()
	if n == 1 {
		signal(q.wake)
	}
	if n == q.o.MaxBatch || n == expect {
		signal(q.full)
	}
	return true
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Close lets the operations that are queued finish, refuses new ones, and
// returns once the committer has ended. Closing again waits for the same end.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	signal(q.wake)
	signal(q.full)
	<-q.stopped
}

func (q *Queue[T]) run() {
	defer close(q.stopped)
	var (
		batch   []*item[T]
		ops     []T
		results []error
		timer   *time.Timer
	)
	for range q.wake {
		if wait := q.patience(); wait > 0 {
			if timer == nil {
				timer = time.NewTimer(wait)
				defer timer.Stop()
			} else {
				timer.Reset(wait)
			}
			select {
			case <-timer.C:
			case <-q.full:
			}
		}
		var more, closed bool
		batch, more, closed = q.take(batch[:0])
		if len(batch) > 0 {
			ops, results = ops[:0], results[:0]
			for _, it := range batch {
				ops = append(ops, it.op)
				results = append(results, nil)
			}
			began := time.Now()
			q.commit(ops, results)
			q.took += (time.Since(began) - q.took) / 4
			q.committed(len(batch))
			for i, it := range batch {
				if it.result != nil {
					it.result <- results[i]
				}
				batch[i] = nil
			}
			clear(ops)
			clear(results)
		}
		if more {
			signal(q.wake)
		} else if closed {
			return
		}
	}
}

// patience is how long to wait for company now.
func (q *Queue[T]) patience() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting) >= q.o.MaxBatch {
		return 0
	}
	if q.expect > 0 && len(q.waiting) >= q.expect {
		return q.o.Linger
	}
	if q.expect > 0 {
		return max(q.o.Linger, q.o.rejoin(q.took))
	}
	return q.o.Linger
}

// rejoin is how long to wait for the callers of commits that took so long.
func (o *Options) rejoin(took time.Duration) time.Duration {
	return max(o.Rejoin, min(took, o.RejoinMost))
}

// committed notes how many callers there are: those of the batch that was just
// answered, and those that wait.
func (q *Queue[T]) committed(n int) {
	if q.o.Rejoin <= 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expect = min(n+len(q.waiting), q.o.MaxBatch)
	select {
	case <-q.full: // of an earlier expectation
	default:
	}
	if len(q.waiting) >= q.expect {
		signal(q.full)
	}
}

// take moves up to MaxBatch operations from the queue to into, leaving out
// those that were withdrawn.
func (q *Queue[T]) take(into []*item[T]) (batch []*item[T], more, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.waiting) && len(into) < q.o.MaxBatch {
		if it := q.waiting[n]; it.state == queued {
			it.state = taken
			into = append(into, it)
		}
		n++
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	if rest < q.o.MaxBatch {
		select {
		case <-q.full:
		default:
		}
	}
	return into, rest > 0, q.closed
}
