package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
)

// Insert are the parameters of hive.insert_overwrite.
type Insert struct {
	Target
	Bindings
	// Statement begins with INSERT OVERWRITE TABLE ${table} PARTITION ${partition},
	// or has it behind its WITH or FROM.
	Statement string `json:"statement"`
	// Rows is how many the partition holds afterwards; Metrics are further
	// questions. At least one expectation is needed.
	Rows    *int64   `json:"rows,omitempty"`
	Metrics []Metric `json:"metrics,omitempty"`
	// Settings are Hive configuration for this statement.
	Settings map[string]string `json:"settings,omitempty"`
}

// InsertOverwrite is the step that runs an INSERT OVERWRITE at most once. It
// needs a stage of its own.
func InsertOverwrite(p Insert) commitstep.StepSpec {
	return commitstep.NewSpec(InsertOverwriteName, p)
}

// insertStep implements commitstep.CommitStep, Resolver, Preparer, Irreversible,
// Reattacher, Withdrawer, OnPark and NoteRedactor.
type insertStep struct {
	base
	params  Insert
	sql     statement
	metrics []metric
	// seen is what Reattach has just been told, for the Verify that follows.
	seen *glance
	// unnoted is what the store would not take. Another process will not know it.
	unnoted *insertNote
}

type glance struct {
	session string
	status  hs2.Status
	fate    fate
	err     error
}

var (
	_ commitstep.Resolver     = (*insertStep)(nil)
	_ commitstep.Preparer     = (*insertStep)(nil)
	_ commitstep.Irreversible = (*insertStep)(nil)
	_ commitstep.Reattacher   = (*insertStep)(nil)
	_ commitstep.NoteRedactor = (*insertStep)(nil)
)

func buildInsert(b base, s commitstep.Step) (commitstep.CommitStep, error) {
	st := &insertStep{base: b}
	if err := commitstep.DecodeParams(s, &st.params); err != nil {
		return nil, err
	}
	if err := st.bind(s, st.params.Target); err != nil {
		return nil, err
	}
	partitioned := len(st.target.spec) > 0
	known, err := st.params.known(partitioned)
	if err != nil {
		return nil, st.bad("correct the bindings", err)
	}
	st.sql, err = parseStatement(st.params.Statement, known)
	if err == nil {
		err = st.sql.checkInsert(partitioned)
	}
	if err != nil {
		return nil, st.bad("see the kind in docs/formats.md", fmt.Errorf("parameter \"statement\": %w", err))
	}
	if st.metrics, err = checkMetrics(st.params.Rows, st.params.Metrics, known, true); err != nil {
		return nil, st.bad("say what the published partition must hold", err)
	}
	return st, nil
}

// Irreversible marks that an INSERT OVERWRITE cannot be taken back.
func (*insertStep) Irreversible() {}

// Summary says in one line what the step does.
func (s *insertStep) Summary() string { return "insert overwrite " + s.target.String() }

// Resolve writes names in their full form.
func (s *insertStep) Resolve(p *commitstep.Preparation) error {
	s.params.Target = s.params.resolve(s.target)
	return p.Set(s.params, nil)
}

// Prepare looks at the target as it is, and asks what is expected of it.
func (s *insertStep) Prepare(ctx context.Context, p *commitstep.Preparation) error {
	_, _, ev, err := s.planned(ctx, p)
	if err != nil {
		return err
	}
	values := s.params.values(s.target, p.Token(), p.Key)
	if ev.Before, err = s.server.measure(ctx, s.server.query, s.metrics, values); err == nil {
		ev.Want, err = s.server.wanted(ctx, s.metrics, values)
	}
	if err == nil {
		ev.Staged, err = s.server.staged(ctx, s.params.Stage)
	}
	if err != nil {
		return s.unasked(ctx, err)
	}
	s.ev = ev
	return p.Set(s.params, ev)
}

// pollSlice is how long one look waits for a statement to end.
const pollSlice = 5 * time.Second

// Reattach asks what became of a noted statement, and notes its end before it lets
// the server forget it.
func (s *insertStep) Reattach(ctx context.Context, a *commitstep.Attempt) error {
	before := s.seen
	s.seen = nil
	mark, passed, n, err := s.notes(a)
	if err == nil && s.unnoted != nil {
		if err = s.note(ctx, a, n); err == nil {
			s.release(ctx, n)
		}
	}
	if err != nil || !passed || n.Operation.IsZero() || n.Final != nil || s.elsewhere(mark.Server) {
		return err
	}
	if before != nil && before.session == n.Session.handle && before.fate == fateRunning && spent(a.Patience) {
		s.seen = before // there is no time to find out more
		return nil
	}
	return s.poll(ctx, a, n, pollSlice)
}

