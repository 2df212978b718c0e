package hivepublish

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Forms and refusals are those that a HiveServer2 4.0.1 was seen to give, by the
// names of its partitions.
func TestAValueHasOneForm(t *testing.T) {
	t.Parallel()
	for typ, forms := range map[string]map[string][]string{
		"tinyint":       {"1": {"1", "01", "+1"}, "0": {"-0", "00"}, "-128": {"-128"}},
		"bigint":        {"2026010100": {"02026010100", "+2026010100"}, "-9223372036854775808": {"-9223372036854775808"}},
		"boolean":       {"true": {"TRUE", "True", "true"}, "false": {"False"}},
		"date":          {"2026-01-02": {"2026-01-02"}, "0001-01-01": {"0001-01-01"}},
		"decimal(10,2)": {"1": {"1", "1.0", "1.00", "01", "+1", "1.000"}, "-1.5": {"-1.50"}, "0": {"0.00", "-0", "-0.0"}, "100": {"100"}, "0.5": {"0.5"}},
		"decimal(2,2)":  {"0.25": {"0.25", "00.250"}},
		"timestamp": {"2026-01-01 00:00:00": {"2026-01-01 00:00:00", "2026-01-01 00:00:00.0", "2026-01-01 00:00:00.000000000"},
			"2026-01-01 10:00:00.5": {"2026-01-01 10:00:00.5", "2026-01-01 10:00:00.500"}, "9999-12-31 23:59:59.999999999": {"9999-12-31 23:59:59.999999999"}},
		"char(4)":    {"ab": {"ab", "ab ", "ab  ", "ab      "}, " ab": {" ab"}, "abcd": {"abcd"}},
		"varchar(3)": {"abc": {"abc"}, "grü": {"grü"}, "😀ab": {"😀ab"}, " a": {" a"}},
		"string":     {" ab": {" ab"}, "AB": {"AB"}, "01": {"01"}, "NULL": {"NULL"}, "a%2Fb": {"a%2Fb"}},
	} {
		for want, spelled := range forms {
			for _, v := range spelled {
				got, err := canonical(v, typ)
				require.NoError(t, err, "%s of %s", v, typ)
				require.Equal(t, want, got, "%s of %s", v, typ)
			}
		}
	}
	for typ, values := range map[string][]string{
		"tinyint":       {"300", "1.0", "1Y", " 1", "1 ", "١", ""},
		"bigint":        {"2026010100L", "9223372036854775808", "1e3", "0x1", "1_0"},
		"boolean":       {"t", "1", "yes", "x", "0", "no", " true"},
		"date":          {"2026-1-2", "2026-01-02 00:00:00", "2026-01-02x", " 2026-01-02", "2026-02-30", "12026-01-01", "-0001-01-01", "0000-01-01", "1582-10-10"},
		"timestamp":     {"2026-01-01", "2026-01-01T00:00:00", "2026-01-01 0:0:0", "2026-01-01 00:00", "2026-01-01 00:00:00Z", "2026-01-01 24:00:00", "2026-01-01 10:00:00.1234567899", "2026-01-01 10:00:00,5", "2026-01-01 00:00:00.", "1582-10-10 00:00:00"},
		"decimal(10,2)": {"1.555", "123456789012", "1E2", " 2", "2 ", ".5", "5.", "1.5BD", "--1"},
		"char(4)":       {"abcde", "   "},
		"varchar(3)":    {"abcd", "grün", "😀abc", "ab "},
		"string":        {"ab "},
		"float":         {"1.0"}, "double": {"1.0"}, "timestamp with local time zone": {"2026-01-01 00:00:00"}, "binary": {"x"}, "interval_day_time": {"1"}, "": {"1"},
	} {
		for _, v := range values {
			got, err := canonical(v, typ)
			require.Error(t, err, "%q of %s is %q", v, typ, got)
		}
	}
	_, err := canonical("2026-01-01", "timestamp")
	require.ErrorContains(t, err, `is it "2026-01-01 00:00:00"?`)
}

// spelling is a value of a type, and two ways to write it.
type spelling struct{ typ, a, b string }

