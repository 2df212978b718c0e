package records

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// jsonValue draws any JSON value as text, blanks included.
func jsonValue() *rapid.Generator[json.RawMessage] {
	return rapid.Custom(func(t *rapid.T) json.RawMessage {
		var v any
		depth := rapid.IntRange(0, 3).Draw(t, "depth")
		v = rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.String(), func(s string) any { return s }), rapid.Map(rapid.Float64Range(-1e9, 1e9), func(f float64) any { return f }), rapid.Just[any](true)).Draw(t, "leaf")
		for range depth {
			if rapid.Bool().Draw(t, "object") {
				v = map[string]any{rapid.String().Draw(t, "name"): v, "}],\"": []any{v}}
			} else {
				v = []any{v, "]", v}
			}
		}
		b, err := json.Marshal(v)
		if rapid.Bool().Draw(t, "indent") {
			b, err = json.MarshalIndent(v, "", "  ")
		}
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
}

func TestStepsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.IntRange(0, 1000).Draw(rt, "first")
		var steps []commitstep.Step
		for i := range rapid.IntRange(1, 4).Draw(rt, "n") {
			s := commitstep.Step{Index: first + i, Stage: rapid.IntRange(0, 1<<30).Draw(rt, "stage"), Kind: rapid.String().Draw(rt, "kind"), Version: rapid.IntRange(0, 1<<40).Draw(rt, "version"), Class: rapid.SampledFrom([]commitstep.StepClass{"", commitstep.WatermarkStep, "\"odd\""}).Draw(rt, "class")}
			if rapid.Bool().Draw(rt, "params") {
				s.Params = jsonValue().Draw(rt, "p")
			}
			if rapid.Bool().Draw(rt, "evidence") {
				s.Evidence = jsonValue().Draw(rt, "e")
			}
			steps = append(steps, s)
		}
		raw, err := AppendSteps(nil, steps)
		require.NoError(rt, err)
		require.True(rt, json.Valid(raw), "%s", raw)
		got, err := DecodeSteps(raw, first)
		require.NoError(rt, err)
		require.Empty(rt, cmp.Diff(steps, got))
		// The quick way gives up or agrees with the slow one.
		var slow []commitstep.Step
		require.NoError(rt, json.Unmarshal(raw, &slow))
		if quick, ok := parseSteps(bytes.Clone(raw)); ok {
			require.Empty(rt, cmp.Diff(slow, quick))
		}
	})
}

// FuzzParseSteps: whatever the quick way accepts, the slow way reads the same.
func FuzzParseSteps(f *testing.F) {
	f.Add([]byte(`[{"stage":0,"kind":"k","version":1}]`))
	f.Add([]byte(`[{"stage":1,"kind":"k","version":1,"class":"c","params":{"a":["}"]},"evidence":[1,2]},{"stage":1,"kind":"k","version":1,"params":"x\"y"}]`))
	f.Add([]byte("[{\"stage\":0,\"kind\":\"\xfa\",\"version\":0}]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			parseSteps(bytes.Clone(raw)) // must not panic
			return
		}
		quick, ok := parseSteps(bytes.Clone(raw))
		if !ok {
			return
		}
		var slow []commitstep.Step
		require.NoError(t, json.Unmarshal(raw, &slow))
		require.Empty(t, cmp.Diff(slow, quick))
	})
}

func TestInvalidParametersAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"{", "nope", "{} {}", "\"", "1 2"} {
		_, err := AppendSteps(nil, []commitstep.Step{{Kind: "k", Params: json.RawMessage(bad)}})
		require.Error(t, err, bad)
	}
}

