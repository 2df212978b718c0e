package hivepublish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/steptest"
)

// warehouse is a HiveServer2 with its metastore in memory, as far as the kinds
// ask for it. It is behind conn, so that the kit can interrupt every call; its
// answers have the form that the real server was seen to give, and
// TestAnswersAreThoseOfTheServer holds that they do.
type warehouse struct {
	points *steptest.Points

	mu       sync.Mutex
	tables   map[string]*fakeTable
	files    map[string]int // rows by directory
	sessions map[string]*fakeSession
	ops      map[string]*fakeOp
	next     int
	// script may change what becomes of a statement; nil is the plain behaviour.
	script func(sql string) *fakeOp
	// down: nothing can be reached.
	down bool
	// log has every statement that was accepted.
	log     []string
	inserts int // how often an INSERT OVERWRITE TABLE wrote
	alters  int
	rows    int // what the next INSERT writes
	// session is the one whose statement is run; temporary tables are seen in
	// theirs only.
	session string
	// disk is the directory of this machine that stands for hdfs://nn:8020, "" for
	// none.
	disk string
}

type fakeTable struct {
	columns, partitions []column
	location            string
	kind, serde         string
	params              map[string]string
	parts               map[string]*fakePart
}

type fakePart struct{ location string }

type fakeSession struct {
	held []func() // statements that are on their way to it
}

// fakeOp is an operation; a script fills in what is to differ.
type fakeOp struct {
	session string
	sql     string
	status  hs2.Status
	table   *hs2.Table
	refuse  error // the answer to the submission
	lost    bool  // no answer to the submission
	held    bool  // on its way, takes effect when let go
	apply   func() (*hs2.Table, error)
}

func newWarehouse() *warehouse {
	w := &warehouse{points: &steptest.Points{}, tables: map[string]*fakeTable{}, files: map[string]int{}, sessions: map[string]*fakeSession{}, ops: map[string]*fakeOp{}, rows: 3}
	w.tables["`sales`.`facts`"] = &fakeTable{
		columns:    []column{{"id", "int"}, {"name", "string"}},
		partitions: []column{{"dt", "string"}},
		location:   "hdfs://nn:8020/wh/facts", kind: "EXTERNAL_TABLE", params: map[string]string{"EXTERNAL": "TRUE"}, parts: map[string]*fakePart{},
	}
	w.addPart("(`dt`='2024-01-01')", "hdfs://nn:8020/wh/facts/dt=2024-01-01", 2)
	return w
}

func (w *warehouse) facts() *fakeTable { return w.tables["`sales`.`facts`"] }

func (w *warehouse) addPart(spec, location string, rows int) {
	w.facts().parts[spec] = &fakePart{location}
	w.files[location] = rows
}

// location is where the partition lies, "" when it is not there.
func (w *warehouse) location() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.facts(); t != nil && t.parts["(`dt`='2024-01-01')"] != nil {
		return t.parts["(`dt`='2024-01-01')"].location
	}
	return ""
}

func (w *warehouse) snapshot() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for n, t := range w.tables {
		for s, p := range t.parts {
			out = append(out, fmt.Sprint(n, s, p.location))
		}
	}
	for d, n := range w.files {
		out = append(out, fmt.Sprint(d, "=", n))
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + fmt.Sprint("\n", w.inserts, " ", w.alters), nil
}

