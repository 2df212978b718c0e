package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{"writer": writer, "opener": opener, "holder": holder})
	goleak.VerifyTestMain(m)
}

// writer puts and completes from many goroutines until it is killed, and says
// what was acknowledged.
func writer(c *testkit.Child) int {
	ctx := context.Background()
	s, err := Open(c.Args[0], &Options{MarkDelay: 5 * time.Millisecond})
	if err != nil {
		return c.Fail("open: %v", err)
	}
	in := commitstep.Instance{ID: uuid.New()}
	if _, err := s.Join(ctx, in); err != nil {
		return c.Fail("join: %v", err)
	}
	var mu sync.Mutex
	say := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		c.Say(format, a...)
	}
	say("ready")
	failed := make(chan error, 1)
	for g := range 8 {
		go func() {
			for i := 0; ; i++ {
				n := 3
				if g == 0 {
					n = 3*store.PageSize + 1
				}
				k := dataset(fmt.Sprintf("%s-%d-%d", c.Args[1], g, i))
				l, err := s.Put(ctx, draft(k, n, func(h *commitstep.Header) { h.Locks = []string{k.Dataset}; h.PlanID = "p" }), in.ID)
				if err == nil {
					say("put %s", l.ID)
					err = s.Record(ctx, fenceOf(l), i%3 == 0, store.Event{Type: store.EventDone, Step: 1})
				}
				if err == nil && i%3 == 0 {
					say("mark %s", l.ID)
				}
				if err == nil && i%2 == 0 {
					if err = s.Complete(ctx, fenceOf(l), i%4 == 0, store.HistoryNotes{}); err == nil {
						say("done %s", l.ID)
					}
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return c.Fail("%v", <-failed)
}

// opener opens a store and says what came of it.
func opener(c *testkit.Child) int {
	start := time.Now()
	s, err := Open(c.Args[0], nil)
	took := time.Since(start)
	switch {
	case err == nil:
		c.Say("opened in %s", took)
		return 0
	case errors.Is(err, ErrLocked):
		c.Say("locked %d %s", took.Milliseconds(), err)
	case errors.Is(err, fs.ErrPermission):
		c.Say("permission %s", err)
	default:
		c.Say("error %s", err)
	}
	_ = s
	return 0
}

// holder opens a store and keeps it until it is killed.
func holder(c *testkit.Child) int {
	s, err := Open(c.Args[0], nil)
	if err != nil {
		return c.Fail("%v", err)
	}
	c.Say("open")
	c.Hear()
	if err := s.Close(); err != nil {
		return c.Fail("%v", err)
	}
	c.Say("closed")
	c.Hear()
	return 0
}

func TestNothingAcknowledgedIsLostByAKill(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "a.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for round := range 6 {
		p := testkit.Start(t, "writer", path, fmt.Sprint(round))
		p.WaitLine("ready")
		acknowledged := map[string][]uuid.UUID{}
		for i := range 40 + 60*round {
			what, id, _ := strings.Cut(p.Line(), " ")
			acknowledged[what] = append(acknowledged[what], uuid.MustParse(id))
			_ = i
		}
		p.Kill()

		s, err := Open(path, nil)
		require.NoError(t, err)
		require.NoError(t, s.waitCollected(ctx))
		ended := map[uuid.UUID]bool{}
		for _, id := range acknowledged["done"] {
			e, err := s.LookupHistory(ctx, id)
			require.NoError(t, err)
			require.Equal(t, commitstep.Completed, e.State)
			ended[id] = true
		}
		for _, id := range append(acknowledged["put"], acknowledged["mark"]...) {
			if _, err := s.LookupHistory(ctx, id); err == nil {
				continue // completed, and killed before it could say so
			}
			_, err := s.Find(ctx, id)
			require.NoError(t, err, "acknowledged and lost")
		}
		for _, id := range acknowledged["mark"] {
			if _, err := s.LookupHistory(ctx, id); err == nil {
				continue
			}
			page, err := s.Steps(ctx, id, 0)
			require.NoError(t, err)
			require.True(t, page.Progress[1].Done)
		}
		// What was not acknowledged is there whole, or not at all.
		for l, err := range s.Scan(ctx, store.Filter{}) {
			require.NoError(t, err)
			for n := 0; n*store.PageSize < l.Steps; n++ {
				page, err := s.Steps(ctx, l.ID, n)
				require.NoError(t, err)
				require.Len(t, page.Steps, min(store.PageSize, l.Steps-n*store.PageSize))
			}
		}
		for p, err := range s.Check(ctx) {
			t.Errorf("check: %s (%v)", p, err)
		}
		require.NoError(t, s.Close())
	}
}

func TestTheSecondOwnerIsToldWhoTheFirstIs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)

	for range 2 { // another process, and this one
		start := time.Now()
		_, err = Open(path, nil)
		require.ErrorIs(t, err, ErrLocked)
		require.Less(t, time.Since(start), 2*time.Second)
		require.ErrorContains(t, err, fmt.Sprintf("pid %d on host %s", os.Getpid(), host))
	}
	p := testkit.Start(t, "opener", path)
	said := p.WaitLine("locked")
	var ms int
	_, err = fmt.Sscan(said, &ms)
	require.NoError(t, err)
	require.Less(t, ms, 2000)
	require.Contains(t, said, fmt.Sprintf("pid %d on host %s", os.Getpid(), host))
	require.NoError(t, s.Close())
	require.NoFileExists(t, path+".owner")

	// An owner that was killed is not named any more, and is in nobody's way.
	h := testkit.Start(t, "holder", path)
	h.WaitLine("open")
	_, err = Open(path, nil)
	require.ErrorContains(t, err, fmt.Sprintf("pid %d ", h.PID()))
	h.Kill()
	require.FileExists(t, path+".owner", "it left its note behind")
	s, err = Open(path, nil)
	require.NoError(t, err)
	_, err = Open(path, &Options{LockWait: time.Millisecond})
	require.ErrorContains(t, err, fmt.Sprintf("pid %d ", os.Getpid()))
	require.NoError(t, s.Close())
}

