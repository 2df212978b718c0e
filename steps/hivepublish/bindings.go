package hivepublish

import (
	"fmt"
	"maps"
	"slices"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Bindings are what the placeholders of a step's statements stand for, besides
// those that every step has:
//
//	${table}             the table, quoted
//	${partition}         (`dt`='2024-01-01')
//	${partition_filter}  a condition on the partition columns, true for a table without
//	${token}             the step's token, a string
//	${job}, ${dataset}   the plan's, strings
//	${stage}             the table named by stage, quoted
//
// A value may stand by itself or inside a string; a name only by itself. Hive's
// own ${hiveconf:…} is refused: what it stands for is not in the plan.
type Bindings struct {
	// Stage is a table that the statement reads.
	Stage string `json:"stage,omitempty"`
	// Values are bound as strings, Names as quoted identifiers (database.table).
	Values map[string]Text   `json:"values,omitempty"`
	Names  map[string]string `json:"names,omitempty"`
}

// ownHoles are bound for every step.
var ownHoles = []string{"table", "partition", "partition_filter", "token", "job", "dataset"}

// known are the names that may be used.
func (b Bindings) known(partitioned bool) (map[string]bool, error) {
	out := map[string]bool{}
	for _, n := range ownHoles {
		out[n] = partitioned || n != "partition"
	}
	if !partitioned {
		delete(out, "partition")
	}
	if b.Stage != "" {
		if _, err := sqlName(b.Stage); err != nil {
			return nil, fmt.Errorf("stage: %w", err)
		}
		out["stage"] = true
	}
	add := func(name string) error {
		switch {
		case !isHole(name):
			return fmt.Errorf("%q is no name for a placeholder; use letters, digits and underscores", name)
		case out[name] || name == "stage" || slices.Contains(ownHoles, name):
			return fmt.Errorf("${%s} is bound twice", name)
		}
		out[name] = true
		return nil
	}
	for _, n := range slices.Sorted(maps.Keys(b.Values)) {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(b.Names)) {
		if err := add(n); err != nil {
			return nil, err
		}
		if _, err := sqlName(b.Names[n]); err != nil {
			return nil, fmt.Errorf("${%s}: %w", n, err)
		}
	}
	return out, nil
}

func isHole(s string) bool {
	for i := range len(s) {
		if !isWord(s[i]) || s[i] >= 0x80 {
			return false
		}
	}
	return s != ""
}

// sqlName quotes a dotted name.
func sqlName(name string) (string, error) {
	parts, err := splitName(name)
	if err != nil {
		return "", err
	}
	out := ""
	for i, p := range parts {
		if i > 0 {
			out += "."
		}
		out += quoteName(p)
	}
	return out, nil
}

// values binds everything for one step.
func (b Bindings) values(t target, token uuid.UUID, key commitstep.Key) map[string]bound {
	out := map[string]bound{
		"table":            sqlText(t.sqlTable()),
		"partition_filter": sqlText(t.sqlFilter()),
		"token":            textValue(token.String()),
		"job":              textValue(key.Job),
		"dataset":          textValue(key.Dataset),
	}
	if len(t.spec) > 0 {
		out["partition"] = sqlText(t.sqlSpec())
	}
	name := func(as, n string) {
		if q, err := sqlName(n); err == nil { // checked when the step was built
			out[as] = sqlText(q)
		}
	}
	if b.Stage != "" {
		name("stage", b.Stage)
	}
	for k, n := range b.Names {
		name(k, n)
	}
	for k, v := range b.Values {
		out[k] = textValue(string(v))
	}
	return out
}
