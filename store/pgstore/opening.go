package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// openPatience is how long a program that starts waits for a server that does not
// answer: long enough for a restart, short enough for a wrong address.
const openPatience = 10 * time.Second

// firstLook is the first conversation with the server. A server that says that it
// is full, starting or stopping, or a standby where a primary is asked for, is
// waited for as long as in any other conversation; one that does not answer, or
// breaks off, may be a wrong address.
func (s *Store) firstLook(ctx context.Context) error {
	p := s.patience()
	p.giveUp = min(p.giveUp, openPatience)
	for n := 1; ; n++ {
		l := s.limit(p)
		// Who has a connection has found the server.
		l.end = p.started.Add(s.o.GiveUp)
		err := s.on(ctx, l, func(ctx context.Context, conn *pgxpool.Conn) error {
			if err := s.readInfo(ctx, conn); err != nil {
				return err
			}
			return s.chooseMode(ctx, conn)
		})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("store %s: %w", s.location, ctx.Err())
		case saysNotNow(err), isStandby(err):
			p.giveUp = s.o.GiveUp
		case !mayPass(err):
			return s.notOpened(err)
		}
		left := time.Until(p.started.Add(p.giveUp))
		if left <= 0 {
			return s.gaveUp(err, p.giveUp, false)
		}
		s.o.Log.Warn("the database takes no connection, trying again", "store", s.location, "error", err, "try", n)
		if !s.pause(ctx, later, n, left, false) {
			return ctx.Err()
		}
	}
}

// notOpened gives what waiting cannot help its words.
func (s *Store) notOpened(err error) error {
	if refused := refusedParameter(err, s.pool.Config().ConnConfig.RuntimeParams); refused != nil {
		return refused
	}
	var ce *pgconn.ConnectError
	switch {
	case classify(err) == final:
		return s.refusal(err)
	case errors.As(err, &ce):
		return fmt.Errorf("store %s: %w: %w", s.location, ErrUnreachable, err)
	}
	return err
}

// mayPass reports trouble with a connection that is there while a server or a pooler is
// restarted, or a network has a moment of weakness.
func mayPass(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		if pe.Code == "08P01" {
			// A pooler says so about everything.
			return !strings.Contains(pe.Message, "no such") && !strings.Contains(pe.Message, "password") && !strings.Contains(pe.Message, "parameter")
		}
		return classify(err) != final
	}
	var ne net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, net.ErrClosed):
		return true
	case errors.As(err, &ne) && ne.Timeout():
		return true
	}
	// The socket file of a server that is being started again.
	return errors.As(err, &op) && op.Op == "dial" && errors.Is(err, fs.ErrNotExist)
}