func TestAnOwnerThatGoesWithinTheWaitIsNoError(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	h := testkit.Start(t, "holder", path)
	h.WaitLine("open")
	opened := make(chan error, 1)
	go func() {
		s, err := Open(path, &Options{LockWait: testkit.Patience})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	h.Tell("close")
	h.WaitLine("closed")
	require.NoError(t, <-opened)
}

func TestAFileOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may start a child under another user")
	}
	dir, err := os.MkdirTemp("/tmp", "boltstore")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "a.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for _, mode := range []os.FileMode{0o600, 0o444} {
		require.NoError(t, os.Chmod(path, mode))
		p := testkit.StartWith(t, "opener", []string{path}, testkit.AsUser(65534, 65534))
		require.Contains(t, p.WaitLine("permission"), path)
	}
}

func TestWhatIsNoStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	foreign := filepath.Join(dir, "foreign")
	require.NoError(t, createForeign(foreign))
	for _, c := range []struct {
		path string
		want error
		says string
	}{
		{filepath.Join(dir, "absent"), ErrAbsent, "commitstep store init"},
		{filepath.Join(dir, "no", "such", "dir"), ErrAbsent, "commitstep store init"},
		{file("empty", ""), ErrEmpty, "commitstep store init"},
		{dir, ErrNotFile, "directory"},
		{"/dev/null", ErrNotFile, ""},
		{file("text", "hello"), ErrNotStore, "commitstep store init"},
		{file("long", strings.Repeat("hello ", 10_000)), ErrNotStore, "commitstep store init"},
		{file("zeros", string(make([]byte, 1<<16))), ErrNotStore, ""},
		{foreign, ErrNotStore, "commitstep store init"},
	} {
		before, _ := os.ReadFile(c.path)
		_, err := Open(c.path, nil)
		require.ErrorIs(t, err, c.want, c.path)
		require.ErrorContains(t, err, c.path)
		require.ErrorContains(t, err, c.says)
		after, _ := os.ReadFile(c.path)
		require.Equal(t, before, after, "nothing was changed")
		require.NoFileExists(t, c.path+".owner")
	}
	require.NoFileExists(t, filepath.Join(dir, "absent"), "opening never creates")
}

func TestInit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	id := s.Info().ID
	for range 2 { // in use, and closed
		_, err = Init(path, nil)
		require.ErrorIs(t, err, fs.ErrExist)
		require.NoError(t, s.Close())
	}
	s = openStore(t, path, nil)
	require.Equal(t, id, s.Info().ID)

	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("precious"), 0o600))
	_, err = Init(text, nil)
	require.ErrorIs(t, err, fs.ErrExist)
	b, err := os.ReadFile(text)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
	_, err = Init(dir, nil)
	require.ErrorIs(t, err, fs.ErrExist)

	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	openStore(t, initClosed(t, empty), nil)
	_, err = Init(filepath.Join(dir, "no", "dir"), nil)
	require.ErrorIs(t, err, fs.ErrNotExist)

	// Of many that start at once one makes it, the others find it.
	for name, prepare := range map[string]func(string){"raced": func(string) {}, "raced empty": func(p string) { require.NoError(t, os.WriteFile(p, nil, 0o600)) }} {
		raced := filepath.Join(dir, name)
		prepare(raced)
		var mu sync.Mutex
		var made []*Store
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				s, err := Init(raced, &Options{LockWait: time.Millisecond})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					made = append(made, s)
				} else if !errors.Is(err, fs.ErrExist) {
					t.Errorf("init: %v", err)
				}
			})
		}
		wg.Wait()
		require.Len(t, made, 1)
		require.NoError(t, made[0].Close())
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left, "no temporary files stay")
}

func initClosed(t *testing.T, path string) string {
	t.Helper()
	s, err := Init(path, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return path
}

func TestBackup(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t, nil)
	me := join(t, s)
	put(t, s, me, dataset("a"), 2*store.PageSize)
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	require.NoError(t, os.WriteFile(taken, []byte("x"), 0o600))
	require.ErrorIs(t, s.Backup(ctx, taken), fs.ErrExist)
	require.ErrorIs(t, s.Backup(ctx, s.path), fs.ErrExist)

	// Writers go on while copies are made; every copy is of one moment.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			l, err := s.Put(context.Background(), draft(dataset(fmt.Sprint(i)), 20, nil), me)
			if err == nil {
				err = s.Complete(context.Background(), fenceOf(l), false, store.HistoryNotes{})
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 5 {
		path := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, s.Backup(ctx, path))
		c := openStore(t, path, nil)
		require.Contains(t, c.Info().Stamped, s.path)
		l, err := c.Get(ctx, dataset("a"))
		require.NoError(t, err)
		require.Equal(t, 2*store.PageSize, l.Steps)
	}
	close(stop)
	wg.Wait()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, s.Backup(cancelled, filepath.Join(dir, "cancelled")), context.Canceled)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 6+5, "five copies, their owner notes, and what was there")
}
