package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Swap are the parameters of hive.swap_location and hive.add_partition.
type Swap struct {
	Target
	// Location is the directory with the new rows, as Hive shows it
	// (hdfs://host:8020/path). One part of the path must be token=TEXT with a text
	// that no other publish has; ${token} stands for the step's own. An earlier
	// step of the plan may bring it about.
	Location string `json:"location"`
	// From, if not empty, is where the partition has to lie when this is planned:
	// there, or below it.
	From string `json:"from,omitempty"`
	// Back is for a rollback: Location is where the partition lay before, and needs
	// no token.
	Back bool `json:"back,omitempty"`
}

// bind puts the token into the location.
func (p Swap) bind(token uuid.UUID) (location, error) {
	text := strings.ReplaceAll(p.Location, "${token}", token.String())
	if strings.Contains(text, "${") {
		return location{}, fmt.Errorf("location %q holds a placeholder other than ${token}", p.Location)
	}
	return parseLocation(text)
}

// SwapLocation is the step that points a partition at another directory.
func SwapLocation(p Swap) commitstep.StepSpec { return commitstep.NewSpec(SwapLocationName, p) }

// AddPartition is the step that registers a partition lying in a directory of its
// own.
func AddPartition(p Swap) commitstep.StepSpec { return commitstep.NewSpec(AddPartitionName, p) }

// swapStep implements both kinds. They differ in what was there before, and in
// the ALTER.
type swapStep struct {
	base
	kind   string
	params Swap
}

// swapNote is what is known of the ALTERs that were sent.
type swapNote struct {
	Alters   alters `json:"alters,omitempty"`
	Evidence *Pack  `json:"evidence,omitempty"`
}

var (
	_ commitstep.Resolver     = (*swapStep)(nil)
	_ commitstep.Preparer     = (*swapStep)(nil)
	_ commitstep.Reattacher   = (*swapStep)(nil)
	_ commitstep.Withdrawer   = (*swapStep)(nil)
	_ commitstep.OnPark       = (*swapStep)(nil)
	_ commitstep.NoteRedactor = (*swapStep)(nil)
	_ Prober                  = (*swapStep)(nil)
)

func buildSwap(b base, s commitstep.Step) (commitstep.CommitStep, error) {
	st := &swapStep{base: b, kind: s.Kind}
	if err := commitstep.DecodeParams(s, &st.params); err != nil {
		return nil, err
	}
	if err := st.bind(s, st.params.Target); err != nil {
		return nil, err
	}
	if len(st.target.spec) == 0 {
		return nil, st.bad("give every partition column a value", fmt.Errorf("%s names no partition", st.target))
	}
	loc, err := st.params.bind(uuid.Nil)
	switch {
	case err != nil:
	case st.params.Back && (st.kind != SwapLocationName || st.params.From == ""):
		err = errors.New("only a hive.swap_location with `from` can go back")
	case !st.params.Back:
		err = tokenPath(loc)
	}
	if err == nil && st.params.From != "" {
		_, err = parseLocation(st.params.From)
	}
	if err != nil {
		return nil, st.bad("name a directory that is this publish's own", err)
	}
	if _, ok := st.server.place(loc); !ok {
		return nil, &commitstep.PlanError{Where: st.where, Problem: fmt.Sprintf("publishes %s, for which this program has bound no file system", loc), Hint: st.server.volumeHint(), Err: commitstep.ErrUnsupported}
	}
	return st, nil
}

// tokenPath holds that the location can be told from every other publish's.
func tokenPath(l location) error {
	for _, c := range strings.Split(l.path, "/") {
		if v, ok := strings.CutPrefix(c, "token="); ok && v != "" {
			return nil
		}
	}
	return fmt.Errorf("%s has no part token=TEXT, and so could be the place of another publish too", l)
}

// Summary says in one line what the step does.
func (s *swapStep) Summary() string {
	if s.kind == AddPartitionName {
		return fmt.Sprintf("add %s at %s", s.target, s.params.Location)
	}
	return fmt.Sprintf("%s -> %s", s.target, s.params.Location)
}

// Resolve writes names in their full form.
func (s *swapStep) Resolve(p *commitstep.Preparation) error {
	s.params.Target = s.params.resolve(s.target)
	return p.Set(s.params, nil)
}

