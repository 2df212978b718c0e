package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sync/errgroup"
)

// SweepParams say what [Server.Sweep] may remove.
type SweepParams struct {
	// Table whose partitions are published, and the Under of its
	// hive.stage_and_swap steps.
	Table string
	Under string
	// Others are the tables that may have a partition below Under too: those that
	// were published with the same Under, or pointed at a directory below it. Their
	// partitions are asked like those of Table. One that is gone names nothing.
	Others []string
	// Mine reports whether a token is of an ended step that published into Table, on
	// this server. byPath: the directory's path names the table, so that it is enough
	// to know that the token is of a sequence of the store. It is required: another
	// table's directories may lie below Under too, and look the same.
	Mine func(token string, byPath bool) bool
	// Old are further directories that a publish swapped away: the `location` in
	// the evidence of completed steps, from before they were staged below Under.
	Old []string
	// Grace replaces the server's; 0 is the server's.
	Grace time.Duration
	// Live reports whether a step with this token may still be run: one of a
	// sequence that is pending or parked. It is required.
	Live func(token string) bool
	// DryRun only looks.
	DryRun bool
}

// SweepReport is what was removed, or with DryRun would be, and what stays and why.
type SweepReport struct {
	Removed []string `json:"removed"`
	Stays   []Stays  `json:"stays,omitempty"`
	// Partitions is how many were asked for their location.
	Partitions int `json:"partitions"`
}

// Stays is a directory that was not removed.
type Stays struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Sweep removes the directories of a table's publishes that no partition names any
// more: old rows, and attempts that came to nothing. A directory stays as long as
// one of these holds: it is not known to be of a publish of this table; a partition
// of this table or of one of Others lies in it, or it in that; its own
// partition was changed within the grace time, so that it may have been swapped
// away just now and readers still be in it; it was itself changed within the grace
// time; a live step may still use it. It is renamed first, since a reader of a
// half-removed directory would get half of the rows without an error.
//
// It may be repeated and interrupted. Run it in one process at a time, and not
// where partitions are pointed at these directories by others than this engine.
func (s *Server) Sweep(ctx context.Context, p SweepParams) (SweepReport, error) {
	rep := SweepReport{Removed: []string{}}
	wrap := func(err error) (SweepReport, error) {
		return rep, fmt.Errorf("sweep %s: %w", p.Table, err)
	}
	if p.Live == nil || p.Mine == nil {
		return wrap(errors.New("SweepParams.Live and Mine are required"))
	}
	if p.Grace == 0 {
		p.Grace = s.cfg.Grace
	}
	t, err := Target{Table: p.Table}.check()
	if err != nil {
		return wrap(err)
	}
	under, err := parseLocation(p.Under)
	if err != nil {
		return wrap(err)
	}
	sw := &sweeper{s: s, p: p, table: t, rep: &rep, now: s.now()}
	if err := sw.partitions(ctx, t, true); err != nil {
		return wrap(err)
	}
	for _, other := range p.Others {
		o, err := Target{Table: other}.check()
		if err != nil {
			return wrap(err)
		}
		if err := sw.partitions(ctx, o, false); err != nil {
			return wrap(fmt.Errorf("table %s, which was published there too: %w", other, err))
		}
	}
	root, ok := s.place(under)
	if !ok {
		return wrap(fmt.Errorf("no file system is bound for %s", under))
	}
	if err := sw.walk(ctx, root, under, nil, false); err != nil {
		return wrap(err)
	}
	for _, old := range p.Old {
		if err := sw.old(ctx, old); err != nil {
			return wrap(err)
		}
	}
	return rep, nil
}

type sweeper struct {
	s     *Server
	p     SweepParams
	table target
	rep   *SweepReport
	now   time.Time
	cols  []column
	// named are the locations of all partitions of all tables; changed is when each
	// of the table's own was, by spec.
	named   []location
	changed map[string]time.Time
}

