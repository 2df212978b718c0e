package hivepublish

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/internal/hs2"
)

// Pack is everything that can be found out about a step of which nobody knows
// whether it took effect: the material for a person's decision. It never decides.
type Pack struct {
	Gathered time.Time `json:"gathered"`
	Kind     string    `json:"kind"`
	Token    string    `json:"token"`
	Target   string    `json:"target"`
	// Server is the host:port that has, or had, the statement; Session and
	// Operation are the public halves of its handles.
	Server string `json:"server"`
	// Bound is the host:port that this program speaks to, where that is another one:
	// it knows nothing of the statement.
	Bound string `json:"bound,omitempty"`
	// Unreachable is why the server could not be reached when this was gathered.
	Unreachable string `json:"unreachable,omitempty"`
	Session     string `json:"session,omitempty"`
	Operation   string `json:"operation,omitempty"`
	// Forgotten: the server answered, and did not know the operation any more.
	Forgotten bool      `json:"forgotten,omitempty"`
	QueryID   string    `json:"queryId,omitempty"`
	Attempt   int       `json:"attempt,omitempty"`
	Marked    time.Time `json:"marked,omitzero"`
	Submitted time.Time `json:"submitted,omitzero"`
	// Phase says how far the statement is known to have come.
	Phase string   `json:"phase"`
	Last  *Outcome `json:"last,omitempty"`
	// Before is the target when it was planned, Now as it is. Want are the plan's
	// metrics.
	Before TargetState `json:"before"`
	Now    TargetState `json:"now"`
	Want   []value     `json:"want,omitempty"`
	// Leftovers are Hive's staging directories in and beside the target. One with
	// files may hold the complete result.
	Leftovers []Leftover `json:"leftovers,omitempty"`
	// Queries are the entries of the server's list that carry the token, or are of the
	// session.
	Queries []QueryRow `json:"queries,omitempty"`
	// Logs are the last lines that the server keeps of the operation.
	Logs []string `json:"logs,omitempty"`
	// Missing says what could not be found out, and why.
	Missing    []string   `json:"missing,omitempty"`
	Suggestion Suggestion `json:"suggestion"`
	// First is the pack of the first parking, where this one was gathered later: a
	// server that was restarted since says less than it did then.
	First *Pack `json:"first,omitempty"`

	// sent: a statement was, and nobody has told its end; listed: the server's list
	// was read; late: there was no time for all of it.
	sent, listed, late bool
}

// after is p with the first of those that were gathered before it.
func (p Pack) after(stored *Pack) *Pack {
	if stored == nil {
		return &p
	}
	first := *stored
	if stored.First != nil {
		first = *stored.First
	}
	first.First = nil
	p.First = &first
	return &p
}

// untimely reports that there is no time to gather more than is stored.
func untimely(a *commitstep.Attempt, stored *Pack) bool { return stored != nil && spent(a.Patience) }

