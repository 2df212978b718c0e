package fsrename

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The strict decoder is the truth about parameters, encoding/json about evidence.
func TestQuickReadingIsThatOfTheDecoder(t *testing.T) {
	t.Parallel()
	value := rapid.SampledFrom([]string{`"/a"`, `"file:///data/é"`, `"a\\"b"`, `""`, "12", "-1", "1.5", "null", "true", "{}", `"2015-12-09T01:02:03.000000004Z"`, `"2015-12-09T01:02:03+09:00"`, `"2015-12-09"`, "\"\xff\""})
	name := rapid.SampledFrom([]string{"from", "to", "length", "mode", "From", "id", "size", "mtime", "device", "dir", "digest"})
	field := rapid.Custom(func(t *rapid.T) string { return `"` + name.Draw(t, "name") + `":` + value.Draw(t, "value") })
	likely := rapid.Just([]string{`"from":"/a"`, `"to":"/b"`, `"id":"handle:1"`, `"size":3`, `"mtime":"2015-12-09T01:02:03Z"`})
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.SliceOfN(field, 0, 3).Draw(t, "fields")
		start := rapid.SampledFrom([]int{0, 2, 5}).Draw(t, "start")
		common := likely.Draw(t, "likely")
		if start == 2 {
			fields = append(common[:2:2], fields...)
		} else if start == 5 {
			fields = append(common[2:5:5], fields...)
		}
		raw := []byte("{" + strings.Join(fields, ",") + "}")
		var quick, slow Params
		if quickParams(raw, &quick) {
			require.NoError(t, commitstep.DecodeParams(commitstep.Step{Kind: Name, Params: raw}, &slow), "%s", raw)
			require.Empty(t, cmp.Diff(slow, quick), "%s", raw)
		}
		var quickE, slowE evidence
		if quickEvidence(raw, &quickE) {
			require.NoError(t, json.Unmarshal(raw, &slowE), "%s", raw)
			require.Empty(t, cmp.Diff(slowE, quickE), "%s", raw)
			require.True(t, slowE.usable())
		}
	})
}

// What this package writes is read quickly, or nothing is gained.
func TestWhatIsWrittenIsReadQuickly(t *testing.T) {
	t.Parallel()
	var p Params
	require.True(t, quickParams(Move("/a/데이터 1", "/b", Length(7)).Params, &p))
	require.Equal(t, int64(7), *p.Length)
	raw, err := json.Marshal(evidence{ID: filesys.ID{Text: "handle:1:2"}, Size: 7, MTime: time.Unix(1, 2).UTC(), Device: "8:1"})
	require.NoError(t, err)
	var e evidence
	require.True(t, quickEvidence(raw, &e), "%s", raw)
}
