package commitstep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

type noStep struct{ commitstep.CommitStep }

func kind(name string, version int, build func(commitstep.Step) (commitstep.CommitStep, error)) commitstep.Kind {
	if build == nil {
		build = func(commitstep.Step) (commitstep.CommitStep, error) { return noStep{}, nil }
	}
	return commitstep.Kind{Name: name, Version: version, New: build}
}

func TestRegistryBuilds(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	r := commitstep.NewRegistry(kind("b", 1, nil), kind("a", 3, nil),
		kind("bad", 1, func(commitstep.Step) (commitstep.CommitStep, error) { return nil, boom }),
		kind("panics", 1, func(commitstep.Step) (commitstep.CommitStep, error) { panic("boom") }),
		kind("nothing", 1, func(commitstep.Step) (commitstep.CommitStep, error) { return nil, nil }))
	if got := strings.Join(r.Names(), " "); got != "a b bad nothing panics" {
		t.Errorf("names are %q", got)
	}
	for version := 1; version <= 3; version++ { // all older ones too
		if b, err := r.Build(commitstep.Step{Kind: "a", Version: version}); err != nil || b == nil {
			t.Errorf("version %d: %v", version, err)
		}
	}
	for _, c := range []struct {
		step commitstep.Step
		is   error
		says []string
	}{
		{commitstep.Step{Kind: "a", Version: 4}, commitstep.ErrUnsupported, []string{"version 4", "up to 3"}},
		{commitstep.Step{Kind: "A", Version: 1}, commitstep.ErrUnsupported, []string{`"A"`, "a b"}},
		{commitstep.Step{}, commitstep.ErrUnsupported, nil},
		{commitstep.Step{Kind: "a"}, commitstep.ErrDamaged, []string{"version 0"}},
		{commitstep.Step{Kind: "a", Version: -1}, commitstep.ErrDamaged, nil},
		{commitstep.Step{Index: 6, Kind: "bad", Version: 1}, boom, []string{"stage 1 step 7 (bad)"}},
		{commitstep.Step{Kind: "panics", Version: 1}, nil, []string{"panicked", "boom"}},
		{commitstep.Step{Kind: "nothing", Version: 1}, nil, []string{"no behaviour"}},
	} {
		b, err := r.Build(c.step)
		if err == nil || b != nil || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%+v: %v, %v", c.step, b, err)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q does not say %q", err, s)
			}
		}
	}
	var none *commitstep.Registry
	if _, err := none.Build(commitstep.Step{Kind: "a", Version: 1}); !errors.Is(err, commitstep.ErrUnsupported) {
		t.Errorf("without a registry: %v", err)
	}
}

func TestRegistryRefusesProgramMistakes(t *testing.T) {
	t.Parallel()
	for what, kinds := range map[string][]commitstep.Kind{
		"a name twice": {kind("a", 1, nil), kind("a", 2, nil)},
		"no name":      {kind("", 1, nil)},
		"no version":   {kind("a", 0, nil)},
		"no New":       {{Name: "a", Version: 1}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", what)
				}
			}()
			commitstep.NewRegistry(kinds...)
		}()
	}
}

// Computed by another implementation: remote systems know these tokens, so they
// may never change.
func TestStepTokens(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	for index, want := range map[int]string{
		0:   "83a0c256-fd1f-59b0-b143-7892a399d38a",
		1:   "0773c156-5cf2-5281-986b-2b67336fbe8c",
		513: "6ad3f6d0-478a-50cc-b38d-1ddd50fd2c5b",
	} {
		if got := commitstep.StepToken(id, index).String(); got != want {
			t.Errorf("token %d is %s, want %s", index, got, want)
		}
	}
	if a, b := uuid.New(), uuid.New(); commitstep.StepToken(a, 0) == commitstep.StepToken(b, 0) {
		t.Error("two sequences share a token")
	}
}

func TestErrorClasses(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, c := range []struct {
		err       error
		class     commitstep.Class
		permanent bool
	}{
		{boom, commitstep.ClassUnknown, false}, // nobody classified it
		{nil, commitstep.ClassUnknown, false},
		{context.DeadlineExceeded, commitstep.ClassUnknown, false},
		{commitstep.NotSent(boom), commitstep.ClassNotSent, false},
		{commitstep.Refused(boom), commitstep.ClassRefused, false},
		{commitstep.Permanent(boom), commitstep.ClassRefused, true},
		{fmt.Errorf("step: %w", commitstep.Permanent(fmt.Errorf("rename: %w", boom))), commitstep.ClassRefused, true},
		{commitstep.NotSent(commitstep.Permanent(boom)), commitstep.ClassNotSent, false}, // the outer one knows more
	} {
		if got := commitstep.ClassOf(c.err); got != c.class || commitstep.IsPermanent(c.err) != c.permanent {
			t.Errorf("%v is %s, permanent %v", c.err, got, commitstep.IsPermanent(c.err))
		}
		if c.err != nil && c.class != commitstep.ClassUnknown && (!errors.Is(c.err, boom) || !strings.Contains(c.err.Error(), "boom")) {
			t.Errorf("%v hides its cause", c.err)
		}
	}
	for _, mark := range []func(error) error{commitstep.NotSent, commitstep.Refused, commitstep.Permanent} {
		if mark(nil) != nil {
			t.Error("a mark makes an error of none")
		}
	}
}

func TestPendingErrorSaysWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	var err error = &commitstep.PendingError{Key: commitstep.Key{Job: "j", Dataset: "d"}, ID: id, State: commitstep.Parked, Reason: commitstep.PublishUnknown, Lock: "table:x"}
	if !errors.Is(fmt.Errorf("put: %w", err), commitstep.ErrPending) || errors.Is(err, commitstep.ErrStale) {
		t.Errorf("%v is not exactly ErrPending", err)
	}
	for _, s := range []string{id.String(), `"j"/"d"`, "parked PUBLISH_UNKNOWN", "table:x"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}

