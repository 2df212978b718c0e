package watermark_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/testkit"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/google/uuid"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testkit.Children(testkit.Roles{
		"set":   childSet,
		"climb": childClimb,
		"cut":   childCut,
	})
	goleak.VerifyTestMain(m)
}

var topic = commitstep.WatermarkKey{Job: "kafka-hdfs", Source: "MyTopic:0"}

// memory is a commit store's watermarks: what the step needs of one.
type memory struct {
	do func(op string, run func() error) error

	mu    sync.Mutex
	m     map[commitstep.WatermarkKey]commitstep.WatermarkValue
	moves int
	err   error // what the next reads fail with
}

func newMemory() *memory {
	return &memory{do: func(_ string, run func() error) error { return run() }, m: map[commitstep.WatermarkKey]commitstep.WatermarkValue{}}
}

func (s *memory) Watermark(ctx context.Context, k commitstep.WatermarkKey) (v commitstep.WatermarkValue, err error) {
	err = s.do("read", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		v = s.m[k]
		switch {
		case s.err != nil:
			return s.err
		case v.Watermark.IsNone():
			return fmt.Errorf("watermark %v: %w", k, commitstep.ErrNotFound)
		}
		return ctx.Err()
	})
	return v, err
}

// apply is the store's own compare-and-set, in the words of the store contract.
func (s *memory) apply(_ context.Context, m commitstep.WatermarkMove, sequence uuid.UUID) error {
	return s.do("apply", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		v := s.m[m.WatermarkKey]
		switch {
		case v.Token == m.Token:
			return nil
		case v.Watermark != m.From:
			return commitstep.ErrStale
		}
		s.m[m.WatermarkKey] = commitstep.WatermarkValue{WatermarkKey: m.WatermarkKey, Watermark: m.To, Token: m.Token, Sequence: sequence, SetAt: time.Unix(1, 0)}
		s.moves++
		return nil
	})
}

// put overwrites, as only a test may.
func (s *memory) put(w commitstep.Watermark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[topic] = commitstep.WatermarkValue{WatermarkKey: topic, Watermark: w, Token: uuid.New(), SetAt: time.Unix(2, 0)}
}

// openFiles opens a fresh directory of watermarks.
func openFiles(t testing.TB, opts ...watermark.FilesOption) *watermark.FileTarget {
	t.Helper()
	f, err := watermark.Files("marks", t.TempDir(), append([]watermark.FilesOption{watermark.Create()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// dump lists every file below dir with its content and modification time.
func dump(dir string) (string, error) {
	var out strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var b []byte
		if !d.IsDir() {
			if b, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		fmt.Fprintf(&out, "%s %s %s %q\n", strings.TrimPrefix(p, dir), info.Mode(), info.ModTime().Format(time.RFC3339Nano), b)
		return nil
	})
	return out.String(), err
}

// childSet moves the topic's watermark from the first to the second argument
// and dies at the operation that the third one counts to, before it or after.
func childSet(c *testkit.Child) int {
	dir, from, to := c.Args[0], c.Args[1], c.Args[2]
	at, err := strconv.Atoi(c.Args[3])
	if err != nil {
		return c.Fail("%v", err)
	}
	after := c.Args[4] == "after"
	n := 0
	f, err := watermark.Files("marks", dir, watermark.Create(), watermark.WithSeam(func(op string, run func() error) error {
		here := n == at
		n++
		if here && !after {
			testkit.Die()
		}
		err := run()
		if here {
			testkit.Die()
		}
		return err
	}))
	if err != nil {
		return c.Fail("%v", err)
	}
	m := commitstep.WatermarkMove{WatermarkKey: topic, From: mark(from), To: mark(to), Token: uuid.NewSHA1(uuid.Nil, []byte(to))}
	if err := f.CompareAndSet(context.Background(), m, uuid.Nil); err != nil {
		return c.Fail("%v", err)
	}
	c.Say("set")
	return 0
}

// childClimb adds one to the topic's watermark as often as it is told to.
func childClimb(c *testkit.Child) int {
	f, err := watermark.Files("marks", c.Args[0])
	if err != nil {
		return c.Fail("%v", err)
	}
	c.Say("ready")
	n, err := strconv.Atoi(c.Hear())
	if err != nil {
		return c.Fail("%v", err)
	}
	if err := climb(context.Background(), f, n); err != nil {
		return c.Fail("%v", err)
	}
	c.Say("climbed")
	return 0
}

// mark reads "none" or a number.
func mark(s string) commitstep.Watermark {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return commitstep.None()
	}
	return commitstep.Int(v)
}