func spellings(t *rapid.T) spelling {
	zeros := func(what string) string { return strings.Repeat("0", rapid.IntRange(0, 3).Draw(t, what)) }
	sign := rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign")
	digits := func(what string, most int) string {
		return rapid.StringMatching(fmt.Sprintf("[0-9]{1,%d}", most)).Draw(t, what)
	}
	switch typ := rapid.SampledFrom([]string{"int", "bigint", "decimal(12,4)", "timestamp", "boolean", "char(8)"}).Draw(t, "type"); typ {
	case "int", "bigint":
		n := digits("number", 9)
		return spelling{typ, sign + n, sign + zeros("before") + n}
	case "decimal(12,4)":
		n := digits("whole", 8)
		if rapid.Bool().Draw(t, "fraction") {
			n += "." + digits("digits", 4)
			return spelling{typ, sign + n, sign + zeros("before") + n + zeros("behind")}
		}
		return spelling{typ, sign + n, sign + zeros("before") + n + "." + "0" + zeros("behind")}
	case "timestamp":
		at := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "time"), 0).UTC().Format(time.DateTime)
		if rapid.Bool().Draw(t, "fraction") {
			at += "." + digits("digits", 6)
			return spelling{typ, at, at + zeros("behind")}
		}
		return spelling{typ, at, at + ".0" + zeros("behind")}
	case "boolean":
		v := rapid.SampledFrom([]string{"true", "false"}).Draw(t, "value")
		return spelling{typ, v, rapid.SampledFrom([]string{strings.ToUpper(v), strings.ToUpper(v[:1]) + v[1:], v}).Draw(t, "case")}
	default:
		v := rapid.StringMatching("[a-zü]{1,8}").Draw(t, "value")
		return spelling{typ, v, v + strings.Repeat(" ", rapid.IntRange(0, 9).Draw(t, "blanks"))}
	}
}

// Two spellings of one value never give two locks, and what has one form keeps it.
func TestTwoSpellingsHaveOneLock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := spellings(t)
		cols := []column{{"p", s.typ}}
		of := func(v string) target {
			tg, err := Target{Hive: "dw", Table: "t", Partition: map[string]string{"p": v}}.check()
			require.NoError(t, err)
			tg, err = tg.normal(cols)
			require.NoError(t, err)
			return tg
		}
		a, b := of(s.a), of(s.b)
		require.Equal(t, a.lock("dw"), b.lock("dw"), "%s and %s of %s", s.a, s.b, s.typ)
		require.Equal(t, a.sqlSpec(), b.sqlSpec())
		require.Equal(t, a.sqlFilter(), b.sqlFilter())
		require.Equal(t, a.lock("dw"), of(a.spec[0].value).lock("dw"))
	})
}

// by has the fake's table partitioned by one column of a type.
func by(typ string) func(*warehouse) {
	return func(w *warehouse) {
		w.facts().partitions = []column{{"p", typ}}
		w.facts().parts = map[string]*fakePart{}
	}
}

// at is the partition of that table.
func at(value string) Target {
	return Target{Hive: "dw", Table: "sales.facts", Partition: map[string]string{"p": value}}
}

var twoWays = map[string][2]string{
	"timestamp":     {"2026-01-01 00:00:00", "2026-01-01 00:00:00.0"},
	"boolean":       {"true", "TRUE"},
	"decimal(10,2)": {"1", "1.00"},
	"bigint":        {"2026010100", "02026010100"},
	"char(4)":       {"ab", "ab  "},
}

// An INSERT whose fate nobody knows may still write: nothing else publishes its
// partition, however that is spelled.
func TestAnotherSpellingMeetsTheLock(t *testing.T) {
	t.Parallel()
	for typ, v := range twoWays {
		for _, order := range [][2]string{v, {v[1], v[0]}} {
			t.Run(typ+" "+order[1], func(t *testing.T) {
				t.Parallel()
				cfg, dir := onDisk(t)
				w := newWarehouse()
				w.disk = dir
				by(typ)(w)
				w.script = func(sql string) *fakeOp {
					if strings.Contains(sql, "INSERT OVERWRITE TABLE") {
						return &fakeOp{status: hs2.Status{State: hs2.Canceled}}
					}
					return nil
				}
				e, _ := engine(t, w.server(t, cfg))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				res, err := e.Publish(ctx, commitstep.NewPlan("j", "older").Step(InsertOverwrite(Insert{Target: at(order[0]), Statement: factsInsert, Rows: rows(3)})))
				require.Error(t, err)
				require.Equal(t, commitstep.PublishUnknown, res.Reason, "%s: %s", res.Status, res.Message)
				newer := stageParams()
				newer.Target = at(order[1])
				for what, step := range map[string]commitstep.StepSpec{
					"insert": InsertOverwrite(Insert{Target: at(order[1]), Statement: factsInsert, Rows: rows(3)}),
					"stage":  StageAndSwap(newer),
				} {
					_, err = e.Publish(ctx, commitstep.NewPlan("j", "newer").Step(step))
					require.ErrorIs(t, err, commitstep.ErrPending, what)
				}
				require.Empty(t, w.sent("INSERT OVERWRITE DIRECTORY"))
			})
		}
	}
}

func TestOnePlanDoesNotSpellAPartitionTwice(t *testing.T) {
	t.Parallel()
	for typ, v := range twoWays {
		cfg, _ := onDisk(t)
		w := newWarehouse()
		by(typ)(w)
		plan := commitstep.NewPlan("j", "d")
		for _, value := range v {
			p := stageParams()
			p.Target = at(value)
			plan = plan.Step(StageAndSwap(p))
		}
		_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), plan)
		require.ErrorContains(t, err, "which another step of the plan needs too", typ)
	}
}

