package driver_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// taking is an effect that takes something away from a path.
type taking struct {
	effect
	From string `json:"from"`
}

func (s *taking) Prepare(_ context.Context, p *commitstep.Preparation) error {
	a, err := commitstep.ParseAddress(s.From, "/")
	if err != nil {
		return err
	}
	return p.Claim(a, commitstep.SourceFile)
}

func (w *world) takingKind() commitstep.Kind {
	return commitstep.Kind{Name: "test.take", Version: 1, New: func(s commitstep.Step) (commitstep.CommitStep, error) {
		t := &taking{effect: effect{w: w}}
		return t, json.Unmarshal(s.Params, t)
	}}
}

func take(name, from string) commitstep.StepSpec {
	return commitstep.NewSpec("test.take", map[string]string{"name": name, "from": from})
}

// newTakingBed is a bed whose steps may take paths away.
func newTakingBed(t *testing.T) *bed {
	b := newBed(t, nil)
	require.NoError(t, b.e.Close(ctx))
	cfg := b.cfg
	cfg.Store, cfg.Owner = b.st, "the loader"
	cfg.Kinds = commitstep.NewRegistry(append(b.w.kinds(), b.w.takingKind())...)
	e, err := driver.New(cfg)
	require.NoError(t, err)
	b.e = e
	return b
}

func of(dataset string, specs ...commitstep.StepSpec) *commitstep.Plan {
	return commitstep.NewPlan("j", dataset).Step(specs...)
}

func (b *bed) refusedPath(p *commitstep.Plan, says ...string) {
	b.t.Helper()
	_, err := b.e.Validate(ctx, p)
	require.Error(b.t, err)
	for _, s := range says {
		require.ErrorContains(b.t, err, s, "validate")
	}
	looks := b.w.called("new")
	res, err := b.e.Publish(ctx, p)
	require.Error(b.t, err)
	require.Empty(b.t, res.Status)
	for _, s := range says {
		require.ErrorContains(b.t, err, s, "publish")
	}
	require.Equal(b.t, looks, b.w.called("new"), "nothing ran")
}

func TestAPathThatAnEarlierSequenceUsedIsRefused(t *testing.T) {
	t.Parallel()
	b := newTakingBed(t)
	first, err := b.e.Publish(ctx, of("d", take("old", "hdfs://prod/staging/part-1")).WithID("run-1"))
	require.NoError(t, err)
	again := of("e", take("new", "hdfs://prod/staging/part-1"))
	b.refusedPath(again, "hdfs://prod/staging/part-1 cannot be a source", first.ID.String(), `dataset "j"/"d"`, "completed", "acceptReusedPaths", "directory of its own")
	_, err = b.e.Publish(ctx, of("e", take("new", "hdfs://prod/staging/part-1")))
	require.ErrorIs(t, err, commitstep.ErrPathReused)
	var pe *commitstep.PlanError
	require.ErrorAs(t, err, &pe)
	b.refusedPath(of("e", take("new", "hdfs://prod/staging/part-1/x")), "used hdfs://prod/staging/part-1, in which it lies")
	b.refusedPath(of("e", take("new", "hdfs://prod/staging")), "used something below it")
	b.refusedPath(of("d", take("new", "hdfs://prod/staging/part-1")).WithID("run-2"), first.ID.String())

	// The same plan once more is no reuse.
	res, err := b.e.Publish(ctx, of("d", take("old", "hdfs://prod/staging/part-1")).WithID("run-1"))
	require.NoError(t, err)
	require.True(t, res.Already)

	// History that was pruned still refuses, by the sequence's id.
	b.clock.mu.Lock()
	b.clock.now = b.clock.now.Add(time.Hour)
	b.clock.mu.Unlock()
	_, err = b.st.PruneHistory(ctx, 0)
	require.NoError(t, err)
	b.refusedPath(again, first.ID.String(), "whose history is gone")

	local := "/staging/part-1"
	_, err = b.e.Publish(ctx, of("l", take("l1", local)))
	require.NoError(t, err)
	_, err = b.e.Publish(ctx, of("l", take("l2", local)))
	require.NoError(t, err, "a local path of the embedded store may be used again")
}

