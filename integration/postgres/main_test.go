// Package postgres_test runs real drivers, each a process of its own, on one
// store in PostgreSQL: killed, frozen for longer than their leases, and thawed.
package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/internal/testkit/pgkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/pgstore"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

var kit pgkit.Kit

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"duelist": duelist, "owner": owner, "copier": copier})
	os.Exit(kit.Run(m))
}

// leaseTTL is short, so that a test can wait for its end.
const leaseTTL = 1500 * time.Millisecond

const jobName = "duel"

// scene is the world of one test: files, and what is to be published. Children
// read it from scene.json.
type scene struct {
	DSN      string
	Root     string
	Datasets []dataset
}

type dataset struct {
	Name    string
	Staging string // unique to its run
	Files   []string
}

func newScene(t *testing.T, datasets int) *scene {
	t.Helper()
	return newSceneAt(t, kit.Cluster(t).URL("postgres"), datasets)
}

// newSceneAt makes a scene whose store is at the given address.
func newSceneAt(t *testing.T, address string, datasets int) *scene {
	t.Helper()
	s := &scene{Root: t.TempDir(), DSN: address + "&schema=" + kit.Name()}
	m, err := pgstore.NewMigrator(t.Context(), s.DSN, nil)
	require.NoError(t, err)
	_, err = m.Up(t.Context(), 0)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	for i := range datasets {
		d := dataset{Name: fmt.Sprintf("d%04d", i), Staging: fmt.Sprintf("staging/d%04d/run-%s", i, uuid.New()), Files: []string{"1.avro", "2.avro", "3.avro"}}
		require.NoError(t, os.MkdirAll(filepath.Join(s.Root, d.Staging), 0o755))
		for _, f := range d.Files {
			require.NoError(t, os.WriteFile(filepath.Join(s.Root, d.Staging, f), []byte(d.Name+" "+f), 0o644))
		}
		s.Datasets = append(s.Datasets, d)
	}
	b, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.path("scene.json"), b, 0o644))
	return s
}

// address is where the store is, without its schema.
func (s *scene) address() string { return s.DSN[:strings.LastIndex(s.DSN, "&schema=")] }

func (s *scene) schema() string { return s.DSN[strings.LastIndex(s.DSN, "=")+1:] }

func (s *scene) path(name string) string { return filepath.Join(s.Root, name) }

func readScene(path string) (*scene, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := new(scene)
	return s, json.Unmarshal(b, s)
}

// plan moves the files of dataset i and then its watermark. Its id is the same
// in every process, so publishing it again is harmless.
func (s *scene) plan(i int) *commitstep.Plan {
	d := s.Datasets[i]
	p := commitstep.NewPlan(jobName, d.Name).WithID("plan of " + d.Name)
	p.BaseDir = s.Root
	for _, f := range d.Files {
		p.Step(fsrename.Move(d.Staging+"/"+f, "out/"+d.Name+"/"+f))
	}
	return p.Then(watermark.Set(d.Name, commitstep.None(), commitstep.Int(int64(i+1))))
}

// counting is a file system that writes every rename it made into a log of the
// target: one line, appended in one call.
type counting struct {
	filesys.FS
	log *os.File
}

func (c *counting) Rename(ctx context.Context, from, to commitstep.Address) error {
	err := c.FS.Rename(ctx, from, to)
	if err == nil {
		if _, werr := fmt.Fprintf(c.log, "%s\n", to.Path); werr != nil {
			return werr
		}
	}
	return err
}

