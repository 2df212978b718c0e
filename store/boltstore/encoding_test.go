package boltstore

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
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
		raw, err := appendSteps(nil, steps)
		require.NoError(rt, err)
		require.True(rt, json.Valid(raw), "%s", raw)
		got, err := decodeSteps(raw, first)
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
		_, err := appendSteps(nil, []commitstep.Step{{Kind: "k", Params: json.RawMessage(bad)}})
		require.Error(t, err, bad)
	}
}

func TestKeysSortLikeTheirTextsAndComeBack(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune{0, 1, 'a', 'b', 0xff}), 0, 5, -1))
	rapid.Check(t, func(rt *rapid.T) {
		type triple struct {
			key  commitstep.Key
			last string
		}
		draw := func(name string) triple {
			return triple{commitstep.Key{Job: text.Draw(rt, name+" job"), Dataset: text.Draw(rt, name+" dataset")}, text.Draw(rt, name+" last")}
		}
		a, b := draw("a"), draw("b")
		require.Equal(rt, sign(a.key.Compare(b.key)), bytes.Compare(liveKey(a.key), liveKey(b.key)))
		got, err := parseLiveKey(liveKey(a.key))
		require.NoError(rt, err)
		require.Equal(rt, a.key, got)
		k, last, err := parseTriple(tripleKey(a.key, a.last))
		require.NoError(rt, err)
		require.Equal(rt, a, triple{k, last})
		want := a.key.Compare(b.key)
		if want == 0 {
			want = bytes.Compare([]byte(a.last), []byte(b.last))
		}
		require.Equal(rt, sign(want), bytes.Compare(tripleKey(a.key, a.last), tripleKey(b.key, b.last)))
		require.Equal(rt, a.key == b.key, bytes.HasPrefix(tripleKey(b.key, b.last), tripleKey(a.key, "")), "one dataset's prefix is no other's")
	})
	_, _, err := parseTriple([]byte("no end"))
	require.Error(t, err)
	_, err = parseLiveKey([]byte{'a', 0, 7, 'b'})
	require.Error(t, err)
	_, err = parseLiveKey([]byte{'a', 0})
	require.Error(t, err)
	_, _, err = parsePageKey(make([]byte, 19))
	require.Error(t, err)
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func TestHeaderRecordsSplitOrAreDamage(t *testing.T) {
	t.Parallel()
	h, err := json.Marshal(commitstep.Header{ID: uuid.Max, Key: dataset("x"), PlanHash: "h"})
	require.NoError(t, err)
	steps := []byte(`[{"stage":0,"kind":"k","version":1}]`)
	for _, s := range [][]byte{nil, steps} {
		payload := encodeHeader(h, s)[commitstep.EnvelopeSize:]
		require.True(t, json.Valid(payload))
		gotH, gotS, err := splitHeader(payload)
		require.NoError(t, err)
		require.Equal(t, h, slices.Clone(gotH))
		require.Equal(t, s, slices.Clone(gotS))
		id, err := headerID(gotH)
		require.NoError(t, err)
		require.Equal(t, uuid.Max, id)
		for i := range payload {
			_, _, _ = splitHeader(payload[:i]) // must not panic
		}
	}
	for _, bad := range []string{"", "{}", `{"headerBytes":`, `{"headerBytes":999,"header":{}}`, `{"headerBytes":-1,"header":{}}`, `{"headerBytes":2,"header":{}`, `{"headerBytes":2,"header":{},"steps":}`} {
		_, _, err := splitHeader([]byte(bad))
		require.ErrorIs(t, err, commitstep.ErrDamaged, bad)
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
	tail := historyTail{State: commitstep.Completed, Ended: now, Epoch: 1 << 63, Message: odd, CleanupReport: odd,
		Notes: store.HistoryNotes{Already: 1, Executed: 2, Recovers: 3, Driver: odd, PartialVisible: []string{odd}}}
	requireAllSet(t, reflect.ValueOf(tail))
	for range 2 {
		b, err := appendHeaderJSON(nil, &h)
		require.NoError(t, err)
		var got commitstep.Header
		require.NoError(t, json.Unmarshal(b, &got))
		require.Empty(t, cmp.Diff(h, got, cmp.AllowUnexported(commitstep.Watermark{})))
		slow, err := json.Marshal(h)
		require.NoError(t, err)
		require.JSONEq(t, string(slow), string(b))

		for _, detail := range [][]byte{nil, []byte(`[{"stage":0,"kind":"k","version":1}]`)} {
			rec, err := encodeHistory(b, detail, tail)
			require.NoError(t, err)
			var r historyRecord
			require.NoError(t, json.Unmarshal(rec[commitstep.EnvelopeSize:], &r))
			require.Equal(t, tail, historyTail{State: r.State, Ended: r.Ended, Epoch: r.Epoch, Notes: r.Notes, Message: r.Message, CleanupReport: r.CleanupReport})
			require.JSONEq(t, string(b), string(r.Header))
			require.Equal(t, string(detail), string(r.Detail))
		}
		// Once more with everything optional left out.
		h = commitstep.Header{Key: dataset("x"), PlanHash: "h", Created: now}
		tail = historyTail{State: commitstep.Abandoned, Ended: now}
	}
	for _, n := range []store.HistoryNotes{{}, {Already: 1}, {Executed: 1}, {Recovers: 1}, {Driver: "d"}, {Already: 1, Driver: "d"}, {PartialVisible: []string{}}} {
		b, err := appendTail([]byte("{"), historyTail{Ended: now, Notes: n})
		require.NoError(t, err)
		var got historyTail
		require.NoError(t, json.Unmarshal(b, &got), "%s", b)
		require.Equal(t, n.Already+n.Executed+n.Recovers, got.Notes.Already+got.Notes.Executed+got.Notes.Recovers)
		require.Equal(t, n.Driver, got.Notes.Driver)
	}
	h.Created = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := appendHeaderJSON(nil, &h)
	require.Error(t, err, "no JSON reader takes that year")
}

func requireAllSet(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), "the test must set %s.%s", v.Type(), v.Type().Field(i).Name)
	}
}

func TestSumsAreWrittenAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all sums
		for i := range all {
			all[i] = sum{Count: rapid.Uint64().Draw(t, "count"), Hash: rapid.Uint64().Draw(t, "hash")}
		}
		want, err := json.Marshal(all)
		require.NoError(t, err)
		require.Equal(t, string(want), string(encodeSums(&all)[commitstep.EnvelopeSize:]))
	})
}
