package pgstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Seal refuses all puts and watermark writes from now on, for ever, since the
// store is copied to target, which the refusals name. Sealing again for the
// same target is success; for another one it is ErrSealed. A stamped store is
// refused with ErrStamped: it is for a person to say first that it counts. It
// waits for the writes that run, and so comes after all of them.
func (s *Store) Seal(ctx context.Context, target string, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	if target == "" {
		return fmt.Errorf("pgstore: seal: the name of the new store is required")
	}
	err := s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		if _, err := tx.Exec(ctx, s.sql(`LOCK TABLE {s}.sequences, {s}.watermarks IN SHARE ROW EXCLUSIVE MODE`)); err != nil {
			return err
		}
		var have string
		if err := tx.QueryRow(ctx, s.sql(`SELECT sealed_for FROM {s}.store FOR UPDATE`)).Scan(&have); err != nil {
			return err
		}
		switch fromText(have) {
		case target:
			return answered(errDone)
		case "":
		default:
			return answered(s.sealedErr(fromText(have)))
		}
		if err := s.mayRun(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.store SET sealed_for = $1`), toText(target)); err != nil {
			return err
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "store.seal", After: target})
	})
	if err != nil {
		return err
	}
	return s.refreshInfo(ctx)
}

// Backup is not what this store offers: pg_dump and physical backups see the
// whole database at one moment, and people restore with the same tools. The
// error matches errors.ErrUnsupported and says so. What pg_dump wrote is
// recognised where it is restored; for the others there is Stamp.
func (s *Store) Backup(context.Context, string) error {
	return fmt.Errorf("store %s: backup to a file: %w; use pg_dump --schema=%s, whose restored copy is recognised and runs nothing before `commitstep store adopt`",
		s.location, errors.ErrUnsupported, s.o.Schema)
}

// Adopt lifts the stamp of a copy, in one transaction: every live sequence is
// parked ADOPTED, no job may ingest before a person accepted its watermarks,
// and the store gets an id of its own. A store without a stamp is refused with
// ErrDecision, a sealed one with ErrSealed, since its copy goes on.
func (s *Store) Adopt(ctx context.Context, p store.Person) (int, error) {
	if err := checkPerson(p); err != nil {
		return 0, err
	}
	parked := 0
	err := s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		stamp := ""
		if err := tx.QueryRow(ctx, s.sql(`SELECT stamped FROM {s}.store FOR UPDATE`)).Scan(&stamp); err != nil {
			return err
		}
		if isUnfinished(stamp) {
			return answered(fmt.Errorf("%w: store %s is an %s", commitstep.ErrDecision, s.location, fromText(stamp)))
		}
		if err := s.keepsSeal(ctx, tx, "adopt"); err != nil {
			return err
		}
		if stamp == "" {
			stamp = s.Info().Stamped
		}
		if stamp == "" {
			return answered(fmt.Errorf("%w: store %s is not a stamped copy, there is nothing to adopt", commitstep.ErrDecision, s.location))
		}
		tag, err := tx.Exec(ctx, s.sql(`UPDATE {s}.sequences SET
			message = CASE WHEN state = 'parked' AND reason <> $1 THEN 'was ' || reason || ' before the adoption: ' || message ELSE message END,
			state = 'parked', reason = $1, park_step = -1, park_told = false, held = false, version = version + 1, epoch = epoch + 1, updated = now()
			WHERE state <> 'completed'`), string(commitstep.Adopted))
		if err != nil {
			return err
		}
		parked = int(tag.RowsAffected())
		// Whoever held a lease held it in the original.
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.instances SET dead = true`)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.store SET stamped = '', adoptions = adoptions + 1, id = gen_random_uuid(),
			table_oid = tableoid, database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())`)); err != nil {
			return err
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "store.adopt", Before: stamp, After: fmt.Sprintf("%d sequences parked", parked)})
	})
	if err != nil {
		return 0, err
	}
	return parked, s.refreshInfo(ctx)
}

// Stamp marks the store as a copy that runs nothing until it is adopted; see
// [store.Stamper]. It waits for the writes that run, and so comes after all of
// them; what a driver whose lease has ended would still write is refused.
func (s *Store) Stamp(ctx context.Context, p store.Person) error {
	if err := checkPerson(p); err != nil {
		return err
	}
	what := fmt.Sprintf("stamped by %s at %s: %s", p.Name, s.now().Format(time.RFC3339), p.Reason)
	err := s.decideOnce(ctx, func(ctx context.Context, tx pgx.Tx, token uuid.UUID) error {
		if _, err := tx.Exec(ctx, s.sql(`LOCK TABLE {s}.instances, {s}.sequences, {s}.watermarks IN SHARE ROW EXCLUSIVE MODE`)); err != nil {
			return err
		}
		var have string
		if err := tx.QueryRow(ctx, s.sql(`SELECT stamped FROM {s}.store FOR UPDATE`)).Scan(&have); err != nil {
			return err
		}
		if isUnfinished(have) {
			return answered(fmt.Errorf("%w: store %s is an %s", commitstep.ErrDecision, s.location, fromText(have)))
		}
		if err := s.keepsSeal(ctx, tx, "stamp"); err != nil {
			return err
		}
		var until time.Time
		in, err := scanInstance(tx.QueryRow(ctx, s.sql(liveLeaseSQL)), &until)
		if err == nil {
			return answered(store.AtWork("the store was not stamped", in, until))
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.sequences SET epoch = epoch + 1, held = false`)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql(`UPDATE {s}.store SET stamped = $1`), toText(what)); err != nil {
			return err
		}
		return s.audit(ctx, tx, token, store.AuditEntry{Person: p, Action: "store.stamp", After: what})
	})
	if err != nil {
		return err
	}
	return s.refreshInfo(ctx)
}

