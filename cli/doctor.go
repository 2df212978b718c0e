package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func (in *invocation) doctorCommand() *cobra.Command {
	var probe []string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what can be reached, as whom, and what it can do",
		Long: `Doctor opens every configured file system and looks at its root. It asks every
name node by itself which namespace it has: all those of one file system must have
the same. With --probe it also makes two empty directories below a directory of
yours, tries to rename one over the other, which must be refused, and removes them.

Of every configured HiveServer2 it tells the version, who statements run as, whether
a session outlives its connection, and whether the server's list of statements can
be read. It opens a session, asks for the version, and closes it.` + fsHelp + exitStatus(ExitPartial, ExitInterrupted),
		Example: "  commitstep doctor --probe hdfs://prod/tmp",
		Args:    noArgs,
		RunE:    in.run(func(ctx context.Context, _ []string) error { return in.doctor(ctx, probe) }),
	}
	c.Flags().StringArrayVar(&probe, "probe", nil, "try a rename below the directory `ADDRESS`; may be repeated")
	return c
}

// doctorView is the body of a Doctor.
type doctorView struct {
	list[healthView]
	Hive []hiveHealth `json:"hive,omitempty"`
}

// healthView is what doctor found out about one file system.
type healthView struct {
	Resource   string `json:"resource"`
	From       string `json:"from"`
	User       string `json:"user,omitempty"`
	OK         bool   `json:"ok"`
	Problem    string `json:"problem,omitempty"`
	Identity   string `json:"identity,omitempty"`
	TookMillis int64  `json:"tookMillis"`
	StableIDs  bool   `json:"stableIds"`
	NoClobber  bool   `json:"noClobber"`
	// Servers are the addresses of one that has several, each asked by itself.
	Servers []serverView `json:"servers,omitempty"`
	// Probed says what a tried rename showed.
	Probed      string `json:"probed,omitempty"`
	NeedsLength bool   `json:"needsLength"`
}

// serverView is one address of a file system.
type serverView struct {
	Address   string `json:"address"`
	Namespace string `json:"namespace,omitempty"`
	Problem   string `json:"problem,omitempty"`
}

// askServers asks every address of a file system which namespace it has. Two
// different ones are two clusters, and a call that went from one to the other
// would change another cluster's files.
func (v *healthView) askServers(ctx context.Context, r *resource) error {
	l, ok := r.FS.(filesys.ServerLister)
	if !ok {
		return nil
	}
	first := serverView{}
	var err error
	for _, s := range l.Servers(ctx) {
		sv := serverView{Address: s.Address, Namespace: s.Namespace}
		if s.Err != nil {
			sv.Problem = oneLine(s.Err.Error())
		}
		v.Servers = append(v.Servers, sv)
		switch {
		case s.Namespace == "":
		case first.Namespace == "":
			first = sv
		case s.Namespace != first.Namespace && err == nil:
			err = fmt.Errorf("%s and %s belong to two clusters (namespaces %s and %s): give the addresses of one name service only", first.Address, s.Address, first.Namespace, s.Namespace)
		}
	}
	return err
}

func (h healthView) abilities() string {
	var out []string
	if h.StableIDs {
		out = append(out, "stable ids")
	}
	if h.NoClobber {
		out = append(out, "atomic no-clobber")
	} else {
		out = append(out, "NO atomic no-clobber")
	}
	if h.NeedsLength {
		out = append(out, "plans need lengths")
	}
	return strings.Join(out, ", ")
}

