package hivepublish

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hivekit/hivesql"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// real is a database on the real HiveServer2, with its files on the real HDFS.
type real struct {
	*hivesql.DB
	s      *hivekit.Server
	name   string
	server *Server
}

func newReal(t *testing.T, tune func(*Config)) *real {
	t.Helper()
	s := hivekit.Shared(t)
	r := &real{DB: hivesql.Open(t, s), s: s}
	r.name = r.Database(t)
	files, err := hdfs.New(hdfs.Options{Name: "wh", Addresses: []string{strings.TrimPrefix(s.FS, "hdfs://")}, User: hivekit.User})
	require.NoError(t, err)
	t.Cleanup(func() { _ = files.Close() })
	cfg := Config{Address: s.Address(), User: hivekit.User, WebUI: s.WebUI(), Volumes: []Volume{{URI: s.FS, Files: files}}}
	if tune != nil {
		tune(&cfg)
	}
	r.server, err = Connect("dw", cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.server.Close()) })
	return r
}

// run plans one step and takes it to its end.
func (r *real) run(t *testing.T, spec commitstep.StepSpec) commitstep.Verdict {
	t.Helper()
	kinds := commitstep.NewRegistry(Kinds(r.server)...)
	p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(spec))
	require.NoError(t, err)
	return finish(t, kinds, p)
}

// patience is far above what a statement needs on a busy machine.
const patience = 5 * time.Minute

// finish does what the driver does, which waits for what is still running.
func finish(t *testing.T, kinds *commitstep.Registry, p *steptest.Planned) commitstep.Verdict {
	t.Helper()
	for until := time.Now().Add(patience); ; {
		pr, err := p.Process(kinds, 0)
		require.NoError(t, err)
		v, err := pr.Finish(t.Context())
		if !errors.Is(err, commitstep.ErrInProgress) || time.Now().After(until) {
			require.NoError(t, err)
			return v
		}
	}
}

// settled looks until the statement has ended.
func settled(t *testing.T, kinds *commitstep.Registry, p *steptest.Planned) commitstep.Verdict {
	t.Helper()
	for until := time.Now().Add(patience); ; {
		pr, err := p.Process(kinds, 0)
		require.NoError(t, err)
		v, err := pr.Verify(t.Context())
		if !errors.Is(err, commitstep.ErrInProgress) || time.Now().After(until) {
			require.NoError(t, err)
			return v
		}
	}
}

