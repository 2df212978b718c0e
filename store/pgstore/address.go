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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schemaName needs no quoting, so that it means the same wherever it is written,
// and leaves room for the names of roles made of it.
var schemaName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,49}$`)

// config turns an address into a pool's configuration. The address is a
// postgres URL or a libpq keyword string; what it leaves out comes from the
// libpq environment. The URL parameter schema is ours.
func config(dsn string, o *Options) (*pgxpool.Config, error) {
	dsn, schema, err := cutSchema(dsn)
	if err != nil {
		return nil, err
	}
	if o.Schema == "" {
		o.Schema = schema
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

// cutSchema takes the parameter schema out of a URL.
func cutSchema(dsn string) (rest, schema string, err error) {
	if !strings.HasPrefix(dsn, "postgres:") && !strings.HasPrefix(dsn, "postgresql:") {
		return dsn, "", nil
	}
	if dsn == "postgres:" || dsn == "postgresql:" {
		return "", "", nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", "", errors.New("pgstore: the address of the store is no valid URL; write postgres://user@host:5432/database")
	}
	q := u.Query()
	schema = q.Get("schema")
	if q.Has("schema") {
		q.Del("schema")
		u.RawQuery = q.Encode()
		return u.String(), schema, nil
	}
	return dsn, "", nil
}

// location names the store for people, without a password.
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

// Location is how a store at the given address is called in messages: without a
// password, with the schema.
func Location(dsn string, o *Options) (string, error) {
	opts := o.withDefaults()
	cfg, err := config(dsn, &opts)
	if err != nil {
		return "", err
	}
	return location(cfg, opts.Schema), nil
}
