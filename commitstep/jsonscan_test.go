package commitstep

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// json.Valid is the truth: the quick look may only say yes where it does.
func TestPlainJSONIsNeverWrong(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"{", "}", "[", "]", ",", ":", `"`, `"a"`, `"key":`, "0", "1", "-", "-1", "01", ".", "1.5", "e", "1e+7", "E-2", "true", "tru", "false", "null",
		" ", "\n", "\\", `\"`, `\u00e9`, "é", "\x00", "\x1f", "\x7f", "\xff", "a long text without anything in it", `"a long text with a quote behind it"`})
	rapid.Check(t, func(t *rapid.T) {
		raw := []byte(strings.Join(rapid.SliceOfN(piece, 0, 24).Draw(t, "pieces"), ""))
		valid := json.Valid(raw)
		if plainJSON(raw) && !valid {
			t.Fatalf("%q is no JSON", raw)
		}
		if ValidJSON(raw) != valid {
			t.Fatalf("%q: want %v", raw, valid)
		}
	})
	// Every byte at every place of a text that is taken eight bytes at a time.
	for c := range 256 {
		for at := range 20 {
			text := []byte(`"` + strings.Repeat("x", 20) + `"`)
			text[1+at] = byte(c)
			require.Equal(t, json.Valid(text), ValidJSON(text), "%q", text)
			require.False(t, plainJSON(text) && !json.Valid(text), "%q", text)
		}
	}
}

// What encoding/json makes of plain values must not need the slow look, or
// nothing is gained.
func TestPlainJSONKnowsWhatStepsHold(t *testing.T) {
	t.Parallel()
	for _, v := range []any{
		map[string]any{"from": "file:///data/a.avro", "to": "file:///data/b.avro", "length": 1048576, "none": nil, "yes": true, "no": false},
		[]any{}, map[string]any{}, -1.5e-9, []any{map[string]any{"a": []int{1, 2, 3}}}, "데이터",
	} {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		require.True(t, plainJSON(raw), "%s", raw)
	}
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	require.False(t, plainJSON([]byte(deep)))
	require.True(t, ValidJSON([]byte(deep)))
}

func FuzzValidJSON(f *testing.F) {
	f.Add([]byte(`{"a":[1,-0.5e+3,"x",null,true,false]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if ValidJSON(raw) != json.Valid(raw) || plainJSON(raw) && !json.Valid(raw) {
			t.Fatalf("%q", raw)
		}
	})
}

// Whatever PlainObject takes apart, encoding/json reads as the same.
func TestPlainObjectIsReadAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"{", "}", "{}", ",", ":", `"a"`, `"b"`, `"a":`, `"b":`, `,"c":`, `"é"`, "\"\xff\"", "0", "-7", "1.5", "9223372036854775808", "null", "true", `"x\"y"`, "[1]", `{"d":"e"}`, " "})
	rapid.Check(t, func(t *rapid.T) {
		raw := []byte(strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), ""))
		if rapid.Bool().Draw(t, "object") {
			raw = []byte("{" + strings.TrimSuffix(string(raw), ",") + "}")
		}
		got := map[string]json.RawMessage{}
		ok := PlainObject(raw, func(name, value []byte) bool { got[string(name)] = value; return true })
		var want map[string]json.RawMessage
		err := json.Unmarshal(raw, &want)
		switch {
		case !ok:
			return
		case err != nil:
			t.Fatalf("%q: %v", raw, err)
		case len(got) != len(want):
			t.Fatalf("%q: %d fields, want %d", raw, len(got), len(want))
		}
		for name, value := range got {
			if string(want[name]) != string(value) {
				t.Fatalf("%q: %q is %s, want %s", raw, name, value, want[name])
			}
			var s *string
			text, ok := PlainText(value)
			if err := json.Unmarshal(value, &s); ok != (err == nil && s != nil) || ok && *s != text {
				t.Fatalf("%s is the text %q %v", value, text, ok)
			}
			var n *int64
			num, ok := PlainInt(value)
			if err := json.Unmarshal(value, &n); ok != (err == nil && n != nil) || ok && *n != num {
				t.Fatalf("%s is the number %d %v", value, num, ok)
			}
		}
	})
	require.True(t, PlainObject([]byte(`{"a":1,"é":"데이터"}`), func(_, _ []byte) bool { return true }))
	require.True(t, PlainObject([]byte(`{}`), nil))
	require.False(t, PlainObject([]byte(`{"a":1}`), func(_, _ []byte) bool { return false }))
}

func TestWatermarksAreReadTheSameQuicklyAndSlowly(t *testing.T) {
	t.Parallel()
	value := rapid.SampledFrom([]string{"1", "-5", "0", "9223372036854775807", "9223372036854775808", "1.5", `"x"`, `"é"`, `"a\"b"`, "null", "true", `""`, "{}"})
	rapid.Check(t, func(t *rapid.T) {
		parts := []string{`"value":` + value.Draw(t, "value"), `"epoch":` + value.Draw(t, "epoch")}
		text := "{" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(append(parts, `"other":1`)), 0, 3).Draw(t, "parts"), ",") + "}"
		var quick, slow Watermark
		qerr, serr := json.Unmarshal([]byte(text), &quick), json.Unmarshal([]byte(strings.Replace(text, "{", "{ ", 1)), &slow)
		if (qerr == nil) != (serr == nil) || quick != slow {
			t.Fatalf("%s: %v %v, with a blank %v %v", text, quick, qerr, slow, serr)
		}
	})
}
