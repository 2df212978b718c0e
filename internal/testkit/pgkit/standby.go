package pgkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Standby makes a copy of the running server and starts it as a hot standby that
// streams from it, under the given name for synchronous_standby_names. It has a
// port of its own, and the settings that this cluster was started with. Close it
// like any cluster.
func (c *Cluster) Standby(ctx context.Context, name string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "commitstep-pg-")
	if err != nil {
		return nil, fmt.Errorf("pgkit: %w", err)
	}
	s := &Cluster{dir: dir, bin: c.bin, own: c.own, args: slices.Clone(c.args)}
	if err := s.follow(ctx, c, name); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (c *Cluster) follow(ctx context.Context, primary *Cluster, name string) error {
	if c.own != nil {
		if err := os.Chown(c.dir, int(c.own.Uid), int(c.own.Gid)); err != nil {
			return fmt.Errorf("pgkit: %w", err)
		}
	}
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=%s application_name=%s", primary.port, superuser, name)
	if err := c.run(ctx, "pg_basebackup", "-D", c.data(), "-d", from, "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"); err != nil {
		return err
	}
	for try := 0; ; try++ {
		var err error
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.Restart(ctx); err == nil || try == 4 {
			return err
		}
	}
}

// Promote makes a standby take writes, as "pg_ctl promote" does, and waits until
// it does.
func (c *Cluster) Promote(ctx context.Context) error {
	return c.run(ctx, "pg_ctl", "promote", "-D", c.data(), "--wait")
}

// Synchronous has every commit wait until the named standby has it on its disk,
// or with "" for no standby, and returns once the server goes by that.
func (c *Cluster) Synchronous(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("pgkit: %w", err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + name + "'", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("pgkit: %w", err)
		}
	}
	return c.proc.ready(ctx, func(ctx context.Context) error {
		var synchronous int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").Scan(&synchronous)
		if err == nil && (synchronous > 0) != (name != "") {
			err = fmt.Errorf("%d synchronous standbys", synchronous)
		}
		return err
	})
}

// run runs one of the server's programs to its end.
func (c *Cluster) run(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, program), args...)
	cmd.Dir = c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.own}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgkit: %s: %w: %s", program, err, strings.TrimSpace(string(tail(out))))
	}
	return nil
}
