package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/hivepublish"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// Audit actions of a sweep: before anything is removed, and when it came to its
// end.
const (
	actionSweep = "hive.sweep"
	actionSwept = "hive.swept"
)

// minGrace is the shortest grace time, of a server and that a person may ask for: a directory that
// is removed while statements read it makes them fail.
const minGrace = time.Hour

type hiveSweepOptions struct {
	decision
	hive   string
	under  []string
	old    bool
	grace  time.Duration
	dryRun bool
}

func (in *invocation) hiveSweepCommand() *cobra.Command {
	var o hiveSweepOptions
	c := &cobra.Command{
		Use:   "sweep TABLE --reason TEXT",
		Short: "Remove directories of a table that no partition names any more",
		Long: `Sweep removes what publishes of hive.stage_and_swap left behind: rows that were
swapped away, and attempts that came to nothing. Only directories are touched that
the history of this store says were written for this table. One stays while a partition
of this table, or of another that was published there, lies in it, while it or its
partition was changed within the grace time of the server (24 h unless configured;
--grace for once), and while a live sequence of this store may use it. What was removed
cannot be swapped back any more.

It looks below the directories that the history of this store and its live sequences
name as ` + "`under`" + `, and those of --under. With --old also directories are removed in which
partitions lay before the first staged publish, as the history names them: only where
nothing but this table reads them.

Run it in one process at a time, with the store that publishes the table. It may be
interrupted and given again. A person's name and reason are kept in the audit.` + exitStatus(ExitPartial, ExitDecision, ExitLocked, ExitNotFound, ExitStore, ExitInterrupted),
		Example: "  commitstep hive sweep sales.facts --dry-run\n  commitstep hive sweep sales.facts --hive dw --reason 'weekly clean-up' --yes",
		Args:    oneArg("a table, as in database.table"),
	}
	f := c.Flags()
	f.StringVar(&o.hive, "hive", "", "the server's `NAME`; not needed where only one is configured")
	f.StringArrayVar(&o.under, "under", nil, "also look below this `LOCATION`, as hdfs://prod/stage; may be repeated")
	f.BoolVar(&o.old, "old", false, "also remove where partitions lay before they were first swapped")
	f.DurationVar(&o.grace, "grace", 0, "how long directories stay, at least 1h (default: the server's)")
	f.BoolVar(&o.dryRun, "dry-run", false, "only look, and say what would be removed")
	o.addFlags(f, true)
	c.RunE = in.run(func(ctx context.Context, args []string) error {
		if f.Changed("grace") && o.grace < minGrace {
			return usagef("--grace must be at least %s: statements read what is removed too early", minGrace)
		}
		var p store.Person
		if !o.dryRun {
			var err error
			if p, err = in.person(o.decision); err != nil {
				return err
			}
			if !o.yes && !in.asks() {
				return usagef("there is no terminal to ask on; add --yes")
			}
		}
		return in.withStore(ctx, func(s *session) error { return in.hiveSweep(ctx, s, strings.ToLower(args[0]), o, p) })
	})
	return c
}

// hiveSweepView is the body of a HiveSweep.
type hiveSweepView struct {
	Hive  string   `json:"hive"`
	Table string   `json:"table"`
	Under []string `json:"under"`
	hivepublish.SweepReport
	DryRun bool `json:"dryRun"`
	// Incomplete: an error ended it, and there may be more to remove.
	Incomplete bool `json:"incomplete,omitempty"`
}

// began reports whether anything at all was looked at.
func (v hiveSweepView) began() bool {
	return v.Partitions > 0 || len(v.Removed) > 0 || len(v.Stays) > 0
}

