package hivepublish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Names of the kinds, and the newest version of their parameters and evidence.
const (
	InsertOverwriteName = "hive.insert_overwrite"
	SwapLocationName    = "hive.swap_location"
	AddPartitionName    = "hive.add_partition"
	StageAndSwapName    = "hive.stage_and_swap"

	Version = 1
)

// Kinds are the four kinds on the given servers, one per name. A server that is
// bound under two names is refused, by every plan with one of the kinds: locks hold
// the name, and two publishes of one partition would not see each other.
func Kinds(servers ...*Server) []commitstep.Kind {
	byName := map[string]*Server{}
	var wrong error
	for _, s := range servers {
		if byName[s.name] != nil {
			wrong = fmt.Errorf("two hive servers are bound as %q", s.name)
		}
		for _, o := range byName {
			if o.name != s.name && o.Same(s) {
				wrong = fmt.Errorf("the hive servers %q and %q are one, at %s; bind it once, since a partition's lock holds the name", min(o.name, s.name), max(o.name, s.name), s.conn.Address())
			}
		}
		byName[s.name] = s
	}
	kind := func(name string, build func(base, commitstep.Step) (commitstep.CommitStep, error)) commitstep.Kind {
		return commitstep.Kind{Name: name, Version: Version, Class: commitstep.DataStep, WantsPark: true, Survey: survey,
			New: func(s commitstep.Step) (commitstep.CommitStep, error) {
				if wrong != nil {
					return nil, wrong
				}
				b := base{where: commitstep.Where(s.Stage, s.Index, s.Kind), servers: byName}
				return build(b, s)
			}}
	}
	return []commitstep.Kind{
		kind(InsertOverwriteName, buildInsert),
		kind(SwapLocationName, buildSwap),
		kind(AddPartitionName, buildSwap),
		kind(StageAndSwapName, buildStage),
	}
}

// base is what the steps of all kinds share.
type base struct {
	where   string
	servers map[string]*Server
	server  *Server
	target  target
	ev      *evidence // nil while it is planned
	// table is what a survey has just seen, nil if none did.
	table *described
}

func (b *base) shared() *base { return b }

// survey describes every table once for all partitions of it that are planned
// together.
func survey(ctx context.Context, steps []commitstep.CommitStep) {
	type key struct {
		server    *Server
		db, table string
	}
	seen := map[key]*described{}
	for _, st := range steps {
		s, ok := st.(interface{ shared() *base })
		if !ok || s.shared().ev != nil {
			continue
		}
		b := s.shared()
		k := key{b.server, b.target.db, b.target.table}
		d, asked := seen[k]
		if !asked {
			if got, err := b.server.describeTable(ctx, b.target); err == nil {
				d = &got
			}
			seen[k] = d
		}
		b.table = d
	}
}

