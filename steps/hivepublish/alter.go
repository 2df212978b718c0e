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

// An ALTER can be repeated, but one whose answer was lost may still be on its way:
// landing late, it would undo what a later publish did. So every ALTER has a
// session of its own, noted before it is sent, and a session whose ALTER was not
// answered is closed, and shown closed, before anything else is tried or called
// done. A statement that arrives for a closed session is refused by the server.

// alterRef is one ALTER that was, or was about to be, sent.
type alterRef struct {
	Server  string     `json:"server"`
	Session sessionRef `json:"session"`
	Attempt int        `json:"attempt"`
	At      time.Time  `json:"at"`
	// Open: it may still land.
	Open bool `json:"open,omitempty"`
	// Ended says how it is known that it cannot.
	Ended string `json:"ended,omitempty"`
	// Silent is since when its session is known to be closed while the server shows
	// neither that it runs nor that it has ended.
	Silent time.Time `json:"silent,omitzero"`
}

// alters are all of a step.
type alters []alterRef

// keptAlters is how many ended ones are kept for people.
const keptAlters = 8

// open is the first that may still land.
func (l alters) open() (alterRef, bool) {
	i := slices.IndexFunc(l, func(r alterRef) bool { return r.Open })
	if i < 0 {
		return alterRef{}, false
	}
	return l[i], true
}

// trimmed drops the oldest that have ended.
func (l alters) trimmed() alters {
	drop := len(l) - keptAlters
	return slices.DeleteFunc(slices.Clone(l), func(r alterRef) bool {
		if drop > 0 && !r.Open {
			drop--
			return true
		}
		return false
	})
}

// alterTimeout is how long an ALTER's end is waited for, once it was accepted. A
// metastore that takes longer is not waited for in this attempt.
const alterTimeout = 2 * time.Minute

// alterer is what a kind with ALTERs keeps.
type alterer struct {
	*base
	a *commitstep.Attempt
	// list is the kind's, and save notes it with all else that the kind knows.
	list *alters
	save func(ctx context.Context) error
}

// alterer looks after the list, which is part of note.
func (b *base) alterer(a *commitstep.Attempt, list *alters, note any) alterer {
	return alterer{base: b, a: a, list: list, save: func(ctx context.Context) error { return a.Note(ctx, note) }}
}

// run sends one ALTER and learns its end. What it returns says nothing about
// whether the effect is there; the location does. last is the last look at the target,
// and gives the statement. It is taken when the session is there and noted: a new
// session takes seconds, in which a publisher that knows nothing of this one may
// change the partition, and Hive has no compare-and-set.
func (r alterer) run(ctx context.Context, last func(ctx context.Context) (sql string, err error)) error {
	conn := r.server.conn
	session, err := conn.OpenSession(ctx, r.server.conf(map[string]string{"hive.query.tag": r.a.Token.String()}))
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: hive server %q: %w", r.where, r.server.name, err))
	}
	*r.list = append(r.list.trimmed(), alterRef{Server: conn.Address(), Session: session, Attempt: r.a.Number, At: r.server.now().UTC(), Open: true})
	me := len(*r.list) - 1
	if err := r.save(ctx); err != nil {
		*r.list = (*r.list)[:me]
		r.server.forget(ctx, session)
		return commitstep.NotSent(fmt.Errorf("%s: %w", r.where, err))
	}
	sql, err := last(ctx)
	if err != nil {
		return r.unused(ctx, me, err)
	}
	end, sent := r.send(ctx, session, sql)
	if end != "" {
		// Answered: nothing of it is left to land.
		r.server.forget(ctx, session)
		(*r.list)[me].Open, (*r.list)[me].Ended = false, end
		if err := r.saveLate(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.where, unsure(err))
		}
		return sent
	}
	if errors.Is(sent, commitstep.ErrInProgress) {
		return sent // it stays open, and is settled by the next look
	}
	if err := r.settle(ctx); err != nil {
		return fmt.Errorf("%s: %w (and what became of it is not known: %w)", r.where, sent, unsure(err))
	}
	return sent
}

// unused takes back the newest session, in which nothing was sent because of why. If
// that cannot be noted, it is closed like that of an ALTER without an answer.
func (r alterer) unused(ctx context.Context, me int, why error) error {
	session := (*r.list)[me].Session
	*r.list = (*r.list)[:me]
	r.server.forget(ctx, session)
	if err := r.saveLate(ctx); err != nil {
		return fmt.Errorf("%w (and it could not be noted: %w)", why, unsure(err))
	}
	return why
}

// send submits and waits. end says how the statement ended; "" when that is not
// known.
func (r alterer) send(ctx context.Context, session sessionRef, sql string) (end string, err error) {
	wrap := func(err error) error { return fmt.Errorf("%s: hive server %q: %w", r.where, r.server.name, err) }
	op, err := r.server.conn.Submit(ctx, session, mark(r.a.Token.String(), r.a.Number, sql), nil)
	if err != nil {
		switch submitted(err) {
		case fateRefused:
			return "refused", commitstep.Refused(wrap(err))
		case fateNeverSent:
			return "never sent", commitstep.NotSent(wrap(err))
		}
		return "", wrap(err)
	}
	// Most ALTERs end at once, and one that is seen to end need not be taken up.
	patience, stop := r.server.looking(ctx, r.a.Patience)
	defer stop()
	st, f, err := r.server.await(ctx, patience.Done(), op, alterTimeout)
	switch {
	case err != nil:
		return "", wrap(err)
	case f == fateRunning && spent(r.a.Patience):
		return "", wrap(fmt.Errorf("the ALTER, operation %s: %w", op, commitstep.ErrInProgress))
	case st.State == hs2.Finished:
		return "finished", nil
	case st.State == hs2.Error:
		return "failed", commitstep.Refused(wrap(&hs2.StatementError{Status: st}))
	}
	return "", wrap(&hs2.StatementError{Status: st})
}

