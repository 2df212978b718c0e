package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// withConfig is a command line with this configuration file.
func withConfig(t *testing.T, conf string, env ...string) (App, string) {
	t.Helper()
	path := writeFile(t, t.TempDir(), "config.yaml", conf)
	vars := map[string]string{"COMMITSTEP_CONFIG": path}
	for i := 0; i < len(env); i += 2 {
		vars[env[i]] = env[i+1]
	}
	return App{Env: func(k string) string { return vars[k] }}, path
}

// TestWrongHiveConfigurations: every wrong value is refused with the server, what
// is wrong, and the file to correct, before anything is opened.
func TestWrongHiveConfigurations(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	for conf, want := range map[string]string{
		"user: etl":                                                               "has no address",
		"address: hs2":                                                            "want host:port",
		"address: 'hs2:'":                                                         "want host:port",
		"address: h:1, transport: thrift":                                         `transport "thrift" is unknown`,
		"address: h:1, auth: kerberos":                                            `auth "kerberos" is unknown`,
		"address: h:1, auth: nosasl, transport: http":                             "only the binary transport has",
		"address: h:1, http_path: x":                                              "only the http transport has",
		"address: h:1, password: s3cret":                                          "has a password in the configuration",
		"address: h:1, password_file: a, password_env: B":                         "give one",
		"address: h:1, auth: nosasl, password_env: B":                             "does not send",
		"address: h:1, web_user: a":                                               "no web_ui",
		"address: h:1, web_ui: 'http://h', web_password_env: X":                   "no web_user",
		"address: h:1, web_ui: 'http://u:s3cret@h'":                               "holds a user",
		"address: h:1, web_ui: 'ftp://h'":                                         "want http://host:port",
		"address: h:1, call_timeout: soon":                                        `call_timeout "soon" is not a duration`,
		"address: h:1, submit_timeout: 0s":                                        "submit_timeout",
		"address: h:1, grace: 1s":                                                 "grace is 1s and must be at least 1h0m0s",
		"address: h:1, grace: -1h":                                                "grace",
		"address: h:1, sessions: -1":                                              "sessions must be positive",
		"address: h:1, tls: {cert_file: x}":                                       "both cert_file and key_file",
		"address: h:1, session: {hive.query.tag: x}":                              "every step sets its own",
		"address: h:1, session: {HIVE.server2.close.session.on.disconnect: true}": "must not be changed",
		"address: h:1, warehouse: {prod: 'hdfs://prod/'}":                         "is not how a location of Hive begins",
		"address: h:1, warehouse: {'hdfs://prod': data}":                          "is relative",
		"address: h:1, transport: http, user: 'a:b'":                              "colon",
		"address: h:1, port: 1":                                                   `unknown field "port"`,
		"address: h:1, tls: {insecure: true}":                                     `unknown field "insecure"`,
	} {
		app, path := withConfig(t, "hive:\n  dw: {"+conf+"}\n")
		r := run(t, app, "pending", "list", "--store", st)
		require.Equal(t, ExitError, r.code, "%s: %s%s", conf, r.out, r.errOut)
		require.Contains(t, r.errOut, want, conf)
		require.Contains(t, r.errOut, path, conf)
		require.NotContains(t, r.errOut, "s3cret", conf)
		if !strings.Contains(want, "unknown field") {
			require.Contains(t, r.errOut, "hive server dw", conf)
			require.Equal(t, 1, strings.Count(r.errOut, "hive server"), r.errOut)
		}
	}
	for _, n := range []string{"a/b", "a b"} {
		app, _ := withConfig(t, fmt.Sprintf("hive:\n  %s: {address: 'h:1'}\n", n))
		require.Equal(t, ExitError, run(t, app, "pending", "list", "--store", st).code, n)
	}
}

