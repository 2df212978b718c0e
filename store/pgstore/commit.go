package pgstore

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/commitstep/engine/internal/batch"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// opKind is what a write wants.
type opKind uint8

const (
	opPut opKind = iota
	opRecord
	opPark
	opComplete
	opCleaned
	opTold
	opRelease
)

// op is a write on its way through the queue. Every kind is harmless when it
// is carried out twice.
type op struct {
	ctx  context.Context // nil for writes that nobody waits for
	kind opKind
	put  *putting

	fence    store.Fence
	events   []store.Event
	parking  store.Parking
	cleaning bool
	notes    store.HistoryNotes
	report   string

	// Of the commit at hand.
	serial int64         // grows from one operation of this process to the next
	again  bool          // an earlier try may have been carried out
	all    []store.Event // with what was queued before
	sweep  bool
	hold   *held
	at     time.Time
	ok     bool
}

// errRefused says that an operation was not carried out because the store is
// not as it expects; its caller finds out why.
var errRefused = errors.New("refused")

// submit hands o to the committer and waits for its result.
func (s *Store) submit(ctx context.Context, o *op) error {
	if err := s.open(); err != nil {
		return err
	}
	o.ctx = ctx
	err := s.q.Do(ctx, o)
	if errors.Is(err, batch.ErrClosed) {
		return ErrClosed
	}
	return err
}

// commit is the committer: one transaction for all operations of a batch. If
// something in it cannot be stored at all, each is tried alone, so that the
// failure finds its own caller.
func (s *Store) commit(ops []*op, results []error) {
	s.prepare(ops)
	defer s.collectGarbage()
	err := s.transact(ops)
	if err == nil || len(ops) == 1 {
		for i, o := range ops {
			results[i] = s.finish(o, err)
		}
		return
	}
	if k := classify(err); k != final || errors.Is(err, errGone) {
		for i, o := range ops {
			results[i] = s.finish(o, err)
		}
		return
	}
	for i, o := range ops {
		results[i] = s.finish(o, s.transact([]*op{o}))
	}
}

// errGone: every caller of the batch has stopped waiting before anything was
// written.
var errGone = errors.New("nobody waits for this write any more")

// transact runs the batch until there is an answer. A batch that cannot have
// been written yet is given up once none of its callers waits any more.
func (s *Store) transact(ops []*op) error {
	p := s.patience()
	try := func(ctx context.Context, l limit) error {
		for _, o := range ops {
			o.ok = false
		}
		// The try itself is finished whatever happens.
		return s.send(context.WithoutCancel(ctx), l, settingsSQL+genericSQL, func(b *pgx.Batch) { s.fill(b, ops) })
	}
	first := try(context.Background(), s.limit(p))
	if first == nil {
		return nil
	}
	ctx, stop := whileWaiting(ops)
	defer stop()
	err := s.repeatWith(ctx, p, true, func(ctx context.Context, l limit) error {
		if err := first; err != nil {
			first = nil
			return err
		}
		for _, o := range ops {
			o.again = true
		}
		return try(ctx, l)
	})
	if err != nil && errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errGone) {
		return errGone
	}
	return err
}

