package fsrename_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/fstest"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/steptest"
	"github.com/stretchr/testify/require"
)

// far is a local file system that says it is a remote one.
type far struct{ filesys.FS }

func (f far) Capabilities() filesys.Capabilities {
	c := f.FS.Capabilities()
	c.Remote = true
	return c
}

// TestAForeignSourceIsSeenBeforeTheRename: what took the staged name after an
// old look is not published, on a remote file system either.
func TestAForeignSourceIsSeenBeforeTheRename(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write("in/a", "ours")
	now := time.Now()
	kinds := commitstep.NewRegistry(fsrename.KindAt(func() time.Time { return now }, far{p.files()}))
	plan := commitstep.NewPlan("job", "dataset").Step(fsrename.Move("in/a", "out/a"))
	plan.BaseDir = p.root
	planned, err := steptest.Plan(t.Context(), kinds, plan)
	require.NoError(t, err)
	proc, err := planned.Process(kinds, 0)
	require.NoError(t, err)
	v, err := proc.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, commitstep.NotDone, v.Outcome)
	now = now.Add(fsrename.FreshFor)
	p.remove("in/a")
	p.write("in/a", "them")
	require.ErrorIs(t, proc.Execute(t.Context()), filesys.ErrChanged)
	require.False(t, p.exists("out/a"), "a foreign file was published")
	require.Equal(t, "them", p.read("in/a"))
}

// TestLostAnswerWithAttributes: the rename took place, was not answered, and its
// attributes are still to be set. One Execute does that, and still says that the
// answer was lost.
func TestLostAnswerWithAttributes(t *testing.T) {
	t.Parallel()
	lost := errors.New("no answer")
	for name, c := range map[string]struct {
		deny []string // calls that fail after the rename
		want error
		done bool
	}{
		"at once":                       {want: lost, done: true},
		"the look fails":                {deny: []string{"Stat"}, want: lost},
		"the attributes cannot be sent": {deny: []string{"SetAttributes"}, want: errDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write("in/a", "ours")
			renamed, denied := false, true
			kinds := commitstep.NewRegistry(fsrename.Kind(fstest.Hooked(far{p.files()}, func(op string, a commitstep.Address, do func() error) error {
				if op == "Rename" && strings.HasSuffix(a.Path, "in/a") && !renamed {
					renamed = true
					return errors.Join(do(), lost)
				}
				if renamed && denied && slices.Contains(c.deny, op) {
					return commitstep.NotSent(errDown)
				}
				return do()
			})))
			plan := commitstep.NewPlan("job", "dataset").Step(fsrename.Move("in/a", "out/a", fsrename.Mode("0600")))
			plan.BaseDir = p.root
			planned, err := steptest.Plan(t.Context(), kinds, plan)
			require.NoError(t, err)
			proc, err := planned.Process(kinds, 0)
			require.NoError(t, err)
			_, err = proc.Verify(t.Context())
			require.NoError(t, err)
			require.ErrorIs(t, proc.Execute(t.Context()), c.want)
			denied = false
			v, err := proc.Verify(t.Context())
			require.NoError(t, err)
			if c.done {
				require.Equal(t, commitstep.Done, v.Outcome, v.Evidence)
				return
			}
			require.Equal(t, commitstep.NotDone, v.Outcome)
			// The next one only finishes it, and remembers why it had to.
			require.ErrorIs(t, proc.Execute(t.Context()), lost)
			v, err = proc.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, commitstep.Done, v.Outcome, v.Evidence)
		})
	}
}

var errDown = errors.New("out of reach")