// poll waits up to slice for the end.
func (s *insertStep) poll(ctx context.Context, a *commitstep.Attempt, n insertNote, slice time.Duration) error {
	st, f, err := s.server.await(ctx, a.Patience, n.Operation, slice)
	s.seen = &glance{session: n.Session.handle, status: st, fate: f, err: err}
	switch f {
	case fateUnseen:
		return fmt.Errorf("%s: operation %s: %w", s.where, n.Operation, err)
	case fateRunning:
		return nil
	}
	if s.seen.err != nil || !st.State.Final() {
		return nil // the handle is not known, or a state is not known here: nothing is final
	}
	n.Final = s.server.outcome(s.seen.status)
	if err := s.note(ctx, a, n); err != nil {
		return err
	}
	s.release(ctx, n)
	return nil
}

// release lets the server forget what is decided. Where it is not, everything
// stays, since the statement's staging directory ends with it.
func (s *insertStep) release(ctx context.Context, n insertNote) {
	if n.Never == "" && (n.Final == nil || n.Final.fate() == fateUnknown) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if !n.Operation.IsZero() {
		if err := s.server.conn.CloseOperation(ctx, n.Operation); transport(err) {
			return
		}
	}
	_ = s.server.conn.CloseSession(ctx, n.Session)
}

// Verify rests on the mark, on the noted operation's state, and on the metrics.
func (s *insertStep) Verify(ctx context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	if err := s.checked(a); err != nil {
		return commitstep.Verdict{}, err
	}
	mark, passed, n, err := s.notes(a)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	switch {
	case !passed:
		return commitstep.IsNotDone("the statement was never sent"), nil
	case n.Never != "":
		return commitstep.IsNotDone("the statement was not accepted: %s", n.Never), nil
	case n.Operation.IsZero():
		why := "the process ended before it learnt the answer"
		if n.Lost != "" {
			why = n.Lost
		}
		return commitstep.IsUnknown("the statement was submitted to %s in session %s at %s, and nobody knows its handle: %s", mark.Server, mark.Session, stamp(mark.At), why), nil
	}
	final := n.Final
	if final == nil && s.elsewhere(mark.Server) {
		return commitstep.IsUnknown("query %s was sent to %s, and this program speaks to %s, which cannot say what became of it", n.name(), mark.Server, s.server.conn.Address()), nil
	}
	if final == nil {
		g := s.seen
		if g == nil || g.session != n.Session.handle {
			st, err := s.server.conn.Status(ctx, n.Operation)
			g = &glance{status: st, fate: polled(st, err), err: err}
		}
		switch {
		case g.fate == fateUnseen:
			return commitstep.Verdict{}, fmt.Errorf("%s: operation %s: %w", s.where, n.Operation, g.err)
		case g.fate == fateRunning:
			return commitstep.Verdict{}, fmt.Errorf("%s: query %s is %s: %w", s.where, n.name(), g.status.State, commitstep.ErrInProgress)
		case g.err != nil:
			return commitstep.IsUnknown("%s does not say any more what became of query %s: %v", s.server.conn.Address(), n.name(), g.err), nil
		}
		final = s.server.outcome(g.status)
	}
	return s.judge(ctx, a, n, final)
}

// judge turns a final state and the metrics into a verdict.
func (s *insertStep) judge(ctx context.Context, a *commitstep.Attempt, n insertNote, o *Outcome) (commitstep.Verdict, error) {
	f := o.fate()
	if f != fateFinished && f != fateUntouched {
		return commitstep.IsUnknown("query %s ended as %s%s, and the table may hold the old rows, the new ones or a part of them", n.name(), o.State, o.text()), nil
	}
	got, err := s.server.measure(ctx, s.server.query, s.metrics, s.params.values(s.target, a.Token, a.Key))
	if unanswered(err) {
		// No metric can be asked of a table that is not there, and that is an answer.
		if terr := s.server.tableError(ctx, s.target, err); errors.Is(terr, errNoTable) {
			return s.noTable(n, o, terr), nil
		}
		// It would be asked for ever. If it goes on like this, a person looks at the
		// table; if it was the server's bad moment, the next look finds out.
		return commitstep.IsUnknown("query %s ended as %s%s, and what %s holds now cannot be asked: %v", n.name(), o.State, o.text(), s.target, err), nil
	}
	if err != nil {
		return commitstep.Verdict{}, fmt.Errorf("%s: %s: %w", s.where, s.target, err)
	}
	if f == fateUntouched {
		if !equal(s.ev.Before, got) {
			return commitstep.IsUnknown("query %s ended as %s%s before it touched the table, but the table has changed: it was %s and is %s", n.name(), o.State, o.text(), words(s.ev.Before), words(got)), nil
		}
		return commitstep.IsNotDone("query %s ended as %s%s before it touched the table, which is unchanged (%s)", n.name(), o.State, o.text(), words(got)), nil
	}
	if diff := differ(s.ev.Want, got); diff != "" {
		return commitstep.InConflict("query %s finished, but %s is not what was planned: %s", n.name(), s.target, diff).ButVisible(), nil
	}
	return commitstep.IsDone("query %s finished, and %s holds %s", n.name(), s.target, words(got)), nil
}

