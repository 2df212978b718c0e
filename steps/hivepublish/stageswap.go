package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Stage are the parameters of hive.stage_and_swap.
type Stage struct {
	Target
	Bindings
	// Query is the SELECT that an INSERT OVERWRITE of the partition would have:
	// its columns go to the table's data columns by their order.
	Query string `json:"query"`
	// Under is the directory, as Hive shows it (hdfs://host:8020/path), below
	// which every attempt gets a directory of its own:
	// sales.facts/dt=2024-01-01/token=TOKEN/attempt=1. It lies outside of what anybody reads.
	Under string `json:"under"`
	// Rows is how many the query gives; Metrics are further questions. At least
	// one expectation is needed.
	Rows    *int64   `json:"rows,omitempty"`
	Metrics []Metric `json:"metrics,omitempty"`
	// Settings are Hive configuration for the query.
	Settings map[string]string `json:"settings,omitempty"`
}

// StageAndSwap is the step that publishes a SELECT exactly once.
func StageAndSwap(p Stage) commitstep.StepSpec { return commitstep.NewSpec(StageAndSwapName, p) }

// stageStep implements commitstep.CommitStep, Resolver, Preparer, Reattacher,
// Withdrawer, OnPark and NoteRedactor.
type stageStep struct {
	base
	params  Stage
	query   statement
	metrics []metric
	under   location
	// left is the number of the attempt whose query the last Execute left
	// running, 0 for none: how that ends is Execute's to tell, so that a query
	// that fails late counts like one that fails at once.
	left int
	// ran is the number of the attempt whose query was running when this process last
	// asked, 0 for none.
	ran int
	// differs says how the rows that the last Execute counted are not the planned
	// ones, "" if they are. It is not noted: after a person's `retry` the query
	// runs again.
	differs string
}

var (
	_ commitstep.Resolver     = (*stageStep)(nil)
	_ commitstep.Preparer     = (*stageStep)(nil)
	_ commitstep.Reattacher   = (*stageStep)(nil)
	_ commitstep.Withdrawer   = (*stageStep)(nil)
	_ commitstep.OnPark       = (*stageStep)(nil)
	_ commitstep.NoteRedactor = (*stageStep)(nil)
	_ Prober                  = (*stageStep)(nil)
)

func buildStage(b base, s commitstep.Step) (commitstep.CommitStep, error) {
	st := &stageStep{base: b}
	if err := commitstep.DecodeParams(s, &st.params); err != nil {
		return nil, err
	}
	if err := st.bind(s, st.params.Target); err != nil {
		return nil, err
	}
	if len(st.target.spec) == 0 {
		return nil, st.bad("give every partition column a value", fmt.Errorf("%s names no partition", st.target))
	}
	known, err := st.params.known(true)
	if err != nil {
		return nil, st.bad("correct the bindings", err)
	}
	if st.query, err = parseQuery(st.params.Query, known); err != nil {
		return nil, st.bad("see the kind in docs/formats.md", fmt.Errorf("parameter \"query\": %w", err))
	}
	if st.metrics, err = checkMetrics(st.params.Rows, st.params.Metrics, known, true); err != nil {
		return nil, st.bad("say what the published partition must hold", err)
	}
	if st.under, err = parseLocation(st.params.Under); err != nil {
		return nil, st.bad("name the directory that attempts are written below", fmt.Errorf("parameter \"under\": %w", err))
	}
	if _, ok := st.server.place(st.under); !ok {
		return nil, &commitstep.PlanError{Where: st.where, Problem: fmt.Sprintf("publishes below %s, for which this program has bound no file system", st.under), Hint: st.server.volumeHint(), Err: commitstep.ErrUnsupported}
	}
	return st, nil
}

// Summary says in one line what the step does.
func (s *stageStep) Summary() string { return "stage and swap " + s.target.String() }

// Resolve writes names in their full form.
func (s *stageStep) Resolve(p *commitstep.Preparation) error {
	s.params.Target = s.params.resolve(s.target)
	s.params.Under = s.under.String()
	return p.Set(s.params, nil)
}