// visible is what a reader sees.
func (w *warehouse) visible() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for n, t := range w.tables {
		for s, p := range t.parts {
			out = append(out, fmt.Sprint(n, s, p.location, "=", w.files[p.location]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n") + fmt.Sprint("\n", w.alters), nil
}

func (w *warehouse) server(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := newServer("dw", cfg, w, w)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var errDown = errors.New("connection refused")

// call passes one RPC through the point of that name.
func (w *warehouse) call(ctx context.Context, rpc string, fn func() error) error {
	return w.points.Do(rpc, func() error {
		if err := ctx.Err(); err != nil {
			return &hs2.TransportError{RPC: rpc, Err: err}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.down {
			return &hs2.TransportError{RPC: rpc, Err: errDown}
		}
		return fn()
	})
}

func unknownHandle(rpc string) error {
	return errors.Join(&hs2.ServerError{RPC: rpc, Message: "Invalid handle"}, hs2.ErrUnknownHandle)
}

func (w *warehouse) id(what string) string {
	w.next++
	return fmt.Sprintf("%s-%d", what, w.next)
}

func (w *warehouse) Address() string { return "fake:10000" }

func (w *warehouse) OpenSession(ctx context.Context, _ map[string]string) (ref sessionRef, err error) {
	err = w.call(ctx, "OpenSession", func() error {
		ref = sessionRef{handle: w.id("session")}
		ref.guid = "guid-" + ref.handle
		w.sessions[ref.handle] = &fakeSession{}
		return nil
	})
	if err != nil {
		ref = sessionRef{}
	}
	return ref, err
}

func (w *warehouse) SessionAlive(ctx context.Context, s sessionRef) (alive bool, err error) {
	err = w.call(ctx, "GetInfo", func() error {
		alive = w.sessions[s.handle] != nil
		return nil
	})
	return alive, err
}

func (w *warehouse) CloseSession(ctx context.Context, s sessionRef) error {
	return w.call(ctx, "CloseSession", func() error {
		if w.sessions[s.handle] == nil {
			return unknownHandle("CloseSession")
		}
		delete(w.sessions, s.handle)
		for h, o := range w.ops {
			if o.session == s.handle {
				delete(w.ops, h)
			}
		}
		return nil
	})
}

func isLook(sql string) bool {
	return strings.HasPrefix(sql, "DESCRIBE") || strings.HasPrefix(sql, "SHOW") || strings.HasPrefix(sql, "/* commitstep metric */") || strings.HasSuffix(sql, "LIMIT 0") || strings.HasPrefix(sql, "DROP")
}

func (w *warehouse) Submit(ctx context.Context, s sessionRef, sql string, _ map[string]string) (ref operationRef, err error) {
	name := "ExecuteStatement"
	if isLook(sql) {
		name = "ExecuteStatement of a look"
	}
	err = w.call(ctx, name, func() error {
		if w.sessions[s.handle] == nil {
			return unknownHandle("ExecuteStatement")
		}
		o := &fakeOp{}
		if w.script != nil {
			if scripted := w.script(sql); scripted != nil {
				o = scripted
			}
		}
		if o.refuse != nil {
			return o.refuse
		}
		o.session, o.sql = s.handle, sql
		w.session = s.handle
		if o.apply == nil {
			o.apply = func() (*hs2.Table, error) { return w.run(sql) }
		}
		if o.held {
			session := w.sessions[s.handle]
			session.held = append(session.held, func() { _, _ = o.apply() })
			return &hs2.TransportError{RPC: "ExecuteStatement", Sent: true, Err: errors.New("cut")}
		}
		w.log = append(w.log, sql)
		if o.status.State == hs2.Unknown {
			t, rerr := o.apply()
			if rerr != nil && compile(rerr) {
				return rerr
			}
			o.table = t
			o.status = hs2.Status{State: hs2.Finished, HasResult: t != nil}
			if rerr != nil {
				o.status = hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 40000, Message: rerr.Error()}
			}
		}
		ref = operationRef{handle: w.id("operation")}
		ref.guid = "guid-" + ref.handle
		w.ops[ref.handle] = o
		if o.lost {
			return &hs2.TransportError{RPC: "ExecuteStatement", Sent: true, Err: errors.New("cut")}
		}
		return nil
	})
	if err != nil {
		ref = operationRef{}
	}
	return ref, err
}

func compile(err error) bool {
	var se *hs2.ServerError
	return errors.As(err, &se)
}

// letGo lets every statement on its way arrive. It takes effect where its session
// is still open; returned is how many did.
func (w *warehouse) letGo() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.sessions {
		for _, f := range s.held {
			f()
			n++
		}
		s.held = nil
	}
	return n
}

// restart forgets all sessions and operations.
func (w *warehouse) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions, w.ops = map[string]*fakeSession{}, map[string]*fakeOp{}
}

func (w *warehouse) op(rpc string, o operationRef) (*fakeOp, error) {
	op := w.ops[o.handle]
	if op == nil {
		return nil, unknownHandle(rpc)
	}
	return op, nil
}

func (w *warehouse) Status(ctx context.Context, o operationRef) (st hs2.Status, err error) {
	err = w.call(ctx, "GetOperationStatus", func() error {
		op, err := w.op("GetOperationStatus", o)
		if err == nil {
			st = op.status
		}
		return err
	})
	return st, err
}

func (w *warehouse) QueryID(ctx context.Context, o operationRef) (id string, err error) {
	err = w.call(ctx, "GetQueryId", func() error {
		_, err := w.op("GetQueryId", o)
		id = "hive_" + o.guid
		return err
	})
	return id, err
}

func (w *warehouse) Logs(ctx context.Context, o operationRef) (lines []string, err error) {
	err = w.call(ctx, "FetchResults of the log", func() error {
		_, err := w.op("FetchResults", o)
		lines = []string{"a log line"}
		return err
	})
	return lines, err
}

func (w *warehouse) Fetch(ctx context.Context, o operationRef) (t *hs2.Table, err error) {
	err = w.call(ctx, "FetchResults", func() error {
		op, err := w.op("FetchResults", o)
		if err == nil {
			t = op.table
		}
		return err
	})
	return t, err
}

func (w *warehouse) CloseOperation(ctx context.Context, o operationRef) error {
	rpc := "CloseOperation"
	w.mu.Lock()
	op := w.ops[o.handle]
	w.mu.Unlock()
	end := func() error {
		if _, err := w.op(rpc, o); err != nil {
			return err
		}
		delete(w.ops, o.handle)
		return nil
	}
	if op != nil && isLook(op.sql) {
		// It does no harm when this fails, so it is no point of a step.
		w.mu.Lock()
		defer w.mu.Unlock()
		return end()
	}
	return w.call(ctx, rpc, end)
}

// Find and Active are the web UI's list.
func (w *warehouse) Find(_ context.Context, text string) ([]hs2.Query, error) {
	all, err := w.Active(context.Background())
	return slices.DeleteFunc(all, func(q hs2.Query) bool { return !strings.Contains(q.Text, text) }), err
}

func (w *warehouse) Active(context.Context) ([]hs2.Query, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return nil, errDown
	}
	var out []hs2.Query
	for h, o := range w.ops {
		out = append(out, hs2.Query{State: o.status.State, StateText: o.status.State.String(), QueryID: "hive_guid-" + h, Operation: "guid-" + h, Session: "guid-" + o.session, Text: o.sql})
	}
	return out, nil
}

// The statements that the kinds send.
var (
	describeSQL = regexp.MustCompile("^DESCRIBE FORMATTED (`\\w+`\\.`\\w+`)(?: PARTITION (\\(.*\\)))?$")
	showPartSQL = regexp.MustCompile("^SHOW PARTITIONS (`\\w+`\\.`\\w+`) PARTITION (\\(.*\\))$")
	showAllSQL  = regexp.MustCompile("^SHOW PARTITIONS (`\\w+`\\.`\\w+`)$")
	showTabSQL  = regexp.MustCompile("^SHOW TABLES IN (`\\w+`) LIKE '(\\w+)'$")
	insertSQL   = regexp.MustCompile("INSERT OVERWRITE TABLE (`\\w+`\\.`\\w+`) PARTITION (\\(.*?\\)) SELECT")
	countSQL    = regexp.MustCompile("SELECT count\\(\\*\\) FROM (`\\w+`\\.`\\w+`) WHERE (\\(.*\\))$")
	setLocSQL   = regexp.MustCompile("ALTER TABLE (`\\w+`\\.`\\w+`) PARTITION (\\(.*?\\)) SET LOCATION '(.*)'$")
	addPartSQL  = regexp.MustCompile("ALTER TABLE (`\\w+`\\.`\\w+`) ADD (IF NOT EXISTS )?PARTITION (\\(.*?\\)) LOCATION '(.*)'$")
	insertDir   = regexp.MustCompile("INSERT OVERWRITE DIRECTORY '([^']*)'")
	tempTable   = regexp.MustCompile("^CREATE TEMPORARY EXTERNAL TABLE IF NOT EXISTS (`\\w+`.`commitstep_\\w+`) .* LOCATION '([^']*)'$")
	tempCount   = regexp.MustCompile("FROM (`\\w+`.`commitstep_\\w+`) t\\)")
)

func semantic(format string, a ...any) error {
	return &hs2.ServerError{RPC: "ExecuteStatement", SQLState: "42S02", Code: 10001, Message: fmt.Sprintf(format, a...)}
}

// run has the lock.
func (w *warehouse) run(sql string) (*hs2.Table, error) {
	table := func(name string) (*fakeTable, error) {
		if t := w.tables[name]; t != nil {
			return t, nil
		}
		return nil, semantic("Table not found %s", name)
	}
	if m := describeSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		return t.describe(m[2])
	}
	if m := showPartSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		out := &hs2.Table{}
		if t.parts[m[2]] != nil {
			out.Rows = append(out.Rows, []any{m[2]})
		}
		return out, nil
	}
	if m := showAllSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		out := &hs2.Table{}
		for spec := range t.parts {
			out.Rows = append(out.Rows, []any{strings.NewReplacer("(", "", ")", "", "`", "", "'", "", ", ", "/").Replace(spec)})
		}
		return out, nil
	}
	if m := showTabSQL.FindStringSubmatch(sql); m != nil {
		out := &hs2.Table{}
		if w.tables[m[1]+".`"+m[2]+"`"] != nil {
			out.Rows = append(out.Rows, []any{m[2]})
		}
		return out, nil
	}
	if m := insertSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		p := t.parts[m[2]]
		if p == nil {
			p = &fakePart{t.location + "/new"}
			t.parts[m[2]] = p
		}
		w.inserts++
		w.files[p.location] = w.rows
		return nil, nil
	}
	if m := countSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		n := 0
		if p := t.parts[m[2]]; p != nil {
			n = w.files[p.location]
		} else if m[2] == "(1 = 1)" {
			for _, p := range t.parts {
				n += w.files[p.location]
			}
		}
		return &hs2.Table{Rows: [][]any{{int64(n)}}}, nil
	}
	if m := setLocSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		p := t.parts[m[2]]
		if p == nil {
			return nil, semantic("Partition not found %s", m[2])
		}
		w.alters++
		p.location = m[3]
		return nil, nil
	}
	if m := addPartSQL.FindStringSubmatch(sql); m != nil {
		t, err := table(m[1])
		if err != nil {
			return nil, err
		}
		if t.parts[m[3]] != nil {
			if m[2] != "" {
				return nil, nil
			}
			return nil, errors.New("AlreadyExistsException")
		}
		w.alters++
		t.parts[m[3]] = &fakePart{m[4]}
		return nil, nil
	}
	return w.runStaging(sql)
}