// A sequence that an earlier version stored holds the lock by its spelling, and
// goes on with the values and the condition that it has.
func TestSpellingsOfEarlierVersions(t *testing.T) {
	t.Parallel()
	spec := InsertOverwrite(Insert{Target: at("2026-01-01 00:00:00.0"), Statement: factsInsert, Rows: rows(3)})
	b := newBench(t, spec, by("timestamp"))
	require.ElementsMatch(t, []string{"hive:dw/sales.facts/p=2026-01-01 00:00:00", "hive:dw/sales.facts/p=2026-01-01 00:00:00.0"}, b.planned.Locks)
	b = newBench(t, InsertOverwrite(Insert{Target: at("07"), Statement: factsInsert, Rows: rows(3)}), by("int"))
	require.Equal(t, []string{"hive:dw/sales.facts/p=7"}, b.planned.Locks)

	old := target{db: "sales", table: "facts", spec: []keyValue{{"p", "2026-01-01 00:00:00.0"}}}
	require.Equal(t, "(`p`='2026-01-01 00:00:00.0')", old.sqlFilter())
	require.Equal(t, "(`p`=CAST('2026-01-01 00:00:00.0' AS timestamp))", old.typed([]column{{"p", "timestamp"}}).sqlFilter())
	require.Equal(t, "(`p`=CAST('yes' AS boolean))", target{spec: []keyValue{{"p", "yes"}}}.typed([]column{{"p", "boolean"}}).sqlFilter())
}

// What the server does not compare with a string can be published by both kinds.
func TestPartitionsOfEveryType(t *testing.T) {
	t.Parallel()
	for typ, v := range twoWays {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			for what, step := range map[string]func(Target) commitstep.StepSpec{
				"insert": func(tg Target) commitstep.StepSpec {
					return InsertOverwrite(Insert{Target: tg, Statement: factsInsert, Rows: rows(3)})
				},
				"stage": func(tg Target) commitstep.StepSpec {
					p := stageParams()
					p.Target = tg
					return StageAndSwap(p)
				},
			} {
				cfg, dir := onDisk(t)
				w := newWarehouse()
				w.disk = dir
				by(typ)(w)
				e, _ := engine(t, w.server(t, cfg))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				res, err := e.Publish(ctx, commitstep.NewPlan("j", what).Step(step(at(v[1]))))
				require.NoError(t, err, what)
				require.Equal(t, driver.StatusCompleted, res.Status, what)
				require.Contains(t, w.facts().parts, "(`p`='"+v[0]+"')", what)
				require.Len(t, w.facts().parts, 1)
			}
		})
	}
}

// A question that the server would refuse once the rows are written is refused
// before that.
func TestTheCountIsCompiledBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	w := newWarehouse()
	w.script = func(sql string) *fakeOp {
		if strings.HasPrefix(sql, explainPrefix+"SELECT count(*)") {
			return &fakeOp{refuse: semantic("Unsafe compares between different types")}
		}
		return nil
	}
	_, err := steptest.Plan(t.Context(), commitstep.NewRegistry(Kinds(w.server(t, cfg))...), commitstep.NewPlan("j", "d").Step(StageAndSwap(stageParams())))
	var pe *commitstep.PlanError
	require.ErrorAs(t, err, &pe)
	require.ErrorContains(t, err, "Unsafe compares")
}

// The plan's own metrics are compiled as they are asked of the staged rows, which have
// no INPUT__FILE__NAME.
func TestMetricsAreCompiledAsTheyAreAsked(t *testing.T) {
	t.Parallel()
	p := stageParams()
	p.Metrics = []Metric{{Name: "names", Query: "WITH x AS (SELECT * FROM ${table}) SELECT count(name) FROM x WHERE ${partition_filter}", Want: new(Text)}}
	b := stageBench(t, p, nil)
	require.Equal(t, []string{
		explainPrefix + "SELECT count(*) FROM `sales`.`facts` WHERE (`dt`='2024-01-01')",
		explainPrefix + "WITH commitstep_staged AS (SELECT t.`id`, t.`name`, '2024-01-01' AS `dt` FROM `sales`.`facts` t), x AS (SELECT * FROM commitstep_staged) SELECT count(name) FROM x WHERE (`dt`='2024-01-01')",
	}, b.w.sent(explainPrefix))
}

// A blank at the end, the name of the default partition or bytes that are no text:
// not every metastore keeps them apart from another value.
func TestNoWayRoundTheLock(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"__HIVE_DEFAULT_PARTITION__", "__hive_default_partition__", "x__HIVE_DEFAULT_PARTITION__", "a\xffb"} {
		_, err := at(v).check()
		require.Error(t, err, "%q", v)
	}
	for _, name := range []string{"sales.facts", "Sales.FACTS", "`sales`.`facts`", "SALES.`Facts`"} {
		tg, err := Target{Hive: "dw", Table: name, Partition: map[string]string{"`P`": "x"}}.check()
		require.NoError(t, err, name)
		tg, err = tg.normal([]column{{"p", "string"}})
		require.NoError(t, err, name)
		require.Equal(t, []string{"hive:dw/sales.facts/p=x"}, tg.locks("dw", tg), name)
	}
}
