package driver_test

import (
	"context"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// slowPut is a store whose put waits for a server.
type slowPut struct {
	store.Full
	clock *clock
}

func (s slowPut) Put(ctx context.Context, d store.Draft, instance uuid.UUID) (commitstep.Live, error) {
	_ = s.clock.Sleep(ctx, 11*time.Second)
	return s.Full.Put(ctx, d, instance)
}

// A publish took as long as its caller waited, in its result and in its error.
func TestTookIsTheWholeOfAPublish(t *testing.T) {
	t.Parallel()
	b := newBed(t, nil)
	e, err := driver.New(driver.Config{Store: slowPut{b.st, b.clock}, Kinds: b.registry(), Clock: b.clock})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close(context.Background())) })
	res, err := e.Publish(ctx, plan(put("a")))
	require.NoError(t, err)
	require.GreaterOrEqual(t, res.Took, 11*time.Second)

	b.w.execute["b"] = func(int, *commitstep.Attempt, func()) error {
		return commitstep.Permanent(context.DeadlineExceeded)
	}
	res, err = e.Publish(ctx, plan(put("b")))
	var nf *driver.NotFinishedError
	require.ErrorAs(t, err, &nf)
	require.GreaterOrEqual(t, res.Took, 11*time.Second)
	require.Equal(t, res.Took, nf.Result.Took)
}