// whileWaiting is a context that ends when the last caller has stopped waiting.
func whileWaiting(ops []*op) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var waiting atomic.Int64
	waiting.Store(int64(len(ops)))
	stops := make([]func() bool, 0, len(ops))
	for _, o := range ops {
		if o.ctx == nil {
			continue // nobody waits, and it is worth its write
		}
		stops = append(stops, context.AfterFunc(o.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel(errGone)
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// prepare gathers what was recorded behind before these operations.
func (s *Store) prepare(ops []*op) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := map[uuid.UUID]bool{}
	for _, o := range ops {
		s.serial++
		o.at, o.serial = now, s.serial
		switch o.kind {
		case opRecord, opPark, opComplete:
		default:
			continue
		}
		o.all, o.sweep = o.events, true
		h := s.holdOf(o.fence)
		if h == nil {
			continue
		}
		o.hold = h
		if !taken[h.id] {
			taken[h.id] = true
			if before := h.take(); len(before) > 0 {
				o.all = append(slices.Clip(before), o.events...)
			}
			delete(s.queued, h.id)
		}
		o.sweep = h.marks
	}
}

// finish brings the memory up to date and gives the caller's result.
func (s *Store) finish(o *op, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := o.hold
	if isRefusal(err) {
		return errRefused
	}
	if err != nil {
		if h != nil && !errors.Is(err, errGone) {
			h.forget()
			h.gen++
		}
		if errors.Is(err, errGone) && o.ctx != nil && o.ctx.Err() != nil {
			return o.ctx.Err()
		}
		return err
	}
	if !o.ok {
		if h != nil {
			s.unsent(o, h)
		}
		return errRefused
	}
	if h != nil {
		h.landed()
		h.apply(o.events)
		for i := range o.all {
			switch o.all[i].Type {
			case store.EventDone, store.EventMove, store.EventNote, store.EventNoReturn:
				h.marks = true
			}
		}
	}
	switch {
	case o.kind == opComplete && o.cleaning:
	case o.kind == opPark, o.kind == opRelease:
		s.drop(o.fence)
	case o.kind == opComplete, o.kind == opCleaned:
		s.drop(o.fence)
		if o.kind == opCleaned || h == nil || h.steps > inlineSteps {
			s.garbage = true
		}
	}
	return nil
}

// unsent follows a refused write: the events that it would have carried wait
// for the next one. If even they are refused, the sequence is somebody else's.
// s.mu must be held.
func (s *Store) unsent(o *op, h *held) {
	if o.kind == opRecord && len(o.events) == 0 {
		s.drop(h.fence())
		return
	}
	if len(h.flight) == 0 {
		return
	}
	h.queue, h.flight = append(h.flight, h.queue...), nil
	h.gen++
	if s.held[h.id] == h && !s.closed {
		s.queued[h.id] = h
		s.scheduleFlush(false)
	}
}

// group is what one statement does for one sequence, on behalf of one or more
// operations.
type group struct {
	*op
	ops    []*op
	events []store.Event
}

// fill queues the statements of a batch. A statement changes a row once, so a
// sequence stands in it once: operations that cannot be merged wait for the
// next round of statements, in the same transaction.
func (s *Store) fill(b *pgx.Batch, ops []*op) {
	var puts []*op
	var round map[uuid.UUID]*group
	var order []*group
	flush := func() {
		for kind := opRecord; kind <= opRelease; kind++ {
			var list []*group
			for _, g := range order {
				if g.kind == kind {
					list = append(list, g)
				}
			}
			if len(list) > 0 {
				s.queueWrite(b, kind, list)
			}
		}
		round, order = map[uuid.UUID]*group{}, nil
	}
	round = map[uuid.UUID]*group{}
	for _, o := range ops {
		if o.kind == opPut {
			puts = append(puts, o)
			continue
		}
		if g := round[o.fence.ID]; g != nil {
			if g.kind == opRecord && o.kind == opRecord && g.fence == o.fence && !moves(g.events) && !moves(o.all) {
				g.ops = append(g.ops, o)
				g.events = append(slices.Clip(g.events), o.all...)
				g.serial = o.serial
				continue
			}
			flush()
		}
		g := &group{op: o, ops: []*op{o}, events: o.all}
		round[o.fence.ID] = g
		order = append(order, g)
	}
	flush()
	if len(puts) > 0 {
		s.queuePuts(b, puts)
	}
}

func moves(events []store.Event) bool {
	return slices.ContainsFunc(events, func(e store.Event) bool { return e.Type == store.EventMove })
}

// collectGarbage starts a collection after a commit that left something for it.
func (s *Store) collectGarbage() {
	s.mu.Lock()
	some := s.garbage
	s.garbage = false
	s.mu.Unlock()
	if some {
		s.collectSoon()
	}
}

// isRefusal reports a put that met a row of its own sequence at the same
// moment, or a path that was used before.
func isRefusal(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23505" && pe.ConstraintName == "documents_pkey" || breaksPaths(err)
}