// settle closes the session of every ALTER that may still land, and shows that
// nothing of it is left. An error means that one could not be shown. One that lands
// meanwhile does no harm: it is in progress.
func (r alterer) settle(ctx context.Context) error {
	// Only its own server can say; Verify does.
	changed, fail := r.close(ctx)
	if changed {
		if err := r.saveLate(ctx); err != nil {
			return err
		}
	}
	if late(fail) {
		return fmt.Errorf("%w: %w", fail, commitstep.ErrInProgress)
	}
	return fail
}

// withdraw is settle before a decision that nothing was published: what was sent to
// another server refuses it. What was seen is noted for the next time. gone is
// believed unless the server itself says otherwise.
func (r alterer) withdraw(ctx context.Context, gone bool) error {
	if gone {
		for _, ref := range *r.list {
			if !ref.Open || r.elsewhere(ref.Server) {
				continue
			}
			if err := r.server.stillThere(ctx, "", insertNote{Session: ref.Session}, true); err != nil {
				return err
			}
		}
		return nil
	}
	for _, ref := range *r.list {
		if ref.Open && r.elsewhere(ref.Server) {
			return fmt.Errorf("an ALTER was sent to %s and this program speaks to %s; bind that one, or say that it is gone (--server-gone)", ref.Server, r.server.conn.Address())
		}
	}
	changed, fail := r.close(ctx)
	if !changed {
		return fail
	}
	// Where it cannot be noted the next decision knows less, and so waits longer; it is
	// never let through.
	if err := r.saveLate(ctx); err != nil && fail != nil {
		return fmt.Errorf("%w (this could not be noted, and what is waited for begins anew: %w)", fail, unsure(err))
	}
	return fail
}

// close closes the sessions of those that were sent to the bound server, up to the
// first of which it cannot be shown that nothing can land. changed: there is something
// to note, also with an error.
func (r alterer) close(ctx context.Context) (changed bool, err error) {
	for i := range *r.list {
		ref := &(*r.list)[i]
		if !ref.Open || r.elsewhere(ref.Server) {
			continue
		}
		before := ref.Silent
		if err := r.server.closeAlter(ctx, ref); err != nil {
			return changed || ref.Silent != before, err
		}
		ref.Open, ref.Ended, changed = false, "its session was closed", true
	}
	return changed, nil
}

// saveLate writes what must not be lost, also when ctx has ended meanwhile.
func (r alterer) saveLate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	return r.save(ctx)
}

// verdict judges a location. ours is where it should be; old is how it was.
func (b *base) verdict(st state, ours location, list alters) commitstep.Verdict {
	open, may := list.open()
	late := ""
	if may {
		late = fmt.Sprintf("an ALTER sent to %s in session %s at %s was not answered and may still land", open.Server, open.Session, stamp(open.At))
		if b.elsewhere(open.Server) {
			late += fmt.Sprintf("; this program speaks to %s, which knows nothing of it", b.server.conn.Address())
		}
	}
	is := "absent"
	if st.there {
		is = "at " + st.location
	}
	switch {
	case st.there && ours.same(st.location):
		if may {
			return commitstep.IsUnknown("%s is %s as planned, but %s", b.target, is, late)
		}
		return commitstep.IsDone("%s is %s", b.target, is)
	case b.asPlanned(st):
		if may {
			return commitstep.IsUnknown("%s is still %s, and %s", b.target, is, late)
		}
		return commitstep.IsNotDone("%s is still %s", b.target, is)
	case b.ev.There:
		return commitstep.InConflict("%s is %s, it was at %s when it was planned", b.target, is, b.ev.Location)
	}
	return commitstep.InConflict("%s is %s, it was absent when it was planned", b.target, is)
}

// asPlanned reports that the target is what it was when it was planned.
func (b *base) asPlanned(st state) bool {
	if !b.ev.There || !st.there {
		return b.ev.There == st.there
	}
	old, err := parseLocation(b.ev.Location)
	return err == nil && old.same(st.location)
}

// lookNow asks the metastore. A table that is gone is a conflict, which ends the
// waiting that an error would begin.
func (b *base) lookNow(ctx context.Context) (state, *commitstep.Verdict, error) {
	st, err := b.server.look(ctx, b.target)
	if errors.Is(err, errNoTable) {
		v := commitstep.InConflict("%v", err)
		return st, &v, nil
	}
	if err != nil {
		err = fmt.Errorf("%s: hive server %q: %w", b.where, b.server.name, err)
	}
	return st, nil, err
}

// ready holds, right before an ALTER, that the target is as planned and that the
// directory is there: Hive swaps to one that is not, and then every read fails.
func (b *base) ready(ctx context.Context, ours location) (state, error) {
	there, err := b.server.isDir(ctx, ours)
	if err != nil {
		return state{}, commitstep.NotSent(fmt.Errorf("%s: %w", b.where, err))
	}
	if !there {
		// All that could bring it about has run.
		return state{}, commitstep.Permanent(fmt.Errorf("%s: %s is not there; a partition is never pointed at a directory that is missing", b.where, ours))
	}
	st, gone, err := b.lookNow(ctx)
	switch {
	case err != nil:
		return st, commitstep.NotSent(err)
	case gone != nil:
		return st, commitstep.Refused(errors.New(gone.Evidence))
	case !b.asPlanned(st):
		return st, commitstep.Refused(fmt.Errorf("%s: %s is not what it was when it was planned", b.where, b.target))
	}
	return st, nil
}
