package watermark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
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

// A process dies at every operation, before it and after it. What is stored is
// the old value or the new one, and the next process finishes the move.
func TestKilledAtEveryOperation(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		name, from, to := "first value", "none", "100"
		if !first {
			name, from, to = "next value", "100", "200"
		}
		for _, when := range []string{"before", "after"} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				for n := 0; ; n++ {
					dir := filepath.Join(t.TempDir(), "deep", "marks")
					if !first {
						f, err := watermark.Files("marks", dir, watermark.Create())
						if err != nil {
							t.Fatal(err)
						}
						if err := f.Set(t.Context(), topic, commitstep.None(), mark(from)); err != nil {
							t.Fatal(err)
						}
					}
					p := testkit.Start(t, "set", dir, from, to, fmt.Sprint(n), when)
					code, by := p.Exit()
					if code == 0 {
						if n < 8 {
							t.Fatalf("only %d operations: is the seam in place?", n)
						}
						return
					}
					if by != syscall.SIGKILL {
						t.Fatalf("operation %d: ended with %d: %s", n, code, p.Output())
					}
					f, err := watermark.Files("marks", dir, watermark.Create())
					if err != nil {
						t.Fatalf("operation %d: %v", n, err)
					}
					now, err := f.Read(t.Context(), topic)
					if err != nil || now != mark(from) && now != mark(to) {
						t.Fatalf("operation %d: stored is %s (%v)", n, now, err)
					}
					again := testkit.Start(t, "set", dir, from, to, "-1", "")
					again.WaitLine("set")
					requireMark(t, f, mark(to))
					for v, err := range f.List(t.Context()) {
						if err != nil || v.WatermarkKey != topic {
							t.Fatalf("operation %d: left behind %+v, %v", n, v, err)
						}
					}
				}
			})
		}
	}
}

