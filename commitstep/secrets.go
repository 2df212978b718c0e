package commitstep

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// secretWords make a parameter a secret when its key contains one of them, in
// any case, with "-", "." and spaces read as "_". Parameters are stored and
// shown, so secrets are refused; they belong to the resource that a process
// binds at its start.
var secretWords = []string{"password", "passwd", "passphrase", "secret", "token", "credential", "private_key", "privatekey", "apikey", "api_key", "access_key", "accesskey"}

// SecretWords returns the list that docs and errors name.
func SecretWords() []string { return slices.Clone(secretWords) }

// sqlKeys hold statements, whose text may talk about anything.
var sqlKeys = map[string]bool{"sql": true, "statement": true, "query": true}

var keySeparators = strings.NewReplacer("-", "_", ".", "_", " ", "_")

// An address may stand behind another scheme (jdbc:…://), and may carry its
// password as a parameter.
var (
	userPassword  = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^/@\s]*:[^@\s]+@`)
	queryPassword = regexp.MustCompile(`(?i)://\S*[?&;](?:[a-z_.-]*(?:` + strings.Join(secretWords, "|") + `)|pwd)=[^&;\s]`)
)

// CheckNoSecrets refuses parameters that name a secret or hold an address with
// a password in it. The value itself is never part of the error.
func CheckNoSecrets(where string, params json.RawMessage) error {
	if len(bytes.TrimSpace(params)) == 0 {
		return nil
	}
	if json.Valid(params) && !MayHoldSecret(params) {
		return nil
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(params))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return &PlanError{Where: where, Problem: "has parameters that are not JSON", Err: err}
	}
	return noSecrets(where, "", v)
}

func noSecrets(where, key string, v any) error {
	bad := func(problem string) error {
		return &PlanError{Where: where, Problem: problem, Hint: "configure it with the resource; plans are stored and shown"}
	}
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			full := k
			if key != "" {
				full = key + "." + k
			}
			low := keySeparators.Replace(strings.ToLower(k))
			for _, w := range secretWords {
				if strings.Contains(low, w) {
					return bad(fmt.Sprintf("has the parameter %q, which names a secret", full))
				}
			}
			if _, text := v[k].(string); text && sqlKeys[low] {
				continue
			}
			if err := noSecrets(where, full, v[k]); err != nil {
				return err
			}
		}
	case []any:
		for _, e := range v {
			if err := noSecrets(where, key, e); err != nil {
				return err
			}
		}
	case string:
		if userPassword.MatchString(v) || queryPassword.MatchString(v) {
			return bad(fmt.Sprintf("has the parameter %q, an address with a password in it", key))
		}
	}
	return nil
}
