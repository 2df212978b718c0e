package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/cli"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// pair is a server of the test's own and a standby that streams from it.
func pair(t *testing.T) (primary, standby *pgkit.Cluster) {
	t.Helper()
	kit.Cluster(t) // skips where there is none
	primary, err := pgkit.Start(t.Context(), "max_connections=60")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, primary.Close()) })
	standby, err = primary.Standby(t.Context(), "second")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, standby.Close()) })
	return primary, standby
}

// either is the address of whichever of two servers takes writes.
func either(a, b *pgkit.Cluster) string {
	return fmt.Sprintf("postgres://pg@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write", a.Port(), b.Port())
}

// open is a driver of this process on the scene's store at an address.
func (s *scene) open(t *testing.T, address, owner string, kill func(string)) (*driver.Engine, *pgstore.Store) {
	t.Helper()
	files, err := s.files()
	require.NoError(t, err)
	st, err := pgstore.Open(t.Context(), address, nil)
	require.NoError(t, err)
	e, err := driver.New(driver.Config{Store: st, Owner: owner, KillPoint: kill, Kinds: commitstep.NewRegistry(fsrename.Kind(files), watermark.Kind(st))})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = e.Close(context.Background())
		_ = st.Close()
	})
	return e, st
}

// The primary dies like a crash in the middle of publishers, the standby that
// every commit waited for is promoted, and the drivers go on there by
// themselves: nothing acknowledged is lost, nothing happens twice. Before that,
// the standby shows what there is and takes nothing.
func TestFailoverToASynchronousStandby(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	require.NoError(t, primary.Synchronous(t.Context(), "second"))
	const datasets = 48
	s := newSceneAt(t, either(primary, standby), datasets)
	s.watchEpochs(t)
	schema := s.schema()
	words := fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=pg dbname=postgres sslmode=disable target_session_attrs=read-write schema=%s", standby.Port(), primary.Port(), schema)
	var engines []*driver.Engine
	for i, address := range []string{s.DSN, words} {
		e, _ := s.open(t, address, fmt.Sprint("driver ", i), nil)
		engines = append(engines, e)
	}
	first, err := engines[0].Publish(t.Context(), s.plan(0))
	require.NoError(t, err)
	s.readsAStandby(t, standby, first.ID)

	var mu sync.Mutex
	acknowledged := map[int]uuid.UUID{0: first.ID}
	enough, all := make(chan struct{}), make(chan int)
	var publishers sync.WaitGroup
	for n := range 12 {
		publishers.Go(func() {
			for i := range all {
				var res driver.Result
				var err error
				for res.Status == "" { // nothing was stored, as when a lease had ended
					res, err = engines[n%2].Publish(t.Context(), s.plan(i))
					if err != nil && res.Status == "" {
						t.Logf("dataset %d: %v", i, err)
						if t.Context().Err() != nil {
							return
						}
					}
				}
				var nf *driver.NotFinishedError
				if err != nil && !errors.As(err, &nf) {
					t.Errorf("dataset %d: %v", i, err)
				}
				mu.Lock()
				if err == nil {
					acknowledged[i] = res.ID
				}
				if len(acknowledged) == datasets/4 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	go func() {
		defer close(all)
		for i := 1; i < datasets; i++ {
			all <- i
		}
	}()
	<-enough
	primary.StopImmediate()
	mu.Lock()
	before := len(acknowledged)
	mu.Unlock()
	require.Less(t, before, datasets)
	require.NoError(t, standby.Promote(t.Context()))
	publishers.Wait()
	require.Eventually(t, func() bool {
		rep, err := engines[1].Recover(t.Context(), jobName)
		require.NoError(t, err)
		return rep.Complete && len(rep.NotFree()) == 0
	}, time.Minute, 100*time.Millisecond)
	st, err := pgstore.Open(t.Context(), s.DSN, nil)
	require.NoError(t, err)
	defer st.Close()
	for i, id := range acknowledged {
		past, err := st.LookupHistory(t.Context(), id)
		require.NoError(t, err, "dataset %d was acknowledged", i)
		require.Equal(t, commitstep.Completed, past.State)
	}
	s.judge(t)
	t.Logf("%d acknowledged before, %d by the end of their call", before, len(acknowledged))
}

// readsAStandby uses the command line on a standby: what reads works, what would
// write is refused at once, and says why.
func (s *scene) readsAStandby(t *testing.T, standby *pgkit.Cluster, id uuid.UUID) {
	t.Helper()
	dir := t.TempDir()
	plan := filepath.Join(dir, "plan.json")
	require.NoError(t, os.WriteFile(plan, []byte(`{"apiVersion":"commitstep/v1","kind":"Plan","job":"duel","dataset":"other","stages":[{"steps":[{"kind":"watermark.set","params":{"source":"other","from":null,"to":5}}]}]}`), 0o600))
	address := standby.URL("postgres") + "&schema=" + s.schema()
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": address, "COMMITSTEP_BY": "alice", "HOME": dir}}
	st, err := pgstore.Open(t.Context(), address, nil)
	require.NoError(t, err)
	defer st.Close()
	require.Eventually(t, func() bool { _, err := st.LookupHistory(t.Context(), id); return err == nil }, time.Minute, 20*time.Millisecond)
	for _, words := range [][]string{
		{"publish", "-f", plan},
		{"recover", "--job", jobName},
		{"recover", "--job", jobName, "--dry-run"},
		{"watermark", "set", "--job", jobName, "--source", "d0000", "--from", "1", "--to", "7", "--reason", "by hand", "--yes"},
		{"store", "stamp", "--reason", "by hand", "--yes"},
	} {
		started := time.Now()
		c.exits(cli.ExitStore, words...)
		require.Contains(t, c.err.String(), "this server only reads, as a standby does", "%v", words)
		require.NotContains(t, c.err.String(), "run recover again", "%v", words)
		require.Less(t, time.Since(started), time.Minute, "%v waits for nothing", words)
	}
	c.exits(cli.ExitOK, "pending", "list")
	require.Contains(t, c.exits(cli.ExitOK, "history", "list", "--job", jobName), "d0000")
	require.Contains(t, c.exits(cli.ExitOK, "history", "show", id.String()), "d0000")
	require.Contains(t, c.exits(cli.ExitOK, "watermark", "get", "--job", jobName, "--source", "d0000"), "1")
	c.exits(cli.ExitOK, "audit", "list")
	require.Contains(t, c.exits(cli.ExitOK, "store", "check"), "note: this server is a standby")
	c.env["COMMITSTEP_STORE"] = address + "&target_session_attrs=read-write&give_up=200ms"
	c.exits(cli.ExitStore, "pending", "list")
	require.Contains(t, c.err.String(), "what answers is a standby")
}

// A standby that nobody waited for lacks the newest when it is promoted. What it
// has of a sequence is finished there, without a second effect. Of what it lacks
// the store knows nothing: the plan is refused, since its files are gone, and
// only a person can put the watermark right.
func TestFailoverToAStandbyThatLacksTheNewest(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	s := newSceneAt(t, either(primary, standby)+"&lease=3s", 3)
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow, _ := s.open(t, s.DSN, "slow", func(point string) {
		if point == "execute.before#0" {
			once.Do(func() { close(reached); <-goOn })
		}
	})
	type answer struct {
		res driver.Result
		err error
	}
	half := make(chan answer, 1)
	go func() { res, err := slow.Publish(t.Context(), s.plan(0)); half <- answer{res, err} }()
	<-reached
	c := &command{t: t, env: map[string]string{"COMMITSTEP_STORE": s.DSN, "COMMITSTEP_BY": "alice", "HOME": t.TempDir()}}
	require.Contains(t, c.exits(cli.ExitOK, "store", "check"), "none of them is synchronous")
	there, err := pgstore.Open(t.Context(), standby.URL("postgres")+"&schema="+s.schema(), nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := there.Get(t.Context(), commitstep.Key{Job: jobName, Dataset: "d0000"})
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, there.Close())
	standby.Stop()
	close(goOn)
	a := <-half
	require.NoError(t, a.err)
	require.Equal(t, driver.StatusCompleted, a.res.Status)
	quick, _ := s.open(t, s.DSN, "quick", nil)
	lost, err := quick.Publish(t.Context(), s.plan(1))
	require.NoError(t, err)
	require.NoError(t, slow.Close(t.Context()))

	primary.StopImmediate()
	require.NoError(t, standby.Restart(t.Context()))
	require.NoError(t, standby.Promote(t.Context()))
	// The instance that joined after the standby had stopped is not known there:
	// its driver joins anew, and goes on.
	var res driver.Result
	for res.Status == "" {
		if res, err = quick.Publish(t.Context(), s.plan(2)); res.Status == "" {
			require.ErrorIs(t, err, commitstep.ErrFenced)
		}
	}

	e, st := s.open(t, s.DSN, "after", nil)
	require.Eventually(t, func() bool { // once the lease of the first driver has ended
		rep, err := e.Recover(t.Context(), jobName)
		require.NoError(t, err)
		return len(rep.NotFree()) == 0
	}, 2*time.Minute, 200*time.Millisecond)
	past, err := st.LookupHistory(t.Context(), a.res.ID)
	require.NoError(t, err)
	require.Equal(t, 3, past.Notes.Already, "its renames were found in place")
	require.Equal(t, 1, past.Notes.Executed, "its watermark had not been set there")
	_, err = st.LookupHistory(t.Context(), lost.ID)
	require.ErrorIs(t, err, commitstep.ErrNotFound)
	res, err = e.Publish(t.Context(), s.plan(2))
	require.NoError(t, err)
	require.Equal(t, driver.StatusCompleted, res.Status)
	res, err = e.Publish(t.Context(), s.plan(1))
	require.ErrorContains(t, err, s.Datasets[1].Staging, "its files are published already")
	require.Empty(t, res.Status)
	wm, err := e.Watermark(t.Context(), jobName, "d0001")
	require.NoError(t, err)
	require.True(t, wm.IsNone(), "what was acknowledged is lost")

	require.NoError(t, quick.Close(t.Context()))
	require.NoError(t, e.Close(t.Context()))
	c.exits(cli.ExitOK, "store", "stamp", "--reason", "failed over to an asynchronous standby", "--yes")
	c.exits(cli.ExitDecision, "recover", "--job", jobName)
	c.exits(cli.ExitOK, "store", "adopt", "--reason", "the old primary is gone", "--yes")
	c.exits(cli.ExitDecision, "recover", "--job", jobName)
	require.Contains(t, c.err.String(), "watermark accept")
}

// The standby that is promoted lacks a claim, and gives its epoch again. The
// driver that made the first one is fenced at its next write, and the one that
// made the second ends the sequence.
func TestTheClaimThatAFailoverLost(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	s := newSceneAt(t, either(primary, standby), 1)
	at := func(point string) (kill func(string), reached, goOn chan struct{}) {
		reached, goOn = make(chan struct{}), make(chan struct{})
		var once sync.Once
		return func(p string) {
			if p == point {
				once.Do(func() { close(reached); <-goOn })
			}
		}, reached, goOn
	}
	ctx, stop := context.WithCancel(t.Context())
	first, _ := s.open(t, s.DSN, "first", func(p string) {
		if p == "put.after" {
			stop()
		}
	})
	left, err := first.Publish(ctx, s.plan(0))
	require.Error(t, err)
	require.Equal(t, driver.StatusStopped, left.Status)
	kill, reached, goOn := at("execute.before#0")
	lost, _ := s.open(t, s.DSN, "lost", kill)
	conn, err := pgx.Connect(t.Context(), standby.URL("postgres"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var there bool
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT NOT held AND EXISTS (SELECT FROM `+s.schema()+`.instances WHERE name = 'lost') FROM `+s.schema()+`.sequences`).Scan(&there))
		return there
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, conn.Close(t.Context()))
	standby.Stop()
	recoverOn := func(e *driver.Engine) chan driver.Result {
		out := make(chan driver.Result, 1)
		go func() {
			rep, err := e.Recover(t.Context(), jobName)
			if err != nil || len(rep.Results) != 1 {
				t.Errorf("%d results, %v", len(rep.Results), err)
				rep.Results = make([]driver.Result, 1)
			}
			out <- rep.Results[0]
		}()
		return out
	}
	ofLost := recoverOn(lost)
	<-reached

	primary.StopImmediate()
	require.NoError(t, standby.Restart(t.Context()))
	require.NoError(t, standby.Promote(t.Context()))
	kill, second, goOnSecond := at("complete.before")
	next, st := s.open(t, s.DSN, "next", kill)
	ofNext := recoverOn(next)
	<-second
	now, err := st.Find(t.Context(), left.ID)
	require.NoError(t, err)
	require.EqualValues(t, 2, now.Epoch, "as the claim that was lost")
	close(goOn)
	res := <-ofLost
	require.Equal(t, driver.StatusFenced, res.Status, res.Message)
	require.Contains(t, res.Holder, "next")
	close(goOnSecond)
	res = <-ofNext
	require.Equal(t, driver.StatusCompleted, res.Status, res.Message)
	require.Empty(t, res.EndedBy, "by itself")
	s.judge(t)
}

// A commit that was waiting for its standby when its connection was given up is
// visible on the primary alone. Nobody hears that it succeeded before the standby
// has it too.
func TestACommitThatNoStandbyHas(t *testing.T) {
	t.Parallel()
	primary, standby := pair(t)
	s := newSceneAt(t, primary.URL("postgres"), 1)
	conn := s.conn(t)
	e, _ := s.open(t, s.DSN+"&statement_timeout=100ms&lock_timeout=100ms", "driver", nil)
	require.NoError(t, primary.Synchronous(t.Context(), "second"))
	standby.Stop()
	published := make(chan error, 1)
	go func() { _, err := e.Publish(t.Context(), s.plan(0)); published <- err }()
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM sequences`).Scan(&n))
		return n == 1
	}, time.Minute, 20*time.Millisecond, "its connection is given up, and the server stops waiting")
	// What asks again finds it there, and may still not say so.
	var asks int
	require.Eventually(t, func() bool {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&asks))
		return asks > 0
	}, time.Minute, 20*time.Millisecond)
	select {
	case err := <-published:
		t.Fatalf("acknowledged on one server: %v", err)
	default:
	}
	b, err := os.ReadFile(s.path("renames.log"))
	require.NoError(t, err)
	require.Empty(t, b, "no effect without a durable plan")
	require.NoError(t, standby.Restart(t.Context()))
	require.NoError(t, <-published)
	s.judge(t)
	for range st(t, s).Scan(t.Context(), store.Filter{}) {
		t.Error("something is left")
	}
}

func st(t *testing.T, s *scene) *pgstore.Store {
	t.Helper()
	out, err := pgstore.Open(t.Context(), s.DSN, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = out.Close() })
	return out
}
