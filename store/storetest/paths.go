package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// uses are the paths of a sequence, as addresses.
type uses struct {
	sources  []string
	cleanups []string
	accept   string
}

func parse(text string) commitstep.Address {
	a, err := commitstep.ParseAddress(text, "")
	if err != nil {
		panic(err)
	}
	return a
}

// withPaths is q with the paths that a driver would find in such a plan. It
// fails when no plan may name them together.
func (q seqSpec) withPaths(u uses) (seqSpec, error) {
	q = q.withDefaults()
	pl, err := commitstep.NewPlanning(q.id, q.key, nil)
	if err != nil {
		return q, err
	}
	p := pl.For(commitstep.Step{})
	for _, s := range u.sources {
		if err := p.Claim(parse(s), commitstep.SourceFile); err != nil {
			return q, err
		}
	}
	for _, c := range u.cleanups {
		if err := p.Claim(parse(c), commitstep.CleanupTree); err != nil {
			return q, err
		}
	}
	q.used, q.roots = pl.UsedPaths()
	q.accept = u.accept
	return q, nil
}

func (w *world) tryUse(k commitstep.Key, u uses) (commitstep.Live, error) {
	w.Helper()
	q, err := seqSpec{key: k}.withPaths(u)
	require.NoError(w, err)
	return w.st.Put(w.ctx, q.draft(), w.me.ID)
}

func (w *world) use(name string, u uses) commitstep.Live {
	w.Helper()
	l, err := w.tryUse(key("j", name), u)
	require.NoError(w, err)
	return l
}

// refused puts paths that are taken, and returns how the store names them.
func (w *world) refused(name string, u uses) store.UsedPathError {
	w.Helper()
	k := key("j", name)
	_, err := w.tryUse(k, u)
	var e *store.UsedPathError
	require.ErrorAs(w, err, &e)
	_, err = w.st.Get(w.ctx, k)
	require.ErrorIs(w, err, commitstep.ErrNotFound, "nothing is stored")
	q, err := seqSpec{key: k}.withPaths(u)
	require.NoError(w, err)
	found, err := w.st.(store.PathKeeper).FindUsed(w.ctx, q.used, q.roots, u.accept != "")
	require.NoError(w, err)
	require.NotNil(w, found)
	require.Equal(w, e.Live, found.Live, "FindUsed says what Put says")
	return *e
}

func digest(text string) commitstep.PathDigest { return commitstep.DigestPath(parse(text)) }

func keepsPaths(run func(w *world)) func(w *world) {
	return func(w *world) {
		if _, ok := w.st.(store.PathKeeper); !ok {
			w.Skip("this store does not keep paths")
		}
		run(w)
	}
}

