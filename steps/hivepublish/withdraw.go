package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
)

var _ commitstep.Withdrawer = (*insertStep)(nil)

// ending is what refused decisions have seen of a statement. HiveServer2 forgets a
// closed statement as soon as a few others were closed, so what it said once is not
// said again.
type ending struct {
	// Live is when it was last seen to be one that may take effect, in State.
	Live  time.Time `json:"live,omitzero"`
	State string    `json:"state,omitempty"`
	// Closed is since when its session is known to be closed.
	Closed time.Time `json:"closed,omitzero"`
}

// saw remembers a statement that may still take effect.
func (e *ending) saw(at time.Time, state string) { e.Live, e.State = at.UTC(), state }

// Withdraw closes the statement's session, and refuses while the statement may still
// take effect. One that is seen to run is left to run: nobody is served when a
// publish that would have finished is cut off by a command that is refused. gone is
// believed unless the server itself says otherwise.
func (s *insertStep) Withdraw(ctx context.Context, a *commitstep.Attempt, gone bool) error {
	mark, passed, n, err := s.notes(a)
	if err != nil {
		return err
	}
	if !passed || n.Never != "" || n.Final != nil && n.Final.fate() != fateUnknown {
		return nil // nothing of it is left to land
	}
	if gone {
		if s.elsewhere(mark.Server) {
			return nil // that one cannot be asked from here
		}
		return s.server.stillThere(ctx, a.Token.String(), n, s.server.list != nil || !n.Operation.IsZero())
	}
	if s.elsewhere(mark.Server) {
		return fmt.Errorf("the statement was sent to %s and this program speaks to %s; bind that one, or say that it is gone (--server-gone)", mark.Server, s.server.conn.Address())
	}
	before := n.Ending
	err = s.server.shut(ctx, a.Token.String(), &n)
	if err == nil || n.Ending == before {
		return err
	}
	if nerr := note(ctx, a, n); nerr != nil {
		// The next decision knows less, and so waits longer; it is never let through.
		return fmt.Errorf("%w (this could not be noted, and what is waited for begins anew: %w)", err, unsure(nerr))
	}
	return err
}

// goneLook bounds the look at a server that is said to be gone.
const goneLook = 15 * time.Second

// stillThere is an error when a server that is said to be gone answers, and knows the
// statement as one that may take effect, or its session where a decision could close
// that: a mistaken word would let it land after the decision. What does not answer, or
// knows neither, is taken for gone. Where nothing shows what runs, the word is all
// there is; closes says that a decision without it could close the session. token is ""
// where the session alone tells what was sent.
func (s *Server) stillThere(parent context.Context, token string, n insertNote, closes bool) error {
	ctx, cancel := context.WithTimeout(parent, goneLook)
	defer cancel()
	const not = "it is not gone: decide without --server-gone"
	if s.list != nil {
		if all, err := s.list.Find(ctx, ""); err == nil {
			if err := s.ended(matching(all, token, n.Session.guid)); err != nil {
				return fmt.Errorf("%w; %s", err, not)
			}
		}
	}
	if !n.Operation.IsZero() {
		if st, err := s.conn.Status(ctx, n.Operation); err == nil && !st.State.Final() {
			return fmt.Errorf("query %s is %s at %s; %s", n.name(), st.State, s.conn.Address(), not)
		}
	}
	if closes {
		if alive, err := s.conn.SessionAlive(ctx, n.Session); err == nil && alive {
			return fmt.Errorf("%s answers, and session %s, in which the statement was sent, is open there; %s", s.conn.Address(), n.Session.guid, not)
		}
	}
	return parent.Err()
}

// runningError: the server lists a statement that may still take effect.
type runningError struct {
	server string
	query  hs2.Query
}

func (e *runningError) Error() string {
	what := fmt.Sprintf("wait for its end, or end it there (KILL QUERY '%s')", e.query.QueryID)
	if !e.query.Running && !e.query.End.IsZero() {
		what = "it was closed, but a task of it may go on for a while; wait and repeat this"
	}
	return fmt.Sprintf("%s still lists query %s with this token as %s; %s", e.server, e.query.QueryID, e.query.StateText, what)
}

