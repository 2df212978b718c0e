package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
)

var (
	_ commitstep.OnPark = (*insertStep)(nil)
	_ Prober            = (*insertStep)(nil)
)

// Probe gathers the evidence pack.
func (s *insertStep) Probe(ctx context.Context, a *commitstep.Attempt) (Pack, error) {
	if err := s.checked(a); err != nil {
		return Pack{}, err
	}
	mark, passed, n, err := s.notes(a)
	if err != nil {
		return Pack{}, err
	}
	p := s.pack(InsertOverwriteName, a)
	g, stop := s.gatherer(ctx, a, &p)
	defer stop()
	if passed {
		p.Server, p.Session, p.Attempt, p.Marked = mark.Server, mark.Session.guid, mark.Attempt, mark.At
		p.Operation, p.QueryID, p.Submitted, p.Last = n.Operation.guid, n.QueryID, n.Submitted, n.Final
		if s.elsewhere(mark.Server) {
			p.Bound = s.server.conn.Address()
		}
		// What is decided was released, and only the note knows it.
		if p.Bound == "" && (n.Final == nil || n.Final.fate() == fateUnknown) {
			g.operation(n.Operation)
		}
		p.sent = n.Never == "" && (p.Last == nil || p.Last.fate() == fateUnknown)
		g.queries()
	}
	p.Phase = n.phase(passed)
	g.target(s.target, s.metrics, s.params.values(s.target, a.Token, a.Key))
	p.suggest()
	return p, nil
}

func (n insertNote) phase(passed bool) string {
	switch {
	case !passed:
		return "never sent"
	case n.Never != "":
		return "not accepted: " + n.Never
	case n.Operation.IsZero() && n.Lost != "":
		return "submitted, no answer: " + n.Lost
	case n.Operation.IsZero():
		return "submitted, or about to be, when the process ended"
	case n.Final == nil:
		return "accepted, its end was not seen"
	}
	return "ended as " + n.Final.State
}

// OnPark keeps the pack with the attempt, while what it describes is fresh.
func (s *insertStep) OnPark(ctx context.Context, a *commitstep.Attempt, reason commitstep.ParkReason, _ string) error {
	if reason != commitstep.PublishUnknown && reason != commitstep.ConflictFound {
		return nil
	}
	_, passed, n, err := s.notes(a)
	if err != nil || !passed || untimely(a, n.Evidence) {
		return err
	}
	p, err := s.Probe(ctx, a)
	if err != nil {
		return err
	}
	n.Evidence = p.after(n.Evidence)
	return note(ctx, a, n)
}

// matching are those of a list that carry a token, unless that is "", or belong to a
// session: while one is compiled, the list has no text of it.
func matching(all []hs2.Query, token, session string) []hs2.Query {
	return slices.DeleteFunc(slices.Clone(all), func(q hs2.Query) bool {
		return (token == "" || !strings.Contains(q.Text, marker(token))) && (session == "" || q.Session != session)
	})
}

const orGone = "try again when it can be reached; if it is gone for good, say so (--server-gone)"

// closed closes a session and sees that it is closed. One that the server does not
// know has ended, with its server perhaps, or is another server's: behind one
// address they would all say so. open: it was open until now.
func (s *Server) closed(ctx context.Context, ref sessionRef) (open bool, err error) {
	err = s.conn.CloseSession(ctx, ref)
	open = err == nil
	if errors.Is(err, hs2.ErrUnknownHandle) {
		err = s.single(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("session %s at %s could not be closed: %w; %s", ref, s.conn.Address(), err, orGone)
	}
	alive, err := s.conn.SessionAlive(ctx, ref)
	if err != nil {
		return open, fmt.Errorf("whether session %s at %s is closed could not be seen: %w; %s", ref, s.conn.Address(), err, orGone)
	}
	if alive {
		return open, fmt.Errorf("session %s at %s is still open", ref, s.conn.Address())
	}
	return open, nil
}

// singleFor is how long it is believed that an address leads to one server: after
// a restart of the server many sessions are closed one after another.
const singleFor = time.Minute

// single is an error when the address leads to more than one server, or that could
// not be seen.
func (s *Server) single(ctx context.Context) error {
	s.mu.Lock()
	at := s.singleAt
	s.mu.Unlock()
	if !at.IsZero() && time.Since(at) < singleFor {
		return nil
	}
	one, err := s.conn.Single(ctx)
	if err != nil {
		return fmt.Errorf("whether the address leads to the server that knew it could not be seen: %w", err)
	}
	if !one {
		return errors.New("the address leads to more than one server, and the one that answered does not know it; bind the address of the one that does")
	}
	s.mu.Lock()
	s.singleAt = time.Now()
	s.mu.Unlock()
	return nil
}

func (s *Server) unlisted(err error) error {
	return fmt.Errorf("the list of statements of %s could not be read: %w; %s", s.conn.Address(), err, orGone)
}
