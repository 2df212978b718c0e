package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// conn is a look into the database beside the store.
func (s *scene) conn(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), s.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(context.Background(), "SET search_path = "+s.schema())
	require.NoError(t, err)
	return conn
}

// watchEpochs lets the database itself keep every epoch that a sequence ever
// had, and refuse one that goes down.
func (s *scene) watchEpochs(t *testing.T) {
	t.Helper()
	_, err := s.conn(t).Exec(t.Context(), fmt.Sprintf(`CREATE TABLE epochs (id uuid, epoch bigint);
		CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF TG_OP = 'UPDATE' AND NEW.epoch < OLD.epoch THEN RAISE EXCEPTION 'epoch %% after %%', NEW.epoch, OLD.epoch; END IF;
			INSERT INTO %[1]s.epochs VALUES (NEW.id, NEW.epoch); RETURN NULL; END $$;
		CREATE TRIGGER watch AFTER INSERT OR UPDATE OF epoch ON sequences FOR EACH ROW EXECUTE FUNCTION watch()`, s.schema()))
	require.NoError(t, err)
}

// judge holds what the target and the store show against what was asked for.
func (s *scene) judge(t *testing.T) {
	t.Helper()
	st, err := pgstore.Open(t.Context(), s.DSN, nil)
	require.NoError(t, err)
	defer st.Close()
	for l, err := range st.Scan(t.Context(), store.Filter{}) {
		require.NoError(t, err)
		t.Errorf("%s is still %s %s: %s", l.Key, l.State, l.Reason, l.Message)
	}
	past := map[string]int{}
	for h, err := range st.ListHistory(t.Context(), store.HistoryFilter{}) {
		require.NoError(t, err)
		require.Equal(t, commitstep.Completed, h.State)
		past[h.Dataset]++
	}
	for i, d := range s.Datasets {
		require.Equal(t, 1, past[d.Name], "%s: outcomes", d.Name)
		for _, f := range d.Files {
			b, err := os.ReadFile(s.path("out/" + d.Name + "/" + f))
			require.NoError(t, err)
			require.Equal(t, d.Name+" "+f, string(b))
			_, err = os.Stat(s.path(d.Staging + "/" + f))
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		out, err := os.ReadDir(s.path("out/" + d.Name))
		require.NoError(t, err)
		require.Len(t, out, len(d.Files))
		v, err := st.Watermark(t.Context(), commitstep.WatermarkKey{Job: jobName, Source: d.Name})
		require.NoError(t, err)
		require.Equal(t, commitstep.Int(int64(i+1)), v.Watermark)
	}
	// A rename that was made just before its process was killed is not in the
	// log; one that was made twice is there twice.
	b, err := os.ReadFile(s.path("renames.log"))
	require.NoError(t, err)
	seen := map[string]int{}
	for _, line := range strings.Fields(string(b)) {
		seen[line]++
		require.Equal(t, 1, seen[line], "%s took effect twice", line)
	}
	require.Greater(t, len(seen), len(s.Datasets))
	for problem, err := range st.Check(t.Context()) {
		require.NoError(t, err)
		t.Error(problem)
	}
}

// Three drivers publish and recover on one store; every moment one of them is
// killed, or frozen for longer than its lease and thawed, also right before a
// rename. Every sequence ends once, every step takes effect once, and no driver
// whose epoch is over has written anything.
func TestDuel(t *testing.T) {
	t.Parallel()
	sequences := 200
	if testing.Short() {
		sequences = 40
	}
	s := newScene(t, sequences)
	s.watchEpochs(t)
	const drivers = 3
	start := func(n int) *testkit.Process {
		return testkit.Start(t, "duelist", s.path("scene.json"), fmt.Sprint(n), fmt.Sprint(drivers))
	}
	var procs [drivers]*testkit.Process
	var frozen [drivers]time.Time
	for n := range procs {
		procs[n] = start(n)
	}
	var said strings.Builder
	kills, freezes := 0, 0
	conn := s.conn(t)
	deadline := time.Now().Add(4 * time.Minute)
	for {
		var done, live int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM history), (SELECT count(*) FROM sequences)`).Scan(&done, &live))
		if done == sequences && live == 0 {
			break
		}
		var parked int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM parked`).Scan(&parked))
		require.Zero(t, parked, procs[0].Output()+procs[1].Output()+procs[2].Output())
		require.True(t, time.Now().Before(deadline), "%d of %d are done, %d live; %s", done, sequences, live, procs[0].Output()+procs[1].Output()+procs[2].Output())
		time.Sleep(rand.N(120 * time.Millisecond))
		n := rand.N(drivers)
		p := procs[n]
		switch {
		case !frozen[n].IsZero():
			if time.Since(frozen[n]) > leaseTTL*3/2 {
				p.Thaw()
				frozen[n] = time.Time{}
			}
		case strings.HasSuffix(strings.TrimSpace(p.Output()), "done"):
			said.WriteString(p.Output())
			procs[n] = start(n)
		case strings.HasSuffix(strings.TrimSpace(p.Output()), "frozen"), rand.N(10) == 0:
			p.Freeze() // it may have stopped itself right before a rename
			frozen[n] = time.Now()
			freezes++
		case rand.N(6) == 0:
			p.Kill()
			said.WriteString(p.Output())
			procs[n] = start(n)
			kills++
		}
	}
	for n, p := range procs {
		if !frozen[n].IsZero() {
			p.Thaw()
		}
		p.Kill()
		said.WriteString(p.Output())
	}
	s.judge(t)
	t.Logf("%d kills, %d freezes, %d times a driver said that it was fenced", kills, freezes, strings.Count(said.String(), "fenced "))
	require.Positive(t, kills)
	require.Positive(t, freezes)
	require.Contains(t, said.String(), "fenced ", "a driver that slept through its lease says so")
	var wrong int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM history h WHERE epoch <> (SELECT max(epoch) FROM epochs e WHERE e.id = h.id)`).Scan(&wrong))
	require.Zero(t, wrong, "sequences that were ended by a driver other than the last that claimed them")
}

// The owner sleeps right before a rename, a helper finishes its work, the owner
// wakes up: it has changed nothing, and its caller sees success, once, with who
// brought it about. When it asks again, it hears that the plan is done.
func TestTheOwnerSleepsAndAHelperFinishes(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	p := testkit.Start(t, "owner", s.path("scene.json"))
	p.WaitLine("asleep")
	p.Freeze()

	st, err := pgstore.Open(t.Context(), s.DSN, &pgstore.Options{LeaseTTL: leaseTTL})
	require.NoError(t, err)
	defer st.Close()
	helper := func() driver.Report {
		rep, err := s.help(t, st)
		require.NoError(t, err)
		return rep
	}
	rep := helper()
	require.Equal(t, 1, rep.Counts[driver.StatusBusy], "the lease lasts")
	require.Contains(t, rep.Results[0].Holder, "driver")
	require.Eventually(t, func() bool { return helper().Counts[driver.StatusCompleted] == 1 }, 20*time.Second, 100*time.Millisecond)
	s.judge(t)

	p.Thaw()
	require.Regexp(t, `^completed already=false by="helper on .*" <nil>$`, p.WaitLine("first"))
	require.Contains(t, p.WaitLine("second"), "completed already=true <nil>")
	code, _ := p.Exit()
	require.Zero(t, code)
	require.Contains(t, p.Output(), `fenced "d0000" `, "an observer is told that the lease was lost")
	s.judge(t)
}
