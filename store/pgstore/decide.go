package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// errDone answers a person's change that needs nothing done.
var errDone = errors.New("nothing to do")

func checkPerson(p store.Person) error {
	switch {
	case utf8.RuneCountInString(strings.TrimSpace(p.Reason)) < store.MinReason:
		return fmt.Errorf("%w: a reason of at least %d characters is required", commitstep.ErrDecision, store.MinReason)
	case strings.TrimSpace(p.Name) == "":
		return fmt.Errorf("%w: the name of who decides is required", commitstep.ErrDecision)
	}
	return nil
}

// decideOnce runs a person's change in a transaction that also holds its audit
// row. The row's token tells a repetition that the change was made already.
func (s *Store) decideOnce(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error) error {
	token, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("pgstore: %w", err)
	}
	const made = `SELECT EXISTS (SELECT FROM {s}.audit WHERE token = $1)`
	tries, done := 0, false
	err = s.session(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if tries++; tries > 1 {
			if err := tx.QueryRow(ctx, s.sql(made), token).Scan(&done); err != nil {
				return err
			}
			if done {
				return answered(errDone)
			}
		}
		return fn(ctx, tx, token)
	})
	if errors.Is(err, errDone) {
		return nil
	}
	if err != nil && tries > 1 {
		// An earlier try may still have been at its commit when this one looked for
		// its row, and then have stood in the way as somebody else's would.
		rerr := s.read(context.WithoutCancel(ctx), func(b *pgx.Batch) {
			b.Queue(s.sql(made), token).QueryRow(func(r pgx.Row) error { return r.Scan(&done) })
		})
		if rerr == nil && done {
			return nil
		}
	}
	return err
}

// mayRun refuses changes to a stamped copy.
func (s *Store) mayRun(ctx context.Context, tx pgx.Tx) error {
	var stamp, target string
	if err := tx.QueryRow(ctx, s.sql(`SELECT stamped, sealed_for FROM {s}.store`)).Scan(&stamp, &target); err != nil {
		return err
	}
	if stamp == "" {
		stamp = s.Info().Stamped
	}
	if stamp != "" {
		return answered(s.stampedErr(stamp, fromText(target)))
	}
	return nil
}

// keepsSeal refuses what would have a sealed store run again, or seem to.
func (s *Store) keepsSeal(ctx context.Context, tx pgx.Tx, what string) error {
	var target string
	if err := tx.QueryRow(ctx, s.sql(`SELECT sealed_for FROM {s}.store`)).Scan(&target); err != nil {
		return err
	}
	if target != "" {
		return answered(fmt.Errorf("%s: %w (a seal is for ever: whatever is done here, nothing runs)", what, s.sealedErr(fromText(target))))
	}
	return nil
}

func (s *Store) notSealed(ctx context.Context, tx pgx.Tx) error {
	var target string
	if err := tx.QueryRow(ctx, s.sql(`SELECT sealed_for FROM {s}.store`)).Scan(&target); err != nil {
		return err
	}
	if target != "" {
		return answered(s.sealedErr(fromText(target)))
	}
	return nil
}

// Decide applies a person's decision; see [store.Decider].
func (s *Store) Decide(ctx context.Context, d store.Decision) (commitstep.Condition, error) {
	var out commitstep.Condition
	if err := checkPerson(d.Person); err != nil {
		return out, err
	}
	if d.State != commitstep.Pending && d.State != commitstep.Abandoned {
		return out, fmt.Errorf("%w: a sequence becomes pending or abandoned, not %q", commitstep.ErrDecision, d.State)
	}
	// What this process still holds back of the sequence comes before.
	s.mu.Lock()
	h := s.held[d.ID]
	s.mu.Unlock()
	if h != nil {
		if err := s.flushOf(ctx, h.fence()); err != nil && !errors.Is(err, commitstep.ErrFenced) {
			return out, err
		}
	}
	err := s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		c, err := s.decide(ctx, tx, token, d)
		if err == nil { // the answer of an earlier try stands, if that was carried out
			out = c
		}
		return err
	})
	if err != nil {
		return commitstep.Condition{}, err
	}
	s.mu.Lock()
	s.drop(store.Fence{ID: d.ID, Epoch: out.Epoch})
	s.mu.Unlock()
	return out, nil
}

