package pgtarget_test

import (
	"fmt"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A table is listed with what it keeps: value, time and the sequence that set
// it; rows without a value are sources that were never read.
func TestList(t *testing.T) {
	t.Parallel()
	tb := newTable(t, full, columns)
	tg := tb.open()
	seq := uuid.New()
	for _, k := range []commitstep.WatermarkKey{{Job: "b", Source: "x"}, {Job: "a", Source: "y"}, {Job: "a", Source: "x"}} {
		require.NoError(t, tg.CompareAndSet(t.Context(), commitstep.WatermarkMove{WatermarkKey: k, To: commitstep.Int(7).InEpoch(2), Token: uuid.New()}, seq))
	}
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), "INSERT INTO "+tb.name+" (job, source) VALUES ('a', 'never read')"))
	got := func(job string) (keys []string) {
		for v, err := range tg.List(t.Context(), job) {
			require.NoError(t, err)
			require.Equal(t, commitstep.Int(7).InEpoch(2), v.Watermark)
			require.Equal(t, seq, v.Sequence)
			require.False(t, v.SetAt.IsZero())
			keys = append(keys, v.Job+"/"+v.Source)
		}
		return keys
	}
	require.Equal(t, []string{"a/x", "a/y", "b/x"}, got(""))
	require.Equal(t, []string{"a/x", "a/y"}, got("a"))
	require.Empty(t, got("c"))

	// More than one page, each once.
	require.NoError(t, kit.Cluster(t).Exec(t.Context(), fmt.Sprintf("INSERT INTO %s (job, source, pos, epoch, seq, at) SELECT 'many', i::text, 7, 2, '%s', now() FROM generate_series(1, 1201) i", tb.name, seq)))
	many := got("many")
	require.Len(t, many, 1201)
	seen := map[string]bool{}
	for _, k := range many {
		require.False(t, seen[k], k)
		seen[k] = true
	}
}
