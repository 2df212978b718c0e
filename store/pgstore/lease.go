package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Leases run on the database's clock. An instance is alive while its row is not
// dead; whoever wants what it holds marks it dead once its time is over. Both
// that mark and a renewal lock the row, so of a renewal that arrives late and a
// claim that comes early only one succeeds.

const reapSQL = `UPDATE {s}.instances SET dead = true WHERE id IN
	(SELECT id FROM {s}.instances WHERE NOT dead AND until < clock_timestamp() ORDER BY id FOR UPDATE)`

// Join registers a driver instance and starts its lease of Options.LeaseTTL.
// Joining again starts a new term: sequences held in the old one are free.
func (s *Store) Join(ctx context.Context, in commitstep.Instance) (time.Time, error) {
	if in.ID == uuid.Nil {
		return time.Time{}, fmt.Errorf("pgstore: a driver instance needs an id")
	}
	// The term is chosen before it is written. A try whose connection was given up
	// can reach the server long after another one was answered; it must not begin
	// a further term then, which would free what is held in this one.
	var number int32
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(`SELECT 1 + coalesce((SELECT term FROM {s}.instances WHERE id = $1), 0)`), in.ID).QueryRow(func(r pgx.Row) error { return r.Scan(&number) })
	})
	if err != nil {
		return time.Time{}, err
	}
	var until time.Time
	var started time.Time
	err = s.write(ctx, func(b *pgx.Batch) {
		started = time.Now()
		b.Queue(s.sql(`INSERT INTO {s}.instances AS i (id, term, name, host, pid, joined, until)
			VALUES ($1, $6, $2, $3, $4, clock_timestamp(), clock_timestamp() + $5::bigint * interval '1 microsecond')
			ON CONFLICT (id) DO UPDATE SET term = EXCLUDED.term, name = EXCLUDED.name, host = EXCLUDED.host, pid = EXCLUDED.pid,
				joined = EXCLUDED.joined, until = EXCLUDED.until, dead = i.dead AND i.term = EXCLUDED.term
				WHERE i.term IN (EXCLUDED.term, EXCLUDED.term - 1) RETURNING until`),
			in.ID, toText(in.Name), toText(in.Host), in.PID, s.o.LeaseTTL.Microseconds(), number).
			QueryRow(func(r pgx.Row) error { return r.Scan(&until) })
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, fmt.Errorf("instance %s: %w: somebody else joined under its id", in.ID, commitstep.ErrFenced)
	}
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	s.terms[in.ID] = &term{instance: in, number: number, until: started.Add(s.o.LeaseTTL)}
	s.mu.Unlock()
	if err := s.refreshInfo(ctx); err != nil {
		return time.Time{}, err
	}
	s.collectSoon()
	return until.UTC(), nil
}

// Renew prolongs the lease by Options.LeaseTTL from now. It matches ErrFenced
// when the lease had ended. It does not wait for a server that is away longer
// than the lease lasts.
func (s *Store) Renew(ctx context.Context, instance uuid.UUID) (time.Time, error) {
	var until, started time.Time
	found := false
	i := s.Info()
	err := s.writeLease(ctx, func(b *pgx.Batch) {
		started, found = time.Now(), false
		b.Queue(s.sql(`UPDATE {s}.instances SET until = clock_timestamp() + $2::bigint * interval '1 microsecond'
			WHERE id = $1 AND NOT dead AND until > clock_timestamp() RETURNING until, (SELECT sealed_for FROM {s}.store), (SELECT stamped FROM {s}.store)`),
			instance, s.o.LeaseTTL.Microseconds()).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				found = true
				if err := rows.Scan(&until, &i.SealedFor, &i.Stamped); err != nil {
					return err
				}
			}
			return rows.Err()
		})
	})
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !found {
		delete(s.terms, instance)
		return time.Time{}, fmt.Errorf("lease of instance %s: %w; join again", instance, commitstep.ErrFenced)
	}
	if t := s.terms[instance]; t != nil {
		t.until = started.Add(s.o.LeaseTTL)
	}
	s.info.SealedFor = fromText(i.SealedFor)
	if i.Stamped != "" {
		s.info.Stamped, s.info.Unfinished = i.Stamped, isUnfinished(i.Stamped)
	}
	return until.UTC(), nil
}

// Leave ends the lease; what the instance still holds becomes free. Leaving
// without a lease does nothing. A server that is away is not waited for longer than
// the lease lasts; then it ends by itself, and that is no failure.
func (s *Store) Leave(ctx context.Context, instance uuid.UUID) error {
	s.mu.Lock()
	delete(s.terms, instance)
	for id, h := range s.held {
		if h.term != nil && h.term.instance.ID == instance && len(h.queue)+len(h.flight) == 0 {
			delete(s.held, id)
		}
	}
	s.mu.Unlock()
	err := s.writeLease(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(`UPDATE {s}.instances SET dead = true WHERE id = $1`), instance)
	})
	if errors.Is(err, ErrUnreachable) || errors.Is(err, commitstep.ErrOutcomeUnknown) {
		s.o.Log.Warn("the lease could not be given back, and ends by itself", "store", s.location, "instance", instance, "error", err)
		return nil
	}
	return err
}

const holderSQL = `SELECT i.id, i.name, i.host, i.pid, i.until FROM {s}.sequences s
	JOIN {s}.instances i ON i.id = s.owner AND i.term = s.owner_term AND NOT i.dead AND i.until > clock_timestamp()
	WHERE s.id = $1 AND s.held`

func scanInstance(r pgx.Row, extra ...any) (commitstep.Instance, error) {
	var in commitstep.Instance
	var name, host string
	err := r.Scan(append([]any{&in.ID, &name, &host, &in.PID}, extra...)...)
	in.Name, in.Host = fromText(name), fromText(host)
	return in, err
}

// Holder tells which live lease holds the sequence.
func (s *Store) Holder(ctx context.Context, l commitstep.Live) (in commitstep.Instance, until time.Time, ok bool, err error) {
	err = s.read(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql(holderSQL), l.ID).QueryRow(func(r pgx.Row) (err error) {
			in, err = scanInstance(r, &until)
			ok = err == nil
			if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
			return err
		})
	})
	return in, until.UTC(), ok, err
}

// busy is the error for a sequence that a live lease holds, nil otherwise.
func (s *Store) busy(ctx context.Context, key commitstep.Key, id uuid.UUID) error {
	in, until, ok, err := s.Holder(ctx, commitstep.Live{Header: commitstep.Header{ID: id}})
	if err != nil || !ok {
		return err
	}
	return &store.BusyError{Key: key, ID: id, Holder: in, Until: until}
}

func noLease(instance uuid.UUID) error {
	return fmt.Errorf("instance %s has no lease: %w; join again", instance, commitstep.ErrFenced)
}