var pathTests = []test{
	{"a source of a live sequence is in the way", keepsPaths(func(w *world) {
		for i, fs := range []string{"file:///", "hdfs://prod/"} {
			l := w.use(fmt.Sprint("a", i), uses{sources: []string{fs + "s/a"}})
			for n, u := range []uses{
				{sources: []string{fs + "s/a"}},
				{sources: []string{fs + "t", fs + "s/a/b/c"}},
				{sources: []string{fs + "s"}},
				{cleanups: []string{fs + "s/a"}},
			} {
				e := w.refused(fmt.Sprint("b", n), u)
				require.True(w, e.Live)
				require.Equal(w, l.ID, e.Sequence)
				require.ErrorIs(w, &e, commitstep.ErrPending)
				require.Equal(w, n == 2, e.Below)
				want := digest(fs + "s/a")
				if e.Below {
					want = digest(fs + "s")
				}
				require.Equal(w, want, e.Path)
			}
			w.use(fmt.Sprint("c", i), uses{sources: []string{fs + "s/ab", fs + "s/b"}})
		}
	})},
	{"accepting earlier paths does not accept those of a live sequence", keepsPaths(func(w *world) {
		l := w.use("a", uses{sources: []string{"hdfs://p/s/a", "hdfs://p/s/b"}, cleanups: []string{"hdfs://p/c"}})
		for i, u := range []uses{{sources: []string{"hdfs://p/s/b"}}, {sources: []string{"hdfs://p/s"}}, {sources: []string{"hdfs://p/s/b/x"}}, {cleanups: []string{"hdfs://p/c"}}} {
			u.accept = "it was staged again"
			e := w.refused(fmt.Sprint(i), u)
			require.True(w, e.Live)
			require.Equal(w, l.ID, e.Sequence)
		}
	})},
	{"what a live sequence uses is known after a restart, and free once it has ended", keepsPaths(func(w *world) {
		l := w.use("a", uses{sources: []string{"/s/a"}, cleanups: []string{"/c"}})
		other := w.use("b", uses{sources: []string{"/s/b"}})
		w.reopen()
		require.True(w, w.refused("x", uses{sources: []string{"/s/a"}}).Live)
		require.True(w, w.refused("x", uses{sources: []string{"/s"}}).Live)
		l, err := w.st.ClaimOne(w.ctx, w.me.ID, l.Key)
		require.NoError(w, err)
		require.NoError(w, w.st.Complete(w.ctx, fence(l), true, store.HistoryNotes{}), "with a cleanup to come")
		e := w.refused("x", uses{sources: []string{"/s"}, accept: "part of it is free"})
		require.True(w, e.Live)
		require.Equal(w, other.ID, e.Sequence, "and not the one that has ended")
		w.use("x", uses{sources: []string{"/s/a"}, cleanups: []string{"/c"}, accept: "staged again"})
	})},
	{"a parked sequence keeps its paths until it is abandoned", keepsPaths(func(w *world) {
		l := w.use("a", uses{sources: []string{"/s/a"}})
		require.NoError(w, w.st.Park(w.ctx, fence(l), store.Parking{Reason: commitstep.PublishUnknown, Step: 0, Message: "m"}))
		u := uses{sources: []string{"/s/a"}, accept: "staged again"}
		require.True(w, w.refused("b", u).Live)
		w.abandonNow(l)
		w.use("b", u)
	})},
	{"a remote path that an earlier sequence used is refused for ever", keepsPaths(func(w *world) {
		const p = "hdfs://prod/staging/"
		l := w.use("a", uses{sources: []string{p + "run-1/x/1", p + "run-1/x/2", p + "loose"}, cleanups: []string{p + "run-1"}})
		w.complete(l)
		for range 2 {
			for i, u := range []uses{
				{sources: []string{p + "run-1/x/1"}},
				{sources: []string{p + "run-1/y"}}, // in its cleanup path
				{sources: []string{p + "run-2/a", p + "loose"}},
				{sources: []string{"webhdfs://prod/staging/loose"}}, // the same file system
				{cleanups: []string{p + "run-1"}},
				{cleanups: []string{p + "run-1/x"}},
				{cleanups: []string{"hdfs://prod/staging"}},
				{sources: []string{p + "loose/below"}},
			} {
				e := w.refused(fmt.Sprint(i), u)
				require.False(w, e.Live)
				require.ErrorIs(w, &e, commitstep.ErrPathReused)
				require.Equal(w, l.ID, e.Sequence)
				require.Equal(w, i == 6, e.Below)
			}
			if pr, ok := w.st.(store.Pruner); ok {
				_, err := pr.PruneHistory(w.ctx, 0)
				require.NoError(w, err)
			}
			w.reopen()
		}
		w.use("fresh", uses{sources: []string{p + "run-2/x", p + "loose2"}, cleanups: []string{p + "run-2"}})
		w.use("elsewhere", uses{sources: []string{"hdfs://other/staging/run-1/x/1"}})
	})},
	{"an abandoned sequence has used its paths too", keepsPaths(func(w *world) {
		l := w.use("a", uses{sources: []string{"hdfs://p/s/a"}})
		w.abandon(l)
		require.Equal(w, l.ID, w.refused("b", uses{sources: []string{"hdfs://p/s/a"}}).Sequence)
	})},
	{"a plan that accepts them gets earlier paths, and is then the newest to use them", keepsPaths(func(w *world) {
		first := w.use("a", uses{sources: []string{"hdfs://p/s/a/1"}, cleanups: []string{"hdfs://p/s/a"}})
		w.complete(first)
		second := w.use("a", uses{sources: []string{"hdfs://p/s/a/1"}, cleanups: []string{"hdfs://p/s/a"}, accept: "run 1 was a test"})
		require.Equal(w, "run 1 was a test", w.get(second.Key).AcceptReusedPaths)
		w.complete(second)
		require.Equal(w, second.ID, w.refused("b", uses{sources: []string{"hdfs://p/s/a/2"}}).Sequence)
		h, err := w.st.LookupHistory(w.ctx, second.ID)
		require.NoError(w, err)
		require.Equal(w, "run 1 was a test", h.AcceptReusedPaths)
	})},
	{"local paths are used again only where one process has the store", keepsPaths(func(w *world) {
		u := uses{sources: []string{"/s/a"}, cleanups: []string{"/s"}}
		l := w.use("a", u)
		w.complete(l)
		if !w.h.Shared {
			w.use("a", u)
			return
		}
		require.Equal(w, l.ID, w.refused("a", u).Sequence)
	})},
	{"a refused put has used nothing", keepsPaths(func(w *world) {
		w.use("a", uses{sources: []string{"hdfs://p/a/1"}})
		w.refused("b", uses{sources: []string{"hdfs://p/b/1/x", "hdfs://p/a/1"}})
		q, err := seqSpec{key: key("j", "a")}.withPaths(uses{sources: []string{"hdfs://p/b/2/x"}})
		require.NoError(w, err)
		_, err = w.st.Put(w.ctx, q.draft(), w.me.ID)
		require.ErrorIs(w, err, commitstep.ErrPending)
		w.use("c", uses{cleanups: []string{"hdfs://p/b"}})
	})},
	{"the same sequence again, and its plan again, are no reuse", keepsPaths(func(w *world) {
		q, err := seqSpec{key: key("j", "a"), plan: "p", hash: "h"}.withPaths(uses{sources: []string{"hdfs://p/s"}, cleanups: []string{"hdfs://p/c"}})
		require.NoError(w, err)
		l := w.put(q)
		again := func(state commitstep.State) {
			got := w.put(q)
			require.Equal(w, state, got.State)
			other := q
			other.id = uuid.Must(uuid.NewV7())
			_, err := w.tryPut(other)
			var already *store.AlreadyError
			require.ErrorAs(w, err, &already)
			require.Equal(w, l.ID, already.Record.Sequence)
		}
		again(commitstep.Pending)
		w.complete(l)
		again(commitstep.Completed)
	})},
	{"many paths of one plan", keepsPaths(func(w *world) {
		var u uses
		for i := range 3000 {
			u.sources = append(u.sources, fmt.Sprintf("hdfs://p/s/%d/f-%d", i%7, i))
		}
		l := w.use("a", u)
		w.complete(l)
		require.Equal(w, l.ID, w.refused("b", uses{sources: []string{"hdfs://p/s/5/f-2504"}}).Sequence)
		require.True(w, w.refused("b", uses{cleanups: []string{"hdfs://p/s/5"}}).Below)
		w.use("b", uses{sources: []string{"hdfs://p/s/5/f-2505"}})
	})},
	{"of many puts of one path exactly one wins", keepsPaths(func(w *world) {
		for round := range 10 {
			accept := ""
			if round%2 == 1 {
				accept = "everybody wants it"
				w.complete(w.use("first", uses{sources: []string{fmt.Sprintf("hdfs://p/r%d/s", round)}}))
			}
			// Overlapping in every way.
			all := []string{"/s", "/s", "/s/a", "/s/a/b", "/s/a/b", ""}
			var won atomic.Int64
			var wg sync.WaitGroup
			start := make(chan struct{})
			for i := range racers {
				q, err := seqSpec{key: key("j", fmt.Sprint(round, " ", i))}.withPaths(uses{accept: accept, sources: []string{fmt.Sprintf("hdfs://p/r%d%s", round, all[i%len(all)])}})
				require.NoError(w, err)
				wg.Go(func() {
					<-start
					_, err := w.st.Put(w.ctx, q.draft(), w.me.ID)
					var used *store.UsedPathError
					switch {
					case err == nil:
						won.Add(1)
					case !errors.As(err, &used):
						w.Errorf("round %d: %v", round, err)
					}
				})
			}
			close(start)
			wg.Wait()
			// Paths beside each other do not disturb each other; these all overlap.
			require.Equal(w, int64(1), won.Load(), "round %d", round)
		}
	})},
	{"agrees with a model", keepsPaths(func(w *world) {
		rounds := 0
		rapid.Check(w.TB.(rapid.TB), func(rt *rapid.T) {
			rounds++
			m := pathModel{w: w, live: map[uuid.UUID]modelUses{}, root: fmt.Sprintf("/round-%d", rounds)}
			rt.Repeat(map[string]func(*rapid.T){"put": m.put, "end": m.end, "reopen": m.reopen})
			for id := range m.live {
				m.endOne(rt, id)
			}
		})
	})},
}