// partitions asks every partition of a table for its location, and of the swept one
// also when it was changed.
func (w *sweeper) partitions(ctx context.Context, of target, swept bool) error {
	d, err := w.s.describeTable(ctx, of)
	if !swept && errors.Is(err, errNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case swept && len(d.partitions) == 0:
		return errors.New("the table has no partitions")
	case swept:
		w.cols = d.partitions
	case len(d.partitions) == 0:
		// Made anew without: its rows lie in its own place.
		if l, err := parseLocation(d.location); err == nil {
			w.named = append(w.named, l)
		}
		return nil
	}
	list, err := w.s.query(ctx, "SHOW PARTITIONS "+of.sqlTable())
	if err != nil {
		return err
	}
	states := make([]state, len(list.Rows))
	targets := make([]target, len(list.Rows))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(w.s.cfg.Sessions)
	for i, row := range list.Rows {
		name := cell(row, 0)
		g.Go(func() error {
			t, err := named1(of, name)
			if err != nil {
				return err
			}
			targets[i] = t
			states[i], err = w.s.look(gctx, t)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if swept {
		w.changed = map[string]time.Time{}
	}
	for i, st := range states {
		if !st.there {
			continue // dropped meanwhile
		}
		l, err := parseLocation(st.location)
		if err != nil {
			return fmt.Errorf("%s: %w", targets[i], err)
		}
		w.named = append(w.named, l)
		if !swept {
			continue
		}
		// Any later change moves it too, which only makes a directory stay longer.
		sec, err := strconv.ParseInt(st.params["transient_lastDdlTime"], 10, 64)
		if err != nil {
			sec = w.now.Unix()
		}
		w.changed[targets[i].known(w.cols).String()] = time.Unix(sec, 0)
		w.rep.Partitions++
	}
	return nil
}

// named1 reads a partition's name as SHOW PARTITIONS gives it, dt=x/hr=1, with
// the characters escaped that a path cannot have.
func named1(t target, name string) (target, error) {
	t.spec = nil
	for _, part := range strings.Split(name, "/") {
		col, v, ok := strings.Cut(part, "=")
		value, err := url.PathUnescape(v)
		if !ok || err != nil {
			return t, fmt.Errorf("partition %q has a name that is not understood", name)
		}
		t.spec = append(t.spec, keyValue{strings.ToLower(col), value})
	}
	slices.SortFunc(t.spec, func(a, b keyValue) int { return strings.Compare(a.col, b.col) })
	return t, nil
}

// removedPrefix hides a directory that is being removed.
const removedPrefix = ".removed-"

// walk goes down from Under: the table's name (byPath), which steps of earlier
// versions left out, a directory for each partition column, then token=…, then
// attempt=….
func (w *sweeper) walk(ctx context.Context, p place, at location, spec []keyValue, byPath bool) error {
	var entries []filesys.Info
	for info, err := range p.files.List(ctx, p.at) {
		if filesys.Missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.Dir {
			entries = append(entries, info)
		}
	}
	slices.SortFunc(entries, func(a, b filesys.Info) int { return strings.Compare(a.Path.Path, b.Path.Path) })
	for _, info := range entries {
		name := info.Path.Base()
		next, below := place{p.files, info.Path}, at.join(name)
		col, v, ok := strings.Cut(name, "=")
		switch {
		case !byPath && len(spec) == 0 && name == w.table.dir():
			if err := w.walk(ctx, next, below, nil, true); err != nil {
				return err
			}
		case !ok:
			// No directory of ours.
		case len(spec) < len(w.cols) && slices.ContainsFunc(w.cols, func(c column) bool { return c.Name == col }):
			value, err := url.PathUnescape(v)
			if err != nil {
				continue
			}
			if err := w.walk(ctx, next, below, append(slices.Clone(spec), keyValue{col, value}), byPath); err != nil {
				return err
			}
		case len(spec) == len(w.cols) && col == "token":
			if err := w.token(ctx, next, below, spec, v, info, byPath); err != nil {
				return err
			}
		}
	}
	return nil
}

// token looks at all attempts of one step.
func (w *sweeper) token(ctx context.Context, p place, at location, spec []keyValue, token string, dir filesys.Info, byPath bool) error {
	t := w.table
	t.spec = slices.Clone(spec)
	slices.SortFunc(t.spec, func(a, b keyValue) int { return strings.Compare(a.col, b.col) })
	t = t.known(w.cols) // earlier versions named the directory as the plan spelled it
	left := 0
	var entries []filesys.Info
	for info, err := range p.files.List(ctx, p.at) {
		if err != nil {
			return err
		}
		entries = append(entries, info)
	}
	for _, info := range entries {
		name := info.Path.Base()
		if !info.Dir || !strings.HasPrefix(strings.TrimPrefix(name, removedPrefix), "attempt=") {
			left++
			continue
		}
		attempt := at.join(strings.TrimPrefix(name, removedPrefix))
		why, err := "", error(nil)
		switch {
		case !w.p.Mine(token, byPath) && !w.p.Live(token):
			why = "the store knows of no publish into this table that made it"
		case name == attempt.base():
			why = w.keep(attempt, t, info)
		default:
			// An earlier sweep decided, and ended before it was removed. Pointed at in
			// that moment, the rows are still there, and a person renames them back.
			why = w.lies(attempt)
		}
		if why == "" && w.p.Live(token) {
			why = "a live step may still use it"
		}
		if why == "" {
			why, err = w.remove(ctx, place{p.files, info.Path}, at.join(name), t)
		}
		if err != nil {
			return err
		}
		if why != "" {
			left++
			w.rep.Stays = append(w.rep.Stays, Stays{at.join(name).String(), why})
		}
	}
	if left == 0 && !w.p.DryRun && !w.p.Live(token) && len(entries) > 0 {
		// Empty now, or somebody wrote into it: then it stays.
		if err := p.files.RemoveDir(ctx, dir); err != nil && !errors.Is(err, filesys.ErrNotEmpty) && !errors.Is(err, filesys.ErrChanged) {
			return err
		}
	}
	return nil
}

// old looks at a directory that was recorded.
func (w *sweeper) old(ctx context.Context, at string) error {
	l, err := parseLocation(at)
	if err != nil {
		return err
	}
	p, ok := w.s.place(l)
	if !ok {
		w.rep.Stays = append(w.rep.Stays, Stays{at, "no file system is bound for it"})
		return nil
	}
	info, err := p.files.Stat(ctx, p.at)
	if filesys.Missing(err) {
		// Gone, or renamed by an earlier sweep that was interrupted.
		away := place{p.files, commitstep.Address{Resource: p.at.Resource, Path: strings.TrimSuffix(p.at.Path, p.at.Base()) + removedPrefix + p.at.Base()}}
		if _, err := p.files.Stat(ctx, away.at); err != nil {
			if filesys.Missing(err) {
				return nil
			}
			return err
		}
		why, err := w.remove(ctx, away, l, w.table)
		if why != "" {
			w.rep.Stays = append(w.rep.Stays, Stays{at, why})
		}
		return err
	}
	if err != nil {
		return err
	}
	why := ""
	newest := time.Time{}
	for _, c := range w.changed {
		if c.After(newest) {
			newest = c
		}
	}
	switch {
	case !info.Dir:
		why = "it is no directory"
	case strings.Count(strings.Trim(l.path, "/"), "/") < 1:
		why = "it lies at the top of its file system"
	case w.now.Sub(newest) < w.p.Grace:
		// Which partition it was is not known here.
		why = "a partition of the table was changed within the grace time"
	default:
		why = w.keep(l, w.table, info)
	}
	if why == "" {
		why, err = w.remove(ctx, p, l, w.table)
	}
	if err == nil && why != "" {
		w.rep.Stays = append(w.rep.Stays, Stays{at, why})
	}
	return err
}

// lies says that a partition lies there, "" when none does.
func (w *sweeper) lies(l location) string {
	for _, n := range w.named {
		if n.within(l) || l.within(n) {
			return "a partition lies there: " + n.String()
		}
	}
	return ""
}

// keep says why a directory has to stay, "" when it need not.
func (w *sweeper) keep(l location, t target, info filesys.Info) string {
	if why := w.lies(l); why != "" {
		return why
	}
	if c, ok := w.changed[t.String()]; ok && w.now.Sub(c) < w.p.Grace {
		return "its partition was changed within the grace time, at " + stamp(c)
	}
	if w.now.Sub(info.MTime) < w.p.Grace {
		return "it was changed within the grace time, at " + stamp(info.MTime)
	}
	return ""
}

// remove renames a directory away, looks once more, and removes what is in it.
func (w *sweeper) remove(ctx context.Context, p place, l location, t target) (why string, err error) {
	if w.p.DryRun {
		w.rep.Removed = append(w.rep.Removed, l.String())
		return "", nil
	}
	away := p.at
	if name := p.at.Base(); !strings.HasPrefix(name, removedPrefix) {
		away = commitstep.Address{Resource: p.at.Resource, Path: strings.TrimSuffix(p.at.Path, name) + removedPrefix + name}
		if err := p.files.Rename(ctx, p.at, away); err != nil {
			return "it could not be renamed: " + err.Error(), nil
		}
		// Pointed at in this moment: it comes back at once.
		if len(t.spec) > 0 {
			st, err := w.s.look(ctx, t)
			if err == nil && st.there && within(st.location, l) {
				err = fmt.Errorf("%s was just pointed at it", t)
			}
			if err != nil {
				if rerr := p.files.Rename(ctx, away, p.at); rerr != nil {
					return "", fmt.Errorf("%s was renamed to %s and could not be renamed back: %w", l, away, errors.Join(err, rerr))
				}
				return err.Error(), nil
			}
		}
	}
	if err := removeTree(ctx, p.files, away); err != nil {
		return "it was renamed to " + away.String() + " and could not be removed: " + err.Error(), ctx.Err()
	}
	w.rep.Removed = append(w.rep.Removed, l.String())
	return "", nil
}

// removeTree removes exactly what it lists.
func removeTree(ctx context.Context, f filesys.FS, dir commitstep.Address) error {
	top, err := f.Stat(ctx, dir)
	if err != nil {
		return err
	}
	var entries []filesys.Info
	for info, err := range f.List(ctx, dir) {
		if err != nil {
			return err
		}
		entries = append(entries, info)
	}
	for _, info := range entries {
		if info.Dir {
			err = removeTree(ctx, f, info.Path)
		} else {
			err = f.Remove(ctx, info)
		}
		if err != nil {
			return err
		}
	}
	// Listing it does not change it, removing its entries does.
	if now, err := f.Stat(ctx, dir); err == nil && now.ID == top.ID {
		top = now
	}
	return f.RemoveDir(ctx, top)
}
