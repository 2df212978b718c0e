package watermark_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
)

func isErr(err, target error) bool { return errors.Is(err, target) }

func requirePlanError(t *testing.T, err error) {
	t.Helper()
	var pe *commitstep.PlanError
	if !errors.As(err, &pe) {
		t.Fatalf("want one clear refusal, got %v", err)
	}
}

func requireMark(t *testing.T, f *watermark.FileTarget, want commitstep.Watermark) {
	t.Helper()
	got, err := f.Read(t.Context(), topic)
	if err != nil || got != want {
		t.Fatalf("the watermark is %s (%v), want %s", got, err, want)
	}
}

func move(from, to commitstep.Watermark) commitstep.WatermarkMove {
	return commitstep.WatermarkMove{WatermarkKey: topic, From: from, To: to, Token: uuid.New()}
}

// climb adds one, n times, against all others who do the same.
func climb(ctx context.Context, f *watermark.FileTarget, n int) error {
	for done := 0; done < n; {
		now, err := f.Read(ctx, topic)
		if err != nil {
			return err
		}
		v, _ := now.Int64()
		err = f.CompareAndSet(ctx, move(now, now.Next(v+1)), uuid.Nil)
		switch {
		case err == nil:
			done++
		case !errors.Is(err, commitstep.ErrStale):
			return err
		case commitstep.ClassOf(err) != commitstep.ClassRefused:
			return fmt.Errorf("a lost race is %s, not refused: %w", commitstep.ClassOf(err), err)
		}
	}
	return nil
}

// Every success adds one: if any were lost or counted twice, the sum is wrong.
func TestManyWritersLoseNothing(t *testing.T) {
	t.Parallel()
	const goroutines, processes, each = 16, 3, 8
	f := openFiles(t)
	if err := f.Set(t.Context(), topic, commitstep.None(), commitstep.Int(0)); err != nil {
		t.Fatal(err)
	}
	var children []*testkit.Process
	for range processes {
		children = append(children, testkit.Start(t, "climb", f.Dir()))
	}
	for _, c := range children {
		c.WaitLine("ready")
	}
	for _, c := range children {
		c.Tell("%d", each)
	}
	var wg sync.WaitGroup
	for i := range goroutines {
		g := f
		if i%2 == 1 { // half of them know each other only through the file lock
			var err error
			if g, err = watermark.Files("marks", f.Dir()); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			if err := climb(t.Context(), g, each); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range children {
		c.WaitLine("climbed")
	}
	requireMark(t, f, commitstep.Int((goroutines+processes)*each))
}

// Two writers that both read 100 and then both write: one wins, whoever it is.
func TestOnlyOneOfManyWins(t *testing.T) {
	t.Parallel()
	f := openFiles(t)
	from, to := commitstep.None(), commitstep.Int(0)
	for round := range 20 {
		if err := f.Set(t.Context(), topic, from, to); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		wins := map[int64]bool{}
		start := make(chan struct{})
		for i := range int64(8) {
			v := to.Next(1000*int64(round+1) + i)
			wg.Go(func() {
				<-start
				err := f.CompareAndSet(t.Context(), move(to, v), uuid.Nil)
				mu.Lock()
				defer mu.Unlock()
				n, _ := v.Int64()
				if err == nil {
					wins[n] = true
				} else if !errors.Is(err, commitstep.ErrStale) {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		now, err := f.Read(t.Context(), topic)
		if n, _ := now.Int64(); err != nil || len(wins) != 1 || !wins[n] {
			t.Fatalf("round %d: %v won, stored is %s (%v)", round, wins, now, err)
		}
		from, to = now, commitstep.Int(int64(round)) // turned back by hand
	}
}

// Names that are equal to some file system, or odd to all, are different
// watermarks and are listed back exactly.
func TestOddNamesAreDifferentWatermarks(t *testing.T) {
	t.Parallel()
	names := []string{"a", "A", "a.", "a b", "a/b", "a:b", "a+", "a%2Fb", "..", ".", "_x", ".x", "/abs", "x.lock", "x.tmp", "x.watermark", "x",
		"_commitstep_watermarks", "commitstep-watermarks", "caf\u00e9", "cafe\u0301", strings.Repeat("\ud55c", 341), strings.Repeat("a", 1024), strings.Repeat("A", 1024)}
	f := openFiles(t)
	want := map[commitstep.WatermarkKey]commitstep.Watermark{}
	for i, job := range names {
		// Not all pairs: each name as job and as source, in different company.
		for _, j := range []int{i, (i + 7) % len(names)} {
			k := commitstep.WatermarkKey{Job: job, Source: names[j]}
			want[k] = commitstep.Int(int64(len(want)))
			if err := f.Set(t.Context(), k, commitstep.None(), want[k]); err != nil {
				t.Fatalf("%q %q: %v", k.Job, k.Source, err)
			}
		}
	}
	got := map[commitstep.WatermarkKey]commitstep.Watermark{}
	for v, err := range f.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[v.WatermarkKey]; twice {
			t.Fatalf("%v is listed twice", v.WatermarkKey)
		}
		got[v.WatermarkKey] = v.Watermark
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%q of %q is listed as %s, want %s", k.Source, k.Job, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d are listed, %d were set", len(got), len(want))
	}
}

func TestSetByHandIsCompareAndSet(t *testing.T) {
	t.Parallel()
	f := openFiles(t)
	set := func(from, to commitstep.Watermark) error { return f.Set(t.Context(), topic, from, to) }
	if err := set(commitstep.Int(1), commitstep.Int(2)); !errors.Is(err, commitstep.ErrStale) {
		t.Fatalf("set from a value that is not there: %v", err)
	}
	for _, step := range [][2]commitstep.Watermark{
		{commitstep.None(), commitstep.Int(100)},
		{commitstep.Int(100), commitstep.Int(50)}, // a person may turn it back
		{commitstep.Int(50), commitstep.Text("2015-12-09").InEpoch(3)},
	} {
		if err := set(step[0], step[1]); err != nil {
			t.Fatalf("%s -> %s: %v", step[0], step[1], err)
		}
	}
	v, err := f.Watermark(t.Context(), topic)
	if err != nil || v.Sequence != uuid.Nil || v.SetAt.IsZero() || v.Watermark != commitstep.Text("2015-12-09").InEpoch(3) {
		t.Fatalf("stored %+v, %v", v, err)
	}
	err = set(commitstep.Int(100), commitstep.Int(60))
	if !errors.Is(err, commitstep.ErrStale) || !strings.Contains(err.Error(), "2015-12-09") || !strings.Contains(err.Error(), "100") {
		t.Fatalf("%v does not say both values", err)
	}
	requirePlanError(t, set(v.Watermark, commitstep.None()))
	requirePlanError(t, set(v.Watermark, v.Watermark))
}