// Prepare asks for the columns of table and query, and for what is expected.
func (s *stageStep) Prepare(ctx context.Context, p *commitstep.Preparation) error {
	table, st, ev, err := s.planned(ctx, p)
	if err != nil {
		return err
	}
	if err := s.external(table); err != nil {
		return err
	}
	if err := settable(s.under.String()); err != nil {
		return s.bad("name a directory without it", err)
	}
	// A partition keeps the format it was made with, whatever became of the table's.
	rows := table
	if st.there {
		rows = st.described
	}
	f, err := s.reading(ctx, table, st)
	if err != nil {
		return err
	}
	place := s.place(p.Token())
	if st.there {
		old, err := parseLocation(st.location)
		bare := s.placeIn(s.under, p.Token()) // below the table's own directory, too
		if err == nil && (place.within(old) || bare.within(old) || old.within(place)) {
			return s.bad("name a directory outside of the partition", fmt.Errorf("attempts below %s lie where %s is read now (%s)", s.under, s.target, old))
		}
	}
	values := s.params.values(s.target, p.Token(), p.Key)
	if ev.Source, err = s.columnsOf(ctx, values); err != nil {
		return s.unasked(ctx, err)
	}
	if len(ev.Source) != len(rows.columns) {
		hint := "select the table's columns, without the partition columns"
		if len(table.columns) != len(rows.columns) {
			hint = "the partition has kept the columns that the table had: select those, or change them with ALTER TABLE … PARTITION … ADD COLUMNS, as CASCADE would have"
		}
		return s.bad(hint, fmt.Errorf("the query gives %d columns (%s), %s has %d", len(ev.Source), strings.Join(ev.Source, ", "), s.target, len(rows.columns)))
	}
	if ev.Want, err = s.server.wanted(ctx, s.metrics, values); err == nil {
		err = s.explain(ctx, values, table.columns, rows.columns)
	}
	if err == nil {
		ev.Staged, err = s.server.staged(ctx, s.params.Stage, place)
	}
	if err != nil {
		return s.unasked(ctx, err)
	}
	ev.Columns, ev.Format, ev.Base = rows.columns, &f, place.String()
	s.ev = ev
	return p.Set(s.params, ev)
}

// columnsOf asks what the query's columns are called, without running it.
func (s *stageStep) columnsOf(ctx context.Context, values map[string]bound) ([]string, error) {
	sql, err := s.query.bind(values)
	if err != nil {
		return nil, err
	}
	t, err := s.server.query(ctx, "SELECT * FROM ("+sql+"\n) q LIMIT 0")
	if said(err) {
		err = &noAnswerError{err}
	}
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	var out []string
	for _, c := range t.Columns {
		out = append(out, strings.TrimPrefix(c.Name, "q."))
	}
	return out, nil
}

// explain has the metrics compiled, and not run: one that the server refuses would be
// found out only once the rows are written. The count is asked of the table, so that a
// partition which nobody could select is refused, too; the plan's own metrics are
// asked as later of the staged rows, which have the columns and nothing else of a
// table.
func (s *stageStep) explain(ctx context.Context, values map[string]bound, table, staged []column) error {
	columns := make([]string, len(staged))
	for i, c := range staged {
		columns[i] = "t." + quoteName(c.Name)
	}
	cte := s.cte(strings.Join(columns, ", "), s.target.sqlTable())
	asStaged := maps.Clone(values)
	asStaged["table"] = sqlText(stagedName)
	for _, m := range s.metrics {
		q, v := m.query, values
		// A partition may have kept columns that the table has no more.
		if m.Name != rowsMetric && slices.Equal(table, staged) {
			q, v = q.with(cte), asStaged
		}
		sql, err := q.bind(v)
		if err == nil {
			_, err = s.server.query(ctx, explainPrefix+sql)
		}
		if said(err) {
			err = &noAnswerError{err}
		}
		if err != nil {
			return fmt.Errorf("metric %q: %w", m.Name, err)
		}
	}
	return nil
}

