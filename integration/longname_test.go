package integration_test

import (
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/store"
	"github.com/stretchr/testify/require"
)

// A plan with a name that nothing can have, stored by a program that did not
// look, ends parked and can be given up; one made now is refused.
func TestNameTooLongIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.put("in", "data")
	plan := b.move("d", "in", "out/"+strings.Repeat("n", 256))

	// Without its checks the file system is like that of the older program.
	e := b.open(settings{wrap: func(f *local.Files) filesys.FS { return struct{ filesys.FS }{f} }})
	res, err := e.Publish(t.Context(), plan)
	require.ErrorContains(t, err, "file name too long")
	require.Equal(t, driver.StatusParked, res.Status)
	require.Equal(t, commitstep.AttemptsExhausted, res.Reason)
	h, err := e.Recover(t.Context(), "j")
	require.NoError(t, err)
	require.False(t, h.MayIngest("d"))
	live, err := e.store.Get(t.Context(), res.Key)
	require.NoError(t, err)
	_, err = e.Resolve(t.Context(), driver.Resolution{Key: live.Key, Decision: store.DecideAbandon, Step: -1, Version: live.Version, Person: person("nothing can have that name")})
	require.NoError(t, err)
	require.Equal(t, "data", b.get("in"))
	e.shut(t)

	e = b.open(settings{})
	_, err = e.Publish(t.Context(), plan)
	var refused *commitstep.PlanError
	require.ErrorAs(t, err, &refused)
	require.NotEmpty(t, refused.Hint)
	e.shut(t)
}
