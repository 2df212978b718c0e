package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// maxExplain bounds how often a write is sent again that was refused for a
// reason that was gone when it was looked for.
const maxExplain = 20

// Record writes events of one sequence, all or none, in order; see
// [store.Store]. A watermark move is always written durably.
func (s *Store) Record(ctx context.Context, f store.Fence, durable bool, events ...store.Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := s.checkOf(ctx, f, events); err != nil {
		return err
	}
	own := ownEvents(events)
	if !durable && !moves(own) {
		if done, err := s.behind(f, own); done {
			return err
		}
	}
	return s.fenced(ctx, &op{kind: opRecord, fence: f, events: own})
}

// Complete ends a sequence as completed, in one durable write; see
// [store.Store].
func (s *Store) Complete(ctx context.Context, f store.Fence, cleaning bool, h store.HistoryNotes, events ...store.Event) error {
	if err := s.checkOf(ctx, f, events); err != nil {
		return err
	}
	return s.fenced(ctx, &op{kind: opComplete, fence: f, cleaning: cleaning, notes: h, events: ownEvents(events)})
}

// Cleaned ends the cleaning state. Doing it again, after it is gone, is
// ErrFenced.
func (s *Store) Cleaned(ctx context.Context, f store.Fence, report string) error {
	return s.fenced(ctx, &op{kind: opCleaned, fence: f, report: report})
}

// Park stops a sequence durably until a person decides, and releases the
// claim. Parking again replaces the reason.
func (s *Store) Park(ctx context.Context, f store.Fence, p store.Parking, events ...store.Event) error {
	if p.Reason == "" {
		return fmt.Errorf("pgstore: park sequence %s: a reason is required", f.ID)
	}
	if err := s.checkOf(ctx, f, events); err != nil {
		return err
	}
	return s.fenced(ctx, &op{kind: opPark, fence: f, parking: p, events: ownEvents(events)})
}

// ParkTold notes that every OnPark succeeded for the current park. On a
// sequence that is not parked (any more) it does nothing.
func (s *Store) ParkTold(ctx context.Context, f store.Fence) error {
	return s.fenced(ctx, &op{kind: opTold, fence: f})
}

// Release gives a claim back. What one no longer holds is left alone.
func (s *Store) Release(ctx context.Context, f store.Fence) error {
	s.mu.Lock()
	if h := s.holdOf(f); h != nil && len(h.queue) > 0 {
		s.queued[f.ID] = h // its events still go with this epoch
	}
	s.mu.Unlock()
	// What is queued behind is worth one write together with the release.
	if err := s.flushOf(ctx, f); err != nil && !errors.Is(err, commitstep.ErrFenced) {
		return err
	}
	err := s.submit(ctx, &op{kind: opRelease, fence: f})
	if errors.Is(err, errRefused) {
		return nil
	}
	return err
}

// checkOf refuses events that could not be stored. How many steps there are is
// known here while the sequence is held.
func (s *Store) checkOf(ctx context.Context, f store.Fence, events []store.Event) error {
	if len(events) == 0 {
		return nil
	}
	steps := 0
	s.mu.Lock()
	if h := s.held[f.ID]; h != nil {
		steps = h.steps
	}
	s.mu.Unlock()
	if steps == 0 {
		err := s.read(ctx, func(b *pgx.Batch) {
			b.Queue(s.sql(`SELECT coalesce((SELECT steps FROM {s}.sequences WHERE id = $1), 0)`), f.ID).QueryRow(func(r pgx.Row) error { return r.Scan(&steps) })
		})
		if err != nil {
			return err
		}
	}
	return checkEvents(f.ID, steps, events)
}

// flushOf writes what is queued of one sequence.
func (s *Store) flushOf(ctx context.Context, f store.Fence) error {
	s.mu.Lock()
	h := s.holdOf(f)
	empty := h == nil || len(h.queue)+len(h.flight) == 0
	s.mu.Unlock()
	if empty {
		return nil
	}
	return s.fenced(ctx, &op{kind: opRecord, fence: f})
}

