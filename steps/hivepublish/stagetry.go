package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/internal/hs2"
)

// stageNote is what is known of a hive.stage_and_swap.
type stageNote struct {
	Alters alters `json:"alters,omitempty"`
	// Tries are the newest attempts to write the rows; Last is the highest number
	// ever given, Verified the one whose rows were counted, 0 for none.
	Tries    []stageTry `json:"tries,omitempty"`
	Last     int        `json:"last,omitempty"`
	Verified int        `json:"verified,omitempty"`
	Evidence *Pack      `json:"evidence,omitempty"`
}

// stageTry is one query into a directory of its own. It was noted before it was
// submitted, so no other will ever write there.
type stageTry struct {
	N         int          `json:"n"`
	Location  string       `json:"location"`
	Server    string       `json:"server"`
	Session   sessionRef   `json:"session"`
	Operation operationRef `json:"operation"`
	QueryID   string       `json:"queryId,omitempty"`
	At        time.Time    `json:"at"`
	// Finished: the query ended well. Ended says why it cannot be used.
	Finished bool   `json:"finished,omitempty"`
	Ended    string `json:"ended,omitempty"`
	// Metrics are those of its directory, once they were counted.
	Metrics []value `json:"metrics,omitempty"`
}

func (n *stageNote) verified() *stageTry { return n.try(n.Verified) }

func (n *stageNote) try(number int) *stageTry {
	for i := range n.Tries {
		if number > 0 && n.Tries[i].N == number {
			return &n.Tries[i]
		}
	}
	return nil
}

// newest is the last one, if it may still come to something.
func (n *stageNote) newest() *stageTry {
	t := n.try(n.Last)
	if t == nil || t.Ended != "" || t.Operation.IsZero() {
		return nil
	}
	return t
}

// running is the query whose end is not known.
func (n *stageNote) running() *stageTry {
	if t := n.newest(); n.Verified == 0 && t != nil && !t.Finished {
		return t
	}
	return nil
}

func (t *stageTry) name() string {
	if t.QueryID != "" {
		return t.QueryID
	}
	return t.Operation.guid
}

func (t *stageTry) phase() string {
	switch {
	case t.Ended != "":
		return t.Ended
	case len(t.Metrics) > 0:
		return "counted: " + words(t.Metrics)
	case t.Finished:
		return "written, not counted"
	case t.Operation.IsZero():
		return "submitted, or about to be"
	}
	return "its end was not seen"
}

// takeUp asks what became of a running query.
func (s *stageStep) takeUp(ctx context.Context, a *commitstep.Attempt, n *stageNote) error {
	t := n.running()
	if t == nil {
		return nil
	}
	if s.elsewhere(t.Server) {
		// It may go on there for ever: nobody reads where it writes.
		t.Ended = "it was sent to another server"
		return a.Note(ctx, n)
	}
	if s.ran == t.N && spent(a.Patience) {
		return nil // there is no time to find out more
	}
	st, f, err := s.server.await(ctx, a.Patience, t.Operation, pollSlice)
	s.ran = 0
	switch f {
	case fateRunning:
		s.ran = t.N
		return nil
	case fateUnseen:
		return fmt.Errorf("%s: query %s: %w", s.where, t.name(), err)
	}
	t.settle(st, f, err)
	if err := a.Note(ctx, n); err != nil {
		return err
	}
	// It was left behind with its session: no other statement is in there.
	s.server.forget(ctx, t.Session)
	return nil
}

// settle keeps how the query ended.
func (t *stageTry) settle(st hs2.Status, f fate, err error) {
	switch {
	case f == fateFinished:
		t.Finished = true
	case err != nil:
		t.Ended = "the server does not say any more what became of it: " + clip(err.Error())
	default:
		t.Ended = "it ended as " + st.State.String() + ": " + clip(st.Message)
	}
}

// stage brings a directory about whose rows were counted, or leaves a query
// running.
func (s *stageStep) stage(ctx context.Context, a *commitstep.Attempt, n *stageNote) error {
	if t := n.newest(); t != nil && t.Finished {
		return s.countAnew(ctx, a, n, t)
	}
	if err := s.number(ctx, a, n); err != nil {
		return err
	}
	ref, done, err := s.server.work(ctx)
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err))
	}
	as := lendDrop
	defer func() { done(as) }()
	t := n.try(n.Last)
	as, err = s.write(ctx, a, n, t, ref)
	if err != nil || !t.Finished {
		return err
	}
	err = s.count(ctx, a, n, t, func(ctx context.Context, sql string) (*hs2.Table, error) { return s.server.queryIn(ctx, ref, sql) })
	if transport(err) {
		as = lendDrop
	}
	return err
}

