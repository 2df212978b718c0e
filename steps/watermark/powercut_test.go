package watermark_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/powercut"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
)

// childCut makes a directory of watermarks below its first argument and sets
// the topic's twice, with a note in the recording after each promise.
func childCut(c *testkit.Child) int {
	root := c.Args[0]
	f, err := watermark.Files("marks", filepath.Join(root, "deep", "marks"), watermark.Create())
	if err != nil {
		return c.Fail("%v", err)
	}
	powercut.Mark(root, "created")
	for _, m := range []commitstep.WatermarkMove{move(commitstep.None(), commitstep.Int(100)), move(commitstep.Int(100), commitstep.Int(200))} {
		if err := f.CompareAndSet(context.Background(), m, uuid.Nil); err != nil {
			return c.Fail("%v", err)
		}
		powercut.Mark(root, m.To.String())
	}
	return 0
}

func recordCut(t *testing.T) (root string, rec *powercut.Recording) {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed; scripts/setup.sh does it, on Debian: apt-get install strace")
	}
	root = t.TempDir()
	before, err := powercut.Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "trace")
	p := testkit.StartWith(t, "cut", []string{root}, powercut.Under(out))
	if code, by := p.Exit(); code != 0 || by != 0 {
		t.Fatalf("ended with %d, %v: %s", code, by, p.Output())
	}
	rec, err = powercut.ReadFile(out, root, before)
	if err != nil {
		t.Fatal(err)
	}
	return root, rec
}

// judgeCut starts again in what a power cut left, and says what is wrong.
func judgeCut(t *testing.T, root string, s powercut.State) string {
	t.Helper()
	if err := s.Tree.WriteTo(root); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "deep", "marks")
	var opts []watermark.FilesOption
	if !s.Had("created") {
		opts = append(opts, watermark.Create()) // the deployment is repeated
	}
	f, err := watermark.Files("marks", dir, opts...)
	if err != nil {
		return fmt.Sprintf("the directory cannot be opened: %v", err)
	}
	now, err := f.Read(t.Context(), topic)
	if err != nil {
		return fmt.Sprintf("the watermark cannot be read: %v", err)
	}
	switch {
	case now == commitstep.Int(200):
	case s.Had("200"), now != commitstep.Int(100) && (s.Had("100") || !now.IsNone()):
		return fmt.Sprintf("the watermark is %s, promised were %q", now, s.Notes)
	}
	if err := f.CompareAndSet(t.Context(), move(now, commitstep.Int(300)), uuid.Nil); err != nil {
		return fmt.Sprintf("the next move fails: %v", err)
	}
	if after, err := f.Read(t.Context(), topic); err != nil || after != commitstep.Int(300) {
		return fmt.Sprintf("after the next move the watermark is %s, %v", after, err)
	}
	return ""
}

// In every state that a power cut may leave, a value that was promised is
// there, and the next process goes on.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	root, rec := recordCut(t)
	n, promised := 0, map[string]int{}
	for s := range rec.States(powercut.Options{Exhaustive: 64, Samples: 400}) {
		n++
		promised[strings.Join(s.Notes, " ")]++
		if complaint := judgeCut(t, root, s); complaint != "" {
			t.Fatalf("state %d: %s: %s", n, s.Lost, complaint)
		}
	}
	t.Logf("%d states, by what was promised: %v", n, promised)
	for _, notes := range []string{"", "created", "created 100", "created 100 200"} {
		if promised[notes] == 0 {
			t.Errorf("no state with the promises %q: the recording misses something", notes)
		}
	}
}

// The test above can fail: without one kind of sync some state breaks a promise.
func TestPowerCutNoticesMissingSyncs(t *testing.T) {
	t.Parallel()
	root, rec := recordCut(t)
	marks := filepath.Join(root, "deep", "marks")
	for name, forgets := range map[string]func(path string, dir bool) bool{
		"the value's":                    func(p string, dir bool) bool { return !dir && strings.HasPrefix(p, filepath.Join(marks, topic.Job)) },
		"the marker's":                   func(p string, dir bool) bool { return !dir && filepath.Dir(p) == marks },
		"the job's directory":            func(p string, dir bool) bool { return dir && p == filepath.Join(marks, topic.Job) },
		"the watermark directory":        func(p string, dir bool) bool { return dir && p == marks },
		"the watermark directory's name": func(p string, dir bool) bool { return dir && p == filepath.Dir(marks) },
		"the topmost made directory":     func(p string, dir bool) bool { return dir && p == root },
	} {
		caught := ""
		for s := range rec.Without(forgets).States(powercut.Options{Exhaustive: 64, Samples: 400}) {
			if caught = judgeCut(t, root, s); caught != "" {
				break
			}
		}
		if caught == "" {
			t.Errorf("without a sync of %s no state breaks a promise", name)
		}
	}
}
