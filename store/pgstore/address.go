package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schemaName needs no quoting, so that it means the same wherever it is written,
// and leaves room for the names of roles made of it.
var schemaName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,49}$`)

// config turns an address into a pool's configuration. The address is a
// postgres URL or a libpq keyword string; what it leaves out comes from the
// libpq environment. schema and the names of ownSettings are ours, and go before
// what the options say.
func config(dsn string, o *Options) (*pgxpool.Config, error) {
	dsn, own, err := cutOwn(dsn)
	if err != nil {
		return nil, err
	}
	if o.Schema == "" {
		o.Schema = own["schema"]
	}
	if err := o.take(own); err != nil {
		return nil, err
	}
	if o.Schema == "" {
		o.Schema = DefaultSchema
	}
	if !schemaName.MatchString(o.Schema) {
		return nil, fmt.Errorf("pgstore: schema %q is no usable name; use small letters, digits and _, at most 50, and a letter first", o.Schema)
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The library's text repeats what was given, perhaps with a password.
		return nil, errors.New("pgstore: the address of the store is neither a postgres:// URL nor a list of keywords, or has a value that cannot be; write postgres://user@host:5432/database")
	}
	switch cfg.ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
		// They guess types from values, and there are lists of ids.
		return nil, errors.New("pgstore: the address sets default_query_exec_mode to a mode that does not ask the server for types, in which the store cannot work; leave it out, or write cache_statement, cache_describe or describe_exec")
	}
	for name := range cfg.ConnConfig.RuntimeParams {
		switch name {
		case "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout":
			return nil, fmt.Errorf("pgstore: the address sets %s, which poolers refuse at start-up; use the options of the store instead", name)
		}
	}
	if _, ok := cfg.ConnConfig.RuntimeParams["application_name"]; !ok {
		cfg.ConnConfig.RuntimeParams["application_name"] = "commitstep"
	}
	switch {
	case o.MaxConns > 0:
		cfg.MaxConns = o.MaxConns
	case !strings.Contains(dsn, "pool_max_conns"):
		cfg.MaxConns = 8
	}
	if cfg.MaxConns < 2 {
		return nil, errors.New("pgstore: the store needs at least 2 connections: one to write, one to read")
	}
	return cfg, nil
}

// execMode is how statements are sent, for connections to come. Statements that
// the server keeps prepared are planned once; behind a pooler that gives every
// transaction another session they cannot be kept. So it starts careful, and the
// first connection tells whether the server itself answers.
type execMode struct {
	fixed    bool // by the address
	prepared atomic.Bool
}

func (e *execMode) beforeConnect(_ context.Context, c *pgx.ConnConfig) error {
	if !e.fixed {
		c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		if e.prepared.Load() {
			c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		}
	}
	return nil
}

// isDirect reports whether c is connected to the server itself: a pooler gives
// its clients process numbers of its own.
func isDirect(ctx context.Context, c *pgx.Conn) (bool, error) {
	var pid uint32
	if err := c.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return false, err
	}
	return pid == c.PgConn().PID(), nil
}

// ownSettings are the parameters of an address that are ours, beside schema.
var ownSettings = map[string]func(o *Options) *time.Duration{
	"give_up":                             func(o *Options) *time.Duration { return &o.GiveUp },
	"lease":                               func(o *Options) *time.Duration { return &o.LeaseTTL },
	"statement_timeout":                   func(o *Options) *time.Duration { return &o.StatementTimeout },
	"lock_timeout":                        func(o *Options) *time.Duration { return &o.LockTimeout },
	"idle_in_transaction_session_timeout": func(o *Options) *time.Duration { return &o.IdleTimeout },
}

// minLease is the shortest lease that an address may ask for: one that a slow
// answer of the server outlasts keeps nobody from anything.
const minLease = time.Second

// take sets the options that the address names.
func (o *Options) take(own map[string]string) error {
	for name, text := range own {
		field := ownSettings[name]
		if field == nil {
			continue // schema
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Millisecond {
			return fmt.Errorf("pgstore: the address sets %s to %q, which is no duration; write 30s or 5m", name, text)
		}
		if name == "lease" && d < minLease {
			return fmt.Errorf("pgstore: the address sets lease to %q, which ends before a driver can renew it; give it at least %s, as a rule 30s", text, minLease)
		}
		*field(o) = d
	}
	return nil
}

// cutOwn takes our own parameters out of an address.
func cutOwn(dsn string) (rest string, own map[string]string, err error) {
	switch {
	case dsn == "postgres:" || dsn == "postgresql:":
		return "", nil, nil
	case strings.HasPrefix(dsn, "postgres:") || strings.HasPrefix(dsn, "postgresql:"):
		return cutFromURL(dsn)
	}
	return cutFromKeywords(dsn)
}

func isOwn(name string) bool { return name == "schema" || ownSettings[name] != nil }

func cutFromURL(dsn string) (string, map[string]string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", nil, errors.New("pgstore: the address of the store is no valid URL; write postgres://user@host:5432/database")
	}
	own := map[string]string{}
	q := u.Query()
	for name := range q {
		if isOwn(name) {
			own[name] = q.Get(name)
			q.Del(name)
		}
	}
	if len(own) == 0 {
		return dsn, nil, nil
	}
	u.RawQuery = q.Encode()
	return u.String(), own, nil
}

// keyword is one of host=db application_name='a b'; backslash escapes.
var keyword = regexp.MustCompile(`^\s*([a-z_]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)`)

var unescaped = regexp.MustCompile(`\\(.)`)

func plainValue(text string) string {
	return unescaped.ReplaceAllString(strings.Trim(text, "'"), "$1")
}

// cutFromKeywords leaves what it does not understand to the library.
func cutFromKeywords(dsn string) (string, map[string]string, error) {
	own := map[string]string{}
	var rest []string
	for left := dsn; left != ""; {
		m := keyword.FindStringSubmatch(left)
		if m == nil {
			rest = append(rest, left)
			break
		}
		left = left[len(m[0]):]
		if isOwn(m[1]) {
			own[m[1]] = plainValue(m[2])
		} else {
			rest = append(rest, strings.TrimSpace(m[0]))
		}
	}
	if len(own) == 0 {
		return dsn, nil, nil
	}
	return strings.Join(rest, " "), own, nil
}

// location names the store for people: where it is, and nothing of who looks or
// how, so that it is the same for all.
func location(cfg *pgxpool.Config, schema string) string {
	c := cfg.ConnConfig
	host := c.Host
	q := url.Values{}
	u := url.URL{Scheme: "postgres", Path: "/" + c.Database}
	if strings.HasPrefix(host, "/") {
		q.Set("host", host)
		u.Host = ":" + strconv.Itoa(int(c.Port))
	} else {
		u.Host = host + ":" + strconv.Itoa(int(c.Port))
	}
	q.Set("schema", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// quoted is a name as SQL takes it.
func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// Location is the address of a store as a person can give it again: with the
// user and the settings that dsn has, and with what it takes from the libpq
// environment, but without a password.
func Location(dsn string, o *Options) (string, error) {
	opts := o.withDefaults()
	cfg, err := config(dsn, &opts)
	if err != nil {
		return "", err
	}
	return address(dsn, cfg, opts.Schema), nil
}

func address(dsn string, cfg *pgxpool.Config, schema string) string {
	u, err := url.Parse(location(cfg, schema))
	if err != nil { // it is made of parts that were parsed
		return location(cfg, schema)
	}
	if cfg.ConnConfig.User != "" {
		u.User = url.User(cfg.ConnConfig.User)
	}
	q := u.Query()
	for name, value := range given(dsn) {
		switch name {
		case "host", "hostaddr", "port", "user", "dbname", "database", "schema", "password", "sslpassword":
		default:
			q.Set(name, value)
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// given are the parameters that an address names.
func given(dsn string) map[string]string {
	out := map[string]string{}
	if strings.HasPrefix(dsn, "postgres:") || strings.HasPrefix(dsn, "postgresql:") {
		if u, err := url.Parse(dsn); err == nil {
			for name, values := range u.Query() {
				out[name] = values[0]
			}
		}
		return out
	}
	for left := dsn; left != ""; {
		m := keyword.FindStringSubmatch(left)
		if m == nil {
			break
		}
		left = left[len(m[0]):]
		out[m[1]] = plainValue(m[2])
	}
	return out
}