func (s *Store) decide(ctx context.Context, tx pgx.Tx, token uuid.UUID, d store.Decision) (commitstep.Condition, error) {
	var none commitstep.Condition
	if err := s.mayRun(ctx, tx); err != nil {
		return none, err
	}
	if _, err := tx.Exec(ctx, s.sql(reapSQL)); err != nil {
		return none, err
	}
	// The lock first, then a look with a view of its own at who holds it.
	if _, err := tx.Exec(ctx, s.sql(`SELECT FROM {s}.sequences WHERE id = $1 FOR UPDATE`), d.ID); err != nil {
		return none, err
	}
	var r liveRow
	var bad *string
	var newer *bool
	err := r.scan(tx.QueryRow(ctx, s.sql(`SELECT `+liveColumns+`, q.problem, q.newer`+liveFrom+` LEFT JOIN {s}.quarantine q ON q.sequence = s.id WHERE s.id = $1`), d.ID), &bad, &newer)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return none, answered(fmt.Errorf("sequence %s of dataset %s: %w", d.ID, d.Key, commitstep.ErrNotFound))
	case err != nil:
		return none, err
	case bad != nil:
		return none, answered(quarantinedErr(r.key(), r.where(), *bad, *newer))
	case r.key() != d.Key || r.state == string(commitstep.Completed):
		return none, answered(fmt.Errorf("sequence %s of dataset %s: %w", d.ID, d.Key, commitstep.ErrNotFound))
	case uint64(r.version) != d.Version:
		return none, answered(fmt.Errorf("sequence %s is at version %d, the decision was made on %d: %w", d.ID, r.version, d.Version, commitstep.ErrVersion))
	case (d.MarkDone || d.ClearNoReturn) && (d.Step < 0 || d.Step >= r.steps):
		return none, answered(fmt.Errorf("%w: the sequence has no step %d", commitstep.ErrDecision, d.Step))
	}
	if !d.Force {
		var until time.Time
		in, err := scanInstance(tx.QueryRow(ctx, s.sql(holderSQL), d.ID), &until)
		if err == nil {
			return none, answered(&store.BusyError{Key: d.Key, ID: d.ID, Holder: in, Until: until.UTC()})
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return none, err
		}
	}
	if err := s.decideProgress(ctx, tx, d); err != nil {
		return none, err
	}
	c := r.condition()
	before := describe(c)
	c.State, c.Reason, c.ParkStep, c.ParkTold = d.State, "", -1, false
	c.Version++
	c.Epoch++
	c.Owner = commitstep.Instance{} // no claim has this epoch
	c.Updated = s.now()
	if d.MarkDone && !slices.Contains(c.DeclaredPublished, d.Step) {
		c.DeclaredPublished = append(c.DeclaredPublished, d.Step)
	}
	declared := make([]int32, len(c.DeclaredPublished))
	for i, n := range c.DeclaredPublished {
		declared[i] = int32(n)
	}
	if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.sequences SET state = 'pending', reason = '', park_step = -1, park_told = false, held = false, owner = NULL,
		version = $2, epoch = $3, declared = $4, updated = now() WHERE id = $1`), d.ID, int64(c.Version), int64(c.Epoch), declared); err != nil {
		return none, err
	}
	if d.State == commitstep.Abandoned {
		if err := s.end(ctx, tx, d.ID, ending{state: commitstep.Abandoned, at: c.Updated, message: c.Message, notes: d.Notes}); err != nil {
			return none, err
		}
	}
	return c, s.audit(ctx, tx, token, store.AuditEntry{Person: d.Person, Action: "resolve", Key: d.Key, Sequence: d.ID, Decision: string(d.Kind), Before: before, After: describe(c)})
}

func describe(c commitstep.Condition) string {
	if c.Reason == "" {
		return string(c.State)
	}
	return string(c.State) + " " + string(c.Reason)
}

// decideProgress changes what is known of steps as the decision says.
func (s *Store) decideProgress(ctx context.Context, tx pgx.Tx, d store.Decision) error {
	if d.ResetAttempts {
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.attempts SET forgiven = true WHERE sequence = $1 AND NOT forgiven`), d.ID); err != nil {
			return err
		}
	}
	if d.MarkDone {
		bits := pgtype.Bits{Bytes: make([]byte, store.PageSize/8), Len: store.PageSize, Valid: true}
		i := d.Step % store.PageSize
		bits.Bytes[i/8] |= 0x80 >> (i % 8)
		if _, err := tx.Exec(ctx, s.sql(`INSERT INTO {s}.progress AS p (sequence, page, done) VALUES ($1, $2, $3::bit(512))
			ON CONFLICT (sequence, page) DO UPDATE SET done = p.done | EXCLUDED.done`), d.ID, d.Step/store.PageSize, bits); err != nil {
			return err
		}
	}
	if d.ClearNoReturn {
		if _, err := tx.Exec(ctx, s.sql(`DELETE FROM {s}.step_notes WHERE sequence = $1 AND step = $2`), d.ID, d.Step); err != nil {
			return err
		}
	}
	return nil
}

