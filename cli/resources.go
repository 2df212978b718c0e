package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/hdfs"
	"github.com/commitstep/engine/filesys/local"
	"github.com/commitstep/engine/filesys/webhdfs"
	"github.com/commitstep/engine/steps/watermark/pgtarget"
	"sigs.k8s.io/yaml"
)

// resourceConfig is how one resource is reached. Which fields count depends on
// its scheme.
type resourceConfig struct {
	// ConfDir holds Hadoop's configuration files; NameService is the one that
	// is meant, the resource's name by default.
	ConfDir     string `json:"conf_dir,omitempty"`
	NameService string `json:"name_service,omitempty"`
	// Addresses and HTTPAddresses of hdfs, URLs of webhdfs, in place of ConfDir.
	Addresses     []string `json:"addresses,omitempty"`
	HTTPAddresses []string `json:"http_addresses,omitempty"`
	URLs          []string `json:"urls,omitempty"`
	User          string   `json:"user,omitempty"`
	Root          string   `json:"root,omitempty"`
	Namespace     string   `json:"namespace,omitempty"`
	Connections   int      `json:"connections,omitempty"`
	QuotaDirs     []string `json:"quota_dirs,omitempty"`
	CallTimeout   string   `json:"call_timeout,omitempty"`
	Wait          string   `json:"wait,omitempty"`
	NoClobber     string   `json:"no_clobber,omitempty"`
	// TokenFile holds a delegation token of webhdfs. It is read again for every
	// call.
	TokenFile string `json:"token_file,omitempty"`
	// CAFile holds the certificates that sign those of https servers.
	CAFile string `json:"ca_file,omitempty"`
}

// fileConfig is the configuration file.
type fileConfig struct {
	Resources map[string]resourceConfig `json:"resources"`
	// WatermarkTables are tables that keep watermarks, by the name that plans
	// use as target.
	WatermarkTables map[string]pgtarget.Config `json:"watermark_tables"`
	// Hive are the HiveServer2 that plans name.
	Hive map[string]hiveConfig `json:"hive"`
}

// resource is an open file system of a command.
type resource struct {
	filesys.FS
	io.Closer
	// from says where its configuration comes from.
	from string
	user string
}

// configPath is the configuration file and whether it was named, so that its
// absence is an error.
func (in *invocation) configPath() (path string, named bool) {
	if in.config != "" {
		return in.config, true
	}
	if p := in.Env("COMMITSTEP_CONFIG"); p != "" {
		return p, true
	}
	dir := in.Env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home := in.Env("HOME")
		if !filepath.IsAbs(home) {
			return "", false
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "commitstep", "config.yaml"), false
}

func (in *invocation) readConfig() (fileConfig, string, error) {
	var c fileConfig
	path, named := in.configPath()
	if path == "" {
		return c, "", nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return c, "", nil
	}
	if err != nil {
		return c, path, failf("give another file with --config or COMMITSTEP_CONFIG", "configuration: %v", err)
	}
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return c, path, failf("see `"+in.Program+" help resources`", "configuration %s: %v", path, err)
	}
	return c, path, nil
}