// TestOneHiveServerHasOneName: locks hold the name, so two for one server would let
// two publish one partition.
func TestOneHiveServerHasOneName(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	for other, same := range map[string]bool{"h:1": true, "H.:1": true, "h:01": true, "h:2": false, "h.x:1": false} {
		app, path := withConfig(t, "hive:\n  dw: {address: 'h:1'}\n  again: {address: '"+other+"'}\n")
		r := run(t, app, "pending", "list", "--store", st)
		if !same {
			require.Equal(t, ExitOK, r.code, "%s: %s", other, r.errOut)
			continue
		}
		require.Equal(t, ExitError, r.code, other)
		require.Contains(t, r.errOut, "hive servers again and dw are one", other)
		require.Contains(t, r.errOut, path)
	}
}

// TestHiveOfAnotherMachine: what is well-formed and cannot be used on this
// machine keeps nobody from what does not need it, and is told by doctor.
func TestHiveOfAnotherMachine(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	for conf, want := range map[string]string{
		"password_file: /nowhere/at/all":             "/nowhere/at/all",
		"password_file: /dev/null":                   "want one line with the password alone",
		"password_env: NOT_SET":                      "NOT_SET, which is not set",
		"tls: {ca_file: /dev/null}":                  "holds no certificate",
		"tls: {ca_file: /nowhere/ca.pem}":            "/nowhere/ca.pem",
		"tls: {cert_file: /no/c, key_file: /no/k}":   "cert_file and key_file",
		"warehouse: {'hdfs://prod': 'hdfs://prod/'}": "lies on hdfs://prod, which is not configured",
	} {
		app, _ := withConfig(t, "hive:\n  dw: {address: '127.0.0.1:1', "+conf+"}\n")
		must(t, app, "pending", "list", "--store", st)
		r := run(t, app, "doctor")
		require.Equal(t, ExitPartial, r.code, conf)
		require.Contains(t, r.out, want, conf)
		plan := writeFile(t, t.TempDir(), "plan.yaml", `{"apiVersion":"commitstep/v1","kind":"Plan","job":"j","dataset":"d","stages":[{"steps":[{"kind":"hive.insert_overwrite",
			"params":{"hive":"dw","table":"t","rows":1,"statement":"INSERT OVERWRITE TABLE ${table} SELECT 1"}}]}]}`)
		r = run(t, app, "publish", "-f", plan, "--store", st)
		require.Equal(t, ExitError, r.code, conf)
		require.Contains(t, r.errOut, want, conf)
	}
}

// TestHiveVolumes: without a word about the warehouse every Hadoop file system
// holds what bears its own name.
func TestHiveVolumes(t *testing.T) {
	t.Parallel()
	app, _ := withConfig(t, `
resources:
  hdfs://prod: {addresses: ["nn:8020"]}
  webhdfs://prod: {urls: ["http://nn:9870"], user: etl}
  webhdfs://other: {urls: ["http://nn2:9870"], user: etl}
hive:
  dw: {address: "hs2:10000", session: {tez.queue.name: etl, hive.exec.parallel: true, a: 3}, user: "x", password_env: PW, tls: {}, grace: 48h, web_ui: "https://hs2:10002"}
  local: {address: "hs2:10001", auth: nosasl, warehouse: {"file:///data": /srv/data, "hdfs://h:8020": webhdfs://other/}}
`, "PW", "two words ")
	in := app.invocation()
	files, err := in.openResources()
	require.NoError(t, err)
	defer func() { require.NoError(t, closeResources(files)) }()
	servers, err := in.openHive(files)
	require.NoError(t, err)
	defer func() { require.NoError(t, closeHive(servers)) }()
	dw, local := servers[0], servers[1]
	require.Equal(t, []string{"hdfs://prod is hdfs://prod/", "hdfs://other is webhdfs://other/"}, dw.volumes)
	require.Equal(t, []string{"file:///data is file:///srv/data", "hdfs://h:8020 is webhdfs://other/"}, local.volumes)
	require.Equal(t, map[string]string{"tez.queue.name": "etl", "hive.exec.parallel": "true", "a": "3"}, dw.cfg.Session)
	require.Equal(t, "two words ", dw.cfg.Password)
	require.NotNil(t, dw.cfg.TLS)
	require.True(t, local.cfg.NoSASL)
	require.NotEmpty(t, local.cfg.User)
	require.NoError(t, dw.unready)
}
