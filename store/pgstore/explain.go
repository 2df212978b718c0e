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

// explain says why a put was refused, in the order in which the contract names
// the reasons: the sequence is here already; the store takes none; the owner has
// no lease; plan id, key, locks, watermarks. errRefused: there is no reason any
// more.
func (p *putting) explain(ctx context.Context) (commitstep.Live, error) {
	s, h := p.s, p.header
	var none commitstep.Live
	live, known, err := p.repetition(ctx)
	if known || err != nil {
		return live, err
	}
	if err := s.refreshInfo(ctx); err != nil {
		return none, err
	}
	if err := s.mayPut(); err != nil {
		return none, err
	}
	leased := false
	var anonymous, problem *string
	var newer *bool
	err = s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(`SELECT EXISTS (SELECT FROM {s}.instances WHERE id = $1 AND NOT dead AND until > clock_timestamp()),
			(SELECT place FROM {s}.quarantine WHERE NOT name_known LIMIT 1),
			(SELECT problem FROM {s}.quarantine WHERE key_hash = $2 LIMIT 1), (SELECT newer FROM {s}.quarantine WHERE key_hash = $2 LIMIT 1)`), p.owner, keyHash(h.Key)).
			QueryRow(func(r pgx.Row) error { return r.Scan(&leased, &anonymous, &problem, &newer) })
	})
	switch {
	case err != nil:
		return none, err
	case !leased:
		return none, noLease(p.owner)
	case anonymous != nil:
		return none, fmt.Errorf("store %s: %w: record %s, whose dataset cannot be told; no plan may be stored, see `commitstep quarantine list`", s.location, commitstep.ErrDamaged, *anonymous)
	case problem != nil:
		return none, quarantinedErr(h.Key, "documents", *problem, *newer)
	}
	if err := p.checkPlanID(ctx); err != nil {
		return none, err
	}
	if err := p.checkKey(ctx); err != nil {
		return none, err
	}
	for _, lock := range locksOf(h) {
		err := s.session(ctx, func(ctx context.Context, tx pgx.Tx) error { return answered(s.pendingLock(ctx, tx, lock)) })
		if err != nil {
			return none, err
		}
	}
	for _, m := range h.Moves {
		v, err := s.storedWatermark(ctx, m.WatermarkKey)
		if err != nil {
			return none, err
		}
		if j := m.Judge(v.Watermark, v.Token); j.Outcome != commitstep.NotDone {
			return none, &store.StaleError{Move: m, Stored: v.Watermark, Verdict: j}
		}
	}
	if used, err := s.FindUsed(ctx, h.Used, p.roots, h.AcceptReusedPaths != ""); used != nil || err != nil {
		if err == nil {
			err = used
		}
		return none, err
	}
	if p.inline == nil {
		if ready, err := p.pagesThere(ctx); err != nil || !ready {
			if err == nil {
				err = fmt.Errorf("put %s: the pages of the plan were collected, since the lease ended while they were written: %w; publish again", h.Key, commitstep.ErrFenced)
			}
			return none, err
		}
	}
	return none, errRefused
}

func (p *putting) pagesThere(ctx context.Context) (ready bool, err error) {
	err = p.s.read(ctx, func(b *pgx.Batch) {
		b.Queue(p.s.sql(`SELECT EXISTS (SELECT FROM {s}.puts WHERE sequence = $1)`), p.d.ID).QueryRow(func(r pgx.Row) error { return r.Scan(&ready) })
	})
	return ready, err
}

// repetition answers a put of a sequence that is here already, live or with an
// outcome.
func (p *putting) repetition(ctx context.Context) (commitstep.Live, bool, error) {
	s, h := p.s, p.header
	taken := func(key commitstep.Key) error {
		return fmt.Errorf("sequence id %s is taken by another plan, of dataset %s: %w; use a new id", h.ID, key, commitstep.ErrPlanConflict)
	}
	live, err := s.Find(ctx, h.ID)
	if err == nil {
		if live.Key != h.Key || live.PlanHash != h.PlanHash {
			return commitstep.Live{}, true, taken(live.Key)
		}
		return live, true, nil
	}
	if !errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.Live{}, false, err
	}
	e, err := s.LookupHistory(ctx, h.ID)
	if errors.Is(err, commitstep.ErrNotFound) {
		return commitstep.Live{}, false, nil
	}
	if err != nil {
		return commitstep.Live{}, false, err
	}
	if e.Key != h.Key || e.PlanHash != h.PlanHash {
		return commitstep.Live{}, true, taken(e.Key)
	}
	return commitstep.Live{
		Header: commitstep.Header{ID: e.ID, Key: e.Key, PlanID: e.PlanID, PlanHash: e.PlanHash, Created: e.Created, Steps: e.Steps, Stages: e.Stages,
			PageSize: store.PageSize, Locks: e.Locks, Moves: e.Moves, Cleanup: e.Cleanup},
		Condition: commitstep.Condition{State: e.State, ParkStep: -1, Epoch: e.Epoch, Updated: e.Ended, Message: e.Message},
	}, true, nil
}

// checkPlanID refuses a plan id that is known, as the contract of Put says.
func (p *putting) checkPlanID(ctx context.Context) error {
	h := p.header
	if h.PlanID == "" {
		return nil
	}
	rec, err := p.s.LookupPlan(ctx, h.Key, h.PlanID)
	switch {
	case errors.Is(err, commitstep.ErrNotFound):
		return nil
	case err != nil:
		return err
	case rec.Hash != h.PlanHash:
		return fmt.Errorf("plan id %q of dataset %s: %w (sequence %s, %s); give the new plan a new id", h.PlanID, h.Key, commitstep.ErrPlanConflict, rec.Sequence, rec.State)
	case rec.State == commitstep.Abandoned:
		return fmt.Errorf("plan id %q of dataset %s: %w (sequence %s); give a new plan a new id", h.PlanID, h.Key, commitstep.ErrAbandoned, rec.Sequence)
	}
	return &store.AlreadyError{Record: rec}
}

// checkKey refuses a key that another live sequence holds.
func (p *putting) checkKey(ctx context.Context) error {
	h := p.header
	e := &commitstep.PendingError{Key: h.Key}
	found := false
	err := p.s.read(ctx, func(b *pgx.Batch) {
		found = false
		b.Queue(p.s.sql(`SELECT id, state, reason FROM {s}.sequences s WHERE `+ofKey+` AND slot = $3`), keyPrefix(h.Key), keyHash(h.Key), uuid.Nil).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				if err := rows.Scan(&e.ID, &e.State, &e.Reason); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	if err != nil || !found {
		return err
	}
	return e
}

// pendingLock is the error that names who holds a lock; nil when it is free.
func (s *Store) pendingLock(ctx context.Context, tx pgx.Tx, lock string) error {
	e := &commitstep.PendingError{Lock: lock}
	var job, dataset string
	err := tx.QueryRow(ctx, s.sql(`SELECT s.id, s.job, s.dataset, s.state, s.reason FROM {s}.locks l JOIN {s}.sequences s ON s.id = l.sequence WHERE l.hash = $1`), lockHash(lock)).
		Scan(&e.ID, &job, &dataset, &e.State, &e.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock %q: %w", lock, err)
	}
	e.Key = commitstep.Key{Job: fromText(job), Dataset: fromText(dataset)}
	return e
}