// openResources opens every file system that plans may name: the local one,
// those of the configuration file, and the name services of HADOOP_CONF_DIR.
// What the latter names and cannot be used is kept in in.unusable.
// Nothing is connected yet.
func (in *invocation) openResources() (_ []*resource, err error) {
	in.unusable, in.unnamed = nil, nil
	conf, path, err := in.readConfig()
	if err != nil {
		return nil, err
	}
	var out []*resource
	defer func() {
		if err != nil {
			_ = closeResources(out)
		}
	}()
	// Below "/", since a store is also used by programs with roots of their own.
	files, err := local.New("/")
	if err != nil {
		return nil, failf("", "local files: %v", err)
	}
	out = append(out, &resource{FS: files, Closer: files, from: "this machine"})
	for _, name := range slices.Sorted(maps.Keys(conf.Resources)) {
		r, err := openResource(name, conf.Resources[name])
		if err != nil {
			return out, failf("correct it in "+path, "resource %s: %v", name, err)
		}
		r.from = path
		out = append(out, r)
	}
	dir := in.Env("HADOOP_CONF_DIR")
	if dir == "" {
		return out, nil
	}
	from := "HADOOP_CONF_DIR " + dir
	services, err := hdfs.Services(dir)
	if err != nil {
		// Plans that need none of it go on: who names one is told, and doctor.
		in.unusable = append(in.unusable, unusable{"HADOOP_CONF_DIR", from, err})
		return out, nil
	}
	for _, s := range services {
		for _, scheme := range []string{"hdfs://", "webhdfs://"} {
			if slices.ContainsFunc(out, func(r *resource) bool { return r.Resource() == scheme+s }) {
				continue // the configuration file wins
			}
			r, err := openResource(scheme+s, resourceConfig{ConfDir: dir, NameService: s})
			switch {
			case err == nil:
				r.from = from
				out = append(out, r)
			case errors.Is(err, webhdfs.ErrNoWebServers):
				in.unnamed = append(in.unnamed, unusable{scheme + s, from, err}) // most files name none
			default:
				in.unusable = append(in.unusable, unusable{scheme + s, from, err})
			}
		}
	}
	return out, nil
}

// unusable is what a configuration names and cannot be used.
type unusable struct {
	resource, from string
	err            error
}

// whyNot says why a resource is not among the open ones, as far as that is
// known.
func (in *invocation) whyNot(resource string, known []string) (hint string) {
	for _, u := range append(slices.Clone(in.unusable), in.unnamed...) {
		if u.resource == resource {
			return fmt.Sprintf("%s has it, but it cannot be used: %s", u.from, oneLine(u.err.Error()))
		}
	}
	hint = "name it in the configuration file; there are: " + strings.Join(known, ", ")
	for _, u := range in.unusable {
		if u.resource == "HADOOP_CONF_DIR" {
			hint += fmt.Sprintf("; %s cannot be used: %s", u.from, oneLine(u.err.Error()))
		}
	}
	return hint
}

// explained adds to a kind's refusal of a file system that is not configured why
// it is not.
func (in *invocation) explained(k commitstep.Kind, all []*resource) commitstep.Kind {
	build := k.New
	k.New = func(s commitstep.Step) (commitstep.CommitStep, error) {
		b, err := build(s)
		var none *filesys.NotConfiguredError
		if errors.As(err, &none) {
			err = fmt.Errorf("%w; %s", err, in.whyNot(none.Resource, resourceNames(all)))
		}
		return b, err
	}
	return k
}

// notOfAPlan words the refusal of a path that a person gave, not a plan.
func notOfAPlan(err error) error {
	var p *commitstep.PlanError
	if !errors.As(err, &p) {
		return err
	}
	text := p.Where + " " + p.Problem
	if p.Err != nil {
		text += ": " + p.Err.Error()
	}
	return failf(p.Hint, "%s", text)
}

func resourceNames(all []*resource) []string {
	out := make([]string, len(all))
	for i, r := range all {
		out[i] = r.Resource()
	}
	return out
}