// countAnew counts what a query wrote that another process, or an earlier call,
// left running.
func (s *stageStep) countAnew(ctx context.Context, a *commitstep.Attempt, n *stageNote, t *stageTry) error {
	lent := false
	err := s.server.inSession(ctx, func(ref sessionRef) error {
		lent = true
		// All in one session: no other sees the temporary table.
		return s.count(ctx, a, n, t, func(ctx context.Context, sql string) (*hs2.Table, error) { return s.server.queryIn(ctx, ref, sql) })
	})
	if err != nil && !lent {
		return commitstep.NotSent(fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err))
	}
	return err
}

// maxTaken bounds the search for a free number.
const maxTaken = 1000

// number notes a directory that nothing is in.
func (s *stageStep) number(ctx context.Context, a *commitstep.Attempt, n *stageNote) error {
	place := s.place(a.Token)
	for range maxTaken {
		n.Last++
		loc := place.join(fmt.Sprintf("attempt=%d", n.Last))
		// A process that lost its claim may have begun one that is not noted.
		taken, err := s.taken(ctx, loc)
		if err != nil {
			return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
		}
		if taken {
			continue
		}
		n.Tries = append(n.trimmed(), stageTry{N: n.Last, Location: loc.String(), Server: s.server.conn.Address(), At: s.server.now().UTC()})
		if err := a.Note(ctx, n); err != nil {
			return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
		}
		return nil
	}
	return commitstep.Permanent(fmt.Errorf("%s: %d directories below %s are taken", s.where, maxTaken, place))
}

func (s *stageStep) taken(ctx context.Context, l location) (bool, error) {
	p, ok := s.server.place(l)
	if !ok {
		return false, fmt.Errorf("no file system is bound for %s", l)
	}
	_, err := p.files.Stat(ctx, p.at)
	if filesys.Missing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", l, err)
	}
	return true, nil
}

// write runs the query into the directory of t. It says what the session may be
// used for afterwards.
func (s *stageStep) write(ctx context.Context, a *commitstep.Attempt, n *stageNote, t *stageTry, ref sessionRef) (lend, error) {
	wrap := func(err error) error { return fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err) }
	values := s.params.values(s.target, a.Token, a.Key)
	query, err := s.query.bind(values)
	if err != nil {
		return lendAgain, commitstep.Permanent(err)
	}
	sql := "INSERT OVERWRITE DIRECTORY " + quote(t.Location) + " " + s.ev.Format.directory(s.ev.Columns) + " SELECT " + castList(s.ev.Source, s.ev.Columns) + " FROM (" + query + "\n) q"
	overlay := maps.Clone(s.params.Settings)
	if overlay == nil {
		overlay = map[string]string{}
	}
	overlay["hive.query.tag"] = a.Token.String()
	op, err := s.server.conn.Submit(ctx, ref, mark(a.Token.String(), t.N, sql), overlay)
	if err != nil {
		f := submitted(err)
		t.Ended = f.String() + ": " + clip(err.Error())
		if nerr := note(ctx, a, n); nerr != nil {
			return lendDrop, fmt.Errorf("%w (and it could not be noted: %w)", wrap(err), unsure(nerr))
		}
		switch {
		case errors.Is(err, hs2.ErrUnknownHandle):
			// The session ended while it waited for work, with its server.
			s.server.dropIdle()
			return lendDrop, commitstep.NotSent(wrap(err))
		case f == fateRefused:
			return lendAgain, commitstep.Refused(wrap(err))
		case f == fateNeverSent:
			return lendDrop, commitstep.NotSent(wrap(err))
		}
		// It may write there for as long as it likes; the next attempt writes
		// elsewhere. Closing its session only saves the server the work.
		return lendDrop, wrap(err)
	}
	t.Session, t.Operation = ref, op
	if err := note(ctx, a, n); err != nil {
		return lendDrop, fmt.Errorf("%s: %w", s.where, unsure(err))
	}
	if id, err := s.server.conn.QueryID(ctx, op); err == nil {
		t.QueryID = id // noted with what comes next
	}
	st, f, err := s.server.await(ctx, a.Patience, op, executeWait)
	switch {
	case f == fateRunning:
		s.ran = t.N
		return lendKeep, unsure(note(ctx, a, n))
	case f == fateUnseen:
		return lendKeep, wrap(err)
	}
	t.settle(st, f, err)
	if nerr := note(ctx, a, n); nerr != nil {
		return lendDrop, fmt.Errorf("%s: %w", s.where, unsure(nerr))
	}
	if !t.Finished {
		return lendDrop, commitstep.Refused(fmt.Errorf("%s: query %s: %s", s.where, t.name(), t.Ended))
	}
	_ = s.server.conn.CloseOperation(ctx, op)
	return lendAgain, nil
}

