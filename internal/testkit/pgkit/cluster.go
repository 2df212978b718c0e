// Package pgkit gives tests and benchmarks a PostgreSQL server of their own:
// made from the programs that are installed, on a random port of the loopback
// interface, with fsync on, and gone with the process that started it. It must
// not know any table of ours.
//
//	var kit pgkit.Kit
//
//	func TestMain(m *testing.M) { os.Exit(kit.Run(m)) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		c := kit.Cluster(t) // started once, skips where there is no server
//		...
//	}
package pgkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrAbsent: the server's programs are not installed. The text says how to get
// them.
var ErrAbsent = errors.New("no PostgreSQL server is installed: run scripts/setup.sh, or install Debian's package postgresql")

// patience bounds every wait for a server.
const patience = 60 * time.Second

// superuser is the role that owns everything in a cluster.
const superuser = "pg"

// Cluster is a running server. Its methods are not safe for concurrent use.
type Cluster struct {
	dir  string
	bin  string
	port int
	own  *syscall.Credential // nil: the user of this process
	args []string
	proc *process
}

// Start makes a new cluster and starts it. Settings are like
// "max_connections=20". Stop it with Close.
func Start(ctx context.Context, settings ...string) (*Cluster, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "commitstep-pg-")
	if err != nil {
		return nil, fmt.Errorf("pgkit: %w", err)
	}
	c := &Cluster{dir: dir, bin: bin, args: settings}
	if err := c.init(ctx); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return c, nil
}

// programs finds the directory of initdb and postgres.
func programs() (string, error) {
	// The wrappers of distributions may not bear another user, so the place of
	// the programs themselves comes first.
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	if p, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "initdb")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(d, "postgres")); err == nil {
			return d, nil
		}
	}
	return "", ErrAbsent
}

func version(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}

// credential is the unprivileged user that the server runs as; it refuses to
// run as root.
func credential() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("pgkit: root needs a user postgres or nobody to run the server as")
}

func (c *Cluster) init(ctx context.Context) error {
	var err error
	if c.own, err = credential(); err != nil {
		return err
	}
	if c.own != nil {
		if err := os.Chown(c.dir, int(c.own.Uid), int(c.own.Gid)); err != nil {
			return fmt.Errorf("pgkit: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "initdb"), "-D", c.data(), "-U", superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "-k", "-N")
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.own}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgkit: initdb: %w: %s", err, out)
	}
	for try := 0; ; try++ {
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.Restart(ctx); err == nil || try == 4 {
			return err
		}
	}
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

// freePort asks the kernel; somebody else may take it before the server does,
// which is then tried again.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("pgkit: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Restart starts the server of a cluster that was stopped or killed, on the
// same port, and waits until it answers.
func (c *Cluster) Restart(ctx context.Context) error {
	if c.proc != nil {
		return errors.New("pgkit: the server runs already")
	}
	args := []string{"-D", c.data(), "-p", strconv.Itoa(c.port), "-k", c.dir, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=on", "-c", "log_min_messages=warning"}
	for _, s := range c.args {
		args = append(args, "-c", s)
	}
	p, err := startProcess(c.dir, c.own, syscall.SIGQUIT, filepath.Join(c.bin, "postgres"), args...)
	if err != nil {
		return err
	}
	c.proc = p
	err = p.ready(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, c.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		c.kill(syscall.SIGQUIT)
	}
	return err
}

// Stop ends the server as "pg_ctl stop -m fast" does: connections are broken,
// what was committed is written out.
func (c *Cluster) Stop() { c.kill(syscall.SIGINT) }

// StopImmediate ends the server as "pg_ctl stop -m immediate" does: like a
// crash, and the next start recovers from the log.
func (c *Cluster) StopImmediate() { c.kill(syscall.SIGQUIT) }

func (c *Cluster) kill(sig syscall.Signal) {
	if c.proc != nil {
		c.proc.end(sig)
		c.proc = nil
	}
}

// Close ends the server and removes all it stored.
func (c *Cluster) Close() error {
	c.kill(syscall.SIGQUIT)
	return os.RemoveAll(c.dir)
}

// Port is where the server listens on 127.0.0.1.
func (c *Cluster) Port() int { return c.port }

// Log is what the server has written.
func (c *Cluster) Log() string {
	if c.proc == nil {
		return ""
	}
	return c.proc.output()
}

// URL is the address of a database for the superuser.
func (c *Cluster) URL(database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", superuser, c.port, database)
}

// Exec runs statements as the superuser.
func (c *Cluster) Exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("pgkit: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgkit: %w", err)
	}
	return nil
}

// Restore makes the database to, and in it what pg_dump says of a schema of the
// database from.
func (c *Cluster) Restore(ctx context.Context, from, schema, to string) error {
	if err := c.Exec(ctx, "CREATE DATABASE "+to); err != nil {
		return err
	}
	var dump, out bytes.Buffer
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, filepath.Join(c.bin, name), args...)
		cmd.Dir, cmd.Stderr = c.dir, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.own}
		if name == "pg_dump" {
			cmd.Stdout = &dump
		} else {
			cmd.Stdin = &dump
		}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("pgkit: %s: %w: %s", name, err, tail(out.Bytes()))
		}
		return nil
	}
	if err := run("pg_dump", "--schema="+schema, c.URL(from)); err != nil {
		return err
	}
	return run("psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", c.URL(to))
}

// Bouncer is a PgBouncer in transaction mode in front of a cluster.
type Bouncer struct {
	port int
	dir  string
	proc *process
}

// ErrNoBouncer: PgBouncer is not installed.
var ErrNoBouncer = errors.New("no PgBouncer is installed: run scripts/setup.sh, or install Debian's package pgbouncer")

// StartBouncer starts a PgBouncer with the given number of server connections.
func (c *Cluster) StartBouncer(ctx context.Context, pool int) (*Bouncer, error) {
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if _, serr := os.Stat("/usr/sbin/pgbouncer"); errors.Is(serr, fs.ErrNotExist) {
			return nil, ErrNoBouncer
		}
		bin = "/usr/sbin/pgbouncer"
	}
	dir, err := os.MkdirTemp("", "commitstep-pgbouncer-")
	if err != nil {
		return nil, fmt.Errorf("pgkit: %w", err)
	}
	b := &Bouncer{dir: dir}
	if b.port, err = freePort(); err == nil {
		err = b.start(ctx, c, bin, pool)
	}
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Bouncer) start(ctx context.Context, c *Cluster, bin string, pool int) error {
	ini := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 2000
unix_socket_dir =
`, c.port, superuser, b.port, pool)
	path := filepath.Join(b.dir, "pgbouncer.ini")
	if err := os.WriteFile(path, []byte(ini), 0o644); err != nil {
		return fmt.Errorf("pgkit: %w", err)
	}
	if c.own != nil {
		if err := os.Chown(b.dir, int(c.own.Uid), int(c.own.Gid)); err != nil {
			return fmt.Errorf("pgkit: %w", err)
		}
	}
	p, err := startProcess(b.dir, c.own, syscall.SIGTERM, bin, path)
	if err != nil {
		return err
	}
	b.proc = p
	return p.ready(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, b.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// URL is the address of a database through the pooler.
func (b *Bouncer) URL(database string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable&default_query_exec_mode=cache_describe", superuser, b.port, database)
}

// Close ends the pooler.
func (b *Bouncer) Close() error {
	if b.proc != nil {
		b.proc.end(syscall.SIGTERM)
		b.proc = nil
	}
	return os.RemoveAll(b.dir)
}

// tail is the end of a long text, for messages.
func tail(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(bytes.TrimSpace(b))), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