// Check reads everything and yields every problem found: damaged records, rows
// that contradict each other, and settings of the server under which a write
// that was acknowledged could be lost.
func (s *Store) Check(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, part := range []func(context.Context, func(string) bool) (bool, error){s.checkServer, s.checkSequences, s.checkRows, s.checkPast} {
			ok, err := part(ctx, func(problem string) bool { return yield(problem, nil) })
			if err != nil {
				yield("", err)
				return
			}
			if !ok {
				return
			}
		}
	}
}

func (s *Store) checkServer(ctx context.Context, tell func(string) bool) (bool, error) {
	settings := map[string]string{}
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(`SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes')`).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var name, v string
				if err := rows.Scan(&name, &v); err != nil {
					return err
				}
				settings[name] = v
			}
			return rows.Err()
		})
	})
	if err != nil {
		return false, err
	}
	for _, name := range []string{"fsync", "full_page_writes"} {
		if settings[name] == "off" && !tell(fmt.Sprintf("the server runs with %s = off: what was acknowledged can be lost in a power cut; turn it on", name)) {
			return false, nil
		}
	}
	return true, nil
}

func (s *Store) checkSequences(ctx context.Context, tell func(string) bool) (bool, error) {
	after := uuid.Nil
	for {
		var ids []uuid.UUID
		err := s.read(ctx, func(b *pgx.Batch) {
			ids = nil
			b.Queue(s.sql(`SELECT id FROM {s}.sequences WHERE id > $1 ORDER BY id LIMIT 100`), after).Query(func(rows pgx.Rows) (err error) {
				ids, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
				return err
			})
		})
		if err != nil || len(ids) == 0 {
			return true, err
		}
		for _, id := range ids {
			var verdict error
			err := s.longSession(ctx, func(ctx context.Context, tx pgx.Tx) error {
				verdict = s.verifySequence(ctx, tx, id)
				if _, ours := verdict.(*verdictError); ours || errors.Is(verdict, pgx.ErrNoRows) {
					return nil
				}
				return verdict
			})
			if err != nil {
				return false, err
			}
			if verdict != nil && !errors.Is(verdict, pgx.ErrNoRows) && !tell(verdict.Error()) {
				return false, nil
			}
		}
		after = ids[len(ids)-1]
	}
}

// checkRows finds rows that contradict each other.
func (s *Store) checkRows(ctx context.Context, tell func(string) bool) (bool, error) {
	for _, c := range []struct{ sql, text string }{
		{`SELECT l.lock FROM {s}.locks l LEFT JOIN {s}.sequences s ON s.id = l.sequence WHERE s.id IS NULL OR s.state = 'completed'`, "lock %q is held by a sequence that is not live"},
		{`SELECT s.id::text FROM {s}.sequences s WHERE s.state <> 'completed' AND EXISTS (SELECT FROM {s}.history h WHERE h.id = s.id)`, "sequence %s is live and has an outcome"},
		{`SELECT s.id::text FROM {s}.sequences s WHERE s.state <> 'completed' AND EXISTS (SELECT FROM unnest(s.locks) k(hash) LEFT JOIN {s}.locks l ON l.hash = k.hash AND l.sequence = s.id WHERE l.hash IS NULL)`, "sequence %s does not hold its locks"},
		{`SELECT h.id::text FROM {s}.history h WHERE h.plan_id <> '' AND NOT EXISTS (SELECT FROM {s}.plan_ids p WHERE p.sequence = h.id)`, "the plan id of sequence %s is not kept"},
	} {
		var found []string
		err := s.read(ctx, func(b *pgx.Batch) {
			b.Queue(s.sql(c.sql + ` LIMIT 100`)).Query(func(rows pgx.Rows) (err error) {
				found, err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			})
		})
		if err != nil {
			return false, err
		}
		for _, f := range found {
			if !tell(fmt.Sprintf(c.text, f)) {
				return false, nil
			}
		}
	}
	return true, nil
}

