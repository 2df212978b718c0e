package commitstep_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
)

func TestSecretsAreRefused(t *testing.T) {
	t.Parallel()
	for _, params := range []string{
		`{"password":"hunter2"}`, `{"PASSWORD":"hunter2"}`, `{"dbPassword":"hunter2"}`, `{"password":null}`, `{"passwd":1}`, `{"passphrase":"hunter2"}`,
		`{"client-secret":"hunter2"}`, `{"token":"hunter2"}`, `{"accessToken":"hunter2"}`, `{"credentials":{}}`,
		`{"private_key":"hunter2"}`, `{"private-key":"hunter2"}`, `{"private key":"hunter2"}`, `{"privateKey":"hunter2"}`, `{"api.key":"hunter2"}`, `{"apiKey":"hunter2"}`, `{"aws_access_key":"hunter2"}`,
		`{"a":{"b":[{"secret":"hunter2"}]}}`, `[{"secret":"hunter2"}]`,
		`{"url":"postgres://u:hunter2@host/db"}`, `{"url":"postgres://:hunter2@host/db"}`, `{"urls":["x","https://u:hunter2@host"]}`, `{"url":"hdfs+tls://u:p%40hunter2@host/"}`,
		`{"url":"jdbc:postgresql://u:hunter2@host/db"}`, `{"url":"postgres://u:hunter2/x@host/db"}`,
		`{"url":"jdbc:hive2://h:10000/db;user=u;password=hunter2"}`, `{"url":"https://h/?sslPassword=hunter2"}`, `{"url":"https://h/?a=1&access_token=hunter2"}`,
		`{"sql":{"password":"hunter2"}}`, `{"query_password":"hunter2"}`,
		`"postgres://u:hunter2@host/db"`,
	} {
		err := commitstep.CheckNoSecrets("stage 1 step 1 (x)", json.RawMessage(params))
		requireRefusal(t, err, "stage 1 step 1 (x)", "configure it with the resource")
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the refusal shows the secret: %q", params, err)
		}
	}
}

func TestWhatIsNoSecret(t *testing.T) {
	t.Parallel()
	for _, params := range []string{
		``, `null`, `{}`, `7`, `{"from":"a","to":"hdfs://prod/x"}`, `{"hdfs":"prod","hive":"dw"}`,
		// Statements may talk about anything.
		`{"sql":"SELECT password, token FROM users WHERE url = 'postgres://u:p@h/'"}`, `{"Statement":"ALTER USER u SET PASSWORD 'x'"}`, `{"query":"select 1"}`,
		`{"url":"https://host:8020/a"}`, `{"url":"https://u@host/"}`, `{"to":"/d/a:b@c"}`, `{"to":"part=https://x"}`, `{"note":"the password is elsewhere"}`,
		`{"url":"https://h/?passwordless=1"}`,
	} {
		if err := commitstep.CheckNoSecrets("w", json.RawMessage(params)); err != nil {
			t.Errorf("%s is refused: %v", params, err)
		}
	}
	requireRefusal(t, commitstep.CheckNoSecrets("w", json.RawMessage(`{"`)), "not JSON")
}

// With several faults the same one is named every time.
func TestTheRefusalIsTheSameEveryTime(t *testing.T) {
	t.Parallel()
	for range 50 {
		err := commitstep.CheckNoSecrets("w", json.RawMessage(`{"z_secret":1,"m_secret":1,"a_secret":1,"q_secret":1}`))
		requireRefusal(t, err, `"a_secret"`)
	}
}

func TestSecretWordsAreDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "docs", "formats.md"))
	if err != nil {
		t.Fatal(err)
	}
	words := commitstep.SecretWords()
	for _, w := range words {
		if !strings.Contains(string(doc), "`"+w+"`") {
			t.Errorf("docs/formats.md does not list %q", w)
		}
		requireRefusal(t, commitstep.CheckNoSecrets("w", json.RawMessage(`{"x_`+strings.ToUpper(w)+`_y":1}`)), "names a secret")
	}
	words[0] = "changed"
	if commitstep.SecretWords()[0] == "changed" {
		t.Error("the list can be changed from outside")
	}
}