// What a value holds comes back as it was, whatever Hive makes of quotes,
// backslashes and its own variables.
func TestRealValuesStayValues(t *testing.T) {
	t.Parallel()
	r := newReal(t, nil)
	values := []string{"plain", "it's", `a"b`, `back\slash`, `\`, `\'`, `\u0027`, `\101`, "${env:HOME}", "${hiveconf:x}", "$", "a\nb\tc", "%_", "*/ --", "grüße €", "😀", ";", "`x`", "\x01\x7f"}
	var sql strings.Builder
	bind := map[string]bound{}
	known := map[string]bool{}
	sql.WriteString("SELECT ")
	for i, v := range values {
		n := fmt.Sprintf("v%d", i)
		bind[n], known[n] = textValue(v), true
		if i > 0 {
			sql.WriteString(", ")
		}
		fmt.Fprintf(&sql, "${%s}, '<${%s}>', \"<${%s}>\"", n, n, n)
	}
	st, err := parseStatement(sql.String(), known)
	require.NoError(t, err)
	text, err := st.bind(bind)
	require.NoError(t, err)
	tab, err := r.server.query(t.Context(), text)
	require.NoError(t, err)
	require.Len(t, tab.Rows, 1)
	for i, v := range values {
		require.Equal(t, v, tab.Rows[0][3*i], "%q", v)
		require.Equal(t, "<"+v+">", tab.Rows[0][3*i+1], "%q", v)
		require.Equal(t, "<"+v+">", tab.Rows[0][3*i+2], "%q", v)
	}
}

// A staged directory reads as the rows that an INSERT would have left, in every
// format that is let through, also where the query calls its columns otherwise.
func TestRealFormats(t *testing.T) {
	t.Parallel()
	r := newReal(t, nil)
	r.Exec(t, "CREATE TABLE "+r.name+".src (batch int, a int, b string, c decimal(10,2))",
		"INSERT INTO "+r.name+".src VALUES (1,1,'a',1.5),(1,2,'b,c\td',2.5),(1,3,NULL,3.5)")
	first := []string{"1|a|2.5|2024-01-01 12:00|7", "2|b,c\td|3.5|2024-01-01 12:00|7", "3|NULL|4.5|2024-01-01 12:00|7"}
	for name, c := range map[string]struct {
		as   string
		want []string
	}{
		"tabs":     {`ROW FORMAT DELIMITED FIELDS TERMINATED BY '\t' ESCAPED BY '\\' NULL DEFINED AS 'nix'`, first},
		"sequence": {"ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' STORED AS SEQUENCEFILE", first},
		"orc":      {"STORED AS ORC", first},
		"parquet":  {"STORED AS PARQUET", first},
		"avro":     {"STORED AS AVRO", first},
		"json":     {"ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.JsonSerDe' STORED AS TEXTFILE", first},
		// CSV knows no NULL; INSERT leaves an empty text as well.
		"csv": {"ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE", []string{first[0], first[1], "3||4.5|2024-01-01 12:00|7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := r.name + "." + name
			r.Exec(t, "CREATE EXTERNAL TABLE "+table+" (id bigint, label string, amount double) PARTITIONED BY (dt string, hr int) "+c.as+" LOCATION '"+r.s.URL(r.name+"/"+name)+"'")
			target := Target{Hive: "dw", Table: table, Partition: map[string]string{"dt": "2024-01-01 12:00", "hr": "07"}}
			publish := func(batch, rows int, metrics ...Metric) {
				n := int64(rows)
				v := r.run(t, StageAndSwap(Stage{Target: target, Query: fmt.Sprintf("SELECT a, b AS other, c + 1 FROM %s.src WHERE batch = %d", r.name, batch), Under: r.s.URL(r.name + "/published/" + name), Rows: &n, Metrics: metrics}))
				require.Equal(t, commitstep.Done, v.Outcome, "%s", v)
			}
			publish(1, 3, Metric{Name: "sum", Query: "WITH x AS (SELECT * FROM ${table}) SELECT CAST(sum(CAST(amount AS DECIMAL(20,2))) AS STRING), min(hr) FROM x WHERE ${partition_filter} AND hr = 7",
				Source: &Source{"SELECT CAST(CAST(sum(c + 1) AS DECIMAL(20,2)) AS STRING), 7 FROM " + r.name + ".src WHERE batch = 1"}})
			require.Equal(t, c.want, r.Rows(t, "SELECT * FROM "+table+" ORDER BY id"))
			if name != "tabs" {
				return
			}
			publish(2, 0) // an empty load is one too
			require.Empty(t, r.Rows(t, "SELECT * FROM "+table))
			n := int64(1)
			// The staged rows have the table's columns, and nothing else of a table.
			for _, of := range []string{"nowhere", "INPUT__FILE__NAME"} {
				wrong := Metric{Name: "max", Query: "SELECT max(" + of + ") FROM ${table} WHERE ${partition_filter}", Want: new(Text)}
				_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(r.server)...), commitstep.NewPlan("j", "d").Step(
					StageAndSwap(Stage{Target: target, Query: "SELECT a, b AS other, c + 1 FROM " + r.name + ".src", Under: r.s.URL(r.name + "/published/" + name), Rows: &n, Metrics: []Metric{wrong}})))
				var pe *commitstep.PlanError
				require.ErrorAs(t, err, &pe)
				require.ErrorContains(t, err, of)
			}
		})
	}
}

// Where an error of the text arrives depends on the server; what it means does
// not, and no text of it is asked.
func TestRealErrorsOfInsert(t *testing.T) {
	t.Parallel()
	for name, async := range map[string]string{"compiled in the call": "false", "compiled in the background": "true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReal(t, func(c *Config) {
				c.Session = map[string]string{"hive.server2.async.exec.async.compile": async}
			})
			r.Exec(t, "CREATE EXTERNAL TABLE "+r.name+".facts (id bigint) PARTITIONED BY (dt string) LOCATION '"+r.s.URL(r.name+"/facts")+"'",
				"CREATE TABLE "+r.name+".src (id bigint)",
				"INSERT INTO "+r.name+".src VALUES (1), (2)",
				"INSERT OVERWRITE TABLE "+r.name+".facts PARTITION (dt='x') SELECT 9")
			kinds := commitstep.NewRegistry(Kinds(r.server)...)
			for what, sel := range map[string]string{
				"syntax":         "SELEC id FROM src",
				"missing table":  "SELECT id FROM " + r.name + ".gone",
				"missing column": "SELECT nope FROM " + r.name + ".src",
				"failing row":    "SELECT id FROM " + r.name + ".src WHERE assert_true(id < 2) IS NULL",
			} {
				p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", what).Step(InsertOverwrite(Insert{
					Target: Target{Hive: "dw", Table: r.name + ".facts", Partition: map[string]string{"dt": "x"}}, Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} " + sel, Rows: rows(2)})))
				require.NoError(t, err, what)
				pr, err := p.Process(kinds, 0)
				require.NoError(t, err)
				if err = pr.Execute(t.Context()); err != nil { // else it runs on
					require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err), "%s: %v", what, err)
				}
				v := settled(t, kinds, p)
				require.Equal(t, commitstep.NotDone, v.Outcome, "%s: %s", what, v)
				require.Equal(t, []string{"9|x"}, r.Rows(t, "SELECT * FROM "+r.name+".facts"), what)
			}
		})
	}
}

