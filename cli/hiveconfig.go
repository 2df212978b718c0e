package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/steps/hivepublish"
)

// hiveConfig is how one HiveServer2 is reached, below `hive` in the
// configuration file.
type hiveConfig struct {
	Address   string `json:"address"`
	Transport string `json:"transport,omitempty"`
	HTTPPath  string `json:"http_path,omitempty"`
	Auth      string `json:"auth,omitempty"`
	User      string `json:"user,omitempty"`
	// Password is here to be refused with more than "unknown field".
	Password     any      `json:"password,omitempty"`
	PasswordFile string   `json:"password_file,omitempty"`
	PasswordEnv  string   `json:"password_env,omitempty"`
	TLS          *hiveTLS `json:"tls,omitempty"`
	// Session is Hive configuration of every session.
	Session  map[string]string `json:"session,omitempty"`
	Sessions int               `json:"sessions,omitempty"`
	// WebUI is the server's web server, with its list of statements.
	WebUI           string `json:"web_ui,omitempty"`
	WebUser         string `json:"web_user,omitempty"`
	WebPasswordFile string `json:"web_password_file,omitempty"`
	WebPasswordEnv  string `json:"web_password_env,omitempty"`
	// Warehouse says, for how Hive's locations begin, the address that stands for
	// the same place here.
	Warehouse     map[string]string `json:"warehouse,omitempty"`
	CallTimeout   string            `json:"call_timeout,omitempty"`
	SubmitTimeout string            `json:"submit_timeout,omitempty"`
	Grace         string            `json:"grace,omitempty"`
}

type hiveTLS struct {
	CAFile     string `json:"ca_file,omitempty"`
	CertFile   string `json:"cert_file,omitempty"`
	KeyFile    string `json:"key_file,omitempty"`
	ServerName string `json:"server_name,omitempty"`
}

// hiveServer is a HiveServer2 of the configuration file. Nothing is connected
// before a step needs it.
type hiveServer struct {
	*hivepublish.Server
	// from says where its configuration comes from.
	from string
	cfg  hivepublish.Config
	// volumes are cfg.Volumes in words.
	volumes []string
	// unready is why it cannot be used on this machine, although its configuration
	// is well-formed: a password that cannot be read, a file system that is not
	// configured here. It is told to those who need the server, and to nobody else.
	unready error
}

// Settings that a configuration must not change: without them nothing that was
// begun can be found again.
var hiveKept = map[string]string{
	"hive.server2.close.session.on.disconnect": "statements would be cancelled with the connection",
	"hive.query.tag": "every step sets its own",
}

// openHive binds every HiveServer2 of the configuration file. Files are the file
// systems that may hold their warehouses.
func (in *invocation) openHive(files []*resource) (_ []*hiveServer, err error) {
	conf, path, err := in.readConfig()
	if err != nil {
		return nil, err
	}
	var out []*hiveServer
	defer func() {
		if err != nil {
			_ = closeHive(out)
		}
	}()
	for _, n := range slices.Sorted(maps.Keys(conf.Hive)) {
		s, err := in.bindHive(n, conf.Hive[n], files)
		if err != nil {
			why := strings.TrimPrefix(err.Error(), fmt.Sprintf("hive server %q: ", n))
			return out, failf("correct it in "+path+"; see `"+in.Program+" help resources`", "hive server %s: %s", name(n), why)
		}
		s.from = path
		for _, o := range out {
			if o.Same(s.Server) {
				_ = s.Close()
				return out, failf("take one of them out of "+path+", and name the other in plans", "hive servers %s and %s are one, at %s: a lock of a partition holds the server's name, so publishes by two names would not see each other", name(o.Name()), name(n), oneLine(s.cfg.Address))
			}
		}
		out = append(out, s)
	}
	return out, nil
}

func closeHive(all []*hiveServer) error {
	var errs []error
	for _, s := range all {
		if err := s.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close hive server %s: %w", name(s.Name()), err))
		}
	}
	return errors.Join(errs...)
}

// hiveServers are the servers as the kinds want them.
func hiveServers(all []*hiveServer) []*hivepublish.Server {
	out := make([]*hivepublish.Server, len(all))
	for i, s := range all {
		out[i] = s.Server
	}
	return out
}

