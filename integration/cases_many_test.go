package integration_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// Names that others mangle, hide, or let escape all come back byte for byte,
// are recovered, and are different.
func TestCaseC59NamesComeBackByteForByte(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	hangul := strings.Repeat("한", 100)
	require.Len(t, hangul, 300)
	names := []string{"a b", "a:b", "a_b", "a/b", "a", "A", "a%2Fb", "a%b", "..", "../escape", "/abs", ".", ".hidden", "_hidden", ":x", "-x", "default_dataset_urn",
		"caf\u00e9", "cafe\u0301", "日本", hangul, "nul\x00inside", "new\nline", " ", "\t", "\u200b", "back\\slash", "+", "+/", "%", strings.Repeat("x", commitstep.MaxNameBytes)}
	e := b.open(settings{})
	for i, n := range names {
		require.True(t, utf8.ValidString(n))
		b.put(fmt.Sprint("in/", i), n)
		plan := commitstep.NewPlan(n, n).WithID(n).Lock(n).Step(fsrename.Move(fmt.Sprint("in/", i), fmt.Sprint("out/", i))).
			Then(watermark.Set(n, commitstep.None(), commitstep.Text(n)))
		ctx, stop := context.WithCancel(t.Context())
		stopping, err := engineOn(e.store, b.root, settings{conf: driver.Config{KillPoint: func(p string) {
			if p == "put.after" {
				stop()
			}
		}}})
		require.NoError(t, err)
		_, err = stopping.Publish(ctx, plan)
		var unfinished *driver.NotFinishedError
		require.ErrorAs(t, err, &unfinished, "%q", n)
		require.NoError(t, stopping.Engine.Close(t.Context()))
		require.NoError(t, stopping.files.Close())
		stop()
	}
	e.shut(t)
	e = b.open(settings{})
	var listed []string
	for live, err := range e.store.Scan(t.Context(), allOf("")) {
		require.NoError(t, err)
		require.Equal(t, live.Job, live.Dataset)
		listed = append(listed, live.Dataset)
	}
	require.ElementsMatch(t, names, listed)
	for i, n := range names {
		rep, err := e.Recover(t.Context(), n)
		require.NoError(t, err)
		require.Len(t, rep.Results, 1, "%q", n)
		require.Equal(t, driver.StatusCompleted, rep.Results[0].Status)
		require.Equal(t, n, b.get(fmt.Sprint("out/", i)))
		w, err := e.Watermark(t.Context(), n, n)
		require.NoError(t, err)
		require.Equal(t, commitstep.Text(n), w)
	}
	var ended []string
	for h, err := range e.store.ListHistory(t.Context(), historyOf("")) {
		require.NoError(t, err)
		ended = append(ended, h.Dataset)
	}
	require.ElementsMatch(t, names, ended)
	for _, wrong := range []string{"", "caf\xe9", strings.Repeat("x", commitstep.MaxNameBytes+1)} {
		_, err := e.Publish(t.Context(), commitstep.NewPlan("j", wrong).Step(watermark.Set("w", commitstep.None(), commitstep.Int(1))))
		var refused *commitstep.PlanError
		require.ErrorAs(t, err, &refused, "%q", wrong)
	}
	e.shut(t)
	// Nothing was written outside the store's file.
	entries, err := os.ReadDir(b.root)
	require.NoError(t, err)
	for _, x := range entries {
		require.Contains(t, []string{"data", "commit.db"}, x.Name())
	}
}

// Two plans for one dataset: the second is refused and names the first; of many
// at once exactly one is stored, and whole.
func TestOnlyOneSequencePerDataset(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.open(settings{})
	for round := range 20 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for i := range 16 {
			b.put(fmt.Sprintf("in/%d/%d", round, i), "x")
			wg.Go(func() {
				_, err := e.Publish(t.Context(), b.move(fmt.Sprint("d", round), fmt.Sprintf("in/%d/%d", round, i), fmt.Sprintf("out/%d/%d", round, i)))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, won)
		entries, err := os.ReadDir(b.path(fmt.Sprint("out/", round)))
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}
	require.Len(t, e.outcomes(t), 20)
	e.shut(t)
	b.put("in/a", "a")
	b.put("in/b", "b")
	b.promise(b.move("twice", "in/a", "out/a"))
	e = b.open(settings{})
	_, err := e.Publish(t.Context(), b.move("twice", "in/b", "out/b"))
	var pending *commitstep.PendingError
	require.ErrorAs(t, err, &pending)
	require.Equal(t, commitstep.Pending, pending.State)
	e.shut(t)
}

// Put, look and complete of many datasets at once: nothing that was accepted
// disappears.
func TestManyDatasetsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	e := b.open(settings{})
	var wg sync.WaitGroup
	const workers, each = 16, 20
	for g := range workers {
		wg.Go(func() {
			for i := range each {
				d := fmt.Sprintf("a/%d/%d", g, i)
				res, err := e.Publish(t.Context(), commitstep.NewPlan("j", d).Step(watermark.Set(d, commitstep.None(), commitstep.Int(1))))
				if err != nil || res.Status != driver.StatusCompleted {
					t.Errorf("%s: %v", d, err)
				}
				if _, err := e.store.LookupHistory(t.Context(), res.ID); err != nil {
					t.Errorf("%s was accepted and is gone: %v", d, err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, e.outcomes(t), workers*each)
	e.shut(t)
	e = b.open(settings{})
	require.Len(t, e.outcomes(t), workers*each)
	e.shut(t)
}

// Two processes: the second is told who has the store, and does nothing.
func TestCaseC43TwoProcesses(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	p := testkit.Start(t, "open", b.db())
	p.WaitLine("open")
	_, err := boltstore.Open(b.db(), nil)
	require.ErrorIs(t, err, boltstore.ErrLocked)
	require.Contains(t, err.Error(), fmt.Sprint("pid ", p.PID()))
	p.Kill()
	st, err := boltstore.Open(b.db(), nil)
	require.NoError(t, err, "the lock died with its owner")
	require.NoError(t, st.Close())
}

// Two recoveries in one process: one runs the sequence, the other says who has
// it, and the effect happens once.
func TestCaseC43TwoRecoveries(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	b.promise(b.move("d", "in", "out/f"))
	inside, leave := make(chan struct{}), make(chan struct{})
	slow := faulty{onRename: func(_, _ commitstep.Address, next func() error) error {
		close(inside) // a second call would panic
		<-leave
		return next()
	}}.with()
	e := b.open(slow)
	var first driver.Result
	var wg sync.WaitGroup
	wg.Go(func() { first, _ = e.recoverOne(t, "d") })
	<-inside
	other, err := engineOn(e.store, b.root, settings{})
	require.NoError(t, err)
	res, free := other.recoverOne(t, "d")
	require.Equal(t, driver.StatusBusy, res.Status)
	require.Contains(t, res.Holder, fmt.Sprint("pid ", os.Getpid()))
	require.False(t, free)
	close(leave)
	wg.Wait()
	require.Equal(t, driver.StatusCompleted, first.Status)
	require.NoError(t, other.Engine.Close(t.Context()))
	require.NoError(t, other.files.Close())
	e.shut(t)
}