// ending is an outcome that a person gives a sequence.
type ending struct {
	state   commitstep.State
	at      time.Time
	message string
	notes   store.HistoryNotes
	drop    bool // nothing of it can be used any more
}

// end moves a live or cleaning sequence into the history and frees its key and
// locks. Steps and progress of an abandoned one stay until it is pruned.
func (s *Store) end(ctx context.Context, tx pgx.Tx, id uuid.UUID, e ending) error {
	var epoch int64
	var state string
	if err := tx.QueryRow(ctx, s.sql(`SELECT epoch, state FROM {s}.sequences WHERE id = $1 FOR UPDATE`), id).Scan(&epoch, &state); err != nil {
		return err
	}
	record := sealHistory(id, records.HistoryTail{State: e.state, Ended: e.at, Epoch: uint64(epoch), Notes: e.notes, Message: e.message})
	statements := []struct {
		sql  string
		args []any
	}{
		{`DELETE FROM {s}.locks WHERE hash IN (SELECT unnest(locks) FROM {s}.sequences WHERE id = $1) AND sequence = $1`, []any{id}},
		{`INSERT INTO {s}.plan_ids (hash, job, dataset, plan_id, plan_hash, sequence, state)
			SELECT plan_ref, job, dataset, plan_id, plan_hash, id, $2 FROM {s}.sequences WHERE id = $1 AND plan_ref IS NOT NULL ON CONFLICT DO NOTHING`, []any{id, string(e.state)}},
		{`INSERT INTO {s}.history ` + historyColumns + `
			SELECT id, job, dataset, plan_id, $2, created, $3, steps, stages, epoch, $4, $5 FROM {s}.sequences WHERE id = $1 ON CONFLICT DO NOTHING`,
			[]any{id, string(e.state), e.at, toText(e.message), record}},
		{`DELETE FROM {s}.sequences WHERE id = $1`, []any{id}},
	}
	if e.drop {
		statements = append(statements, []struct {
			sql  string
			args []any
		}{
			{`DELETE FROM {s}.documents WHERE id = $1`, []any{id}},
			{`INSERT INTO {s}.garbage (sequence) VALUES ($1) ON CONFLICT DO NOTHING`, []any{id}},
		}...)
	}
	for _, q := range statements {
		if _, err := tx.Exec(ctx, s.sql(q.sql), q.args...); err != nil {
			return err
		}
	}
	return nil
}