const explainPrefix = "/* commitstep metric */ EXPLAIN "

// place is the step's own directory. Steps that were planned by earlier versions
// have theirs without the table's name, as their evidence says.
func (s *stageStep) place(token uuid.UUID) location {
	l := s.under.join(s.target.dir())
	if s.ev != nil && s.ev.Base != "" && s.ev.Base != s.placeIn(l, token).String() {
		l = s.under
	}
	return s.placeIn(l, token)
}

func (s *stageStep) placeIn(l location, token uuid.UUID) location {
	for _, kv := range s.target.spec {
		l = l.join(kv.col + "=" + pathValue(kv.value))
	}
	return l.join("token=" + token.String())
}

// pathValue writes a value so that it can be a part of a path on every file
// system: HDFS refuses a colon.
func pathValue(v string) string {
	var out strings.Builder
	for i := range len(v) {
		c := v[i]
		if c == '-' || c == '.' || isWord(c) && c < 0x80 {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

// usable holds that the evidence is complete, after checked.
func (s *stageStep) usable(a *commitstep.Attempt) error {
	if err := s.checked(a); err != nil {
		return err
	}
	bad := s.ev.Format == nil || len(s.ev.Columns) == 0 || len(s.ev.Columns) != len(s.ev.Source) || len(s.ev.Want) == 0
	if bad || s.place(a.Token).String() != s.ev.Base {
		return fmt.Errorf("%s: evidence: %w: it does not say how the rows are to be written", s.where, commitstep.ErrDamaged)
	}
	return nil
}

// Reattach closes ALTERs that may still land, and asks what became of a query
// that another process, or this one, left running.
func (s *stageStep) Reattach(ctx context.Context, a *commitstep.Attempt) error {
	n, err := lastNote[stageNote](a)
	if err != nil {
		return err
	}
	if err := s.alterer(a, &n.Alters, &n).settle(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.where, err)
	}
	return s.takeUp(ctx, a, &n)
}

// Verify reads the location back. That it is the directory of the attempt whose
// rows were counted is the proof.
func (s *stageStep) Verify(ctx context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	if err := s.usable(a); err != nil {
		return commitstep.Verdict{}, err
	}
	n, err := lastNote[stageNote](a)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	st, gone, err := s.lookNow(ctx)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	if gone != nil {
		return *gone, nil
	}
	var ours location // names nothing as long as nothing was verified
	verified := n.verified()
	if verified != nil {
		if ours, err = parseLocation(verified.Location); err != nil {
			return commitstep.Verdict{}, fmt.Errorf("%s: note: %w: %w", s.where, commitstep.ErrDamaged, err)
		}
	}
	v := s.verdict(st, ours, n.Alters)
	if v.Outcome == commitstep.NotDone && s.differs != "" {
		return commitstep.InConflict("%s, and %s", v.Evidence, s.differs), nil
	}
	if t := n.running(); v.Outcome == commitstep.NotDone && t != nil {
		return commitstep.Verdict{}, fmt.Errorf("%s: query %s writes %s: %w", s.where, t.name(), t.Location, commitstep.ErrInProgress)
	}
	if v.Outcome == commitstep.Done {
		v.Evidence += ", whose rows were counted before (" + words(verified.Metrics) + ")"
	}
	return v, nil
}

// Execute writes and counts the rows, unless an attempt has done so, and swaps.
func (s *stageStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := s.usable(a); err != nil {
		return commitstep.NotSent(err)
	}
	n, err := lastNote[stageNote](a)
	if err != nil {
		return commitstep.NotSent(err)
	}
	r := s.alterer(a, &n.Alters, &n)
	if err := r.settle(ctx); err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
	}
	left := n.try(s.left)
	s.differs = ""
	if s.left = 0; left != nil && left.Ended != "" {
		return commitstep.Refused(fmt.Errorf("%s: query %s: %s", s.where, left.name(), left.Ended))
	}
	if n.verified() == nil {
		// Not worth a query when the swap could not follow.
		if st, gone, err := s.lookNow(ctx); err != nil {
			return commitstep.NotSent(err)
		} else if gone != nil || !s.asPlanned(st) {
			return commitstep.Refused(fmt.Errorf("%s: %s is not what it was when it was planned", s.where, s.target))
		}
		if err := s.stage(ctx, a, &n); err != nil {
			return err
		}
	}
	t := n.verified()
	if t == nil {
		// Not a failure, whatever the next look sees: the query may end before it.
		s.left = n.Last
		run := n.try(n.Last)
		return fmt.Errorf("%s: query %s writes %s: %w", s.where, run.name(), run.Location, commitstep.ErrInProgress)
	}
	loc, err := parseLocation(t.Location)
	if err != nil {
		return commitstep.Permanent(err)
	}
	err = r.run(ctx, func(ctx context.Context) (string, error) {
		table, err := s.tableNow(ctx)
		if err != nil {
			return "", err
		}
		st, err := s.ready(ctx, loc)
		if err == nil {
			err = s.readsAsCounted(table, st)
		}
		if err != nil {
			return "", err
		}
		if !st.there {
			// If somebody registers it at this moment, theirs stays, and Verify finds
			// it; a SET LOCATION would take it away from them.
			return s.target.addPartition(loc, true), nil
		}
		return s.target.setLocation(loc), nil
	})
	if commitstep.IsPermanent(err) { // by ready: nothing was sent
		return s.lost(ctx, a, &n, t, err)
	}
	return err
}

// lost: the counted rows are not there any more, and the query can write them
// again. No ALTER that may still land points there: they were settled.
func (s *stageStep) lost(ctx context.Context, a *commitstep.Attempt, n *stageNote, t *stageTry, gone error) error {
	t.Ended, n.Verified = "its directory is gone since its rows were counted", 0
	if err := note(ctx, a, n); err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
	}
	return commitstep.Refused(gone)
}