// describe prints as the server does, padded.
func (t *fakeTable) describe(spec string) (*hs2.Table, error) {
	location, params := t.location, "Table Parameters:"
	if spec != "" {
		p := t.parts[spec]
		if p == nil {
			return nil, semantic("Partition not found %s", spec)
		}
		location, params = p.location, "Partition Parameters:"
	}
	out := &hs2.Table{}
	add := func(a string, rest ...string) {
		row := []any{a + strings.Repeat(" ", 4)}
		for _, r := range rest {
			row = append(row, r+"   ")
		}
		for len(row) < 3 {
			row = append(row, nil)
		}
		out.Rows = append(out.Rows, row)
	}
	add("# col_name", "data_type", "comment")
	for _, c := range t.columns {
		add(c.Name, c.Type)
	}
	add("")
	add("# Partition Information")
	add("# col_name", "data_type", "comment")
	for _, c := range t.partitions {
		add(c.Name, c.Type)
	}
	add("")
	add("# Detailed Table Information")
	add("Database:", "sales")
	add("Location:", location)
	if spec == "" {
		add("Table Type:", t.kind)
	}
	add(params, "")
	for _, k := range slices.Sorted(maps.Keys(t.params)) {
		add("", k, t.params[k])
	}
	add("")
	add("# Storage Information")
	add("SerDe Library:", cmp.Or(t.serde, "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"))
	add("InputFormat:", "org.apache.hadoop.mapred.TextInputFormat")
	add("OutputFormat:", "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat")
	add("Storage Desc Params:", "")
	add("", "serialization.format", "1")
	return out, nil
}

