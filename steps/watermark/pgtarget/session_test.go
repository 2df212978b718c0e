package pgtarget_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// accented is a name whose bytes are other letters in another encoding.
var accented = commitstep.WatermarkKey{Job: topic.Job, Source: "s\u00e9"}

// refused says that nothing is read or planned, and that this is not taken for a
// source that was never read.
func refused(t *testing.T, tg *pgtarget.Target, m commitstep.WatermarkMove, want ...string) {
	t.Helper()
	_, rerr := tg.Watermark(t.Context(), m.WatermarkKey)
	_, perr := tg.Plan(t.Context(), m)
	var pe *commitstep.PlanError
	require.ErrorAs(t, perr, &pe)
	errs := []error{rerr, perr}
	for _, err := range tg.List(t.Context(), "") {
		errs = append(errs, err)
	}
	require.Len(t, errs, 3)
	for _, err := range errs {
		for _, w := range want {
			require.ErrorContains(t, err, w)
		}
		require.NotErrorIs(t, err, commitstep.ErrNotFound)
		require.NotErrorIs(t, err, commitstep.ErrUnavailable)
	}
}

// A role that gets another encoding while a program runs: nothing is found
// missing, and nothing is written under another name.
func TestAnotherClientEncoding(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]commitstep.Watermark{"first move": commitstep.None(), "later move": commitstep.Int(1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, small, smallColumns)
			role := tb.as(all)
			require.NoError(t, tb.sql(`INSERT INTO %s VALUES ($1, 1), ($2, 1)`, accented.Source, "s\u00c3\u00a9"))
			before, err := tb.dump()
			require.NoError(t, err)
			tg := tb.open()
			require.NoError(t, tb.sql(`ALTER ROLE `+role+` SET client_encoding = 'LATIN1'; SELECT '%s'`))
			require.NoError(t, tb.sql(`SELECT pg_terminate_backend(pid, 30000), '%s' FROM pg_stat_activity WHERE usename = '`+role+`'`))
			key := accented
			if from.IsNone() {
				key.Source = "\u00e9"
			}
			m := commitstep.WatermarkMove{WatermarkKey: key, From: from, To: commitstep.Int(2), Token: uuid.New()}
			refused(t, tg, m, "client_encoding", "LATIN1", "UTF8", tb.name, `target "marks"`)
			err = tg.CompareAndSet(t.Context(), m, uuid.New())
			require.ErrorContains(t, err, "LATIN1")
			require.Equal(t, commitstep.ClassRefused, commitstep.ClassOf(err))
			after, err := tb.dump()
			require.NoError(t, err)
			require.Equal(t, before, after)
			_, err = pgtarget.Open(t.Context(), tb.cfg)
			require.ErrorContains(t, err, "LATIN1")
		})
	}
	tb := newTable(t, small, smallColumns)
	tb.cfg.DSN += "&client_encoding=latin1"
	_, err := pgtarget.Open(t.Context(), tb.cfg)
	require.ErrorContains(t, err, "client_encoding, of the address or the role, is LATIN1")
}

func TestADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		tb := newTable(t, small, smallColumns)
		db := kit.Name()
		require.NoError(t, tb.sql(`CREATE DATABASE `+db+` TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING `+"'"+encoding+"' -- %s"))
		tb.cfg.DSN = strings.Replace(tb.cfg.DSN, "/postgres?", "/"+db+"?", 1) + "&client_encoding=UTF8"
		_, err := pgtarget.Open(t.Context(), tb.cfg)
		require.ErrorContains(t, err, "the encoding of its database is "+encoding)
		require.ErrorContains(t, err, `target "marks"`)
	}
}

// A standby may lag, and its watermark would be taken for where the source has
// been read to. Once it is promoted it is a server like any other.
func TestAStandbyIsNotBelieved(t *testing.T) {
	t.Parallel()
	kit.Cluster(t) // skips where there is none
	primary, err := pgkit.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Close()) })
	require.NoError(t, primary.Exec(t.Context(), `CREATE TABLE public.marks (`+small+`); INSERT INTO public.marks VALUES ('MyTopic:0', 100)`))
	standby, err := primary.Standby(t.Context(), "second")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Close()) })
	cfg := pgtarget.Config{Name: "marks", DSN: standby.URL("postgres"), Table: "public.marks", Columns: smallColumns}
	_, err = pgtarget.Open(t.Context(), cfg)
	require.ErrorContains(t, err, "standby")
	require.ErrorContains(t, err, "target_session_attrs=read-write")
	require.NotErrorIs(t, err, commitstep.ErrNotFound)

	// A target that was opened on the primary, and finds itself on the standby.
	cfg.DSN = fmt.Sprintf("postgres://pg@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", primary.Port(), standby.Port())
	tg, err := pgtarget.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tg.Close()) })
	m := move(commitstep.Int(100), commitstep.Int(200))
	require.NoError(t, plan(tg, m))
	primary.StopImmediate()
	refused(t, tg, m, "standby", "may be old", `table "public.marks"`)
	err = tg.CompareAndSet(t.Context(), m, uuid.New())
	require.Equal(t, commitstep.ClassNotSent, commitstep.ClassOf(err), "%v", err)
	require.NoError(t, standby.Promote(t.Context()))
	require.NoError(t, plan(tg, m))
	require.NoError(t, tg.CompareAndSet(t.Context(), m, uuid.New()))
}

// Where nothing can be written, nothing is planned; what is read is true.
func TestAReadOnlySession(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(tb *table, role string) error{
		"the role": func(tb *table, role string) error {
			return tb.sql(`ALTER ROLE ` + role + ` SET default_transaction_read_only = on -- %s`)
		},
		"the address": func(tb *table, _ string) error { tb.cfg.DSN += "&default_transaction_read_only=on"; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := newTable(t, small, smallColumns)
			require.NoError(t, tb.sql(`INSERT INTO %s VALUES ('MyTopic:0', 1)`))
			require.NoError(t, set(tb, tb.as(all)))
			tg := tb.open()
			v, err := tg.Watermark(t.Context(), topic)
			require.NoError(t, err)
			require.Equal(t, commitstep.Int(1), v.Watermark)
			_, err = tg.Plan(t.Context(), move(commitstep.Int(1), commitstep.Int(2)))
			var pe *commitstep.PlanError
			require.ErrorAs(t, err, &pe)
			require.ErrorContains(t, err, "default_transaction_read_only")
		})
	}
}