func closeResources(all []*resource) error {
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// fileSystems are the resources as file systems.
func fileSystems(all []*resource) []filesys.FS {
	out := make([]filesys.FS, len(all))
	for i, r := range all {
		out[i] = r.FS
	}
	return out
}

func openResource(name string, c resourceConfig) (*resource, error) {
	a, err := commitstep.ParseAddress(name+"/", "")
	if err != nil || a.Path != "/" || a.Resource != name {
		return nil, errors.New("is not scheme://name, as in hdfs://prod")
	}
	scheme, short, _ := strings.Cut(name, "://")
	if c.ConfDir != "" && c.NameService == "" {
		c.NameService = short
	}
	call, err := duration("call_timeout", c.CallTimeout)
	if err != nil {
		return nil, err
	}
	wait, err := duration("wait", c.Wait)
	if err != nil {
		return nil, err
	}
	switch scheme {
	case "hdfs":
		o := hdfs.Options{Addresses: c.Addresses, HTTPAddresses: c.HTTPAddresses}
		if c.ConfDir != "" {
			if len(c.Addresses)+len(c.HTTPAddresses) > 0 {
				return nil, errors.New("has both conf_dir and addresses; give one")
			}
			if o, err = hdfs.FromConf(c.ConfDir, c.NameService); err != nil {
				return nil, err
			}
		}
		if len(c.URLs) > 0 || c.TokenFile != "" || c.CAFile != "" {
			return nil, errors.New("has urls, token_file or ca_file, which only webhdfs has")
		}
		o.Name, o.User, o.Root, o.Namespace, o.Clients = short, c.User, c.Root, c.Namespace, c.Connections
		o.CallTimeout, o.Wait, o.NoClobber, o.QuotaDirs = call, wait, hdfs.NoClobber(c.NoClobber), c.QuotaDirs
		f, err := hdfs.New(o)
		if err != nil {
			return nil, err
		}
		return &resource{FS: f, Closer: f, user: f.User()}, nil
	case "webhdfs":
		o := webhdfs.Options{URLs: c.URLs}
		if c.ConfDir != "" {
			if len(c.URLs) > 0 {
				return nil, errors.New("has both conf_dir and urls; give one")
			}
			if o, err = webhdfs.FromConf(c.ConfDir, c.NameService); err != nil {
				return nil, err
			}
		}
		if len(c.Addresses)+len(c.HTTPAddresses) > 0 || c.NoClobber != "" {
			return nil, errors.New("has addresses, http_addresses or no_clobber, which only hdfs has")
		}
		o.Name, o.User, o.Root, o.Namespace, o.Connections = short, c.User, c.Root, c.Namespace, c.Connections
		o.CallTimeout, o.Wait, o.QuotaDirs = call, wait, c.QuotaDirs
		if c.TokenFile != "" {
			o.Token = func() (string, error) {
				b, err := os.ReadFile(c.TokenFile)
				return strings.TrimSpace(string(b)), err
			}
		} else if o.User == "" {
			u, err := user.Current()
			if err != nil {
				return nil, fmt.Errorf("has no user, and the process's is unknown: %w", err)
			}
			o.User = u.Username
		}
		if c.CAFile != "" {
			pem, err := os.ReadFile(c.CAFile)
			if err != nil {
				return nil, err
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("ca_file %s holds no certificate", c.CAFile)
			}
			o.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
		f, err := webhdfs.New(o)
		if err != nil {
			return nil, err
		}
		return &resource{FS: f, Closer: f, user: o.User}, nil
	}
	return nil, fmt.Errorf("has the scheme %q; there are hdfs and webhdfs", scheme)
}

func duration(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s %q is not a duration, as in 20s", name, text)
	}
	if d <= 0 {
		return 0, fmt.Errorf("%s is %s and must be longer than 0", name, text)
	}
	return d, nil
}

// resourceOf finds the file system of an address as written by a person; paths
// without a scheme are local.
func (in *invocation) resourceOf(all []*resource, text, base string) (*resource, commitstep.Address, error) {
	a, err := commitstep.ParseAddress(text, base)
	if err != nil {
		return nil, a, notOfAPlan(err)
	}
	for _, r := range all {
		if r.Resource() == a.Resource {
			a, err = r.Resolve(text, base)
			return r, a, notOfAPlan(err)
		}
	}
	return nil, a, failf(in.whyNot(a.Resource, resourceNames(all)), "no file system is configured for %s", a.Resource)
}

func withResources(ctx context.Context, in *invocation, fn func(context.Context, []*resource) error) (err error) {
	all, err := in.openResources()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeResources(all)) }()
	return fn(ctx, all)
}
