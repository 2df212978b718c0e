package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/spf13/cobra"
)

const fsHelp = `

A path is local, or an address such as hdfs://prod/data/x whose file system is
configured; see ` + "`commitstep help resources`" + `.`

func (in *invocation) fsCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls PATH", Short: "List a directory", Long: "Ls lists a directory as the engine sees it, in the order of the names." + fsHelp + exitStatus(ExitNotFound, ExitInterrupted),
		Example: "  commitstep fs ls hdfs://prod/task-output",
		Args:    oneArg("a directory"),
		RunE:    in.run(func(ctx context.Context, args []string) error { return in.list(ctx, args[0]) }),
	}
	stat := &cobra.Command{
		Use: "stat PATH", Short: "Show one file or directory", Long: "Stat shows what fs.rename would record of a file: its identity, size and time." + fsHelp + exitStatus(ExitNotFound, ExitInterrupted),
		Example: "  commitstep fs stat hdfs://prod/task-output/1.avro",
		Args:    oneArg("a path"),
		RunE:    in.run(func(ctx context.Context, args []string) error { return in.stat(ctx, args[0]) }),
	}
	noClobber := false
	mv := &cobra.Command{
		Use: "mv --no-clobber FROM TO", Short: "Rename a file or directory by hand",
		Long: `Mv renames once, as a publish would, and never overwrites. It is for trying a
configuration: nothing is written to a log, so a lost answer is reported and
not found out about. The flag must be given: there is no other mode.` + fsHelp + exitStatus(ExitNotFound, ExitStale, ExitInterrupted),
		Example: "  commitstep fs mv --no-clobber hdfs://prod/tmp/a hdfs://prod/tmp/b",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("`%s` needs two paths, but got %d; see `%s --help`", c.CommandPath(), len(args), c.CommandPath())
			}
			return nil
		},
		RunE: in.run(func(ctx context.Context, args []string) error {
			if !noClobber {
				return usagef("give --no-clobber: a rename here never overwrites")
			}
			return in.move(ctx, args[0], args[1])
		}),
	}
	mv.Flags().BoolVar(&noClobber, "no-clobber", false, "never overwrite (required)")
	return group("fs", "Look at the file systems that plans name", "Fs looks at files through the same connections that publish uses.", ls, stat, mv)
}

// fileView is one file or directory.
type fileView struct {
	Path     commitstep.Address `json:"path"`
	ID       string             `json:"id,omitempty"`
	Type     string             `json:"type"`
	Size     int64              `json:"size"`
	Modified time.Time          `json:"modified"`
	Mode     string             `json:"mode"`
	Owner    string             `json:"owner"`
	Group    string             `json:"group"`
}

func viewFile(i filesys.Info) fileView {
	v := fileView{Path: i.Path, ID: i.ID.Text, Type: "file", Size: i.Size, Modified: i.MTime.UTC(), Mode: octal(i.Mode), Owner: i.Owner, Group: i.Group}
	switch {
	case i.Dir:
		v.Type, v.Size = "directory", 0
	case i.Other:
		v.Type = "other"
	}
	return v
}

// octal writes permission bits as chmod reads them.
func octal(m fs.FileMode) string {
	n := uint32(m.Perm())
	for bit, o := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			n |= o
		}
	}
	return fmt.Sprintf("%04o", n)
}

func (v fileView) row(t *table, shown string) {
	t.row(v.Type, v.Mode, v.Owner, v.Group, strconv.FormatInt(v.Size, 10), v.Modified.Format(time.RFC3339), name(shown))
}

// onFS finds the file system of a path and calls fn.
func (in *invocation) onFS(ctx context.Context, text string, fn func(context.Context, []*resource, *resource, commitstep.Address) error) error {
	return withResources(ctx, in, func(ctx context.Context, all []*resource) error {
		wd, err := os.Getwd()
		if err != nil {
			return failf("", "working directory: %v", err)
		}
		r, a, err := in.resourceOf(all, text, wd)
		if err != nil {
			return err
		}
		return fn(ctx, all, r, a)
	})
}

// fsErr gives errors of file systems their exit codes.
func fsErr(err error) error {
	switch {
	case err == nil:
		return nil
	case filesys.Missing(err):
		return &cliError{out: outcome{notFound: true}, err: err}
	case errors.Is(err, fs.ErrExist):
		return &cliError{out: outcome{stale: true}, err: err, hint: "choose another name; a rename never overwrites"}
	}
	return err
}