// Prepare records where the partition lies.
func (s *swapStep) Prepare(ctx context.Context, p *commitstep.Preparation) error {
	table, st, ev, err := s.planned(ctx, p)
	if err != nil {
		return err
	}
	if err := s.external(table); err != nil {
		return err
	}
	loc, err := s.params.bind(p.Token())
	if err != nil {
		return s.bad("name a directory that is this publish's own", err)
	}
	if err := settable(loc.String()); err != nil {
		hint := "name a directory without it"
		if s.params.Back {
			hint = "publish the old rows anew, from there"
		}
		return s.bad(hint, err)
	}
	if from, err := parseLocation(s.params.From); s.params.From != "" && (err != nil || !st.there || !within(st.location, from)) {
		return s.bad("look at the partition, and decide anew", fmt.Errorf("%s does not lie at %s any more, it is at %q", s.target, s.params.From, st.location))
	}
	switch {
	case s.kind == AddPartitionName && st.there:
		return s.bad("use hive.swap_location, or hive.stage_and_swap for both", fmt.Errorf("%s is there already, at %s", s.target, st.location))
	case s.kind == SwapLocationName && !st.there:
		return s.bad("use hive.add_partition, or hive.stage_and_swap for both", fmt.Errorf("%s is not there", s.target))
	case st.there && loc.same(st.location):
		return s.bad("publish into a directory of its own", fmt.Errorf("%s lies at %s already", s.target, loc))
	case st.there:
		if old, err := parseLocation(st.location); err == nil && old.within(loc) {
			return s.bad("publish into a directory of its own", fmt.Errorf("%s holds %s, where the old rows are", loc, old))
		}
	}
	// A step of an earlier stage may bring the directory about; and one that bears
	// the step's own token cannot be there before the step has one.
	if first := p.Step.Stage == 0 && !strings.Contains(s.params.Location, "${token}"); first || s.params.Back {
		there, err := s.server.isDir(ctx, loc)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.where, err)
		case there:
		case s.params.Back:
			return s.bad("publish the rows anew", fmt.Errorf("%s is gone, so %s cannot go back to it", loc, s.target))
		default:
			return s.bad("write the rows first, or name the step that does in an earlier stage", fmt.Errorf("%s is not there, and no earlier stage could bring it about", loc))
		}
	}
	ev.Staged = s.server.addresses(loc)
	s.ev = ev
	return p.Set(s.params, ev)
}

// within reports whether a location that Hive shows is dir or lies below it.
func within(shown string, dir location) bool {
	l, err := parseLocation(shown)
	return err == nil && l.within(dir)
}

// external refuses tables whose files belong to Hive: it moves or removes them as
// it likes, and a location is no proof of what is read.
func (b *base) external(d described) error {
	switch {
	case d.acid():
		return b.bad("use hive.insert_overwrite", fmt.Errorf("%s.%s is transactional, and its files are not what is read", b.target.db, b.target.table))
	case d.params["storage_handler"] != "":
		return b.bad("use hive.insert_overwrite", fmt.Errorf("%s.%s keeps its rows with %s, and not in the files of a directory", b.target.db, b.target.table, d.params["storage_handler"]))
	case d.tableType != "EXTERNAL_TABLE":
		return b.bad("use an external table, or hive.insert_overwrite", fmt.Errorf("%s.%s is a %s; a location can be swapped only for an EXTERNAL_TABLE", b.target.db, b.target.table, d.tableType))
	}
	return nil
}

// Reattach closes what may still land.
func (s *swapStep) Reattach(ctx context.Context, a *commitstep.Attempt) error {
	n, err := lastNote[swapNote](a)
	if err != nil {
		return err
	}
	if err := s.alterer(a, &n.Alters, &n).settle(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.where, err)
	}
	return nil
}

// Verify reads the location back.
func (s *swapStep) Verify(ctx context.Context, a *commitstep.Attempt) (commitstep.Verdict, error) {
	if err := s.checked(a); err != nil {
		return commitstep.Verdict{}, err
	}
	n, err := lastNote[swapNote](a)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	loc, err := s.params.bind(a.Token)
	if err != nil {
		return commitstep.Verdict{}, fmt.Errorf("%s: %w: %w", s.where, commitstep.ErrDamaged, err)
	}
	st, gone, err := s.lookNow(ctx)
	if err != nil {
		return commitstep.Verdict{}, err
	}
	if gone != nil {
		return *gone, nil
	}
	return s.verdict(st, loc, n.Alters), nil
}