// A writer is frozen while it holds the lock. Others wait, and give up with
// their context; nothing is written past it.
func TestFrozenWriterKeepsTheLock(t *testing.T) {
	t.Parallel()
	f := openFiles(t)
	if err := f.Set(t.Context(), topic, commitstep.None(), commitstep.Int(0)); err != nil {
		t.Fatal(err)
	}
	p := testkit.Start(t, "climb", f.Dir())
	p.WaitLine("ready")
	p.Tell("1000000") // until it is killed
	lock := filepath.Join(f.Dir(), strings.TrimSuffix(watermark.FileOf(topic), ".watermark")+".lock")
	held := func() bool {
		fd, err := syscall.Open(lock, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		return errors.Is(syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
	}
	for p.Freeze(); !held(); p.Freeze() { // until it is caught inside
		p.Thaw()
	}
	before, err := f.Read(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		v, _ := before.Int64()
		got <- f.CompareAndSet(ctx, move(before, commitstep.Int(v+1000)), uuid.Nil)
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) || commitstep.ClassOf(err) != commitstep.ClassNotSent {
		t.Fatalf("the waiting writer ends with %v (%s)", err, commitstep.ClassOf(err))
	}
	requireMark(t, f, before)
	p.Kill() // the kernel releases the lock
	now, err := f.Read(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	v, _ := now.Int64()
	if err := f.CompareAndSet(t.Context(), move(now, commitstep.Int(v+1000)), uuid.Nil); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens to the bytes of a value, it is read as it was or not at all.
func TestDamagedFileIsNeverNone(t *testing.T) {
	t.Parallel()
	f := openFiles(t)
	if err := f.Set(t.Context(), topic, commitstep.None(), commitstep.Int(100)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.Dir(), watermark.FileOf(topic))
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	refuses := func(what string, want error) {
		t.Helper()
		got, err := f.Read(t.Context(), topic)
		if !errors.Is(err, want) || !got.IsNone() && err == nil {
			t.Fatalf("%s: read as %s, %v", what, got, err)
		}
		if !strings.Contains(err.Error(), f.Dir()) {
			t.Fatalf("%s: %q does not name the file", what, err)
		}
		err = f.CompareAndSet(t.Context(), move(commitstep.None(), commitstep.Int(1)), uuid.Nil)
		if !errors.Is(err, want) || commitstep.ClassOf(err) != commitstep.ClassRefused {
			t.Fatalf("%s: written over: %v", what, err)
		}
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for cut := range good {
		write(good[:cut])
		refuses(fmt.Sprintf("cut to %d bytes", cut), commitstep.ErrDamaged)
	}
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x10
		write(bad)
		refuses(fmt.Sprintf("byte %d flipped", i), commitstep.ErrDamaged)
	}
	write(append(append([]byte(nil), good...), 0))
	refuses("one byte more", commitstep.ErrDamaged)
	write(commitstep.SealVersion(commitstep.RecordWatermark, commitstep.FormatVersion+1, []byte(topic.Lock()), []byte("{}")))
	refuses("a newer format", commitstep.ErrNewerFormat)

	other := topic
	other.Source = "MyTopic:1"
	if err := os.Rename(file, filepath.Join(f.Dir(), watermark.FileOf(other))); err != nil {
		t.Fatal(err)
	}
	otherFile := filepath.Join(f.Dir(), watermark.FileOf(other))
	if err := os.WriteFile(otherFile, good, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(t.Context(), other); !errors.Is(err, commitstep.ErrDamaged) {
		t.Fatalf("another source's file is read: %v", err)
	}
	for what, put := range map[string]func() error{
		"a dangling link": func() error { return os.Symlink("nowhere", file) },
		"a directory":     func() error { return os.Mkdir(file, 0o755) },
		"a pipe":          func() error { return syscall.Mkfifo(file, 0o644) },
	} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		refuses(what, commitstep.ErrDamaged)
	}
}

// A disk that is not mounted holds no watermarks, which is not "none".
func TestMissingDirectoryIsNeverNone(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := filepath.Join(base, "a", "marks")
	if _, err := watermark.Files("marks", dir); err == nil || !strings.Contains(err.Error(), "watermark.Create") {
		t.Fatalf("a missing directory is opened: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(base, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("opening made something: %v", err)
	}
	f, err := watermark.Files("marks", dir, watermark.Create())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Set(t.Context(), topic, commitstep.None(), commitstep.Int(1)); err != nil {
		t.Fatal(err)
	}
	if again, err := watermark.Files("marks", dir, watermark.Create()); err != nil {
		t.Fatalf("creating twice: %v", err)
	} else {
		requireMark(t, again, commitstep.Int(1))
	}
	cannotLook := func(what string) {
		t.Helper()
		if got, err := f.Read(t.Context(), topic); err == nil || errors.Is(err, commitstep.ErrNotFound) {
			t.Fatalf("%s: read as %s, %v", what, got, err)
		}
		if err := f.CompareAndSet(t.Context(), move(commitstep.None(), commitstep.Int(2)), uuid.Nil); commitstep.ClassOf(err) != commitstep.ClassNotSent {
			t.Fatalf("%s: writing ends with %v", what, err)
		}
	}
	away := filepath.Join(base, "away")
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	cannotLook("gone")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cannotLook("an empty mount point")
	if _, err := watermark.Files("marks", dir); err == nil {
		t.Fatal("an empty directory is opened")
	}
	if _, err := watermark.Files("marks", dir, watermark.Create()); err != nil {
		t.Fatal(err)
	}
	cannotLook("another watermark directory in its place")
	for what, b := range map[string][]byte{"empty": nil, "damaged": []byte("CS")} {
		if err := os.WriteFile(filepath.Join(dir, "_commitstep_watermarks"), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := watermark.Files("marks", dir, watermark.Create()); !errors.Is(err, commitstep.ErrDamaged) {
			t.Fatalf("a directory with an %s marker is opened: %v", what, err)
		}
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "data.avro"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := watermark.Files("marks", full, watermark.Create()); err == nil || !strings.Contains(err.Error(), "data.avro") {
		t.Fatalf("a directory of data becomes one of watermarks: %v", err)
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

func TestListGoesOnPastDamage(t *testing.T) {
	t.Parallel()
	f := openFiles(t)
	for i := range 3 {
		k := commitstep.WatermarkKey{Job: "j", Source: fmt.Sprint(i)}
		if err := f.Set(t.Context(), k, commitstep.None(), commitstep.Int(int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(f.Dir(), "j", "1.watermark"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.Dir(), "j", "notes.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var good, bad []string
	for v, err := range f.List(t.Context()) {
		if err != nil {
			bad = append(bad, err.Error())
		} else {
			good = append(good, v.Source)
		}
	}
	if fmt.Sprint(good) != "[0 2]" || len(bad) != 2 {
		t.Fatalf("listed %q, complained %q", good, bad)
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

// Errors of the disk are sorted by what is known: before the rename certainly
// nothing happened, afterwards it may have. A full one is waited out.
func TestDiskErrorsAreClassified(t *testing.T) {
	t.Parallel()
	for op, want := range map[string]commitstep.Class{
		"make directory":        commitstep.ClassRefused,
		"lock":                  commitstep.ClassRefused,
		"create temporary file": commitstep.ClassRefused,
		"write temporary file":  commitstep.ClassRefused,
		"sync temporary file":   commitstep.ClassRefused,
		"rename":                commitstep.ClassUnknown,
		"sync directory":        commitstep.ClassUnknown,
	} {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.EACCES, syscall.ENOSPC, syscall.EDQUOT} {
			want := want
			if (errno == syscall.ENOSPC || errno == syscall.EDQUOT) && op != "sync directory" {
				want = commitstep.ClassNotSent
			}
			t.Run(op+", "+errno.Error(), func(t *testing.T) {
				t.Parallel()
				injected := fmt.Errorf("injected: %w", errno)
				broken := false
				f := openFiles(t, watermark.WithSeam(func(o string, run func() error) error {
					if broken && o == op {
						return injected
					}
					return run()
				}))
				broken = true
				m := move(commitstep.None(), commitstep.Int(1))
				err := f.CompareAndSet(t.Context(), m, uuid.Nil)
				if !errors.Is(err, errno) || commitstep.ClassOf(err) != want {
					t.Fatalf("%v is %s, want %s", err, commitstep.ClassOf(err), want)
				}
				broken = false
				now, err := f.Read(t.Context(), topic)
				if err != nil || op != "sync directory" && !now.IsNone() {
					t.Fatalf("stored is %s, %v", now, err)
				}
				if err := f.CompareAndSet(t.Context(), m, uuid.Nil); err != nil {
					t.Fatalf("once the disk is well again: %v", err)
				}
				requireMark(t, f, commitstep.Int(1))
			})
		}
	}
}
