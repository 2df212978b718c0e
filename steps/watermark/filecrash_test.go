package watermark_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
)

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