func (in *invocation) bindHive(n string, c hiveConfig, files []*resource) (*hiveServer, error) {
	cfg, err := c.plain()
	if err != nil {
		return nil, err
	}
	s := &hiveServer{}
	// What depends on this machine is not an error yet: another program, or a
	// plan without Hive, may share the configuration file.
	later := func(err error) {
		if err != nil && s.unready == nil {
			s.unready = err
		}
	}
	if cfg.User == "" {
		u, err := user.Current()
		if err != nil {
			return nil, fmt.Errorf("has no user, and the process's is unknown: %w", err)
		}
		cfg.User = u.Username
	}
	cfg.Password, err = in.secret("password", c.PasswordFile, c.PasswordEnv)
	later(err)
	cfg.WebUserPassword, err = in.secret("web_password", c.WebPasswordFile, c.WebPasswordEnv)
	later(err)
	if c.TLS != nil {
		cfg.TLS, err = c.TLS.config()
		later(err)
	}
	if cfg.Volumes, err = c.volumes(files); err != nil {
		var absent *absentFiles
		if !errors.As(err, &absent) {
			return nil, err
		}
		later(err)
		cfg.Volumes = nil
	}
	for _, v := range cfg.Volumes {
		s.volumes = append(s.volumes, v.URI+" is "+v.At.String())
	}
	if s.unready != nil {
		why := fmt.Errorf("it cannot be used here: %w", s.unready)
		cfg.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, why }
		cfg.TLS = nil
	}
	if s.Server, err = hivepublish.Connect(n, cfg); err != nil {
		return nil, err
	}
	s.cfg = cfg
	return s, nil
}

// plain checks what needs nothing but the text.
func (c hiveConfig) plain() (hivepublish.Config, error) {
	cfg := hivepublish.Config{Address: c.Address, HTTPPath: c.HTTPPath, User: c.User, Session: c.Session, Sessions: c.Sessions, WebUI: c.WebUI, WebUser: c.WebUser}
	bad := func(format string, a ...any) (hivepublish.Config, error) { return cfg, fmt.Errorf(format, a...) }
	if c.Address == "" {
		return bad("has no address; give the host:port of its Thrift service")
	}
	if c.Password != nil {
		return bad("has a password in the configuration; put it into a file and name that as password_file, or name a variable as password_env")
	}
	switch c.Transport {
	case "", "binary":
	case "http":
		cfg.HTTP = true
	default:
		return bad("transport %q is unknown; there are binary and http", c.Transport)
	}
	switch c.Auth {
	case "", "plain":
	case "nosasl":
		cfg.NoSASL = true
	default:
		return bad("auth %q is unknown; there are plain and nosasl", c.Auth)
	}
	secret := c.PasswordFile != "" || c.PasswordEnv != ""
	switch {
	case c.HTTPPath != "" && !cfg.HTTP:
		return bad("has http_path, which only the http transport has")
	case cfg.HTTP && cfg.NoSASL:
		return bad("has auth nosasl, which only the binary transport has")
	case cfg.NoSASL && secret:
		return bad("has a password, which auth nosasl does not send")
	case c.PasswordFile != "" && c.PasswordEnv != "":
		return bad("has both password_file and password_env; give one")
	case c.WebPasswordFile != "" && c.WebPasswordEnv != "":
		return bad("has both web_password_file and web_password_env; give one")
	case c.WebUI == "" && (c.WebUser != "" || c.WebPasswordFile != "" || c.WebPasswordEnv != ""):
		return bad("has web_user or a web password, but no web_ui")
	case c.WebUser == "" && (c.WebPasswordFile != "" || c.WebPasswordEnv != ""):
		return bad("has a web password, but no web_user")
	case c.Sessions < 0:
		return bad("sessions must be positive")
	case c.TLS != nil && (c.TLS.CertFile == "") != (c.TLS.KeyFile == ""):
		return bad("tls needs both cert_file and key_file, or neither")
	}
	for _, k := range slices.Sorted(maps.Keys(c.Session)) {
		if why, ok := hiveKept[strings.ToLower(strings.TrimSpace(k))]; ok {
			return bad("session sets %s, which must not be changed: %s", k, why)
		}
	}
	var err error
	for _, d := range []struct {
		name, text string
		to         *time.Duration
	}{{"call_timeout", c.CallTimeout, &cfg.CallTimeout}, {"submit_timeout", c.SubmitTimeout, &cfg.SubmitTimeout}, {"grace", c.Grace, &cfg.Grace}} {
		if *d.to, err = duration(d.name, d.text); err != nil {
			return cfg, err
		}
	}
	if cfg.Grace > 0 && cfg.Grace < minGrace {
		return bad("grace is %s and must be at least %s: statements read what is removed too early", cfg.Grace, minGrace)
	}
	return cfg, nil
}

