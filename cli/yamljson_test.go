package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestYAMLValuesAreNeverChanged(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"100":                            `100`,
		"-7":                             `-7`,
		"0":                              `0`,
		"9007199254740993":               `9007199254740993`,
		"123456789012345678901234567890": `123456789012345678901234567890`,
		`"0100"`:                         `"0100"`,
		`'1e3'`:                          `"1e3"`,
		"2015-12-09":                     `"2015-12-09"`,
		"2015-12-09T00:00:00Z":           `"2015-12-09T00:00:00Z"`,
		"MyTopic:0":                      `"MyTopic:0"`,
		"12:30":                          `"12:30"`,
		"true":                           `true`,
		"false":                          `false`,
		"null":                           `null`,
		"~":                              `null`,
		"":                               `null`,
		"y":                              `"y"`,
		`"yes"`:                          `"yes"`,
		`"a\u2028b"`:                     "\"a\\u2028b\"",
		`[1, {a: b}]`:                    `[1,{"a":"b"}]`,
		`{}`:                             `{}`,
	} {
		got, err := yamlToJSON([]byte("v: " + text + "\n"))
		require.NoError(t, err, text)
		require.Equal(t, `{"v":`+want+`}`, string(got), text)
	}
}

func TestYAMLThatReadersDisagreeAboutIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0000000100", "0100", "-010", "08", "00", "+1", "9007199254740993.0", "1.0", "1.", ".5", "1e3", "1E3", "1e400", "-1e400", "0x10", "0xFFFFFFFFFFFFFFFFFFFF",
		"0b11", "0o17", "1_000", "1_", "0x_1", ".inf", "-.inf", ".nan", ".NaN",
		"yes", "No", "ON", "off", "!!binary aGk=", "!!str 12", "!!int 12", "!x y", "&a b", "[&a b, *a]", "{<<: {a: b}}", "{a: 1, a: 2}", "{1: a}", "{true: a}", "{null: a}", "{[a]: b}", "{0x1: a}",
	} {
		_, err := yamlToJSON([]byte("# a plan\nv: " + text + "\n"))
		var pe *commitstep.PlanError
		require.ErrorAs(t, err, &pe, text)
		require.Contains(t, pe.Where, "line 2 column ", text)
		require.NotEmpty(t, pe.Hint, text)
	}
	_, err := yamlToJSON([]byte("# a plan\nv: 0000000100\n"))
	require.EqualError(t, err, "plan: line 2 column 4 has 0000000100, which YAML readers take for different numbers; write a number in plain decimal digits, or quote it if it is a text")
}

func TestYAMLDocuments(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a: b", "---\na: b\n", "---\na: b\n...\n", "a: b\n---\n# nothing\n", "# x\n---\na: b\n---\n"} {
		got, err := yamlToJSON([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, `{"a":"b"}`, string(got), text)
	}
	for _, text := range []string{"a: b\n---\na: b\n", "a: b\n...\n---\nc", "a: b\n---\n~", "{\"a\": 1}\n---\n{\"a\": 2}\n"} {
		_, err := yamlToJSON([]byte(text))
		require.ErrorContains(t, err, "is followed by another one", text)
	}
	for _, text := range []string{"a: x\u2028y", "a: \"x\u0085y\"", "a: 'x\u2029y'"} {
		_, err := yamlToJSON([]byte(text))
		require.ErrorContains(t, err, "is a line break in YAML", text)
	}
	_, err := yamlToJSON([]byte(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)))
	require.Error(t, err)
	// What is JSON is read by its own rules.
	js := "{\t\"a\":\t\"\\ud83d\\ude00\"}"
	got, err := yamlToJSON([]byte(js))
	require.NoError(t, err)
	require.Equal(t, js, string(got))
}

// TestYAMLGivesWhatJSONGives: a value that is written as YAML in any style comes
// back as it is in JSON, or is refused where a text was left without quotes.
func TestYAMLGivesWhatJSONGives(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"0100", "1e3", "1e400", "yes", "off", "null", "~", "", "true", "2015-12-09", "<<", "0x10", "1_0", ".inf", "12:30", " a ", "a\nb", "# a", "a: b", "\u2028", "-", "\u00e9"}),
		rapid.StringMatching(`[-+]?[0-9a-fxob_.eE]{1,6}`))
	rapid.Check(t, func(t *rapid.T) {
		bare := false
		var value func(depth int) (*yaml.Node, any)
		text := func() (*yaml.Node, string) {
			s := strings.ToValidUTF8(texts.Draw(t, "text"), "?")
			style := rapid.SampledFrom([]yaml.Style{0, yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle, yaml.LiteralStyle}).Draw(t, "style")
			bare = bare || style != yaml.DoubleQuotedStyle
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s, Style: style}, s
		}
		value = func(depth int) (*yaml.Node, any) {
			kind := rapid.IntRange(0, 5).Draw(t, "kind")
			if depth > 3 && kind > 3 {
				kind = 0
			}
			switch kind {
			case 0:
				return text()
			case 1:
				n := rapid.StringMatching(`-?(0|[1-9][0-9]{0,40})`).Draw(t, "number")
				return &yaml.Node{Kind: yaml.ScalarNode, Value: n}, json.Number(n)
			case 2:
				b := rapid.Bool().Draw(t, "bool")
				return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(b)}, b
			case 3:
				return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
			case 4:
				n, all := &yaml.Node{Kind: yaml.SequenceNode}, []any{}
				for range rapid.IntRange(0, 3).Draw(t, "items") {
					c, v := value(depth + 1)
					n.Content, all = append(n.Content, c), append(all, v)
				}
				return n, all
			}
			n, all := &yaml.Node{Kind: yaml.MappingNode}, map[string]any{}
			for range rapid.IntRange(0, 3).Draw(t, "fields") {
				k, s := text()
				c, v := value(depth + 1)
				if _, twice := all[s]; !twice {
					n.Content, all[s] = append(n.Content, k, c), v
				}
			}
			return n, all
		}
		n, want := value(0)
		y, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: "v"}, n}})
		if err != nil {
			t.Skip("not every style can be written")
		}
		got, err := yamlToJSON(y)
		var pe *commitstep.PlanError
		if errors.As(err, &pe) && bare {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", y, err)
		}
		var back map[string]any
		d := json.NewDecoder(bytes.NewReader(got))
		d.UseNumber()
		if err := d.Decode(&back); err != nil {
			t.Fatalf("%s: %s: %v", y, got, err)
		}
		a, _ := json.Marshal(want)
		b, _ := json.Marshal(back["v"])
		if string(a) != string(b) {
			t.Fatalf("%s\ngives %s, not %s", y, b, a)
		}
	})
}

func FuzzYAMLToJSON(f *testing.F) {
	f.Add([]byte("a: [1, {b: 'c'}]\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := yamlToJSON(data); err == nil && len(got) > 0 && !json.Valid(got) {
			t.Fatalf("%q gives %q", data, got)
		}
	})
}