func (in *invocation) list(ctx context.Context, text string) error {
	return in.onFS(ctx, text, func(ctx context.Context, _ []*resource, r *resource, a commitstep.Address) error {
		var files []fileView
		for i, err := range r.List(ctx, a) {
			if err != nil {
				if info, serr := r.Stat(ctx, a); errors.Is(err, filesys.ErrNotDirectory) && serr == nil && !info.Dir {
					return failf(fmt.Sprintf("`%s fs stat` shows it", in.Program), "%s is no directory", a)
				}
				return fsErr(err)
			}
			files = append(files, viewFile(i))
		}
		slices.SortFunc(files, func(x, y fileView) int { return strings.Compare(x.Path.Path, y.Path.Path) })
		return in.print(document{kind: "FileList", body: listOf(files), table: func(t *table) {
			for _, f := range files {
				f.row(t, f.Path.Base())
			}
		}})
	})
}

func (in *invocation) stat(ctx context.Context, text string) error {
	return in.onFS(ctx, text, func(ctx context.Context, _ []*resource, r *resource, a commitstep.Address) error {
		i, err := r.Stat(ctx, a)
		if err != nil {
			return fsErr(err)
		}
		v := viewFile(i)
		return in.print(document{kind: "File", body: v, table: func(t *table) {
			v.row(t, v.Path.String())
			if v.ID != "" {
				t.line("id %s", name(v.ID))
			}
		}})
	})
}

func (in *invocation) move(ctx context.Context, from, to string) error {
	return in.onFS(ctx, from, func(ctx context.Context, all []*resource, r *resource, src commitstep.Address) error {
		wd, err := os.Getwd()
		if err != nil {
			return failf("", "working directory: %v", err)
		}
		other, dst, err := in.resourceOf(all, to, wd)
		if err != nil {
			return err
		}
		if other != r {
			return &cliError{out: outcome{failed: true}, err: filesys.ErrOtherFileSystem, msg: fmt.Sprintf("%s and %s are on different file systems", src, dst), hint: "no rename between them is atomic"}
		}
		before, err := r.Stat(ctx, src)
		if err != nil {
			return fsErr(err)
		}
		if err := r.Rename(ctx, src, dst); err != nil {
			if commitstep.ClassOf(err) == commitstep.ClassUnknown {
				return &cliError{out: outcome{failed: true}, err: err, hint: fmt.Sprintf("nobody knows whether it happened: compare `%s fs stat` of both places with the id %s", in.Program, before.ID.Text)}
			}
			return fsErr(err)
		}
		after, err := r.Stat(ctx, dst)
		if err != nil {
			return fsErr(err)
		}
		v := viewFile(after)
		return in.print(document{kind: "File", body: v, table: func(t *table) { v.row(t, v.Path.String()) }})
	})
}

func resourcesTopic() *cobra.Command {
	return &cobra.Command{Use: "resources", Short: "How file systems, Hive servers and tables are configured", Long: `Plans name files by address: a local path, or scheme://NAME/path. NAME is looked
up in the configuration file (--config, COMMITSTEP_CONFIG):

  resources:
    hdfs://prod:
      conf_dir: /etc/hadoop/conf   # the name service "prod" of these files
      user: etl
    hdfs://test:
      addresses: [nn1:8020, nn2:8020]         # of one name service
      http_addresses: [nn1:9870, nn2:9870]    # tell which namespace it is
    webhdfs://prod:
      urls: [https://nn1:9871, https://nn2:9871]
      token_file: /run/secrets/hdfs-token
      ca_file: /etc/ssl/cluster.pem

Further fields: name_service, root, namespace, connections, call_timeout, wait,
quota_dirs (directories that have a quota, which is looked at when a plan is made),
and no_clobber (hdfs: "atomic", or "best-effort" to rename files also where a
connection cannot promise that nothing is overwritten).

The name services of HADOOP_CONF_DIR are known without being named there.

` + hiveResources + `

Watermarks may be kept in a PostgreSQL table of your own, which plans name as the
target of watermark.set. It needs a unique key and a token column:

  watermark_tables:
    positions:
      dsn: postgres://etl@db/warehouse       # or the variables of libpq
      table: public.positions
      columns: {source: topic, value: pos, token: token, job: job, epoch: epoch}

` + "`commitstep doctor`" + ` tells what can be reached, as whom, and what it can do.`}
}