// count asks the metrics of the rows in t's directory, through a table that only
// the session sees. ask runs statements in one session.
func (s *stageStep) count(ctx context.Context, a *commitstep.Attempt, n *stageNote, t *stageTry, ask func(context.Context, string) (*hs2.Table, error)) error {
	loc, err := parseLocation(t.Location)
	if err != nil {
		return commitstep.Permanent(err)
	}
	there, err := s.server.isDir(ctx, loc)
	if err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
	}
	var got []value
	if there {
		if got, err = s.measureIn(ctx, a, t, ask); err != nil {
			// Nothing of it has an effect that anybody could see.
			return s.uncounted(err)
		}
	}
	diff := "the query finished and its directory is not there"
	if there {
		diff = differ(s.ev.Want, got)
	}
	if diff != "" {
		t.Ended = "its rows are not what was planned: " + diff
		t.Metrics = got
		if err := note(ctx, a, n); err != nil {
			return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
		}
		if there {
			s.differs = fmt.Sprintf("the rows in %s, which nobody reads, are not what was planned: %s", t.Location, diff)
		}
		return commitstep.Permanent(fmt.Errorf("%s: %s: %s", s.where, t.Location, t.Ended))
	}
	t.Metrics, n.Verified = got, t.N
	if err := a.Note(ctx, n); err != nil {
		n.Verified = 0
		return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
	}
	return nil
}

// uncounted sorts an error of the metrics: one of the query itself counts as a
// failure, all else is waited for.
func (s *stageStep) uncounted(err error) error {
	err = fmt.Errorf("%s: hive server %q: %w", s.where, s.server.name, err)
	if said(err) || unanswered(err) {
		return commitstep.Refused(err)
	}
	return commitstep.NotSent(err)
}

// stagedName is what ${table} means for staged rows.
const stagedName = "commitstep_staged"

// cte gives the rows of a table, in some of its columns, the values of the partition.
func (s *stageStep) cte(columns, from string) string {
	for _, kv := range s.target.spec {
		columns += ", " + s.target.literal(kv) + " AS " + quoteName(kv.col)
	}
	return stagedName + " AS (SELECT " + columns + " FROM " + from + " t)"
}

// measureIn counts through a temporary table. An external one leaves its files
// alone when it goes.
func (s *stageStep) measureIn(ctx context.Context, a *commitstep.Attempt, t *stageTry, ask func(context.Context, string) (*hs2.Table, error)) ([]value, error) {
	temp := quoteName(s.target.db) + "." + quoteName(fmt.Sprintf("commitstep_%s_%d", strings.ReplaceAll(a.Token.String(), "-", ""), t.N))
	if _, err := ask(ctx, "CREATE TEMPORARY EXTERNAL TABLE IF NOT EXISTS "+temp+" "+columnList(s.ev.Columns)+" "+s.ev.Format.sql()+" LOCATION "+quote(t.Location)+s.ev.Format.table()); err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_, _ = ask(ctx, "DROP TABLE IF EXISTS "+temp)
	}()
	cte := s.cte("t.*", temp)
	values := s.params.values(s.target, a.Token, a.Key)
	values["table"] = sqlText(stagedName)
	staged := make([]metric, len(s.metrics))
	for i, m := range s.metrics {
		staged[i] = m
		staged[i].query = m.query.with(cte)
	}
	return s.server.measure(ctx, ask, staged, values)
}
