package watermark_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
)

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