// The hand-written encoders must not leave a field out, also not one that is
// added later: every field of these values is set.
func TestEveryFieldIsEncoded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC)
	odd := "a\"\\ \u00e9\x00<>&\n日\u2028"
	h := commitstep.Header{ID: uuid.New(), Key: commitstep.Key{Job: odd, Dataset: odd + "2"}, PlanID: odd, PlanHash: "sha256:x", Created: now, Steps: 3, Stages: 2, PageSize: 512, FirstWatermark: 2,
		Locks: []string{odd, "b"}, Moves: []commitstep.WatermarkMove{{WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: odd}, From: commitstep.Int(1), To: commitstep.Text("x").InEpoch(3), Token: uuid.New()}},
		Cleanup: []commitstep.Step{{Stage: 1, Kind: odd, Version: 2, Class: commitstep.LedgerStep, Params: json.RawMessage(`{"a":1}`), Evidence: json.RawMessage(`[]`)}}, Writer: odd,
		Used: &commitstep.UsedPaths{Sources: commitstep.PathDigests{{1, 2}, {3}}, Above: commitstep.PathDigests{{0xff, 15: 9}}, Cleanups: commitstep.PathDigests{{}}}, AcceptReusedPaths: odd}
	requireAllSet(t, reflect.ValueOf(*h.Used))
	requireAllSet(t, reflect.ValueOf(h))
	tail := HistoryTail{State: commitstep.Completed, Ended: now, Epoch: 1 << 63, Message: odd, CleanupReport: odd,
		Notes: store.HistoryNotes{Already: 1, Executed: 2, Recovers: 3, Driver: odd, PartialVisible: []string{odd}, DeclaredPublished: []int{2}}}
	requireAllSet(t, reflect.ValueOf(tail))
	for range 2 {
		b, err := AppendHeader(nil, &h)
		require.NoError(t, err)
		var got commitstep.Header
		require.NoError(t, json.Unmarshal(b, &got))
		require.Empty(t, cmp.Diff(h, got, cmp.AllowUnexported(commitstep.Watermark{})))
		slow, err := json.Marshal(h)
		require.NoError(t, err)
		require.JSONEq(t, string(slow), string(b))

		b, err = AppendHistoryTail([]byte("{"), tail)
		require.NoError(t, err)
		var r HistoryTail
		require.NoError(t, json.Unmarshal(b, &r))
		require.Equal(t, tail, r)
		// Once more with everything optional left out.
		h = commitstep.Header{Key: commitstep.Key{Job: "j", Dataset: "x"}, PlanHash: "h", Created: now}
		tail = HistoryTail{State: commitstep.Abandoned, Ended: now}
	}
	for _, n := range []store.HistoryNotes{{}, {Already: 1}, {Executed: 1}, {Recovers: 1}, {Driver: "d"}, {Already: 1, Driver: "d"}, {PartialVisible: []string{}}, {DeclaredPublished: []int{1}}} {
		b, err := AppendHistoryTail([]byte("{"), HistoryTail{Ended: now, Notes: n})
		require.NoError(t, err)
		var got HistoryTail
		require.NoError(t, json.Unmarshal(b, &got), "%s", b)
		require.Equal(t, n.Already+n.Executed+n.Recovers, got.Notes.Already+got.Notes.Executed+got.Notes.Recovers)
		require.Equal(t, n.Driver, got.Notes.Driver)
		require.Equal(t, n.DeclaredPublished, got.Notes.DeclaredPublished)
	}
	h.Created = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := AppendHeader(nil, &h)
	require.Error(t, err, "no JSON reader takes that year")
}

func requireAllSet(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), "the test must set %s.%s", v.Type(), v.Type().Field(i).Name)
	}
}

func FuzzDecodeHeader(f *testing.F) {
	f.Add([]byte(`{"id":"01930000-0000-7000-8000-000000000000","job":"j","dataset":"d","planId":"p","planHash":"h","created":"2026-02-03T04:05:06.7Z","steps":5,"stages":1,"pageSize":512,"firstWatermark":-1,"writer":"w"}`))
	f.Add([]byte(`{"id":"01930000-0000-7000-8000-000000000000","job":"j","dataset":"d","planHash":"h","created":"2026-02-03T04:05:06+01:00","steps":5,"stages":1,"firstWatermark":3}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var quick, slow commitstep.Header
		if !parseHeader(raw, &quick) || !json.Valid(raw) {
			return
		}
		require.NoError(t, json.Unmarshal(raw, &slow))
		require.Empty(t, cmp.Diff(slow, quick, cmp.AllowUnexported(commitstep.Watermark{})))
	})
}

func TestPlainHeadersAreReadTheQuickWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9/=é-]{1,20}`)
		h := commitstep.Header{ID: uuid.New(), Key: commitstep.Key{Job: name.Draw(rt, "job"), Dataset: name.Draw(rt, "dataset")}, PlanHash: "sha256:x",
			Created: time.Unix(0, rapid.Int64Range(0, 4e18).Draw(rt, "created")).UTC(), Steps: rapid.IntRange(1, 1e8).Draw(rt, "steps"), Stages: 2, PageSize: 512,
			FirstWatermark: rapid.IntRange(-1, 9).Draw(rt, "first"), PlanID: rapid.SampledFrom([]string{"", "run-17"}).Draw(rt, "plan"), Writer: rapid.SampledFrom([]string{"", "v1"}).Draw(rt, "writer")}
		b, err := AppendHeader(nil, &h)
		require.NoError(rt, err)
		var got commitstep.Header
		require.True(rt, parseHeader(b, &got), "%s", b)
		require.Empty(rt, cmp.Diff(h, got))
	})
}