// Execute sends the ALTER.
func (s *swapStep) Execute(ctx context.Context, a *commitstep.Attempt) error {
	if err := s.checked(a); err != nil {
		return commitstep.NotSent(err)
	}
	n, err := lastNote[swapNote](a)
	if err != nil {
		return commitstep.NotSent(err)
	}
	loc, err := s.params.bind(a.Token)
	if err != nil {
		return commitstep.Permanent(err)
	}
	r := s.alterer(a, &n.Alters, &n)
	if err := r.settle(ctx); err != nil {
		return commitstep.NotSent(fmt.Errorf("%s: %w", s.where, err))
	}
	return r.run(ctx, func(ctx context.Context) (string, error) {
		if _, err := s.ready(ctx, loc); err != nil {
			return "", err
		}
		if s.kind == AddPartitionName {
			return s.target.addPartition(loc, false), nil
		}
		return s.target.setLocation(loc), nil
	})
}

func (t target) setLocation(l location) string {
	return "ALTER TABLE " + t.sqlTable() + " PARTITION " + t.sqlSpec() + " SET LOCATION " + quote(l.String())
}

func (t target) addPartition(l location, ifAbsent bool) string {
	sql := "ALTER TABLE " + t.sqlTable() + " ADD "
	if ifAbsent {
		sql += "IF NOT EXISTS "
	}
	return sql + "PARTITION " + t.sqlSpec() + " LOCATION " + quote(l.String())
}

// Withdraw closes what may still land.
func (s *swapStep) Withdraw(ctx context.Context, a *commitstep.Attempt, gone bool) error {
	n, err := lastNote[swapNote](a)
	if err != nil {
		return err
	}
	return s.alterer(a, &n.Alters, &n).withdraw(ctx, gone)
}

// Probe gathers the evidence pack.
func (s *swapStep) Probe(ctx context.Context, a *commitstep.Attempt) (Pack, error) {
	if err := s.checked(a); err != nil {
		return Pack{}, err
	}
	n, err := lastNote[swapNote](a)
	if err != nil {
		return Pack{}, err
	}
	p := s.pack(s.kind, a)
	g, stop := s.gatherer(ctx, a, &p)
	defer stop()
	s.gather(g, n.Alters)
	return p, nil
}

// gather fills a pack for a step whose proof is a location.
func (b *base) gather(g gatherer, list alters) {
	p := g.p
	p.Phase = "no ALTER was sent"
	if len(list) > 0 {
		last := list[len(list)-1]
		p.Server, p.Session, p.Attempt, p.Marked = last.Server, last.Session.guid, last.Attempt, last.At
		p.Phase = "the last ALTER " + last.Ended
		if open, may := list.open(); may {
			p.Server, p.Session, p.Attempt, p.Marked = open.Server, open.Session.guid, open.Attempt, open.At
			p.Phase = "an ALTER was not answered and may still land"
			if b.elsewhere(open.Server) {
				p.Bound = b.server.conn.Address()
			}
		}
		g.queries()
	}
	g.target(b.target, nil, nil)
	switch {
	case p.Bound != "":
		p.Suggestion.Why = p.elsewhere()
	case !p.Now.Known && p.Unreachable != "":
		p.Suggestion.Why = p.unreachable()
	default:
		p.Suggestion.Why = "the location says whether it took effect: retry, and it is looked at again"
	}
}

// OnPark keeps the pack with the attempt.
func (s *swapStep) OnPark(ctx context.Context, a *commitstep.Attempt, reason commitstep.ParkReason, _ string) error {
	n, err := lastNote[swapNote](a)
	if err != nil || len(n.Alters) == 0 || reason != commitstep.PublishUnknown && reason != commitstep.ConflictFound {
		return err
	}
	if untimely(a, n.Evidence) {
		return nil
	}
	p, err := s.Probe(ctx, a)
	if err != nil {
		return err
	}
	n.Evidence = p.after(n.Evidence)
	return note(ctx, a, n)
}
