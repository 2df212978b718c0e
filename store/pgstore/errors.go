package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/shell"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors of this package; they arrive wrapped with the store's address and what
// to do next.
var (
	// ErrSchema: the tables are missing, older than this program needs, or newer
	// than it knows.
	ErrSchema = errors.New("the store's tables have another version")
	// ErrUnreachable: the server could not be used for as long as the store was
	// told to wait. Nothing was written, or reading showed that it was not.
	ErrUnreachable = errors.New("the database cannot be used")
	// ErrForbidden: the user lacks a privilege. Nothing was written.
	ErrForbidden = errors.New("the database user may not do this")
	// ErrClosed: the Store was closed.
	ErrClosed = errors.New("the store is closed")
)

// trouble says what an error of a transaction means for the next try.
type trouble uint8

const (
	// final: trying again cannot help. The transaction has not happened.
	final trouble = iota
	// again: the transaction has not happened and may be run once more at once:
	// serialization failure, deadlock.
	again
	// later: it has not happened, and the server needs time: starting up, too
	// many connections, disk full, a lock that was not given in time.
	later
	// unknown: the connection broke after something was sent.
	unknown
)

func classify(err error) trouble {
	k := classifyServer(err)
	var ae *acquireError
	if k == unknown && errors.As(err, &ae) {
		return later
	}
	return k
}

func classifyServer(err error) trouble {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch {
		case pe.Code == "40001" || pe.Code == "40P01" || pe.Code == "22012":
			// 22012 is how our statements say that something changed between
			// their look and their write.
			return again
		case pe.Code == "57P01" || pe.Code == "57P02" || pe.Code == "57P05" || strings.HasPrefix(pe.Code, "08"):
			// The session was ended, perhaps within the commit.
			return unknown
		case pe.Code == "55P03", pe.Code == "57014", pe.Code == "57P03", pe.Code == "25006", pe.Code == "25P03",
			strings.HasPrefix(pe.Code, "53"), strings.HasPrefix(pe.Code, "58"):
			return later
		}
		return final
	}
	var ce *pgconn.ConnectError
	var pre pgx.ErrPreprocessingBatch
	switch {
	case errors.As(err, &pre) && strings.Contains(pre.Error(), "(build)"):
		// A value that cannot be encoded: the transaction was not sent to its end,
		// and the connection is given up. Trying again finds the same.
		return final
	case errors.As(err, &ce), pgconn.SafeToRetry(err):
		return later
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return again
	case errors.Is(err, errInternal):
		return final
	}
	return unknown
}

// errInternal marks errors that did not come from the server.
var errInternal = errors.New("internal")

// isLostStatement reports that a prepared statement was not where it was left:
// a pooler stands between that did not look like one.
func isLostStatement(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "26000" || pe.Code == "42P05")
}

// isUndefined reports that a table or schema is missing.
func isUndefined(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000")
}

// isForbidden reports a missing privilege.
func isForbidden(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "42501"
}

// refusal gives an error that trying again cannot help the words for people.
func (s *Store) refusal(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch {
		case isUndefined(err) || pe.Code == "42703":
			// The version was right when the store was opened.
			return fmt.Errorf("store %s: %w, or lack a part: %s; `%s` brings them to version %d if that is missing, and what was dropped comes from a backup",
				s.location, ErrSchema, pe.Message, s.migrate(), SchemaVersion)
		case pe.Code == "22P02" && strings.Contains(pe.Message, `"isolation `):
			_, level, _ := strings.Cut(pe.Message, `"isolation `)
			return s.isolationErr(strings.TrimSuffix(level, `"`))
		case isForbidden(err):
			return fmt.Errorf("store %s: %w: %w; grant the user the role %s", s.location, ErrForbidden, err, s.runtime)
		}
		return fmt.Errorf("store %s: %w", s.location, err)
	}
	return err
}

// migrate is the command that changes the tables, to be copied. It may need
// another user than the one who looks here.
func (s *Store) migrate() string { return "commitstep store migrate --store " + shell.Quote(s.address) }

// gaveUp is the error after waiting for so long, as a rule Options.GiveUp.
func (s *Store) gaveUp(err error, after time.Duration, maybe bool) error {
	if maybe {
		return fmt.Errorf("store %s: %w: its answer was lost, and the server could not be asked again within %s: %w",
			s.location, commitstep.ErrOutcomeUnknown, after, noDetails(err))
	}
	return fmt.Errorf("store %s: %w within %s, nothing was written: %w; %s", s.location, ErrUnreachable, after, noDetails(err), s.advice(err))
}

// advice is what to do about a server that could not be used.
func (s *Store) advice(err error) string {
	if isStandby(err) {
		return "what answers is a standby, and target_session_attrs of the address asks for another sort; promote one, or correct the address"
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch {
		case pe.Code == "25006":
			return "this server only reads, as a standby does; give the address of the primary, or add target_session_attrs=read-write"
		case pe.Code == "53300":
			return "let the server take more connections, or the programs fewer (pool_max_conns)"
		case pe.Code == "57014":
			return fmt.Sprintf("a statement took longer than %s; see what the server is busy with, or add a longer statement_timeout to the address", s.o.StatementTimeout)
		case pe.Code == "55P03":
			return fmt.Sprintf("a lock was not given within %s; see who holds it, or add a longer lock_timeout to the address", s.o.LockTimeout)
		case pe.Code == "53100":
			return "make room on the server's disk"
		}
	}
	return "see whether the server runs and takes connections"
}

// isolationErr: what a write looks at would be of before it waited.
func (s *Store) isolationErr(level string) error {
	return fmt.Errorf("store %s: transactions run at %q here, and the store needs \"read committed\": what is decided after a wait would be decided on old rows; take default_transaction_isolation out of the address, or ALTER ROLE … RESET default_transaction_isolation (or ALTER DATABASE)", s.location, level)
}

// encodingErr: two programs must write one name as the same text.
func encodingErr(location, what, have string) error {
	return fmt.Errorf("store %s: %s is %s, and the store needs UTF8: the same name would be stored as different texts", location, what, have)
}

// saysNotNow reports a server that answered, and will take connections later.
func saysNotNow(err error) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	switch pe.Code {
	case "57P01", "57P02", "57P03", "53300":
		return true
	}
	return false
}

// noDetails keeps a context's error out of the chain when it is not the
// caller's: a timeout inside of the store is no cancellation.
func noDetails(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errors.New(err.Error())
	}
	return err
}

// verdictError carries an answer of ours through repeat: it is returned as it
// is, and never tried again.
type verdictError struct{ err error }

func (e *verdictError) Error() string { return e.err.Error() }
func (e *verdictError) Unwrap() error { return e.err }

// answered marks err as the answer to the caller.
func answered(err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err}
}

// errRace says that something changed between a look and a write: the
// transaction is run once more.
var errRace = &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "the row has changed meanwhile"}
