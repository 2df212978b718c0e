package driver_test

import (
	"errors"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// An effect can be there although the step is not done, or is in conflict. It
// is listed like one that is done before a person abandons it.
func TestAbandonOfWhatIsVisibleButNotDone(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]commitstep.Verdict{
		"not done": commitstep.IsNotDone("it is there, its group is not"),
		"conflict": commitstep.InConflict("it is there, and longer than planned"),
	} {
		for _, visible := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				v := verdict
				if visible {
					v = v.ButVisible()
				}
				b := newBed(t, nil)
				b.w.verify["a"] = func(n int, _ *commitstep.Attempt) (commitstep.Verdict, error) {
					if n == 1 {
						return commitstep.IsNotDone("a is free"), nil
					}
					return v, nil
				}
				b.w.execute["a"] = func(int, *commitstep.Attempt, func()) error { return errors.New("no permission") }
				_, err := b.e.Publish(ctx, plan(put("a")))
				require.Error(t, err)
				live, err := b.st.Get(ctx, key)
				require.NoError(t, err)
				require.Equal(t, commitstep.Parked, live.State)
				q := driver.Resolution{Key: key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: store.Person{Name: "ann", Reason: "give it up"}}
				done, err := b.e.Resolve(ctx, q)
				if !visible {
					require.NoError(t, err)
					require.Empty(t, done.Visible)
					return
				}
				var pe *driver.PartialError
				require.ErrorAs(t, err, &pe)
				require.Len(t, pe.Visible, 1)
				require.Contains(t, pe.Visible[0], v.Evidence)
				require.False(t, b.recover("j").MayIngest("d"), "nothing was decided")
				q.AcceptPartial = true
				live, err = b.st.Get(ctx, key)
				require.NoError(t, err)
				q.Version = live.Version
				_, err = b.e.Resolve(ctx, q)
				require.NoError(t, err)
				require.Equal(t, pe.Visible, b.history(key)[0].Notes.PartialVisible)
			})
		}
	}
}