// noTable is judge's verdict where the table was dropped. Of a statement that never
// touched it that is a change like any other.
func (s *insertStep) noTable(n insertNote, o *Outcome, gone error) commitstep.Verdict {
	if o.fate() == fateUntouched {
		return commitstep.IsUnknown("query %s ended as %s%s before it touched the table, but the table has changed: %v", n.name(), o.State, o.text(), gone)
	}
	// What it wrote was there to be read, and the files of an external table stay
	// when it is dropped.
	return commitstep.InConflict("query %s finished, but %v", n.name(), gone).ButVisible()
}

// executeWait is how long Execute itself waits for the end. What takes longer is
// looked after by the driver, which may have others to care for.
const executeWait = 20 * time.Second

// Execute submits the statement once.
func (s *insertStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := s.checked(a); err != nil {
		return commitstep.NotSent(err)
	}
	s.seen, s.unnoted = nil, nil
	sql, err := s.sql.bind(s.params.values(s.target, a.Token, a.Key))
	if err != nil {
		return commitstep.Permanent(err)
	}
	conn := s.server.conn
	session, err := conn.OpenSession(ctx, s.server.conf(map[string]string{"hive.query.tag": a.Token.String()}))
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err))
	}
	n := insertNote{Session: session}
	if err := a.PointOfNoReturn(ctx, insertMark{Server: conn.Address(), Session: session, Attempt: a.Number, At: s.server.now().UTC()}); err != nil {
		// Whether the mark is stored or not, the statement was not sent.
		s.server.forget(ctx, session)
		return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
	}
	overlay := maps.Clone(s.params.Settings)
	if overlay == nil {
		overlay = map[string]string{}
	}
	overlay["hive.query.tag"] = a.Token.String()
	op, err := conn.Submit(ctx, session, mark(a.Token.String(), a.Number, sql), overlay)
	if err != nil {
		return s.notAccepted(ctx, a, n, err)
	}
	n.Operation, n.Submitted = op, s.server.now().UTC()
	// The statement runs now, and its handle is worth more than anything else, also
	// to a caller who is in a hurry.
	if err := s.note(ctx, a, n); err != nil {
		return fmt.Errorf("%s: it was submitted as operation %s, which could not be noted: %w", s.where, op, unsure(err))
	}
	if id, err := conn.QueryID(ctx, op); err == nil {
		n.QueryID = id
		if err := s.note(ctx, a, n); err != nil {
			return fmt.Errorf("%s: it was submitted as query %s, which could not be noted: %w", s.where, id, unsure(err))
		}
	}
	if err := s.poll(ctx, a, n, executeWait); err != nil {
		return unsure(err)
	}
	if g := s.seen; g.fate == fateUntouched {
		return commitstep.Refused(fmt.Errorf("%s: query %s ended as %s: %s", s.where, n.name(), g.status.State, clip(g.status.Message)))
	} else if g.fate == fateUnknown {
		return fmt.Errorf("%s: query %s ended as %s: %s", s.where, n.name(), g.status.State, clip(g.status.Message))
	}
	return nil
}

// notAccepted notes an error of the submission. Only what is durable counts: as
// long as even "it was not accepted" cannot be noted, it stays unknown.
func (s *insertStep) notAccepted(ctx context.Context, a *commitstep.Attempt, n insertNote, err error) error {
	f := submitted(err)
	if f == fateUnknown {
		n.Lost = err.Error()
		if nerr := s.note(ctx, a, n); nerr != nil && errors.Is(nerr, commitstep.ErrFenced) {
			return unsure(nerr)
		}
		return fmt.Errorf("%s: %w", s.where, err)
	}
	n.Never = clip(err.Error())
	if nerr := s.note(ctx, a, n); nerr != nil {
		return fmt.Errorf("%s: %w (and it could not be noted: %w)", s.where, err, unsure(nerr))
	}
	s.release(ctx, n)
	err = fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err)
	if f == fateNeverSent {
		return commitstep.NotSent(err)
	}
	return commitstep.Refused(err)
}
