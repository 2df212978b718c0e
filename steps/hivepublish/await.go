package hivepublish

import (
	"context"
	"time"

	"github.com/commitstep/engine/internal/hs2"
)

// Waiting for a statement ends with the caller's patience, see
// [commitstep.Attempt]: what still runs then is left to run, and taken up by the
// next look.

// lookSlack is how much longer a look may take: a server holds its answer, for up
// to five seconds, while the statement runs. Cutting a look off loses nothing but
// its connection.
const lookSlack = time.Second

// spent reports that there is no more time to wait.
func spent(patience <-chan struct{}) bool {
	select {
	case <-patience:
		return true
	default:
		return false
	}
}

// looking is a context for looks: it ends the server's slack after patience does. stop frees
// it.
func (s *Server) looking(ctx context.Context, patience <-chan struct{}) (look context.Context, stop context.CancelFunc) {
	return until(ctx, patience, s.slack)
}

// until is a context that ends slack after patience does.
func until(ctx context.Context, patience <-chan struct{}, slack time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	if patience == nil {
		return ctx, stop
	}
	go func() {
		select {
		case <-patience:
			pause(ctx, slack)
		case <-ctx.Done():
		}
		stop()
	}()
	return ctx, stop
}

// await asks what became of a statement until that cannot change any more, for up
// to slice and as long as there is patience. One look is always taken.
func (s *Server) await(ctx context.Context, patience <-chan struct{}, op operationRef, slice time.Duration) (hs2.Status, fate, error) {
	look, stop := s.looking(ctx, patience)
	defer stop()
	var last hs2.Status
	for runs, until := false, s.now().Add(slice); ; runs = true {
		asked := time.Now()
		st, err := s.conn.Status(look, op)
		f := polled(st, err)
		if f == fateUnseen && runs && look.Err() != nil {
			return last, fateRunning, nil // this look was cut off, the one before was not
		}
		if f != fateRunning || ctx.Err() != nil || spent(patience) || s.now().After(until) {
			return st, f, err
		}
		last = st
		t := time.NewTimer(statusPause - time.Since(asked))
		select {
		case <-ctx.Done():
		case <-patience:
		case <-t.C:
		}
		t.Stop()
	}
}