// Withdraw closes what may still land. Queries only write into directories that
// nobody reads.
func (s *stageStep) Withdraw(ctx context.Context, a *commitstep.Attempt, gone bool) error {
	n, err := lastNote[stageNote](a)
	if err != nil {
		return err
	}
	return s.alterer(a, &n.Alters, &n).withdraw(ctx, gone)
}

// Probe gathers the evidence pack.
func (s *stageStep) Probe(ctx context.Context, a *commitstep.Attempt) (Pack, error) {
	if err := s.usable(a); err != nil {
		return Pack{}, err
	}
	n, err := lastNote[stageNote](a)
	if err != nil {
		return Pack{}, err
	}
	p := s.pack(StageAndSwapName, a)
	g, stop := s.gatherer(ctx, a, &p)
	defer stop()
	s.gather(g, n.Alters)
	for i := range n.Tries {
		t := &n.Tries[i]
		p.Phase += fmt.Sprintf("; attempt %d: %s", t.N, t.phase())
		if l := g.files(t.Location); l.Files > 0 {
			p.Leftovers = append(p.Leftovers, Leftover{Path: t.Location, Listing: *l})
		}
	}
	return p, nil
}

// OnPark keeps the pack with the attempt.
func (s *stageStep) OnPark(ctx context.Context, a *commitstep.Attempt, reason commitstep.ParkReason, _ string) error {
	n, err := lastNote[stageNote](a)
	if err != nil || len(n.Tries) == 0 || untimely(a, n.Evidence) {
		return err
	}
	p, err := s.Probe(ctx, a)
	if errors.Is(err, commitstep.ErrDamaged) {
		return nil // there is nothing to gather by
	}
	if err != nil {
		return err
	}
	n.Evidence = p.after(n.Evidence)
	return note(ctx, a, n)
}

// trimmed keeps the newest tries and the verified one.
func (n *stageNote) trimmed() []stageTry {
	const most = 8
	drop := len(n.Tries) - most
	return slices.DeleteFunc(slices.Clone(n.Tries), func(t stageTry) bool {
		if drop > 0 && t.N != n.Verified {
			drop--
			return true
		}
		return false
	})
}