// pathModel is the rules in the words of addresses.
type pathModel struct {
	w    *world
	root string
	live map[uuid.UUID]modelUses
	// past are the roots of all sequences, and whose.
	past []pastRoot
	puts int
}

type modelUses struct {
	live              commitstep.Live
	sources, cleanups []commitstep.Address
}

type pastRoot struct {
	a  commitstep.Address
	id uuid.UUID
}

func overlap(a, b commitstep.Address) bool { return a.Contains(b) || b.Contains(a) }

func (m *pathModel) put(rt *rapid.T) {
	path := rapid.Custom(func(t *rapid.T) string {
		p := rapid.SampledFrom([]string{"file://", "hdfs://p"}).Draw(t, "fs") + m.root
		for range rapid.IntRange(1, 3).Draw(t, "depth") {
			p += "/" + rapid.SampledFrom([]string{"a", "b", "ab"}).Draw(t, "name")
		}
		return p
	})
	u := uses{sources: rapid.SliceOfN(path, 0, 3).Draw(rt, "sources"), cleanups: rapid.SliceOfN(path, 0, 2).Draw(rt, "cleanups"), accept: rapid.SampledFrom([]string{"", "", "because"}).Draw(rt, "accept")}
	m.puts++
	q, err := seqSpec{key: key("paths", fmt.Sprint(m.root, m.puts))}.withPaths(u)
	if err != nil {
		return // no plan says that
	}
	var n modelUses
	for _, s := range u.sources {
		n.sources = append(n.sources, parse(s))
	}
	for _, c := range u.cleanups {
		n.cleanups = append(n.cleanups, parse(c))
	}
	inLive := m.inLive(n)
	var roots []commitstep.Address
	for _, s := range n.sources {
		inside := false
		for _, c := range n.cleanups {
			inside = inside || c.Contains(s)
		}
		if !inside {
			roots = append(roots, s)
		}
	}
	roots = append(roots, n.cleanups...)
	inPast := false
	for _, r := range roots {
		for _, p := range m.past {
			counts := m.w.h.Shared || r.Resource != commitstep.LocalResource
			inPast = inPast || counts && overlap(r, p.a)
		}
	}
	l, err := m.w.st.Put(m.w.ctx, q.draft(), m.w.me.ID)
	var e *store.UsedPathError
	switch {
	case inLive || inPast && u.accept == "":
		require.ErrorAs(rt, err, &e, "%+v", u)
		if inLive && !inPast {
			require.True(rt, e.Live)
		}
		if e.Live {
			require.Contains(rt, m.live, e.Sequence)
		}
	default:
		require.NoError(rt, err, "%+v", u)
		n.live = l
		m.live[l.ID] = n
		for _, r := range roots {
			m.past = append(m.past, pastRoot{r, l.ID})
		}
	}
}

