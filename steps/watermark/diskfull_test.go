package watermark_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
)

// A real full disk: the move is not sent, so that it uses up no attempts; the
// old value stays, nothing is left that takes space, and once there is room
// again the same move goes through.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skip("mounting a small file system needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f, err := watermark.Files("marks", filepath.Join(disk, "marks"), watermark.Create())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Set(t.Context(), topic, commitstep.None(), commitstep.Int(100)); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(disk, "ballast")
	fill, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk does not fill up: %v", err)
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
	m := move(commitstep.Int(100), commitstep.Int(200))
	// A move of a job that has no directory yet fails at another call.
	first := move(commitstep.None(), commitstep.Int(200))
	first.Job = "another job"
	for range 3 {
		for _, m := range []commitstep.WatermarkMove{m, first} {
			err = f.CompareAndSet(t.Context(), m, uuid.Nil)
			if !errors.Is(err, syscall.ENOSPC) || commitstep.ClassOf(err) != commitstep.ClassNotSent {
				t.Fatalf("on a full disk: %v (%s)", err, commitstep.ClassOf(err))
			}
		}
		requireMark(t, f, commitstep.Int(100))
	}
	left, err := filepath.Glob(filepath.Join(f.Dir(), "*", "*.tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := f.CompareAndSet(t.Context(), m, uuid.Nil); err != nil {
		t.Fatal(err)
	}
	requireMark(t, f, commitstep.Int(200))
}