// TargetState is what the metastore, the files and the metrics say of a target.
type TargetState struct {
	Known    bool              `json:"known"`
	There    bool              `json:"there"`
	Location string            `json:"location,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
	Files    *Listing          `json:"files,omitempty"`
	Metrics  []MetricValue     `json:"metrics,omitempty"`
}

// Listing is what lies in a directory, hidden names left out as Hive does.
type Listing struct {
	Files  int       `json:"files"`
	Bytes  int64     `json:"bytes"`
	Newest time.Time `json:"newest,omitzero"`
	// First are the first names in their order.
	First []string `json:"first,omitempty"`
	// Partial: there is more than was counted.
	Partial bool `json:"partial,omitempty"`
	// Error says why it could not be listed.
	Error string `json:"error,omitempty"`
}

// Leftover is a staging directory of Hive.
type Leftover struct {
	Path string `json:"path"`
	Listing
}

// QueryRow is an entry of the server's list.
type QueryRow struct {
	QueryID   string    `json:"queryId"`
	State     string    `json:"state"`
	Operation string    `json:"operation"`
	Session   string    `json:"session"`
	Begin     time.Time `json:"begin,omitzero"`
	End       time.Time `json:"end,omitzero"`
	Error     string    `json:"error,omitempty"`
	Text      string    `json:"text"`
	// Live: it may still take effect. The state alone does not say so: that of a
	// statement whose session was closed stays RUNNING for ever.
	Live bool `json:"live,omitempty"`
}

// Prober gathers a step's evidence pack now. It only reads. The steps of all
// kinds of this package implement it.
type Prober interface {
	Probe(ctx context.Context, a *commitstep.Attempt) (Pack, error)
}

// Limits of a pack, which is stored with its step.
const (
	maxListed    = 10_000
	maxNames     = 20
	maxLeftovers = 20
	maxQueries   = 20
	maxLogs      = 40
	// partTimeout bounds each part of a pack: one server that hangs must not keep
	// the rest from being gathered. The metrics are queries over the whole target.
	partTimeout = 2 * time.Minute
)

// gatherer fills a pack, as far as the caller's patience allows.
type gatherer struct {
	s *Server
	p *Pack
	// ctx ends with the patience. It is the gatherer's, so that no look can do
	// without it.
	ctx context.Context
}

// gatherer ends looks with the attempt's patience; stop frees it.
func (b *base) gatherer(ctx context.Context, a *commitstep.Attempt, p *Pack) (g gatherer, stop context.CancelFunc) {
	if spent(a.Patience) {
		ctx, stop = context.WithCancel(ctx)
		stop() // not even the first look is begun
		return gatherer{b.server, p, ctx}, stop
	}
	ctx, stop = until(ctx, a.Patience, 0)
	return gatherer{b.server, p, ctx}, stop
}

// outOfTime is what a pack says of what it lacks for want of time.
const outOfTime = "not gathered: out of time"

// part runs one look; what fails is listed as missing. A look that is cut off says
// nothing about the server.
func (g gatherer) part(what string, fn func(ctx context.Context) error) {
	var err error
	if g.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(g.ctx, partTimeout)
		defer cancel()
		if err = fn(ctx); err == nil {
			return
		}
	}
	if g.ctx.Err() != nil {
		g.p.late = true
		g.p.Missing = append(g.p.Missing, what+": "+outOfTime)
		return
	}
	if transport(err) && g.p.Unreachable == "" {
		g.p.Unreachable = clip(err.Error())
	}
	g.p.Missing = append(g.p.Missing, fmt.Sprintf("%s: %s", what, clip(err.Error())))
}

// files counts what lies in a directory.
func (g gatherer) files(at string) *Listing {
	l := &Listing{}
	if g.ctx.Err() == nil {
		l = g.s.listing(g.ctx, at)
	}
	if g.ctx.Err() != nil {
		l.Error = outOfTime
	}
	return l
}

// target looks at the target as it is, and at what a statement may have left in
// and beside it. The metrics are queries and take longest, so they come last.
func (g gatherer) target(t target, metrics []metric, values map[string]bound) {
	p := g.p
	g.part("the target", func(ctx context.Context) error {
		st, err := g.s.look(ctx, t)
		if err != nil {
			return err
		}
		p.Now = TargetState{Known: true, There: st.there, Location: st.location, Params: st.params}
		if st.there {
			p.Now.Files = g.files(st.location)
		}
		return nil
	})
	places := []string{p.Before.Location, p.Now.Location}
	g.part("the table", func(ctx context.Context) error {
		d, err := g.s.describeTable(ctx, t)
		places = append(places, d.location)
		return err
	})
	slices.Sort(places)
	for _, at := range slices.Compact(places) {
		if at == "" {
			continue
		}
		g.part("staging directories in "+at, func(ctx context.Context) error {
			found, err := g.s.leftovers(ctx, at)
			p.Leftovers = append(p.Leftovers, found...)
			return err
		})
	}
	if len(metrics) > 0 {
		g.part("the metrics", func(ctx context.Context) (err error) {
			p.Now.Metrics, err = g.s.measure(ctx, g.s.query, metrics, values)
			return err
		})
	}
}

// queries asks the server's list for the token and the session.
func (g gatherer) queries() {
	if g.p.Bound != "" {
		g.p.Missing = append(g.p.Missing, fmt.Sprintf("the server's list of statements: the statement was sent to %s, and this program speaks to %s", g.p.Server, g.p.Bound))
		return
	}
	if g.s.list == nil {
		g.p.Missing = append(g.p.Missing, "the server's list of statements: no web UI is bound")
		return
	}
	g.part("the server's list of statements", func(ctx context.Context) error {
		all, err := g.s.list.Find(ctx, "")
		g.p.listed = err == nil
		for _, q := range matching(all, g.p.Token, g.p.Session) {
			if len(g.p.Queries) == maxQueries {
				break
			}
			g.p.Queries = append(g.p.Queries, QueryRow{QueryID: q.QueryID, State: q.StateText, Operation: q.Operation, Session: q.Session, Begin: q.Begin, End: q.End, Error: clip(q.Error), Text: clip(q.Text), Live: g.s.landing(q)})
		}
		return err
	})
}

// operation asks for the state and the log of an operation.
func (g gatherer) operation(op operationRef) {
	if op.IsZero() {
		return
	}
	g.part("the operation", func(ctx context.Context) error {
		st, err := g.s.conn.Status(ctx, op)
		if err == nil {
			g.p.Last = g.s.outcome(st)
		}
		g.p.Forgotten = errors.Is(err, hs2.ErrUnknownHandle)
		return err
	})
	g.part("the operation's log", func(ctx context.Context) error {
		lines, err := g.s.conn.Logs(ctx, op)
		g.p.Logs = lines[max(0, len(lines)-maxLogs):]
		return err
	})
}

// hidden are names that Hive does not read.
func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") }

// listing counts what Hive would read in a directory. It never fails; what it
// could not see is in it.
func (s *Server) listing(ctx context.Context, at string) *Listing {
	out := &Listing{}
	l, err := parseLocation(at)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	p, ok := s.place(l)
	if !ok {
		out.Error = "no file system is bound for " + l.String()
		return out
	}
	if err := out.add(ctx, p.files, p.at, p.at.Path); err != nil && !filesys.Missing(err) {
		out.Error = err.Error()
	}
	slices.Sort(out.First)
	out.First = out.First[:min(len(out.First), maxNames)]
	return out
}

func (l *Listing) add(ctx context.Context, f filesys.FS, dir commitstep.Address, top string) error {
	for info, err := range f.List(ctx, dir) {
		switch {
		case err != nil:
			return err
		case hidden(info.Path.Base()):
		case l.Files == maxListed:
			l.Partial = true
			return nil
		case info.Dir:
			if err := l.add(ctx, f, info.Path, top); err != nil {
				return err
			}
		default:
			l.Files++
			l.Bytes += info.Size
			if info.MTime.After(l.Newest) {
				l.Newest = info.MTime.UTC()
			}
			l.First = append(l.First, strings.TrimPrefix(strings.TrimPrefix(info.Path.Path, top), "/"))
		}
	}
	return nil
}

// leftovers finds Hive's staging directories directly inside a location.
func (s *Server) leftovers(ctx context.Context, at string) ([]Leftover, error) {
	l, err := parseLocation(at)
	if err != nil {
		return nil, err
	}
	p, ok := s.place(l)
	if !ok {
		return nil, fmt.Errorf("no file system is bound for %s", l)
	}
	var out []Leftover
	for info, err := range p.files.List(ctx, p.at) {
		if filesys.Missing(err) {
			return nil, nil
		}
		if err != nil {
			return out, err
		}
		if !info.Dir || !strings.HasPrefix(info.Path.Base(), ".hive-staging") {
			continue
		}
		if len(out) == maxLeftovers {
			break
		}
		left := Leftover{Path: l.join(info.Path.Base()).String()}
		if err := left.staged(ctx, p.files, info.Path); err != nil {
			left.Error = err.Error()
		}
		out = append(out, left)
	}
	slices.SortFunc(out, func(a, b Leftover) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// staged counts all files of a staging directory, whose inner names may be hidden.
func (l *Leftover) staged(ctx context.Context, f filesys.FS, top commitstep.Address) error {
	var walk func(dir commitstep.Address) error
	walk = func(dir commitstep.Address) error {
		for info, err := range f.List(ctx, dir) {
			switch {
			case err != nil:
				return err
			case info.Dir:
				if err := walk(info.Path); err != nil {
					return err
				}
			case l.Files == maxListed:
				l.Partial = true
				return nil
			default:
				l.Files++
				l.Bytes += info.Size
				if info.MTime.After(l.Newest) {
					l.Newest = info.MTime.UTC()
				}
				if len(l.First) < maxNames {
					l.First = append(l.First, path.Join(".", strings.TrimPrefix(info.Path.Path, top.Path)))
				}
			}
		}
		return nil
	}
	return walk(top)
}

// live are the states in which a statement may still take effect.
func live(st hs2.State) bool {
	return st == hs2.Initialized || st == hs2.Pending || st == hs2.Running
}

// pack begins one with what is stored.
func (b *base) pack(kind string, a *commitstep.Attempt) Pack {
	p := Pack{Gathered: b.server.now().UTC(), Kind: kind, Token: a.Token.String(), Target: b.target.String(), Server: b.server.conn.Address(), Want: b.ev.Want}
	p.Before = TargetState{Known: true, There: b.ev.There, Location: b.ev.Location, Params: b.ev.Params, Files: b.ev.Files, Metrics: b.ev.Before}
	return p
}