// runStaging is what only hive.stage_and_swap sends.
func (w *warehouse) runStaging(sql string) (*hs2.Table, error) {
	if m := insertDir.FindStringSubmatch(sql); m != nil {
		w.files[m[1]] = w.rows
		if w.disk != "" {
			if err := os.MkdirAll(w.disk+strings.TrimPrefix(m[1], "hdfs://nn:8020"), 0o755); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	if m := tempTable.FindStringSubmatch(sql); m != nil {
		w.tables[m[1]+"@"+w.session] = &fakeTable{location: m[2]}
		return nil, nil
	}
	if m := tempCount.FindStringSubmatch(sql); m != nil {
		t := w.tables[m[1]+"@"+w.session]
		if t == nil {
			return nil, semantic("Table not found %s", m[1])
		}
		return &hs2.Table{Rows: [][]any{{int64(w.files[t.location])}}}, nil
	}
	if strings.HasPrefix(sql, "DROP TABLE") {
		for n, t := range w.tables {
			if strings.HasSuffix(sql+"@"+w.session, " "+n) && t.columns == nil {
				delete(w.tables, n)
			}
		}
		return nil, nil
	}
	if strings.HasSuffix(sql, "LIMIT 0") {
		return &hs2.Table{Columns: []hs2.Column{{Name: "q.id", Type: "INT"}, {Name: "q.name", Type: "STRING"}}}, nil
	}
	return nil, semantic("cannot recognize input near %.80q", sql)
}
