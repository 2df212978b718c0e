package hivepublish

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
)

// heldList is a web UI that does not answer.
type heldList struct{ asked func() }

func (l heldList) Find(ctx context.Context, _ string) ([]hs2.Query, error) {
	l.asked()
	<-ctx.Done()
	return nil, ctx.Err()
}

// holding makes the server hold its answer to the statements with match, from when it
// is called on.
func holding(w *warehouse, match string, held func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked = func(ctx context.Context, sql string) {
		if strings.Contains(sql, match) {
			held()
			<-ctx.Done()
		}
	}
}

// A server that holds an answer does not keep the caller: what was gathered before is
// kept, and what was not is named. That says nothing about the server.
func TestEvidenceIsGatheredAsFarAsTimeAllows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hold func(b *stepBench, over func())
		// missing begin the lines of what was not gathered.
		missing []string
		has     func(p *Pack) bool
	}{
		"the list": {
			func(b *stepBench, over func()) { b.server.list = heldList{over} },
			[]string{"the server's list of statements", "the target", "the table", "staging directories", "the metrics"},
			func(p *Pack) bool { return p.Token != "" && strings.Contains(p.Phase, "no answer") },
		},
		"the target": {
			func(b *stepBench, over func()) { holding(b.w, "DESCRIBE FORMATTED", over) },
			[]string{"the target", "the table", "staging directories", "the metrics"},
			func(p *Pack) bool { return len(p.Queries) == 1 && !p.Now.Known },
		},
		"the metrics": {
			func(b *stepBench, over func()) { holding(b.w, "/* commitstep metric */", over) },
			[]string{"the metrics"},
			func(p *Pack) bool { return len(p.Queries) == 1 && p.Now.Known && p.Now.Files != nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, insertSpec(), scripted(func() *fakeOp { return &fakeOp{lost: true} }))
			require.Error(t, b.process().Execute(t.Context()))
			over := make(chan struct{})
			c.hold(b, func() { close(over) })
			p := b.process()
			p.Attempt.Patience = over
			on := p.Step.(commitstep.OnPark)
			require.NoError(t, on.OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told"))
			var n insertNote
			_, err := b.process().Attempt.LastNote(&n)
			require.NoError(t, err)
			pack := n.Evidence
			require.NotNil(t, pack)
			var late []string
			for _, m := range pack.Missing {
				if what, ok := strings.CutSuffix(m, ": not gathered: out of time"); ok {
					late = append(late, what)
				}
			}
			require.Len(t, late, len(c.missing), "%q", pack.Missing)
			for i, m := range c.missing {
				require.True(t, strings.HasPrefix(late[i], m), late[i])
			}
			require.True(t, c.has(pack), "%+v", pack)
			require.Empty(t, pack.Unreachable)
			require.NotContains(t, pack.Suggestion.Why, "cannot be reached")
			require.Empty(t, pack.Suggestion.As)
			require.Contains(t, pack.Suggestion.Why, "gather again")

			// Who has no time at all gathers nothing, and takes nothing away.
			p = b.process()
			p.Attempt.Patience = over
			require.NoError(t, p.Step.(commitstep.OnPark).OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told"))
			var again insertNote
			_, err = b.process().Attempt.LastNote(&again)
			require.NoError(t, err)
			require.Equal(t, pack.Gathered, again.Evidence.Gathered)
		})
	}
}

// The same of the kinds whose proof is a location.
func TestLocationsAreGatheredAsFarAsTimeAllows(t *testing.T) {
	t.Parallel()
	b := stageBench(t, stageParams(), nil)
	b.w.script = hold("SET LOCATION")
	b.server.list = deadList{}
	require.Error(t, b.process().Execute(t.Context()))
	over := make(chan struct{})
	holding(b.w, "DESCRIBE FORMATTED", func() { close(over) })
	p := b.process()
	p.Attempt.Patience = over
	require.NoError(t, p.Step.(commitstep.OnPark).OnPark(t.Context(), p.Attempt, commitstep.PublishUnknown, "told"))
	var n stageNote
	_, err := b.process().Attempt.LastNote(&n)
	require.NoError(t, err)
	require.NotNil(t, n.Evidence)
	require.Contains(t, n.Evidence.Missing, "the target: not gathered: out of time")
	require.Contains(t, n.Evidence.Phase, "an ALTER was not answered")
	require.Contains(t, n.Evidence.Phase, "counted")
	_, open := n.Alters.open()
	require.True(t, open, "what may still land is still known")
}

// The whole: a publish whose outcome nobody knows is parked, and comes back, although
// the server never says how the table is.
func TestAParkingIsNotHeldByItsEvidence(t *testing.T) {
	t.Parallel()
	w := newWarehouse()
	server := w.server(t, Config{})
	st, err := boltstore.Init(t.TempDir()+"/commit.db", nil)
	require.NoError(t, err)
	defer st.Close()
	e, err := driver.New(driver.Config{Store: st, Kinds: commitstep.NewRegistry(Kinds(server)...), Grace: 50 * time.Millisecond,
		Policy: driver.Policy{UnknownBudget: time.Millisecond, FirstPause: time.Millisecond, WaitBudget: 50 * time.Millisecond}})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(context.Background())) }()
	scripted(func() *fakeOp {
		w.looked = func(ctx context.Context, _ string) { <-ctx.Done() }
		return &fakeOp{lost: true}
	})(w)
	res, err := e.Publish(t.Context(), commitstep.NewPlan("j", "d").Step(insertSpec()))
	require.Error(t, err)
	require.Equal(t, commitstep.PublishUnknown, res.Reason, res.Message)
	insp, err := e.Inspect(t.Context(), res.Key, false)
	require.NoError(t, err)
	var n insertNote
	require.NoError(t, json.Unmarshal(insp.StepViews[0].Progress.Note, &n))
	require.NotNil(t, n.Evidence)
	require.Contains(t, n.Evidence.Missing, "the metrics: not gathered: out of time")
}
