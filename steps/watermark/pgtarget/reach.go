package pgtarget

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// connectLimit bounds one connection to one server, unless the address has a
	// connect_timeout.
	connectLimit = 5 * time.Second
	// readLimit bounds one look, and moveLimit one move, from the client's side: a
	// server that is silent keeps no time limit of its own.
	readLimit = 10 * time.Second
	moveLimit = 65 * time.Second
	// closeLimit bounds the goodbye to a server that does not answer it.
	closeLimit = 2 * time.Second
	// reads is how often a look is taken that meets a connection which breaks.
	reads = 4
)

// settingsSQL goes before a look, in its round trip, and tells of the session;
// see checkSession. Row-level security that would hide rows makes the look fail:
// a row that is not seen is not none.
const settingsSQL = `SELECT current_setting('server_encoding'), current_setting('client_encoding'), pg_is_in_recovery(),
	set_config('row_security', 'off', true), set_config('statement_timeout', '10s', true), set_config('lock_timeout', '10s', true)`

// moveSettingsSQL goes before a move. The move is durable when it is answered,
// whatever the role says.
const moveSettingsSQL = `SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on' ELSE current_setting('synchronous_commit') END, true),
	set_config('row_security', 'off', true), set_config('statement_timeout', '60s', true), set_config('lock_timeout', '20s', true)`

// send runs a batch on a connection, within limit.
func (t *Target) send(ctx context.Context, limit time.Duration, b *pgx.Batch) error {
	conn, err := t.acquire(ctx)
	if err != nil {
		return &acquireError{err}
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return conn.SendBatch(ctx, b).Close()
}

// acquire waits for a connection as long as it takes to try every server.
func (t *Target) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.acquiring)
	defer cancel()
	return t.pool.Acquire(ctx)
}

// acquireError is a failure before anything was sent.
type acquireError struct{ err error }

func (e *acquireError) Error() string { return e.err.Error() }
func (e *acquireError) Unwrap() error { return e.err }

// read takes a look: what fill queues, after the settings. fill may be called
// several times. A connection that breaks, and a server that has no room at the
// moment, are tried again with pauses; what is left of such trouble wraps
// [commitstep.ErrUnavailable].
func (t *Target) read(ctx context.Context, fill func(b *pgx.Batch)) error {
	for n := 1; ; n++ {
		b := &pgx.Batch{}
		b.Queue(settingsSQL).QueryRow(checkSession)
		fill(b)
		err := t.send(ctx, readLimit, b)
		if err == nil || ctx.Err() != nil || !isOutage(err) {
			return t.readErr(ctx, err)
		}
		// A time limit that was waited out is no trouble that is over at once.
		if n == reads || isTimeout(err) || !pause(ctx, n) {
			return t.unavailable(ctx, err)
		}
	}
}

func pause(ctx context.Context, n int) bool {
	d := 20 * time.Millisecond << (2 * n) // 80 ms, 320 ms, 1.3 s
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unavailable tells of a server without the errors of our own time limits, which
// are not the end of the caller's.
func (t *Target) unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("watermark target %q: %w", t.name, err)
	}
	text := err.Error()
	if isTimeout(err) {
		text = fmt.Sprintf("no answer in time (connecting %s, a look %s): %s", t.connecting, readLimit, text)
	}
	return fmt.Errorf("watermark target %q: %w: %s", t.name, commitstep.ErrUnavailable, text)
}

func (t *Target) readErr(ctx context.Context, err error) error {
	var pe *pgconn.PgError
	var se *sessionError
	switch {
	case err == nil:
		return nil
	case isFiltered(err):
		return t.fault(t.filtered(t.user()))
	case errors.As(err, &se):
		return t.faulty(err)
	case errors.As(err, &pe) && pe.Code == "42501":
		return fmt.Errorf("watermark target %q: %w; GRANT SELECT ON %s TO %s, and USAGE on its schema", t.name, err, t.table.Sanitize(), q(t.user()))
	}
	return fmt.Errorf("watermark target %q: %w", t.name, err)
}

// user is who the address connects as.
func (t *Target) user() string { return t.pool.Config().ConnConfig.User }

// isFiltered reports a statement that row-level security would have had see less
// than there is.
func isFiltered(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "42501" && strings.Contains(pe.Routine, "check_enable_rls")
}

func isTimeout(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code == "57014" || pe.Code == "55P03"
	}
	return pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded)
}

// isOutage reports trouble of the server or of the way to it: asked again later,
// it may be over.
func isOutage(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case "57P01", "57P02", "57P03", "57P05", "57014", "55P03", "25P03":
			return true
		}
		return strings.HasPrefix(pe.Code, "08") || strings.HasPrefix(pe.Code, "53") || strings.HasPrefix(pe.Code, "40")
	}
	var ce *pgconn.ConnectError
	var ae *acquireError
	var scan pgx.ScanArgError
	var build pgx.ErrPreprocessingBatch
	switch {
	case errors.As(err, &ce), errors.As(err, &ae), errors.Is(err, errUnderWay):
		return true
	case errors.As(err, &scan):
		return false
	case errors.As(err, &build):
		return !strings.Contains(build.Error(), "(build)")
	}
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(net.Error))
}
