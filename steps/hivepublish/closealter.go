package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/internal/hs2"
)

// closeAlter closes the session of an ALTER and shows that nothing of it can take
// effect any more. One that runs is not cut off: it would go on without anybody
// seeing how it ends. It is known by its session, which has no other statement: while
// it is compiled, the list has no text of it. What it learns is in ref, also when it
// fails.
func (s *Server) closeAlter(ctx context.Context, ref *alterRef) error {
	before, shown, err := s.listed(ctx, ref)
	if err != nil {
		return err
	}
	open, err := s.closed(ctx, ref.Session)
	if err != nil {
		return err
	}
	if open || ref.Silent.IsZero() {
		// One that was found closed may have been so for long; nobody knows.
		ref.Silent = s.now().UTC()
	}
	after, again, err := s.listed(ctx, ref)
	switch {
	case err != nil:
		return err
	case shown || again:
		return nil // it has ended
	case open && keeps(before, after):
		return nil // it never arrived, or it would be shown
	case s.now().Before(ref.Silent.Add(s.cfg.Quiet)):
		return &silentError{server: s.conn.Address(), session: ref.Session, since: ref.Silent, until: ref.Silent.Add(s.cfg.Quiet)}
	}
	return nil
}

// listed reads the server's list. It is a *runningError while the ALTER may still take
// effect; shown: it is there, and has ended.
func (s *Server) listed(ctx context.Context, ref *alterRef) (all []hs2.Query, shown bool, err error) {
	if s.list == nil {
		return nil, false, nil
	}
	if all, err = s.list.Find(ctx, ""); err != nil {
		return nil, false, s.unlisted(err)
	}
	mine := slices.DeleteFunc(slices.Clone(all), func(q hs2.Query) bool { return q.Session != ref.Session.guid })
	if err := s.ended(mine); err != nil {
		ref.Silent = time.Time{} // what it is given begins when it is seen no more
		return nil, false, err
	}
	return all, len(mine) > 0, nil
}

// keeps reports that what was closed between two readings of the list is still in the
// second: one that had been closed before the first is, and the server forgets those
// that were closed first.
func keeps(before, after []hs2.Query) bool {
	past := func(q hs2.Query) bool { return !q.Running && !q.End.IsZero() && q.Operation != "" }
	return slices.ContainsFunc(before, func(b hs2.Query) bool {
		return past(b) && slices.ContainsFunc(after, func(a hs2.Query) bool { return past(a) && a.Operation == b.Operation })
	})
}

// late reports that something may still land, and will have been given time enough.
func late(err error) bool {
	var running *runningError
	var silent *silentError
	return errors.As(err, &running) || errors.As(err, &silent)
}

// silentError: nothing shows any more whether an ALTER has ended. HiveServer2 keeps
// the latest closed statements only, and none over a restart, while the task of one
// goes on after its session was closed, and a metastore apart from the server carries
// out what it was asked.
type silentError struct {
	server       string
	session      sessionRef
	since, until time.Time
}

func (e *silentError) Error() string {
	// Told in whole seconds, it must not be too early.
	until := e.until.Add(time.Second - time.Nanosecond)
	return fmt.Sprintf("%s does not show whether an ALTER whose answer was lost has ended; its session %s is known to be closed since %s, and a task of it may go on for a while: wait until %s, and repeat this", e.server, e.session, stamp(e.since), stamp(until))
}

// ended is a *runningError while one of them may still take effect.
func (s *Server) ended(found []hs2.Query) error {
	for _, q := range found {
		if s.landing(q) {
			return &runningError{server: s.conn.Address(), query: q}
		}
	}
	return nil
}

// A session that is closed while a statement runs in it takes the statement out of
// the list of active ones at once, and that stays among the ended ones as RUNNING for
// ever; its task was seen to go on for eleven seconds, and to take effect. That the
// task ended is what counts then. One that was still being compiled begins no task
// any more, which is believed after a while.
const (
	taskQuiet    = 5 * time.Second
	compileQuiet = time.Minute // unless Config.Quiet says so
)

// landing reports whether a statement in the server's list may still take effect.
func (s *Server) landing(q hs2.Query) bool {
	if !live(q.State) {
		// The task of one that was cancelled may go on too, in the middle of a move.
		return q.State != hs2.Finished && slices.ContainsFunc(q.Tasks, func(t hs2.Task) bool { return !t.Begin.IsZero() && t.End.IsZero() })
	}
	if q.Running || q.End.IsZero() {
		return true
	}
	last, quiet := q.End, s.cfg.Quiet
	for _, t := range q.Tasks {
		if t.Begin.IsZero() && t.End.IsZero() {
			continue // and it never will, see above
		}
		if t.End.IsZero() {
			return true
		}
		quiet = taskQuiet
		if t.End.After(last) {
			last = t.End
		}
	}
	return s.now().Sub(last) < quiet
}