// Files of a partition that is not registered stay when it is overwritten: what
// the query ended as says nothing of that, the metrics do.
func TestRealLeftoversAreFound(t *testing.T) {
	t.Parallel()
	r := newReal(t, nil)
	table := r.name + ".facts"
	r.Exec(t, "CREATE EXTERNAL TABLE "+table+" (id bigint) PARTITIONED BY (dt string) LOCATION '"+r.s.URL(r.name+"/facts")+"'",
		"INSERT OVERWRITE TABLE "+table+" PARTITION (dt='x') SELECT 9",
		"INSERT OVERWRITE DIRECTORY '"+path.Join("/", strings.TrimPrefix(r.s.URL(r.name+"/facts/dt=y"), r.s.FS))+"' SELECT 8")
	kinds := commitstep.NewRegistry(Kinds(r.server)...)
	target := Target{Hive: "dw", Table: table, Partition: map[string]string{"dt": "y"}}
	p, err := steptest.Plan(t.Context(), kinds, commitstep.NewPlan("j", "d").Step(InsertOverwrite(Insert{Target: target, Statement: "INSERT OVERWRITE TABLE ${table} PARTITION ${partition} SELECT 1", Rows: rows(1)})))
	require.NoError(t, err)
	pr, err := p.Process(kinds, 0)
	require.NoError(t, err)
	require.NoError(t, pr.Execute(t.Context()))
	v := settled(t, kinds, p)
	n := r.Rows(t, "SELECT count(*) FROM "+table+" WHERE dt='y'")[0]
	if n == "1" {
		require.Equal(t, commitstep.Done, v.Outcome, "%s", v)
	} else {
		require.Equal(t, commitstep.Conflict, v.Outcome, "%s", v)
		require.Contains(t, v.Evidence, "rows is "+n+", expected 1")
	}
	pr, err = p.Process(kinds, 0)
	require.NoError(t, err)
	probe, err := pr.Step.(Prober).Probe(t.Context(), pr.Attempt)
	require.NoError(t, err)
	require.NotEmpty(t, probe.QueryID)
	require.NotEmpty(t, probe.Suggestion.Why)
	if len(probe.Missing) > 0 {
		t.Logf("not gathered on this busy machine: %v", probe.Missing)
		return
	}
	require.Len(t, probe.Queries, 1)
	require.NotNil(t, probe.Now.Files)
	require.Positive(t, probe.Now.Files.Files)
	require.Equal(t, n, probe.Now.Metrics[0].Got)
}

// A table or partition that is not there is known to be absent, and nothing else
// is.
func TestRealAbsence(t *testing.T) {
	t.Parallel()
	r := newReal(t, nil)
	r.Exec(t, "CREATE EXTERNAL TABLE "+r.name+".facts (id bigint) PARTITIONED BY (dt string) LOCATION '"+r.s.URL(r.name+"/facts")+"'")
	tg, err := Target{Table: r.name + ".facts", Partition: map[string]string{"dt": "a/b=c%d:e f+g"}}.check()
	require.NoError(t, err)
	st, err := r.server.look(t.Context(), tg)
	require.NoError(t, err)
	require.False(t, st.there)
	place := r.s.URL(r.name + "/odd/token=" + uuid.NewString())
	r.Exec(t, tg.addPartition(mustLocation(t, place), false))
	st, err = r.server.look(t.Context(), tg)
	require.NoError(t, err)
	require.True(t, st.there)
	require.True(t, mustLocation(t, place).same(st.location), st.location)
	sw := &sweeper{s: r.server, table: target{db: r.name, table: "facts"}, rep: &SweepReport{}}
	require.NoError(t, sw.partitions(t.Context(), sw.table, true))
	require.Equal(t, 1, sw.rep.Partitions)
	require.Contains(t, sw.changed, tg.String(), "a partition's name is read as it was given")

	tg.table = "gone"
	_, err = r.server.look(t.Context(), tg)
	require.ErrorIs(t, err, errNoTable)
}

func mustLocation(t *testing.T, text string) location {
	t.Helper()
	l, err := parseLocation(text)
	require.NoError(t, err)
	return l
}