func (s *scene) files() (filesys.FS, error) {
	files, err := local.New(s.Root)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.path("renames.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return &counting{files, log}, err
}

// help recovers the job once, with a driver of the test's own process.
func (s *scene) help(t *testing.T, st *pgstore.Store) (driver.Report, error) {
	t.Helper()
	files, err := s.files()
	require.NoError(t, err)
	e, err := driver.New(driver.Config{Store: st, Owner: "helper", Kinds: commitstep.NewRegistry(fsrename.Kind(files), watermark.Kind(st))})
	require.NoError(t, err)
	rep, err := e.Recover(t.Context(), jobName)
	require.NoError(t, e.Close(context.Background()))
	return rep, err
}

// engine is a driver of this process.
func (s *scene) engine(c *testkit.Child, kill func(point string)) (*driver.Engine, *pgstore.Store, error) {
	files, err := s.files()
	if err != nil {
		return nil, nil, err
	}
	st, err := pgstore.Open(context.Background(), s.DSN, &pgstore.Options{LeaseTTL: leaseTTL, MaxConns: 4})
	if err != nil {
		return nil, nil, err
	}
	// A step whose process is killed again and again would rightly be parked.
	e, err := driver.New(driver.Config{Store: st, KillPoint: kill, Policy: driver.Policy{MaxAttempts: 1000}, Concurrency: 4, Owner: fmt.Sprint("driver ", os.Getpid()),
		Kinds: commitstep.NewRegistry(fsrename.Kind(files), watermark.Kind(st)),
		Observer: driver.ObserverFunc(func(_ context.Context, ev driver.Event) {
			if ev.Type == driver.EventFenced {
				c.Say("fenced %q %s", ev.Key.Dataset, ev.Message)
			}
		})})
	return e, st, err
}

// stopSelf stops this process until somebody lets it go on.
func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// duelist publishes its share of the datasets and helps with what others left.
// Arguments: scene, its number, how many there are.
func duelist(c *testkit.Child) int {
	s, err := readScene(c.Args[0])
	if err != nil {
		return c.Fail("%v", err)
	}
	var number, of int
	if _, err := fmt.Sscan(c.Args[1], &number); err != nil {
		return c.Fail("%v", err)
	}
	if _, err := fmt.Sscan(c.Args[2], &of); err != nil {
		return c.Fail("%v", err)
	}
	e, st, err := s.engine(c, func(point string) {
		time.Sleep(rand.N(8 * time.Millisecond)) // gives the signals something to hit
		if strings.HasPrefix(point, "execute.before") && rand.N(120) == 0 {
			c.Say("frozen")
			stopSelf()
		}
	})
	if err != nil {
		return c.Fail("%v", err)
	}
	ctx := context.Background()
	c.Say("ready")
	for i := range s.Datasets {
		if i%of != number {
			continue
		}
		_, err := e.Publish(ctx, s.plan(i))
		if err != nil {
			c.Say("publish %d: %v", i, err)
		}
		if i%(of*5) == number {
			if _, err := e.Recover(ctx, jobName, driver.Budget(2*time.Second)); err != nil {
				c.Say("recover: %v", err)
			}
		}
	}
	for {
		rep, err := e.Recover(ctx, jobName, driver.Budget(2*time.Second))
		if err != nil {
			c.Say("recover: %v", err)
		} else if len(rep.Counts) == 0 || rep.Counts[driver.StatusCompleted] == len(rep.Results) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := e.Close(ctx); err != nil {
		return c.Fail("%v", err)
	}
	if err := st.Close(); err != nil {
		return c.Fail("%v", err)
	}
	c.Say("done")
	return 0
}

// owner publishes the first dataset, waits right before the second rename until it
// was stopped and woken up, and says what it heard then.
func owner(c *testkit.Child) int {
	s, err := readScene(c.Args[0])
	if err != nil {
		return c.Fail("%v", err)
	}
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, syscall.SIGCONT)
	e, st, err := s.engine(c, func(point string) {
		if point == "execute.before#1" {
			c.Say("asleep")
			<-woken
		}
	})
	if err != nil {
		return c.Fail("%v", err)
	}
	ctx := context.Background()
	res, err := e.Publish(ctx, s.plan(0))
	c.Say("first %s already=%v by=%q %v", res.Status, res.Already, res.EndedBy, err)
	res, err = e.Publish(ctx, s.plan(0))
	c.Say("second %s already=%v %v", res.Status, res.Already, err)
	if err := e.Close(ctx); err != nil {
		return c.Fail("%v", err)
	}
	if err := st.Close(); err != nil {
		return c.Fail("%v", err)
	}
	return 0
}