// evidence is what was seen when the step was planned. Not every field is of
// every kind.
type evidence struct {
	// Token makes the evidence of one step useless for another.
	Token  uuid.UUID `json:"token"`
	At     time.Time `json:"at"`
	Server string    `json:"server"`
	// Partition has the values as Hive writes them, PartitionTypes the columns.
	Partition      map[string]string `json:"partition,omitempty"`
	PartitionTypes []column          `json:"partitionTypes,omitempty"`
	// There: the partition was registered, at Location.
	There    bool              `json:"there"`
	Location string            `json:"location,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
	Files    *Listing          `json:"files,omitempty"`
	// Before are the metrics as they were, Want as the plan wants them.
	Before []value `json:"before,omitempty"`
	// Staged are the addresses of what is published, as far as the plan tells; see
	// [commitstep.StagedBy].
	Staged []string `json:"staged,omitempty"`
	Want   []value  `json:"want,omitempty"`
	// Base is the directory below which hive.stage_and_swap writes, Columns and
	// Format what a reader of the partition expects there, Source the names of the
	// query's columns.
	Base    string   `json:"base,omitempty"`
	Columns []column `json:"columns,omitempty"`
	Source  []string `json:"source,omitempty"`
	Format  *format  `json:"format,omitempty"`
}

// bind finds the server and checks the target.
func (b *base) bind(s commitstep.Step, t Target) error {
	bad := func(problem, hint string, err error) error {
		return &commitstep.PlanError{Where: b.where, Problem: problem, Hint: hint, Err: err}
	}
	if t.Hive == "" {
		return bad("names no server", "write `hive: NAME`", nil)
	}
	if b.server = b.servers[t.Hive]; b.server == nil {
		return bad(fmt.Sprintf("names the hive server %q, which this program has not bound", t.Hive), "bind it when the program starts, or use a program that does", commitstep.ErrUnsupported)
	}
	var err error
	if b.target, err = t.check(); err != nil {
		return bad("names no usable target", "give `table: database.table` and every partition column a value", err)
	}
	if len(s.Evidence) == 0 {
		return nil
	}
	ev := &evidence{}
	if err := json.Unmarshal(s.Evidence, ev); err != nil {
		return fmt.Errorf("%s: evidence: %w: %w", b.where, commitstep.ErrDamaged, err)
	}
	b.ev = ev
	return nil
}

// bad is a *commitstep.PlanError of this step.
func (b *base) bad(hint string, err error) error {
	return &commitstep.PlanError{Where: b.where, Problem: "cannot be planned", Hint: hint, Err: err}
}

// resolve puts the target into the one form that is stored and hashed.
func (t Target) resolve(c target) Target {
	t.Table = c.db + "." + c.table
	if len(c.spec) == 0 {
		t.Partition = nil
		return t
	}
	t.Partition = map[string]string{}
	for _, kv := range c.spec {
		t.Partition[kv.col] = kv.value
	}
	return t
}

// unasked is why a plan is refused, or not prepared now, over a query that had to
// be asked for it.
func (b *base) unasked(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case unanswered(err):
		return b.bad("correct the query, or look why the server does not answer it", fmt.Errorf("hive server %q: %w", b.server.name, err))
	}
	return fmt.Errorf("%s: hive server %q: %w", b.where, b.server.name, err)
}

// planned gathers what every kind needs: the table is there, the partition's
// values are usable, and nobody else publishes it.
func (b *base) planned(ctx context.Context, p *commitstep.Preparation) (described, state, *evidence, error) {
	fail := func(err error) (described, state, *evidence, error) {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return described{}, state{}, nil, err
	}
	if p.Cleanup {
		return fail(p.Errorf("name it in a stage", "cannot be a cleanup"))
	}
	var table described
	var err error
	if b.table != nil {
		table = *b.table
	} else {
		table, err = b.server.describeTable(ctx, b.target)
	}
	if errors.Is(err, errNoTable) {
		return fail(b.bad("create the table first", err))
	}
	if err != nil {
		return fail(fmt.Errorf("%s: hive server %q: %w", b.where, b.server.name, err))
	}
	given := b.target
	if b.target, err = given.normal(table.partitions); err != nil {
		return fail(b.bad("name every partition column with a value of its type, as in docs/formats.md", err))
	}
	for _, l := range b.target.locks(b.server.name, given) {
		if err := p.AddLock(l, true); err != nil {
			return fail(err)
		}
	}
	st, err := b.server.look(ctx, b.target)
	if err != nil {
		return fail(fmt.Errorf("%s: hive server %q: %w", b.where, b.server.name, err))
	}
	ev := &evidence{Token: p.Token(), At: b.server.now().UTC(), Server: b.server.conn.Address(), There: st.there, Location: st.location, Params: st.params}
	if len(b.target.spec) > 0 {
		ev.Partition = map[string]string{}
		for _, kv := range b.target.spec {
			ev.Partition[kv.col] = kv.value
		}
		ev.PartitionTypes = table.partitions
	}
	if st.there {
		ev.Files = b.server.listing(ctx, st.location)
	}
	return table, st, ev, nil
}

// elsewhere: a statement was sent to another server than the bound one, which would
// call every handle of it unknown, and knows nothing of what runs there.
func (b *base) elsewhere(server string) bool {
	return !sameEndpoint(server, b.server.conn.Address())
}

// checked refuses evidence that is not this step's, and takes the partition's
// values and their types from it.
func (b *base) checked(a *commitstep.Attempt) error {
	damaged := func(format string, v ...any) error {
		return fmt.Errorf("%s: evidence: %w: %s", b.where, commitstep.ErrDamaged, fmt.Sprintf(format, v...))
	}
	switch {
	case b.ev == nil:
		return damaged("there is none")
	case b.ev.Token != a.Token:
		return damaged("it is that of token %s, this step's is %s", b.ev.Token, a.Token)
	case len(b.ev.Partition) != len(b.target.spec):
		return damaged("it names %d partition columns, the step %d", len(b.ev.Partition), len(b.target.spec))
	}
	for i, kv := range b.target.spec {
		v, ok := b.ev.Partition[kv.col]
		if !ok || v == "" {
			return damaged("it has no value for partition column %q", kv.col)
		}
		b.target.spec[i].value = v
	}
	b.target = b.target.typed(b.ev.PartitionTypes)
	return nil
}

// lastNote is what was noted last, zero for nothing.
func lastNote[N any](a *commitstep.Attempt) (n N, err error) {
	_, err = a.LastNote(&n)
	return n, err
}

// redact leaves the handles out of notes.
func redact(note json.RawMessage) json.RawMessage {
	var v any
	if err := json.Unmarshal(note, &v); err != nil {
		return json.RawMessage(`"not shown"`)
	}
	dropHandles(v)
	out, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage(`"not shown"`)
	}
	return out
}

func dropHandles(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "handle")
		for _, e := range v {
			dropHandles(e)
		}
	case []any:
		for _, e := range v {
			dropHandles(e)
		}
	}
}

// RedactNote implements commitstep.NoteRedactor: whoever has a handle can use the
// session.
func (b *base) RedactNote(note json.RawMessage) json.RawMessage { return redact(note) }