func TestAPathOfALiveSequenceIsRefused(t *testing.T) {
	t.Parallel()
	b := newTakingBed(t)
	b.w.verify["old"] = func(int, *commitstep.Attempt) (commitstep.Verdict, error) {
		return commitstep.InConflict("somebody else's"), nil
	}
	first, err := b.e.Publish(ctx, of("d", take("old", "/staging/part-1")))
	require.Error(t, err)
	require.Equal(t, driver.StatusParked, first.Status)
	p := of("e", take("new", "/staging/part-1"))
	p.AcceptReusedPaths = "we staged it again"
	b.refusedPath(p, "/staging/part-1", `dataset "j"/"d"`, first.ID.String(), "CONFLICT", "resolve it first")
	_, err = b.e.Publish(ctx, p)
	var pending *commitstep.PendingError
	require.ErrorAs(t, err, &pending)
	require.Equal(t, commitstep.ConflictFound, pending.Reason)
	require.Equal(t, "file:///staging/part-1", pending.Path)

	live, err := b.st.Get(ctx, key)
	require.NoError(t, err)
	_, err = b.st.Decide(ctx, store.Decision{Key: live.Key, ID: live.ID, Kind: store.DecideAbandon, Version: live.Version, Person: store.Person{Name: "op", Reason: "gave it up"}, State: commitstep.Abandoned})
	require.NoError(t, err)
	_, err = b.e.Publish(ctx, p)
	require.NoError(t, err)
}

func TestAcceptedReuseIsAuditedAndShown(t *testing.T) {
	t.Parallel()
	b := newTakingBed(t)
	first, err := b.e.Publish(ctx, of("d", take("old", "hdfs://prod/staging/part-1")))
	require.NoError(t, err)
	audited := func() []store.AuditEntry {
		var out []store.AuditEntry
		for e, err := range b.st.ListAudit(ctx) {
			require.NoError(t, err)
			out = append(out, e)
		}
		return out
	}
	p := of("e", take("new", "hdfs://prod/staging/part-1"))
	p.AcceptReusedPaths = "the name node was restarted since"
	rep, err := b.e.Validate(ctx, p)
	require.NoError(t, err)
	require.NotNil(t, rep.Reused)
	require.Equal(t, first.ID, rep.Reused.Sequence)
	require.Equal(t, key, rep.Reused.Key)
	require.Equal(t, "hdfs://prod/staging/part-1", rep.Reused.Path.String())
	require.Equal(t, p.AcceptReusedPaths, rep.Reused.Accepted)
	require.Empty(t, audited(), "validate stores nothing")

	res, err := b.e.Publish(ctx, p)
	require.NoError(t, err)
	entries := audited()
	require.Len(t, entries, 1)
	require.Equal(t, "paths.accept", entries[0].Action)
	require.Equal(t, res.ID, entries[0].Sequence)
	require.Equal(t, "the loader", entries[0].Name)
	require.Equal(t, p.AcceptReusedPaths, entries[0].Reason)
	require.Contains(t, entries[0].Before, first.ID.String())
	require.Equal(t, "hdfs://prod/staging/part-1", entries[0].After)
	h, err := b.st.LookupHistory(ctx, res.ID)
	require.NoError(t, err)
	require.Equal(t, p.AcceptReusedPaths, h.AcceptReusedPaths)

	// A plan that says so and uses nothing earlier has nothing to be audited.
	q := of("f", take("fresh", "hdfs://prod/staging/part-2"))
	q.AcceptReusedPaths = "just in case"
	_, err = b.e.Publish(ctx, q)
	require.NoError(t, err)
	require.Len(t, audited(), 1)
	require.NotEqual(t, uuid.Nil, res.ID)
}