func (in *invocation) hiveSweep(ctx context.Context, s *session, of string, o hiveSweepOptions, p store.Person) error {
	if !strings.Contains(of, ".") {
		of = "default." + of
	}
	server, err := s.hiveServer(o.hive)
	if err != nil {
		return err
	}
	found, err := s.sweepable(ctx, server.Name(), of, o.under)
	if err != nil {
		return err
	}
	if len(found.under) == 0 {
		return &cliError{out: outcome{notFound: true}, msg: fmt.Sprintf("neither history nor live sequences of this store know a hive.stage_and_swap into %s on %s", name(of), name(server.Name())), hint: "give --under with the directory that attempts were written below"}
	}
	v := hiveSweepView{Hive: server.Name(), Table: of, Under: slices.Sorted(maps.Keys(found.under)), DryRun: o.dryRun}
	v.Removed = []string{}
	params := func(i int, dry bool) hivepublish.SweepParams {
		q := hivepublish.SweepParams{Table: of, Under: v.Under[i], Others: found.others(v.Under[i]), Grace: o.grace, Live: found.live, Mine: found.owns, DryRun: dry}
		if i == 0 && o.old {
			q.Others = found.others("")
			q.Old, _ = found.olds()
		}
		return q
	}
	sweep := func(dry bool) error {
		v.SweepReport = hivepublish.SweepReport{Removed: []string{}}
		if o.old {
			_, v.Stays = found.olds()
		}
		for i := range v.Under {
			rep, err := server.Sweep(ctx, params(i, dry))
			v.Removed, v.Stays, v.Partitions = append(v.Removed, rep.Removed...), append(v.Stays, rep.Stays...), rep.Partitions
			if v.Incomplete = err != nil; err != nil {
				return &cliError{out: outcome{partial: len(v.Removed) > 0 && !dry}, err: err, hint: "give the command again; it goes on where it stopped"}
			}
		}
		return nil
	}
	print := func(err error) error {
		if err != nil && !v.began() {
			return err // "nothing to remove" would be untrue
		}
		return errors.Join(err, in.print(document{kind: "HiveSweep", body: v, table: v.table}))
	}
	if o.dryRun || !o.yes {
		if err := sweep(true); err != nil || o.dryRun {
			return print(err)
		}
		t := &table{}
		v.DryRun = true
		v.table(t)
		v.DryRun = false
		if err := t.flush(in.Stderr); err != nil {
			return err
		}
		if err := in.confirm(ctx, o.decision, "remove these directories", of); err != nil {
			return err
		}
	}
	entry := store.AuditEntry{Person: p, Action: actionSweep, Decision: server.Name() + " " + of, Before: strings.Join(v.Under, " ")}
	if err := s.store.RecordAudit(ctx, entry); err != nil {
		return err
	}
	serr := sweep(false)
	entry.Action, entry.After = actionSwept, fmt.Sprintf("%d removed, %d stay", len(v.Removed), len(v.Stays))
	var aerr error
	if serr == nil {
		if aerr = s.store.RecordAudit(context.WithoutCancel(ctx), entry); aerr != nil {
			aerr = failf("the audit has the entry "+actionSweep+" only", "the sweep is done, but that it came to its end is not in the audit: %v", aerr)
		}
	}
	return print(errors.Join(serr, aerr))
}

func (v hiveSweepView) table(t *table) {
	did := "removed"
	if v.DryRun {
		did = "would remove"
	}
	t.line("table %s on %s, %s, below %s", name(v.Table), name(v.Hive), plural(v.Partitions, "partition", "partitions"), oneLine(strings.Join(v.Under, " and ")))
	for _, r := range v.Removed {
		t.row("  "+did, name(r))
	}
	for _, st := range v.Stays {
		t.row("  stays", name(st.Path), st.Why)
	}
	switch {
	case v.Incomplete:
		t.line("  stopped before its end; there may be more")
	case len(v.Removed) == 0:
		t.line("  nothing to remove")
	}
}

// hiveServer is the server of a name, or the only one.
func (s *session) hiveServer(n string) (*hiveServer, error) {
	var known []string
	for _, h := range s.hive {
		if h.Name() == n || n == "" && len(s.hive) == 1 {
			return h, nil
		}
		known = append(known, name(h.Name()))
	}
	switch {
	case len(known) == 0:
		return nil, usagef("no Hive server is configured; see `%s help resources`", s.in.Program)
	case n == "":
		return nil, usagef("say which server with --hive; there are %s", strings.Join(known, ", "))
	}
	return nil, usagef("no Hive server %s is configured; there are %s", name(n), strings.Join(known, ", "))
}

// sweepables is what the store knows of a table's staged publishes.
type sweepables struct {
	server, table string
	under, old    map[string]bool
	// tokens are those that a live step may use, mine those of ended steps into the
	// table, and long those of ended sequences that history keeps no steps of.
	tokens     map[string]bool
	mine, long map[uuid.UUID]bool
	// needed are places that a live step may point a partition at, as a rollback does.
	needed map[string]bool
	// pointed are the places where other tables of the server were published to.
	pointed map[string][]string
}

// olds are the old places that may be looked at, and those that a live step may need.
func (f sweepables) olds() (free []string, stays []hivepublish.Stays) {
	for _, l := range slices.Sorted(maps.Keys(f.old)) {
		needed := false
		for n := range f.needed {
			needed = needed || hivepublish.Overlap(l, n)
		}
		if needed {
			stays = append(stays, hivepublish.Stays{Path: l, Why: "a live step may point a partition there"})
		} else {
			free = append(free, l)
		}
	}
	return free, stays
}

func (f sweepables) live(token string) bool { return f.tokens[token] }

// owns is hivepublish.SweepParams.Mine.
func (f sweepables) owns(token string, byPath bool) bool {
	id, err := uuid.Parse(token)
	return err == nil && (f.mine[id] || byPath && f.long[id])
}