// fenced carries out a driver's write and, when it is refused, finds out why.
func (s *Store) fenced(ctx context.Context, o *op) error {
	for range maxExplain {
		err := s.submit(ctx, o)
		if !errors.Is(err, errRefused) {
			return err
		}
		// The question is part of the write: it is asked to the end.
		if err = s.explain(context.WithoutCancel(ctx), o); !errors.Is(err, errRefused) {
			return err
		}
	}
	return fmt.Errorf("store %s: sequence %s: a write was refused %d times for reasons that were gone at once; nothing was written", s.location, o.fence.ID, maxExplain)
}

// explain says why a write was refused: nil when it was carried out before,
// errRefused when there is no reason any more.
func (s *Store) explain(ctx context.Context, o *op) error {
	var found, sealed bool
	var epoch int64
	var owner *uuid.UUID
	var state, reason, message, sealedFor string
	var step int
	var held bool
	var past bool
	var pastEpoch int64
	var pastState string
	err := s.read(ctx, func(b *pgx.Batch) {
		found, past = false, false
		b.Queue(s.sql(`SELECT epoch, owner, state, reason, park_step, message, held FROM {s}.sequences WHERE id = $1`), o.fence.ID).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				if err := rows.Scan(&epoch, &owner, &state, &reason, &step, &message, &held); err != nil {
					return err
				}
			}
			return rows.Err()
		})
		b.Queue(s.sql(`SELECT epoch, state FROM {s}.history WHERE id = $1`), o.fence.ID).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				past = true
				if err := rows.Scan(&pastEpoch, &pastState); err != nil {
					return err
				}
			}
			return rows.Err()
		})
		b.Queue(s.sql(`SELECT sealed_for FROM {s}.store`)).QueryRow(func(row pgx.Row) error { return row.Scan(&sealedFor) })
	})
	if err != nil {
		return err
	}
	sealed = sealedFor != ""
	id, mine := o.fence.ID, int64(o.fence.Epoch)
	others := o.fence.Owner != uuid.Nil && (owner == nil || *owner != o.fence.Owner)
	switch {
	case o.kind == opComplete && past && pastState == string(commitstep.Completed) && pastEpoch == mine:
		s.forgetHold(o)
		return nil // completed before, and the answer was lost
	case o.kind == opCleaned && o.again && !found && past && pastState == string(commitstep.Completed):
		s.forgetHold(o)
		return nil // as above: the cleaning is over
	case o.kind == opPark && found && epoch == mine && !others && state == string(commitstep.Parked) && reason == string(o.parking.Reason) &&
		step == o.parking.Step && !held && (o.parking.Message == "" || message == toText(o.parking.Message)):
		s.forgetHold(o)
		return nil
	case !found:
		s.forgetHold(o)
		return fmt.Errorf("sequence %s has an outcome or is not here: %w", id, commitstep.ErrFenced)
	case epoch != mine:
		s.forgetHold(o)
		return fmt.Errorf("sequence %s is at epoch %d, this driver holds %d: %w", id, epoch, mine, commitstep.ErrFenced)
	case others:
		// The database went back to before this driver's claim, and gave its epoch
		// again.
		s.forgetHold(o)
		return fmt.Errorf("sequence %s is at epoch %d of another driver, the claim of this one was lost: %w", id, epoch, commitstep.ErrFenced)
	case o.kind == opCleaned && state != string(commitstep.Completed):
		return fmt.Errorf("sequence %s is not cleaning: %w", id, commitstep.ErrFenced)
	case o.kind == opCleaned || o.kind == opTold || o.kind == opRelease:
		return errRefused
	case state == string(commitstep.Completed):
		return fmt.Errorf("sequence %s is completed: %w", id, commitstep.ErrFenced)
	case o.kind == opComplete && state == string(commitstep.Parked):
		return fmt.Errorf("sequence %s was parked (%s) and waits for a person: %w", id, reason, commitstep.ErrFenced)
	}
	for i := range o.events {
		if o.events[i].Type != store.EventMove {
			continue
		}
		if sealed {
			return s.sealedErr(fromText(sealedFor))
		}
		m := o.events[i].Move
		v, err := s.storedWatermark(ctx, m.WatermarkKey)
		if err != nil {
			return err
		}
		if j := m.Judge(v.Watermark, v.Token); j.Outcome == commitstep.Conflict || j.Outcome == commitstep.Unknown {
			return &store.StaleError{Move: m, Stored: v.Watermark, Verdict: j}
		}
	}
	return errRefused
}

// forgetHold drops what this process believed to hold.
func (s *Store) forgetHold(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(o.fence)
}