// inLive: the same path, or a source inside a source, in a live sequence.
func (m *pathModel) inLive(n modelUses) bool {
	for _, o := range m.live {
		for _, a := range n.sources {
			for _, b := range o.sources {
				if overlap(a, b) {
					return true
				}
			}
		}
		for _, a := range append(append([]commitstep.Address{}, n.sources...), n.cleanups...) {
			for _, b := range append(append([]commitstep.Address{}, o.sources...), o.cleanups...) {
				if a == b {
					return true
				}
			}
		}
	}
	return false
}

func (m *pathModel) end(rt *rapid.T) {
	for id := range m.live {
		m.endOne(rt, id)
		return
	}
}

func (m *pathModel) endOne(rt *rapid.T, id uuid.UUID) {
	l, err := m.w.st.ClaimOne(m.w.ctx, m.w.me.ID, m.live[id].live.Key)
	if errors.Is(err, commitstep.ErrBusy) {
		l, err = m.live[id].live, nil
	}
	require.NoError(rt, err)
	require.NoError(rt, m.w.st.Complete(m.w.ctx, fence(l), false, store.HistoryNotes{}))
	delete(m.live, id)
}

func (m *pathModel) reopen(rt *rapid.T) {
	if rapid.IntRange(0, 3).Draw(rt, "really") == 0 {
		m.w.reopen()
	}
}
