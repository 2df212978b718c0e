package hivepublish

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Hive takes many spellings of a partition's value and converts them to the
// column's type: 2026-01-01 00:00:00.0 and 2026-01-01 are one partition of a
// timestamp column, and x is true. A lock that held the spelling would let two
// publish one partition. So a value has one form here, the one by which the
// metastore names the partition, and what Hive would have to guess is refused.

// errNoForm: partitions of such a column cannot be told apart by their values.
var errNoForm = errors.New("has no single spelling of a value")

var (
	typeForm      = regexp.MustCompile(`^([a-z ]+?)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?$`)
	decimalForm   = regexp.MustCompile(`^([+-]?)(\d+)(?:\.(\d+))?$`)
	timestampForm = regexp.MustCompile(`^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?$`)
	dateForm      = regexp.MustCompile(`^\d{4}-\d\d-\d\d$`)
)

// hiveType is a column's type, taken apart: decimal(10,2).
type hiveType struct {
	name string
	// args are the length, or precision and scale; 0 where there is none.
	args [2]int
}

func parseType(text string) hiveType {
	m := typeForm.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
	if m == nil {
		return hiveType{name: text}
	}
	t := hiveType{name: m[1]}
	for i := range t.args {
		t.args[i], _ = strconv.Atoi(m[2+i]) // digits, or nothing
	}
	return t
}

// integerBits is the size of the integer types.
var integerBits = map[string]uint{"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}

// canonical is the one form of a value of a column of that type.
func canonical(value, typ string) (string, error) {
	t := parseType(typ)
	switch t.name {
	case "tinyint", "smallint", "int", "bigint":
		return canonicalInteger(value, integerBits[t.name])
	case "boolean":
		if v := strings.ToLower(value); v == "true" || v == "false" {
			return v, nil
		}
		// Hive reads most other words as true.
		return "", fmt.Errorf("%q is neither true nor false", value)
	case "date":
		if !dateForm.MatchString(value) {
			return "", fmt.Errorf("%q is not of the form 2006-01-02", value)
		}
		return value, checkDay(value)
	case "timestamp":
		return canonicalTimestamp(value)
	case "decimal":
		return canonicalDecimal(value, t.args[0], t.args[1])
	case "string", "varchar", "char":
		return canonicalText(value, t)
	}
	// timestamp with local time zone: the metastore's name depends on the session's
	// time zone. float, double: on how the server's Java prints them.
	return "", fmt.Errorf("a column of type %s %w that could be locked; publish tables that are partitioned by a date, a timestamp, an integer, a decimal, a boolean or a text", typ, errNoForm)
}

func canonicalInteger(value string, bits uint) (string, error) {
	v, ok := new(big.Int).SetString(value, 10)
	if !ok {
		return "", fmt.Errorf("%q is no integer", value)
	}
	// Hive takes 300 of a tinyint column for 44.
	if low := new(big.Int).Lsh(big.NewInt(-1), bits-1); v.Cmp(low) < 0 || v.Cmp(new(big.Int).Not(low)) > 0 {
		return "", fmt.Errorf("%q does not fit into it", value)
	}
	return v.String(), nil
}

// checkDay refuses days that not all versions of Hive know by the same name: those
// that the Gregorian calendar left out, and the year 0.
func checkDay(day string) error {
	if _, err := time.Parse(time.DateOnly, day); err != nil {
		return fmt.Errorf("%q is no day of the calendar", day)
	}
	if strings.HasPrefix(day, "0000") || day >= "1582-10-05" && day <= "1582-10-14" {
		return fmt.Errorf("%q is another day for some versions of Hive", day)
	}
	return nil
}

func canonicalTimestamp(value string) (string, error) {
	m := timestampForm.FindStringSubmatch(value)
	if m == nil {
		hint := ""
		if dateForm.MatchString(value) && checkDay(value) == nil {
			hint = fmt.Sprintf("; is it %q?", value+" 00:00:00")
		}
		return "", fmt.Errorf("%q is not of the form 2006-01-02 15:04:05 or 2006-01-02 15:04:05.123456789%s", value, hint)
	}
	if _, err := time.Parse(time.DateTime, m[1]); err != nil {
		return "", fmt.Errorf("%q is no time of the calendar", value)
	}
	if err := checkDay(m[1][:len(time.DateOnly)]); err != nil {
		return "", err
	}
	if f := strings.TrimRight(m[2], "0"); f != "" {
		return m[1] + "." + f, nil
	}
	return m[1], nil
}

// canonicalDecimal drops zeros that say nothing. Digits that the column has no
// room for are refused, since Hive would round them.
func canonicalDecimal(value string, precision, scale int) (string, error) {
	m := decimalForm.FindStringSubmatch(value)
	if m == nil {
		return "", fmt.Errorf("%q is not of the form 123.45", value)
	}
	whole, frac := strings.TrimLeft(m[2], "0"), strings.TrimRight(m[3], "0")
	if len(frac) > scale || len(whole) > precision-scale {
		return "", fmt.Errorf("%q does not fit into it", value)
	}
	out := whole
	if out == "" {
		out = "0"
	}
	if frac != "" {
		out += "." + frac
	}
	if m[1] == "-" && out != "0" {
		out = "-" + out
	}
	return out, nil
}

// canonicalText holds that nothing is cut off, and that no metastore takes the value
// for another: some databases do not see blanks at the end. Those of a char column
// only pad it.
func canonicalText(value string, t hiveType) (string, error) {
	trimmed := strings.TrimRight(value, " ")
	switch {
	case t.name == "char" && trimmed == "":
		return "", fmt.Errorf("%q is blank", value)
	case t.name == "char":
		value = trimmed
	case value != trimmed:
		return "", fmt.Errorf("%q ends in a blank, which not every metastore tells from %q", value, trimmed)
	}
	if n := utf8.RuneCountInString(value); t.name != "string" && n > t.args[0] {
		return "", fmt.Errorf("%q has %d characters, and Hive would cut it to %q", value, n, string([]rune(value)[:t.args[0]]))
	}
	return value, nil
}

// literal is a value as SQL of its column's type. Hive refuses to compare a bigint or
// a decimal with a string, and takes every string for true beside a boolean. typ is
// "" where it is not known: sequences of earlier versions did not keep it.
func literal(value, typ string) string {
	switch form, err := canonical(value, typ); {
	case typ == "" || parseType(typ).name == "string":
		return quote(value)
	case err == nil && parseType(typ).name == "boolean":
		return form // older servers cast 'false' to true
	}
	return "CAST(" + quote(value) + " AS " + typ + ")"
}
