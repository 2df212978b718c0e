package hivepublish

import (
	"context"
	"fmt"
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
	// closed are the latest operations that ended with their closing, as the web UI
	// lists them.
	closed []hs2.Query
	// script may change what becomes of a statement; nil is the plain behaviour.
	script func(sql string) *fakeOp
	// down: nothing can be reached.
	down bool
	// looked is called before the state of a statement is told, outside of the lock.
	looked func(ctx context.Context, sql string)
	// opened is called once a session was opened, outside of the lock.
	opened func(conf map[string]string)
	// calls are the names of all RPCs in their order.
	calls []string
	// balanced: its address leads to another server too.
	balanced bool
	// addr is its address, "" is fake:10000.
	addr string
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
	kept                []column // of every partition, nil for the table's
	location            string
	kind, serde         string
	params              map[string]string
	serdeProps          map[string]string // besides serialization.format
	partProps           map[string]string // likewise of every partition, nil for the table's
	layout              [][2]string       // lines of the storage information
	input               string
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