func (s *Store) checkPast(ctx context.Context, tell func(string) bool) (bool, error) {
	for _, err := range s.ListWatermarks(ctx, "") {
		if isFormat(err) {
			if !tell(err.Error()) {
				return false, nil
			}
		} else if err != nil {
			return false, err
		}
	}
	for _, err := range s.ListHistory(ctx, store.HistoryFilter{}) {
		if isFormat(err) {
			if !tell(err.Error()) {
				return false, nil
			}
		} else if err != nil {
			return false, err
		}
	}
	for _, err := range s.ListAudit(ctx) {
		if isFormat(err) {
			if !tell(err.Error()) {
				return false, nil
			}
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

// PruneHistory removes what is known of sequences that ended longer ago than
// olderThan, with their attempts, in steps, and returns how many. Live, parked
// and cleaning sequences are never touched; plan ids and the audit are kept for
// ever. It needs the user that owns the tables: the runtime role cannot delete
// history.
func (s *Store) PruneHistory(ctx context.Context, olderThan time.Duration) (int, error) {
	if olderThan < 0 {
		return 0, fmt.Errorf("pgstore: prune: %s is no age", olderThan)
	}
	total := 0
	for {
		n := 0
		err := s.longSession(ctx, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, s.sql(`SELECT id FROM {s}.history h WHERE ended < now() - $1::bigint * interval '1 microsecond'
				AND NOT EXISTS (SELECT FROM {s}.sequences s WHERE s.id = h.id) ORDER BY id LIMIT 1000`), olderThan.Microseconds())
			if err != nil {
				return err
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
			if err != nil {
				return err
			}
			n = len(ids)
			for _, q := range []string{
				`INSERT INTO {s}.garbage (sequence) SELECT unnest($1::uuid[]) ON CONFLICT DO NOTHING`,
				`DELETE FROM {s}.attempts WHERE sequence = ANY($1::uuid[])`,
				`DELETE FROM {s}.cleanups WHERE sequence = ANY($1::uuid[])`,
				`DELETE FROM {s}.documents WHERE id = ANY($1::uuid[])`,
				`DELETE FROM {s}.history WHERE id = ANY($1::uuid[])`,
			} {
				if _, err := tx.Exec(ctx, s.sql(q), raw(ids)); err != nil {
					return err
				}
			}
			return nil
		})
		if isForbidden(err) {
			var pe *pgconn.PgError
			errors.As(err, &pe)
			return total, fmt.Errorf("store %s: prune: %w: %w; only the user that owns the tables may remove history", s.location, ErrForbidden, pe)
		}
		if err != nil {
			return total, fmt.Errorf("prune: %w", err)
		}
		total += n
		if n < 1000 {
			s.collect(ctx)
			return total, nil
		}
	}
}

// collectSoon starts a collection in the background.
func (s *Store) collectSoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.collects || s.closed {
		return
	}
	s.collects = true
	s.collector.Go(func() {
		s.collect(context.Background())
		s.mu.Lock()
		s.collects = false
		s.mu.Unlock()
	})
}

// collect removes pages and progress that nothing refers to any more, and rests
// of puts whose drivers are gone. What it cannot remove now is found again.
func (s *Store) collect(ctx context.Context) {
	err := s.write(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(reapSQL))
		b.Queue(s.sql(`WITH gone AS (DELETE FROM {s}.puts p WHERE p.started < now() - interval '1 minute'
				AND NOT EXISTS (SELECT FROM {s}.instances i WHERE i.id = p.owner AND NOT i.dead) RETURNING sequence)
			INSERT INTO {s}.garbage (sequence) SELECT sequence FROM gone ON CONFLICT DO NOTHING`))
		b.Queue(s.sql(`DELETE FROM {s}.instances i WHERE dead AND until < now() - interval '1 day' AND NOT EXISTS (SELECT FROM {s}.sequences s WHERE s.owner = i.id)`))
	})
	for err == nil {
		var left bool
		err = s.write(ctx, func(b *pgx.Batch) {
			left = false
			// Someone else's portion is passed over, not waited for.
			b.Queue(s.sql(`WITH g AS (SELECT sequence FROM {s}.garbage ORDER BY sequence LIMIT 50 FOR UPDATE SKIP LOCKED),
				p AS (DELETE FROM {s}.pages WHERE (sequence, page) IN (SELECT p.sequence, p.page FROM {s}.pages p JOIN g ON g.sequence = p.sequence LIMIT 200) RETURNING 1),
				r AS (DELETE FROM {s}.progress r USING g WHERE r.sequence = g.sequence),
				n AS (DELETE FROM {s}.step_notes n USING g WHERE n.sequence = g.sequence),
				x AS (DELETE FROM {s}.garbage x USING g WHERE x.sequence = g.sequence AND (SELECT count(*) FROM p) < 200)
				SELECT EXISTS (SELECT FROM g)`)).QueryRow(func(r pgx.Row) error { return r.Scan(&left) })
		})
		if !left {
			break
		}
	}
	if err != nil && !errors.Is(err, ErrClosed) {
		s.o.Log.Warn("rests of ended sequences are left to be collected", "store", s.location, "error", err)
	}
}
