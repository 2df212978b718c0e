package commitstep_test

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const digestOfRun17 = "065a3304f7e6229a66f4e054c4dc6dc1"

func TestPathDigestsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		u := commitstep.UsedPaths{}
		for _, list := range []*commitstep.PathDigests{&u.Sources, &u.Above, &u.Cleanups} {
			for range rapid.IntRange(0, 3).Draw(rt, "n") {
				*list = append(*list, commitstep.PathDigest(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "digest")))
			}
		}
		b, err := json.Marshal(u)
		require.NoError(rt, err)
		var got commitstep.UsedPaths
		require.NoError(rt, json.Unmarshal(b, &got))
		require.Equal(rt, u, got)
	})
	for _, bad := range []string{`{"sources":"AAAA"}`, `{"sources":"?"}`, `{"sources":["a"]}`} {
		require.Error(t, json.Unmarshal([]byte(bad), new(commitstep.UsedPaths)), bad)
	}
}

// The digest is kept for ever, so it may never change.
func TestPathDigestIsFixed(t *testing.T) {
	t.Parallel()
	// printf 'hdfs://prod\0/staging/run-17' | sha256sum
	require.Equal(t, digestOfRun17, fmt.Sprintf("%x", commitstep.DigestPath(commitstep.Address{Resource: "hdfs://prod", Path: "/staging/run-17"})))
	require.Equal(t, digestOfRun17, fmt.Sprintf("%x", commitstep.DigestPath(commitstep.Address{Resource: "webhdfs://prod", Path: "/staging/run-17"})), "one file system, two transports")
	require.NotEqual(t, digestOfRun17, fmt.Sprintf("%x", commitstep.DigestPath(commitstep.Address{Resource: "hdfs://prod2", Path: "/staging/run-17"})))
}

func TestSourcesInACleanupPathAreNoRoots(t *testing.T) {
	t.Parallel()
	pl := newPlanning(t)
	p := pl.For(commitstep.Step{})
	for _, s := range []string{"/staging/run-17/a", "/staging/run-17/deep/b", "/loose/c"} {
		require.NoError(t, p.Claim(address(s), commitstep.SourceFile))
	}
	require.NoError(t, p.Claim(address("/staging/run-17"), commitstep.CleanupTree))
	u, roots := pl.UsedPaths()
	require.Len(t, u.Sources, 3)
	require.Len(t, u.Cleanups, 1)
	require.Len(t, roots, 2)
	require.Equal(t, "/loose/c", roots[0].Path)
	require.Equal(t, "/staging/run-17", roots[1].Path)
	require.Equal(t, commitstep.PathDigests{commitstep.DigestPath(address("/staging"))}, roots[1].Above, "without the root")
	at, of, ok := pl.PathOf(commitstep.DigestPath(address("/staging/run-17/deep")))
	require.True(t, ok)
	require.Equal(t, "/staging/run-17/deep", at.Path)
	require.Equal(t, "/staging/run-17/deep/b", of.Path)
	_, _, ok = pl.PathOf(commitstep.DigestPath(address("/other")))
	require.False(t, ok)
	u, roots = newPlanning(t).UsedPaths()
	require.Nil(t, u)
	require.Nil(t, roots)
}

// However many sources a plan has, what is remembered is bounded, holds every
// one of them, and is no wider than the directories that they lie in.
func TestManySourcesAreRememberedByTheirDirectories(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		n    int
		path func(i int) string
		most int
	}{
		{"one by one", commitstep.MaxUsedPaths, func(i int) string { return fmt.Sprintf("/s/f-%d", i) }, commitstep.MaxUsedPaths},
		{"one directory", 3 * commitstep.MaxUsedPaths, func(i int) string { return fmt.Sprintf("/s/run/f-%d", i) }, 1},
		{"a full directory beside lone files", 3 * commitstep.MaxUsedPaths, func(i int) string {
			if i%1000 == 0 {
				return fmt.Sprintf("/lone/%d/f", i)
			}
			return fmt.Sprintf("/s/run/f-%d", i)
		}, 31},
		{"a file each in very many directories", 3 * commitstep.MaxUsedPaths, func(i int) string { return fmt.Sprintf("/s/run/%d/f", i) }, commitstep.MaxUsedPaths},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pl := newPlanning(t)
			p := pl.For(commitstep.Step{})
			for i := range c.n {
				require.NoError(t, p.Claim(address(c.path(i)), commitstep.SourceFile))
			}
			u, roots := pl.UsedPaths()
			require.LessOrEqual(t, len(roots), c.most)
			require.Len(t, u.Sources, len(roots))
			remembered := map[string]bool{}
			for _, r := range roots {
				remembered[r.Path] = true
				require.NotEqual(t, "/", r.Path)
				require.NotEqual(t, "/s", r.Path, "wider than the run")
			}
			for i := range c.n {
				held := false
				for d := c.path(i); d != "/" && !held; d = path.Dir(d) {
					held = remembered[d]
				}
				require.True(t, held, c.path(i))
			}
			if c.n > commitstep.MaxUsedPaths && c.most == 31 {
				require.True(t, remembered["/lone/0/f"], "a lone file stays one")
			}
		})
	}
}

func TestConflictIsSymmetric(t *testing.T) {
	t.Parallel()
	draw := rapid.Custom(func(t *rapid.T) *commitstep.UsedPaths {
		pl := newPlanning(t)
		p := pl.For(commitstep.Step{})
		name := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "ab"}), 1, 3)
		for range rapid.IntRange(0, 3).Draw(t, "sources") {
			_ = p.Claim(address("/"+path.Join(name.Draw(t, "source")...)), commitstep.SourceFile)
		}
		for range rapid.IntRange(0, 2).Draw(t, "cleanups") {
			_ = p.Claim(address("/"+path.Join(name.Draw(t, "cleanup")...)), commitstep.CleanupTree)
		}
		u, _ := pl.UsedPaths()
		return u
	})
	rapid.Check(t, func(rt *rapid.T) {
		a, b := draw.Draw(rt, "a"), draw.Draw(rt, "b")
		_, _, ab := a.Conflict(b)
		_, _, ba := b.Conflict(a)
		require.Equal(rt, ab, ba)
		if a != nil {
			d, _, self := a.Conflict(a)
			require.True(rt, self)
			require.True(rt, slices.Contains(a.Sources, d) || slices.Contains(a.Cleanups, d))
		}
	})
}

func TestTheReasonForReusedPathsIsOne(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"x", "    x    ", string(make([]byte, 2000)), "because\xff"} {
		p := commitstep.NewPlan("j", "d")
		p.AcceptReusedPaths = reason
		require.ErrorContains(t, p.Validate(), "acceptReusedPaths")
	}
}