// secret reads a password from where it is kept. Its text is never part of an
// error.
func (in *invocation) secret(what, file, env string) (string, error) {
	switch {
	case env != "":
		v := in.Env(env)
		if v == "" {
			return "", fmt.Errorf("%s_env names %s, which is not set", what, env)
		}
		return v, nil
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("%s_file: %w", what, err)
		}
		v := strings.TrimRight(string(b), "\r\n")
		if v == "" || strings.ContainsAny(v, "\r\n") {
			return "", fmt.Errorf("%s_file %s: want one line with the password alone", what, file)
		}
		return v, nil
	}
	return "", nil
}

func (t hiveTLS) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls: ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: ca_file %s holds no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls: cert_file and key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// absentFiles says that a warehouse lies on a file system that is not configured
// on this machine.
type absentFiles struct{ uri, resource string }

func (e *absentFiles) Error() string {
	return fmt.Sprintf("warehouse %s lies on %s, which is not configured; name it below resources or set HADOOP_CONF_DIR", e.uri, e.resource)
}

// volumes finds the file systems that hold the warehouse. Without a word about
// them every Hadoop file system holds what bears its own name.
func (c hiveConfig) volumes(files []*resource) ([]hivepublish.Volume, error) {
	var out []hivepublish.Volume
	if len(c.Warehouse) == 0 {
		seen := map[string]bool{}
		for _, scheme := range []string{"hdfs://", "webhdfs://"} { // the first wins
			for _, r := range files {
				if n, ok := strings.CutPrefix(r.Resource(), scheme); ok && !seen[n] {
					seen[n] = true
					out = append(out, hivepublish.Volume{URI: "hdfs://" + n, Files: r.FS, At: commitstep.Address{Resource: r.Resource(), Path: "/"}})
				}
			}
		}
		return out, nil
	}
	for _, uri := range slices.Sorted(maps.Keys(c.Warehouse)) {
		text := c.Warehouse[uri]
		if scheme, rest, ok := strings.Cut(uri, ":"); !ok || scheme == "" || !strings.HasPrefix(rest, "/") {
			return nil, fmt.Errorf("warehouse %q is not how a location of Hive begins, as in hdfs://prod or file:///warehouse", uri)
		}
		a, err := commitstep.ParseAddress(text, "")
		if err != nil {
			return nil, fmt.Errorf("warehouse %s: %w", uri, err)
		}
		i := slices.IndexFunc(files, func(r *resource) bool { return r.Resource() == a.Resource })
		if i < 0 {
			return nil, &absentFiles{uri, a.Resource}
		}
		out = append(out, hivepublish.Volume{URI: uri, Files: files[i].FS, At: a})
	}
	return out, nil
}

// client makes a client of its own, for looks that the kinds do not take.
func (s *hiveServer) client() (*hs2.Client, error) {
	c := hs2.Config{Address: s.cfg.Address, User: s.cfg.User, Password: s.cfg.Password, HTTPPath: s.cfg.HTTPPath, TLS: s.cfg.TLS, Dial: s.cfg.Dial, CallTimeout: s.cfg.CallTimeout, SubmitTimeout: s.cfg.SubmitTimeout}
	if s.cfg.HTTP {
		c.Transport = hs2.TransportHTTP
	}
	if s.cfg.NoSASL {
		c.Auth = hs2.AuthNoSASL
	}
	return hs2.New(c)
}

// hiveResources is the part of `help resources` about Hive.
const hiveResources = `Hive servers are named by plans as ` + "`hive: NAME`" + `. Of several HiveServer2 give the
address of one, never that of a balancer: statements live in one of them.

  hive:
    dw:
      address: hs2-1:10000
      transport: binary                # or http, with http_path (cliservice)
      auth: plain                      # NONE, LDAP, PAM, CUSTOM; or nosasl
      user: etl                        # default: your login name
      password_file: /run/secrets/hive # or password_env: NAME_OF_A_VARIABLE
      tls: {ca_file: /etc/ssl/cluster.pem}  # also cert_file, key_file, server_name
      session: {tez.queue.name: etl}   # Hive configuration of every session
      web_ui: http://hs2-1:10002       # its list of statements is evidence; also
                                       # web_user, web_password_file, web_password_env
      warehouse:                       # how Hive's locations begin, and where that is
        hdfs://prod: hdfs://prod/      # (default: every hdfs://NAME under its name)

Further fields: sessions (statements at once, 4), call_timeout (60s), submit_timeout
(10m, compiling included), grace (24h, at least 1h: how long swapped-out data stays; longer than
the longest statement of any reader). Nothing is connected before a plan needs it.`