// shut shows that nothing of a statement can take effect any more, and closes its
// session so that nothing can arrive. It looks first, and closes nothing where the
// refusal is certain. What it sees is in n.Ending, also when it refuses.
func (s *Server) shut(ctx context.Context, token string, n *insertNote) error {
	if s.list == nil && n.Operation.IsZero() {
		return fmt.Errorf("a statement was sent whose handle nobody knows, and no web UI is bound that could show whether it runs; bind it, or make sure that nothing with %q runs and say that the server is gone (--server-gone)", marker(token))
	}
	before, _, err := s.landed(ctx, token, n)
	if err != nil {
		return err
	}
	told, err := s.told(ctx, n)
	if err != nil {
		return err
	}
	open, err := s.closed(ctx, n.Session)
	if err != nil {
		return err
	}
	if open || n.Ending.Closed.IsZero() {
		// One that was found closed may have been so for long; nobody knows.
		n.Ending.Closed = s.now().UTC()
	}
	after, listed, err := s.landed(ctx, token, n)
	switch {
	case err != nil && open:
		return fmt.Errorf("%w. Its session was closed just now, and what ran in it was cut off", err)
	case err != nil:
		return err
	case told || listed:
		return nil
	case open && n.Operation.IsZero() && keeps(before, after):
		return nil // it never arrived, or it would be listed
	}
	return s.forgotten(n, open)
}

// landed is an error while the list shows that the statement may still take effect.
// listed: it shows that it cannot.
func (s *Server) landed(ctx context.Context, token string, n *insertNote) (all []hs2.Query, listed bool, err error) {
	if s.list == nil {
		return nil, false, nil
	}
	if all, err = s.list.Find(ctx, ""); err != nil {
		return nil, false, s.unlisted(err)
	}
	found := matching(all, token, n.Session.guid)
	err = s.ended(found)
	var running *runningError
	if errors.As(err, &running) {
		n.Ending.saw(s.now(), running.query.StateText)
	}
	// Others with the token are of earlier attempts, and say nothing of this one.
	return all, slices.ContainsFunc(found, func(q hs2.Query) bool { return q.Session == n.Session.guid }), err
}

// told asks for the operation. It is an error while that runs; told: it ended, and
// nothing of it goes on. One that was cancelled may be in the middle of a move.
func (s *Server) told(ctx context.Context, n *insertNote) (told bool, err error) {
	if n.Operation.IsZero() {
		return false, nil
	}
	st, err := s.conn.Status(ctx, n.Operation)
	switch {
	case errors.Is(err, hs2.ErrUnknownHandle):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("whether query %s still runs could not be seen at %s: %w; %s", n.name(), s.conn.Address(), err, orGone)
	case !st.State.Final():
		n.Ending.saw(s.now(), st.State.String())
		return false, fmt.Errorf("query %s is %s at %s; wait for its end, or end it there (KILL QUERY '%s')", n.name(), st.State, s.conn.Address(), n.name())
	}
	f := polled(st, nil)
	return f == fateFinished || f == fateUntouched, nil
}

// forgotten refuses until what nobody sees any more has had the time to end.
func (s *Server) forgotten(n *insertNote, open bool) error {
	since, live := n.quiet()
	until := since.Add(s.cfg.Quiet)
	if !s.now().Before(until) {
		return nil
	}
	how := fmt.Sprintf("its session was found closed at %s", stamp(n.Ending.Closed))
	if open {
		how = "its session was closed just now, and what ran in it was cut off"
	}
	if !live.IsZero() {
		how += fmt.Sprintf(", and it was seen as one that may take effect at %s", stamp(live))
	}
	// Told in whole seconds, it must not be too early.
	until = until.Add(time.Second - time.Nanosecond)
	return fmt.Errorf("%s does not show any more whether the statement (%s) has ended: %s. A task of it may go on for a while; wait until %s, look at the table, and repeat this, or say that the server is gone for good (--server-gone)", s.conn.Address(), n.title(), how, stamp(until))
}

// title is how people find it, whatever is known.
func (n *insertNote) title() string {
	if name := n.name(); name != "" {
		return "query " + name
	}
	return "session " + n.Session.guid
}

// quiet is since when the statement is known neither to run nor to be able to begin;
// live is when it was last seen to, if it was.
func (n *insertNote) quiet() (since, live time.Time) {
	since, live = n.Ending.Closed, n.Ending.Live
	for p := n.Evidence; p != nil; p = p.First {
		if slices.ContainsFunc(p.Queries, func(q QueryRow) bool { return q.Live }) && p.Gathered.After(live) {
			live = p.Gathered
		}
		if p.Forgotten && p.Operation == n.Operation.guid && p.Gathered.Before(since) {
			since = p.Gathered // its handle was unknown by then
		}
	}
	if n.Final != nil && n.Final.At.Before(since) {
		since = n.Final.At
	}
	if live.After(since) {
		since = live
	}
	return since, live
}