// others are the tables that may have a partition below a directory, "" for any.
func (f sweepables) others(under string) []string {
	var out []string
	for table, at := range f.pointed {
		if slices.ContainsFunc(at, func(l string) bool { return under == "" || hivepublish.Overlap(l, under) }) {
			out = append(out, table)
		}
	}
	slices.Sort(out)
	return out
}

// sweepable reads history and live sequences. While a record cannot be read
// nothing may be removed: it might be a live sequence with a directory.
func (s *session) sweepable(ctx context.Context, server, table string, under []string) (sweepables, error) {
	f := sweepables{server: server, table: table, under: map[string]bool{}, old: map[string]bool{}, tokens: map[string]bool{}, mine: map[uuid.UUID]bool{}, long: map[uuid.UUID]bool{}, needed: map[string]bool{}, pointed: map[string][]string{}}
	for _, u := range under {
		f.under[u] = true
	}
	q, err := s.store.Quarantine(ctx)
	if err != nil {
		return f, err
	}
	if len(q) > 0 {
		return f, &cliError{out: outcome{decision: true}, msg: fmt.Sprintf("%s cannot be read and might need a directory: %s", plural(len(q), "record", "records"), q[0].Problem), hint: "deal with `commitstep quarantine list` first"}
	}
	for live, err := range s.store.Scan(ctx, store.Filter{States: []commitstep.State{commitstep.Pending, commitstep.Parked}}) {
		if err != nil {
			return f, err
		}
		size := live.PageSize
		if size == 0 {
			size = store.PageSize
		}
		for n := 0; n*size < live.Steps; n++ {
			page, err := s.store.Steps(ctx, live.ID, n)
			if errors.Is(err, commitstep.ErrNotFound) {
				break // it ended since the scan; its directory is young enough to stay
			}
			if err != nil {
				return f, err
			}
			for _, st := range page.Steps {
				f.tokens[commitstep.StepToken(live.ID, st.Index).String()] = true
				f.add(st, live.ID, false, false)
			}
		}
	}
	for h, err := range s.store.ListHistory(ctx, store.HistoryFilter{}) {
		if err != nil {
			return f, err
		}
		for _, st := range h.Detail {
			f.add(st, h.ID, true, h.State == commitstep.Completed)
		}
		if len(h.Detail) == 0 && (len(s.hive) == 1 || f.locked(h.Locks)) {
			for i := range h.Steps {
				f.long[commitstep.StepToken(h.ID, i)] = true
			}
		}
	}
	return f, nil
}

// locked reports that a sequence published a partition of the table.
func (f sweepables) locked(locks []string) bool {
	return slices.ContainsFunc(locks, func(l string) bool { return strings.HasPrefix(l, "hive:"+f.server+"/"+f.table+"/") })
}

// add takes what a step tells; ended: it will not be run any more, and published:
// it was.
func (f sweepables) add(st commitstep.Step, sequence uuid.UUID, ended, published bool) {
	switch st.Kind {
	case hivepublish.StageAndSwapName:
	case hivepublish.SwapLocationName, hivepublish.AddPartitionName:
		f.pointer(st, ended)
		return
	default:
		return
	}
	var p hivepublish.Stage
	if commitstep.DecodeParams(st, &p) != nil || p.Hive != f.server {
		return
	}
	if t := strings.ToLower(p.Table); t != f.table {
		f.pointed[t] = append(f.pointed[t], p.Under)
		return
	}
	f.under[p.Under] = true
	if ended {
		f.mine[commitstep.StepToken(sequence, st.Index)] = true
	}
	var ev struct {
		There    bool   `json:"there"`
		Location string `json:"location"`
	}
	if published && json.Unmarshal(st.Evidence, &ev) == nil && ev.There && !strings.HasPrefix(ev.Location, strings.TrimSuffix(p.Under, "/")+"/") {
		f.old[ev.Location] = true
	}
}

// pointer takes a step that points a partition at a directory: one that lives may
// be about to point at what an earlier publish staged, as a rollback does.
func (f sweepables) pointer(st commitstep.Step, ended bool) {
	var p hivepublish.Swap
	if commitstep.DecodeParams(st, &p) != nil {
		return
	}
	if !ended && p.Hive == f.server {
		f.needed[strings.ReplaceAll(p.Location, "${token}", "TOKEN")] = true
	}
	if !ended {
		for _, part := range strings.Split(p.Location, "/") {
			if token, ok := strings.CutPrefix(part, "token="); ok {
				f.tokens[token] = true
			}
		}
	}
	if t := strings.ToLower(p.Table); p.Hive == f.server && t != f.table {
		f.pointed[t] = append(f.pointed[t], strings.ReplaceAll(p.Location, "${token}", "TOKEN"))
	}
}