// memoryJournal keeps what it is told, or fails.
type memoryJournal struct {
	notes, marks []string
	err          error
}

func (j *memoryJournal) Note(_ context.Context, step int, b json.RawMessage) error {
	if j.err == nil {
		j.notes = append(j.notes, fmt.Sprint(step, string(b)))
	}
	return j.err
}

func (j *memoryJournal) PointOfNoReturn(_ context.Context, step int, b json.RawMessage) error {
	if j.err == nil {
		j.marks = append(j.marks, fmt.Sprint(step, string(b)))
	}
	return j.err
}

func TestNotes(t *testing.T) {
	t.Parallel()
	ctx, id, key := t.Context(), uuid.New(), commitstep.Key{Job: "j", Dataset: "d"}
	j := &memoryJournal{}
	a := commitstep.NewAttempt(id, key, 3, commitstep.Progress{}, j)
	if a.Token != commitstep.StepToken(id, 3) {
		t.Error("the attempt carries another token")
	}
	var got string
	if ok, err := a.LastNote(&got); ok || err != nil {
		t.Errorf("a note before any: %v, %v", ok, err)
	}
	if ok, err := a.NoReturn(nil); ok || err != nil {
		t.Errorf("a mark before any: %v, %v", ok, err)
	}
	if err := a.Note(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	if err := a.Note(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.LastNote(&got); !ok || err != nil || got != "two" {
		t.Errorf("last note %q, %v, %v", got, ok, err)
	}
	if ok, _ := a.NoReturn(nil); ok {
		t.Error("a note is a mark")
	}
	// What could not be made durable is not there.
	j.err = commitstep.ErrFenced
	if err := a.PointOfNoReturn(ctx, "handle"); !errors.Is(err, commitstep.ErrFenced) {
		t.Errorf("got %v", err)
	}
	if err := a.Note(ctx, "three"); !errors.Is(err, commitstep.ErrFenced) {
		t.Errorf("got %v", err)
	}
	if ok, _ := a.NoReturn(nil); ok {
		t.Error("a refused mark is there")
	}
	if _, _ = a.LastNote(&got); got != "two" {
		t.Errorf("a refused note is there: %q", got)
	}
	j.err = nil
	if err := a.PointOfNoReturn(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.NoReturn(nil); !ok || err != nil {
		t.Errorf("a mark without a value is lost: %v, %v", ok, err)
	}
	if fmt.Sprint(j.notes, j.marks) != `[3"one" 3"two"] [3null]` {
		t.Errorf("the journal holds %q %q", j.notes, j.marks)
	}
	if err := a.Note(ctx, func() {}); err == nil {
		t.Error("what cannot be stored is noted")
	}

	look := commitstep.NewAttempt(id, key, 3, commitstep.Progress{Note: json.RawMessage(`"old"`), NoReturn: json.RawMessage(`{"op":1}`)}, nil)
	if ok, err := look.LastNote(&got); !ok || err != nil || got != "old" {
		t.Errorf("stored note %q, %v, %v", got, ok, err)
	}
	var handle struct{ Op int }
	if ok, err := look.NoReturn(&handle); !ok || err != nil || handle.Op != 1 {
		t.Errorf("stored mark %+v, %v, %v", handle, ok, err)
	}
	if ok, err := look.NoReturn(&got); !ok || !errors.Is(err, commitstep.ErrDamaged) {
		t.Errorf("a mark of another shape: %v, %v", ok, err)
	}
	if err := look.Note(ctx, 1); !errors.Is(err, commitstep.ErrReadOnly) {
		t.Errorf("a look writes: %v", err)
	}
	if err := look.PointOfNoReturn(ctx, 1); !errors.Is(err, commitstep.ErrReadOnly) {
		t.Errorf("a look writes: %v", err)
	}
}

func TestOnceSet(t *testing.T) {
	t.Parallel()
	var o commitstep.OnceSet
	boom := errors.New("boom")
	var ran atomic.Int32
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			key := fmt.Sprint(i % 2)
			err := o.Do(key, func() error {
				ran.Add(1)
				if key == "1" {
					return boom
				}
				return nil
			})
			if want := i%2 == 1; errors.Is(err, boom) != want {
				t.Errorf("key %s gives %v", key, err)
			}
		})
	}
	wg.Wait()
	if ran.Load() != 2 {
		t.Errorf("ran %d times for two keys", ran.Load())
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	var zero commitstep.Verdict
	if zero.Outcome != commitstep.Unknown {
		t.Error("a forgotten verdict is not unknown")
	}
	for v, text := range map[commitstep.Verdict]string{
		commitstep.IsDone("a %d", 1):     "done: a 1",
		commitstep.IsNotDone("b"):        "not done: b",
		commitstep.IsUnknown("c"):        "unknown: c",
		commitstep.InConflict("d"):       "conflict: d",
		{Outcome: commitstep.Outcome(9)}: "outcome(9)",
	} {
		if v.String() != text {
			t.Errorf("%q, want %q", v, text)
		}
		b, err := json.Marshal(v)
		var back commitstep.Verdict
		if err != nil {
			t.Error(err)
		} else if err := json.Unmarshal(b, &back); (err == nil) != (v.Outcome <= commitstep.Conflict) || err == nil && back != v {
			t.Errorf("%s is read back as %q, %v", b, back, err)
		}
	}
	if commitstep.Pending.Live() != true || commitstep.Parked.Live() != true || commitstep.Completed.Live() || commitstep.Abandoned.Live() || commitstep.State("").Live() {
		t.Error("live is pending or parked")
	}
}
