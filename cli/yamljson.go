package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"go.yaml.in/yaml/v3"
)

// YAML readers agree about few scalars. What they may read as another value
// than the one that a person sees, a position of a source above all, is
// refused instead of guessed.
var (
	plainInteger = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	// likeNumber is wider than what this reader takes for a number: a number
	// that is too large for it would otherwise become a text.
	likeNumber  = regexp.MustCompile(`^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?$|^[-+]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)$`)
	likeBoolean = regexp.MustCompile(`^(?i:yes|no|on|off)$`)
)

// maxYAMLDepth is the nesting that plans allow, and some more, so that the
// plan's own reader words the refusal.
const maxYAMLDepth = 256

const yamlQuote = "quote it if it is a text"

// yamlToJSON turns a YAML document into JSON without changing any value.
// Errors are *commitstep.PlanError with line and column.
func yamlToJSON(data []byte) ([]byte, error) {
	// JSON is YAML, but YAML readers do not take all of it: tabs between the
	// tokens, pairs of \u escapes.
	if text := bytes.TrimSpace(data); len(text) > 0 && text[0] == '{' && json.Valid(text) {
		return data, nil
	}
	// These end a line in YAML, and are turned into blanks inside of texts.
	for _, c := range []rune{0x85, 0x2028, 0x2029} {
		if i := bytes.IndexRune(data, c); i >= 0 {
			return nil, &commitstep.PlanError{Where: fmt.Sprintf("line %d", 1+bytes.Count(data[:i], []byte("\n"))), Problem: fmt.Sprintf("has the character %U, which is a line break in YAML", c),
				Hint: fmt.Sprintf(`write it as "\u%04x" in double quotes, or the plan as JSON`, c)}
		}
	}
	var out bytes.Buffer
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := d.Decode(&doc)
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, &commitstep.PlanError{Where: "document", Problem: "is no YAML", Err: errors.New(oneLine(err.Error())), Hint: "see docs/formats.md for the plan document"}
		}
		if len(doc.Content) != 1 || isEmptyScalar(doc.Content[0]) {
			continue // only comments between two markers
		}
		if out.Len() > 0 {
			return nil, &commitstep.PlanError{Where: "document", Problem: "is followed by another one", Hint: "publish one plan at a time, each from a file of its own"}
		}
		if err := writeNode(&out, doc.Content[0], 0); err != nil {
			return nil, err
		}
	}
}

func isEmptyScalar(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Value == "" && n.Style == 0 && n.Anchor == ""
}

func yamlError(n *yaml.Node, hint, format string, a ...any) error {
	return &commitstep.PlanError{Where: fmt.Sprintf("line %d column %d", n.Line, n.Column), Problem: fmt.Sprintf(format, a...), Hint: hint}
}

// writeNode appends the JSON of n.
func writeNode(out *bytes.Buffer, n *yaml.Node, depth int) error {
	switch {
	case depth > maxYAMLDepth:
		return yamlError(n, "plans are flat", "is nested deeper than %d levels", maxYAMLDepth)
	case n.Kind == yaml.AliasNode:
		return yamlError(n, "write the value out", "has an alias, *%s", oneLine(n.Value))
	case n.Anchor != "":
		return yamlError(n, "remove it, and write the value out where it is used", "has an anchor, &%s", oneLine(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		return yamlError(n, "remove it; a text is written in quotes", "has a tag, %s", oneLine(n.Tag))
	}
	switch n.Kind {
	case yaml.MappingNode:
		return writeMapping(out, n, depth)
	case yaml.SequenceNode:
		out.WriteByte('[')
		for i, e := range n.Content {
			if i > 0 {
				out.WriteByte(',')
			}
			if err := writeNode(out, e, depth+1); err != nil {
				return err
			}
		}
		out.WriteByte(']')
		return nil
	case yaml.ScalarNode:
		return writeScalar(out, n)
	}
	return yamlError(n, "see docs/formats.md for the plan document", "has nothing that a plan can hold")
}

func writeMapping(out *bytes.Buffer, n *yaml.Node, depth int) error {
	out.WriteByte('{')
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		bare := k.Style&quotedStyles == 0
		switch {
		case k.Kind != yaml.ScalarNode || k.Anchor != "" || k.Style&yaml.TaggedStyle != 0:
			return yamlError(k, "a field is named by a plain text", "has a key with structure, anchor, alias or tag")
		case bare && k.ShortTag() == "!!merge":
			return yamlError(k, "write the fields out", "has a merge key, <<")
		case bare && (k.ShortTag() != "!!str" || likeNumber.MatchString(k.Value)):
			return yamlError(k, yamlQuote, "has the key %s, which YAML does not read as text", oneLine(k.Value))
		case seen[k.Value]:
			return yamlError(k, "keep one of them", "has the field %q twice", k.Value)
		}
		seen[k.Value] = true
		if i > 0 {
			out.WriteByte(',')
		}
		if err := writeText(out, k.Value); err != nil {
			return err
		}
		out.WriteByte(':')
		if err := writeNode(out, n.Content[i+1], depth+1); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

const quotedStyles = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle

func writeScalar(out *bytes.Buffer, n *yaml.Node) error {
	if n.Style&quotedStyles != 0 {
		return writeText(out, n.Value)
	}
	tag := n.ShortTag()
	switch {
	case plainInteger.MatchString(n.Value):
		out.WriteString(n.Value) // digit for digit, whatever its size
	case tag == "!!int" || tag == "!!float" || likeNumber.MatchString(n.Value):
		return yamlError(n, "write a number in plain decimal digits, or "+yamlQuote, "has %s, which YAML readers take for different numbers", oneLine(n.Value))
	case likeBoolean.MatchString(n.Value):
		return yamlError(n, "write true or false, or "+yamlQuote, "has %s, which some YAML readers take for true or false", oneLine(n.Value))
	case tag == "!!bool":
		out.WriteString(strings.ToLower(n.Value))
	case tag == "!!null":
		out.WriteString("null")
	case tag == "!!str" || tag == "!!timestamp":
		return writeText(out, n.Value)
	default:
		return yamlError(n, yamlQuote, "has %s, which YAML reads as %s", oneLine(n.Value), tag)
	}
	return nil
}

func writeText(out *bytes.Buffer, s string) error {
	b, err := compactJSON(s)
	out.Write(b)
	return err
}
