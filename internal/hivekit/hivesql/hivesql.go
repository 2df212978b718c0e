// Package hivesql runs statements on a server of package hivekit for tests: to
// make what they need, and to look, behind the back of what they test, at what is
// there. It is apart from hivekit so that the tests of the client can use that.
package hivesql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Config reaches a server as it is set up, as [hivekit.User].
func Config(t testing.TB, s *hivekit.Server) hs2.Config {
	t.Helper()
	c := hs2.Config{Address: s.Address(), User: hivekit.User, HTTPPath: hivekit.HTTPPath}
	if s.HTTP {
		c.Transport = hs2.TransportHTTP
	}
	if s.Auth == hivekit.NoSASL {
		c.Auth = hs2.AuthNoSASL
	}
	var err error
	c.TLS, err = s.TLS()
	require.NoError(t, err)
	return c
}

// pool keeps the sessions of one server: a new one costs seconds, since its first
// query starts a Tez of its own.
type pool struct {
	sync.Mutex
	client *hs2.Client
	free   []*hs2.Session
}

var pools = struct {
	sync.Mutex
	of map[string]*pool // by address and directory
}{of: map[string]*pool{}}

func poolOf(t testing.TB, s *hivekit.Server) *pool {
	t.Helper()
	key := s.Address() + " " + s.Dir
	pools.Lock()
	defer pools.Unlock()
	p := pools.of[key]
	if p == nil {
		c, err := hs2.New(Config(t, s))
		require.NoError(t, err)
		p = &pool{client: c}
		pools.of[key] = p
	}
	return p
}

// take gives a session that the server knows.
func (p *pool) take(ctx context.Context) (*hs2.Session, error) {
	for {
		p.Lock()
		n := len(p.free)
		if n == 0 {
			p.Unlock()
			return p.client.OpenSession(ctx, nil)
		}
		s := p.free[n-1]
		p.free = p.free[:n-1]
		p.Unlock()
		// After a restart it does not, and the kept connections are dead: asking
		// throws them away, one after another.
		ok, err := s.Alive(ctx)
		for range hs2.DefaultMaxIdle {
			if err == nil || ctx.Err() != nil {
				break
			}
			ok, err = s.Alive(ctx)
		}
		if err != nil || ok {
			return s, err
		}
	}
}

func (p *pool) give(s *hs2.Session) {
	p.Lock()
	defer p.Unlock()
	p.free = append(p.free, s)
}

// Close closes all kept sessions and connections. Test mains call it after their
// tests, before the servers end.
func Close() {
	pools.Lock()
	defer pools.Unlock()
	for _, p := range pools.of {
		p.Lock()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		for _, s := range p.free {
			// The server, or the session after a restart, may be gone; what
			// stays ends with the server or after its idle time.
			if err := s.Close(ctx); err != nil && !errors.Is(err, hs2.ErrUnknownHandle) {
				break
			}
		}
		cancel()
		p.free = nil
		_ = p.client.Close()
		p.Unlock()
	}
	clear(pools.of)
}

// M is what a test main needs.
type M interface{ Run() int }

// Main wraps a test main: the sessions end with it, and the servers after them.
func Main(m M) M { return hivekit.Main(main{m}) }

type main struct{ m M }

func (w main) Run() int {
	defer Close()
	return w.m.Run()
}

// patience bounds a statement: far above what one needs on a busy machine.
const patience = 5 * time.Minute

// DB runs statements on one server. It is safe for concurrent use.
type DB struct {
	server *hivekit.Server
	pool   *pool
}

// Open needs no closing.
func Open(t testing.TB, s *hivekit.Server) *DB {
	t.Helper()
	return &DB{s, poolOf(t, s)}
}

// Try runs one statement in a session of its own meanwhile.
func (d *DB) Try(ctx context.Context, sql string) (*hs2.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := d.pool.take(ctx)
	if err != nil {
		return nil, err
	}
	table, err := d.pool.client.Query(ctx, s, sql)
	var te *hs2.TransportError
	if errors.As(err, &te) {
		return nil, err // something may still run in it
	}
	d.pool.give(s)
	return table, err
}

// Exec runs statements one after another.
func (d *DB) Exec(t testing.TB, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		_, err := d.Try(t.Context(), sql)
		require.NoError(t, err, "%s", sql)
	}
}

// Rows gives the rows of a query, sorted as the query does, with the values
// joined by "|" and NULL for a missing one.
func (d *DB) Rows(t testing.TB, sql string) []string {
	t.Helper()
	rows, err := d.TryRows(t.Context(), sql)
	require.NoError(t, err, "%s", sql)
	return rows
}

// TryRows is Rows with an error.
func (d *DB) TryRows(ctx context.Context, sql string) ([]string, error) {
	table, err := d.Try(ctx, sql)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, row := range table.Rows {
		var b strings.Builder
		for i, v := range row {
			if i > 0 {
				b.WriteByte('|')
			}
			switch v := v.(type) {
			case nil:
				b.WriteString("NULL")
			default:
				fmt.Fprint(&b, v)
			}
		}
		out = append(out, b.String())
	}
	return out, nil
}

// Setting is the value of a configuration property in a session.
func (d *DB) Setting(t testing.TB, key string) string {
	t.Helper()
	rows := d.Rows(t, "SET "+key)
	require.Len(t, rows, 1)
	_, value, _ := strings.Cut(rows[0], "=")
	return value
}

// Database makes a database that is dropped with the test, and gives its name.
func (d *DB) Database(t testing.TB) string {
	t.Helper()
	name := "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
	d.Exec(t, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		// With the test's context gone, and the server perhaps too.
		if _, err := d.Try(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" CASCADE"); err != nil {
			t.Logf("database %s stays: %v", name, err)
		}
	})
	return name
}

// Submitted lists every statement that the server was given and whose text
// contains part, as its web server tells; a restart forgets them.
func (d *DB) Submitted(t testing.TB, part string) []hs2.Query {
	t.Helper()
	list, err := hs2.NewQueryList(hs2.QueryListConfig{URL: d.server.WebUI()})
	require.NoError(t, err)
	defer list.Close()
	found, err := list.Find(t.Context(), part)
	require.NoError(t, err)
	return found
}
