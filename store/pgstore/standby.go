package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// standbyError is a server that the address does not want, because of what it is
// now: as a rule a standby where a primary is asked for.
type standbyError struct{ err error }

func (e *standbyError) Error() string { return e.err.Error() }
func (e *standbyError) Unwrap() error { return e.err }

// tellStandby has the check of target_session_attrs say that it was that.
func tellStandby(check pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	if check == nil {
		return nil
	}
	return func(ctx context.Context, c *pgconn.PgConn) error {
		if err := check(ctx, c); err != nil {
			return &standbyError{err}
		}
		return nil
	}
}

// isStandby reports that a server answered and is not of the asked-for sort. A
// failover may be under way.
func isStandby(err error) bool {
	var s *standbyError
	return errors.As(err, &s)
}

// isReadOnly reports that a server takes no writes.
func isReadOnly(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "25006"
}

// readOnly is the answer to the first write on a server that takes none. It is
// not waited out: the address may be that of a standby. A server that took writes
// before is about to be replaced, and is waited for.
func (s *Store) readOnly(err error) error {
	return fmt.Errorf("store %s: %w, nothing was written: %w; %s", s.location, ErrUnreachable, err, s.advice(err))
}

// kept follows a write that is found to be there after its answer was lost. A
// commit that waited for a synchronous standby becomes visible without it when
// the wait is broken off, as it is when a connection is given up. So something
// new is written first: once that is on the standby, so is all that came before.
func (s *Store) kept(ctx context.Context, l limit, err error) error {
	if err != nil && classify(err) != final {
		return err
	}
	kerr := s.send(context.WithoutCancel(ctx), l, settingsSQL, func(b *pgx.Batch) {
		b.Queue(`SELECT pg_logical_emit_message(true, 'commitstep', '')`)
	})
	if kerr != nil {
		return kerr
	}
	return err
}

// Notes are what an operator should know of the server, beside damage: that an
// acknowledged write can be missing after a failover.
func (s *Store) Notes(ctx context.Context) ([]string, error) {
	var recovering bool
	var standbys int
	var names string
	err := s.read(ctx, func(b *pgx.Batch) {
		b.Queue(`SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names')`).
			QueryRow(func(r pgx.Row) error { return r.Scan(&recovering, &standbys, &names) })
	})
	switch {
	case err != nil:
		return nil, err
	case recovering:
		return []string{"this server is a standby: what it has not received yet was not looked at"}, nil
	case standbys > 0 && names == "":
		return []string{fmt.Sprintf("%d standbys or other receivers follow this server, and none of them is synchronous: after a failover to one, acknowledged writes can be missing; "+
			"set synchronous_standby_names, or stamp and adopt the store after each failover", standbys)}, nil
	}
	return nil, nil
}