func (in *invocation) doctor(ctx context.Context, probe []string) error {
	return withResources(ctx, in, func(ctx context.Context, all []*resource) (err error) {
		servers, err := in.openHive(all)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeHive(servers)) }()
		var views []healthView
		sick := 0
		for _, r := range all {
			v := healthView{Resource: r.Resource(), From: r.from, User: r.user}
			start := time.Now()
			root, err := r.Resolve(".", "")
			var info filesys.Info
			if err == nil {
				info, err = r.Stat(ctx, root)
			}
			v.TookMillis = time.Since(start).Milliseconds()
			if serr := v.askServers(ctx, r); serr != nil {
				err = serr // the cause of whatever else went wrong
			}
			if err == nil {
				// Of the root's identity all but its own number is the namespace's.
				if i := strings.LastIndexByte(info.ID.Text, '/'); i > 0 {
					v.Identity = info.ID.Text[:i]
				}
				err = in.probe(ctx, r, probe, &v)
			}
			caps := r.Capabilities() // after the first call: it may have changed them
			v.StableIDs, v.NoClobber, v.NeedsLength = caps.StableIDs, caps.NoClobber, caps.NeedsLength
			if v.OK = err == nil; err != nil {
				v.Problem = oneLine(err.Error())
				sick++
			}
			views = append(views, v)
		}
		for _, u := range in.unusable {
			views = append(views, healthView{Resource: u.resource, From: u.from, Problem: oneLine(u.err.Error())})
			sick++
		}
		for _, p := range probe {
			if _, _, err := in.resourceOf(all, p, "/"); err != nil {
				return err
			}
		}
		body := doctorView{list: listOf(views)}
		for _, s := range servers {
			h := hiveHealthOf(ctx, s)
			if body.Hive = append(body.Hive, h); !h.OK {
				sick++
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err = in.print(document{kind: "Doctor", body: body, table: func(t *table) {
			for _, v := range views {
				state := "ok"
				if !v.OK {
					state = "FAILED"
				}
				t.row(state, name(v.Resource), name(v.User), name(v.From), fmt.Sprintf("%d ms", v.TookMillis), v.abilities())
			}
			for _, v := range views {
				for _, s := range v.Servers {
					switch {
					case s.Problem != "":
						t.line("%s: %s: %s", name(v.Resource), name(s.Address), s.Problem)
					case v.OK:
						t.line("%s: %s has namespace %s", name(v.Resource), name(s.Address), name(s.Namespace))
					}
				}
				if v.Probed != "" {
					t.line("%s: %s", name(v.Resource), oneLine(v.Probed))
				}
				if v.Problem != "" {
					t.line("%s: %s", name(v.Resource), v.Problem)
				}
			}
			hiveDoctorTable(t, body.Hive)
		}})
		if sick > 0 {
			err = errors.Join(err, &cliError{out: outcome{partial: true}, msg: fmt.Sprintf("%d of %d cannot be used", sick, len(views)+len(servers)), hint: "correct the configuration, or wait for the servers"})
		}
		return err
	})
}

// probe tries a rename over an empty directory, the one thing that harms
// nobody where it is not refused.
func (in *invocation) probe(ctx context.Context, r *resource, dirs []string, v *healthView) error {
	for _, text := range dirs {
		a, err := commitstep.ParseAddress(text, "/")
		if err != nil || a.Resource != r.Resource() {
			continue // another resource's; what nobody owns is told later
		}
		if a, err = r.Resolve(text, "/"); err != nil {
			return err
		}
		// It makes nothing but what it removes.
		switch info, err := r.Stat(ctx, a); {
		case filesys.Missing(err):
			return fmt.Errorf("probe: %s is not there: name a directory of yours that is", a)
		case err != nil:
			return fmt.Errorf("probe: %w", err)
		case !info.Dir:
			return fmt.Errorf("probe: %s is no directory: name a directory of yours", a)
		}
		top := child(a, "commitstep-doctor-"+uuid.NewString())
		one, two := child(top, "one"), child(top, "two")
		var merr, rerr error
		for _, d := range []commitstep.Address{one, two} {
			if merr == nil {
				merr = r.MkdirAll(ctx, d)
			}
		}
		if merr == nil {
			rerr = r.Rename(ctx, one, two)
		}
		for _, d := range []commitstep.Address{one, two, top} {
			info, err := r.Stat(ctx, d)
			if filesys.Missing(err) {
				continue
			}
			if err == nil {
				err = r.RemoveDir(ctx, info)
			}
			if err != nil {
				return fmt.Errorf("probe: %s is left behind: %w", top, err)
			}
		}
		switch {
		case merr != nil:
			return fmt.Errorf("probe: %w", merr)
		case errors.Is(rerr, fs.ErrExist):
			v.Probed = "a rename over an existing directory was refused, as it must be"
		case rerr == nil && r.Capabilities().ReplacesEmptyDir:
			v.Probed = "a rename replaced an empty directory; files are protected by looking first only"
		case rerr == nil:
			return errors.New("probe: a rename over an existing directory was NOT refused: do not publish here")
		default:
			return fmt.Errorf("probe: %w", rerr)
		}
	}
	return nil
}

func child(a commitstep.Address, name string) commitstep.Address {
	return commitstep.Address{Resource: a.Resource, Path: strings.TrimSuffix(a.Path, "/") + "/" + name}
}
