package commitstep

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// SecretWords are the names that make a parameter a secret when its key, in
// any case, contains one of them. Parameters are stored and shown, so secrets
// are refused; they belong to the resource that a process binds at its start.
var secretWords = []string{"password", "passwd", "secret", "token", "credential", "private_key", "privatekey", "apikey", "api_key", "access_key", "accesskey"}

// SecretWords returns the list that docs and errors name.
func SecretWords() []string { return append([]string(nil), secretWords...) }

// sqlKeys hold statements, which may talk about anything.
var sqlKeys = map[string]bool{"sql": true, "statement": true, "query": true}

var withPassword = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://[^/@\s]*:[^/@\s]+@`)

// CheckNoSecrets refuses parameters that name a secret or hold an address with
// a password in it. The value itself is never part of the error.
func CheckNoSecrets(where string, params json.RawMessage) error {
	if len(bytes.TrimSpace(params)) == 0 {
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
		for k, e := range v {
			full := k
			if key != "" {
				full = key + "." + k
			}
			low := strings.ToLower(strings.ReplaceAll(k, "-", "_"))
			for _, w := range secretWords {
				if strings.Contains(low, w) && !sqlKeys[low] {
					return bad(fmt.Sprintf("has the parameter %q, which names a secret", full))
				}
			}
			if sqlKeys[low] {
				continue
			}
			if err := noSecrets(where, full, e); err != nil {
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
		if withPassword.MatchString(v) {
			return bad(fmt.Sprintf("has the parameter %q, an address with a password in it", key))
		}
	}
	return nil
}
