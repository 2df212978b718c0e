package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schemaName means the same in quotes and without, and leaves room for the names
// of roles made of it. Only the words of SQL itself (select, user) mean something
// else without quotes; here they are always quoted.
var schemaName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,49}$`)

func checkSchema(name string) error {
	switch {
	case !schemaName.MatchString(name):
		return fmt.Errorf("pgstore: schema %q is no usable name; use small letters, digits and _, at most 50, and a letter first", name)
	case strings.HasPrefix(name, "pg_"), name == "information_schema":
		return fmt.Errorf("pgstore: schema %q is the server's own, as all that begin with pg_ are; choose another name", name)
	}
	return nil
}

// config turns an address into a pool's configuration. The address is a
// postgres URL or a libpq keyword string; what it leaves out comes from the
// libpq environment. schema and the names of ownSettings are ours, and go before
// what the options say. Nothing is connected to.
func config(dsn string, o *Options) (*pgxpool.Config, error) {
	dsn, own, err := cutOwn(dsn)
	if err != nil {
		return nil, err
	}
	if name, named := own["schema"]; named {
		o.Schema = name
		if name == "" {
			return nil, errors.New("pgstore: the address names an empty schema; leave schema out for the schema " + DefaultSchema)
		}
	}
	if err := o.take(own); err != nil {
		return nil, err
	}
	if err := o.checkTimeouts(); err != nil {
		return nil, err
	}
	if o.Schema == "" {
		o.Schema = DefaultSchema
	}
	if err := checkSchema(o.Schema); err != nil {
		return nil, err
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
		if isMisspelt(name) {
			return nil, unknownParameter(name)
		}
		switch name {
		case "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout":
			return nil, fmt.Errorf("pgstore: the address sets %s, which poolers refuse at start-up; use the options of the store instead", name)
		}
	}
	boundConnect(cfg.ConnConfig, o.GiveUp)
	cfg.ConnConfig.ValidateConnect = tellStandby(cfg.ConnConfig.ValidateConnect)
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

// connectTimeout is how long a server may take to answer a new connection, where
// the address does not say.
const connectTimeout = 10 * time.Second

// boundConnect has each server of the address asked within the time in which the
// store gives up: one that does not answer must not keep it from the next.
func boundConnect(c *pgx.ConnConfig, giveUp time.Duration) {
	type server struct {
		host string
		port uint16
	}
	servers := map[server]bool{{c.Host, c.Port}: true}
	for _, f := range c.Fallbacks {
		servers[server{f.Host, f.Port}] = true
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = connectTimeout
	}
	c.ConnectTimeout = min(c.ConnectTimeout, max(giveUp/time.Duration(len(servers)), time.Second))
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

// maxLease is the longest lease: what a driver that died held waits for its end.
const maxLease = time.Hour

// minTimeout is the shortest limit for statements and transactions: a request
// that carries a page of steps, or waits for a disk, takes some time.
const minTimeout = 100 * time.Millisecond

// take sets the options that the address names.
func (o *Options) take(own map[string]string) error {
	for name, text := range own {
		field := ownSettings[name]
		if field == nil {
			continue // schema
		}
		d, err := time.ParseDuration(text)
		if err != nil && duration.MatchString(text) {
			longest := time.Duration(math.MaxInt64).Truncate(time.Hour)
			if name == "lease" {
				longest = maxLease
			}
			return fmt.Errorf("pgstore: the address sets %s to %q, which is too long; the longest is %s", name, text, longest)
		}
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

// duration is what is one for its form, whatever its length.
var duration = regexp.MustCompile(`^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)

// maxTimeout is the server's limit for its timeouts, which are milliseconds in
// 32 bits.
const maxTimeout = math.MaxInt32 * time.Millisecond

// checkTimeouts refuses what the server would refuse at the first transaction,
// and what nobody can work with. Zero is the default.
func (o *Options) checkTimeouts() error {
	if o.LeaseTTL > maxLease {
		return fmt.Errorf("pgstore: lease is %s; give it at most %s, as a rule 30s: while it lasts, nobody takes over what a driver that died was at", o.LeaseTTL, maxLease)
	}
	for _, t := range []struct {
		name  string
		d     time.Duration
		least time.Duration
	}{
		{"statement_timeout", o.StatementTimeout, minTimeout}, {"lock_timeout", o.LockTimeout, 0}, {"idle_in_transaction_session_timeout", o.IdleTimeout, minTimeout},
	} {
		if t.d > 0 && t.d < t.least {
			return fmt.Errorf("pgstore: %s is %s, in which the server gets nothing done; give it at least %s, as a rule 60s", t.name, t.d, t.least)
		}
		if t.d > maxTimeout {
			return fmt.Errorf("pgstore: %s is %s; PostgreSQL takes at most %d ms, which is %s", t.name, t.d, maxTimeout.Milliseconds(), maxTimeout)
		}
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
	before, query := splitURL(dsn)
	own, seen := map[string]string{}, map[string]bool{}
	var rest []string
	for _, part := range strings.Split(query, "&") {
		name, value, err := parameter(part)
		if err != nil {
			return "", nil, errors.New("pgstore: the address of the store is no valid URL: a parameter has a % that is not followed by two hexadecimal digits; write a space as %20 and a percent sign as %25")
		}
		if seen[name] && part != "" {
			return "", nil, namedTwice(name)
		}
		seen[name] = true
		if isOwn(name) {
			own[name] = value
		} else if part != "" {
			// As it was written, since only the library knows how it reads it.
			rest = append(rest, part)
		}
	}
	if len(own) == 0 {
		return dsn, nil, nil
	}
	if len(rest) > 0 {
		before += "?" + strings.Join(rest, "&")
	}
	return before, own, nil
}

// splitURL takes the parameters off, as libpq does: a question mark in front of
// an @ belongs to a password.
func splitURL(dsn string) (before, query string) {
	from := strings.Index(dsn, ":") + 1
	if rest, ok := strings.CutPrefix(dsn[from:], "//"); ok {
		from += 2
		if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
			from += i + 1
		}
	}
	before, query, _ = strings.Cut(dsn[from:], "?")
	return dsn[:from] + before, query
}

// parameter reads one parameter of a URL. A plus sign is a plus sign, other than
// in a form of the web.
func parameter(text string) (name, value string, err error) {
	name, value, _ = strings.Cut(text, "=")
	if name, err = url.PathUnescape(name); err == nil {
		value, err = url.PathUnescape(value)
	}
	return name, value, err
}

// keyword is one of host=db application_name='a b'; backslash escapes.
var keyword = regexp.MustCompile(`^\s*([a-z_]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)`)

var unescaped = regexp.MustCompile(`\\(.)`)

func plainValue(text string) string {
	if len(text) > 1 && text[0] == '\'' {
		text = text[1 : len(text)-1]
	}
	return unescaped.ReplaceAllString(text, "$1")
}

// cutFromKeywords leaves what it does not understand to the library.
func cutFromKeywords(dsn string) (string, map[string]string, error) {
	own, seen := map[string]string{}, map[string]bool{}
	var rest []string
	for left := dsn; left != ""; {
		m := keyword.FindStringSubmatch(left)
		if m == nil {
			rest = append(rest, left)
			break
		}
		left = left[len(m[0]):]
		if seen[m[1]] {
			return "", nil, namedTwice(m[1])
		}
		seen[m[1]] = true
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

// quoted is a name as SQL takes it.
func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }
