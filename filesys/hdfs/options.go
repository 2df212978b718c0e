package hdfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/user"
	"strings"
	"time"

	"github.com/colinmarc/hdfs/v2"
)

// NoClobber says what to do on a connection that cannot rename without the
// risk of overwriting.
type NoClobber string

const (
	// Atomic refuses to rename files there. Directories are still renamed: an
	// overwrite could only replace an empty one. The default.
	Atomic NoClobber = "atomic"
	// BestEffort looks, renames, and looks again: a file that somebody puts at
	// the destination between the first look and the rename is lost.
	BestEffort NoClobber = "best-effort"
)

// Options of a file system. Name and Addresses are required; the zero value of
// every other field is its default.
type Options struct {
	// Name of the resource: addresses are hdfs://Name/path.
	Name string
	// Addresses (host:port) of the RPC servers of all name nodes of one name
	// service. Never name those of two: both have files of the same paths.
	Addresses []string
	// HTTPAddresses (host:port) of the web servers of the same name nodes.
	// They tell which namespace it is, which is recorded with every file. ""
	// where the operators closed them: then Namespace is recorded.
	HTTPAddresses []string
	// Namespace is recorded in place of what the web servers would tell.
	// Default: the name. It must change when another cluster gets the name.
	Namespace string
	// User acts on the name node. Default: HADOOP_USER_NAME is not looked at;
	// it is the process's user.
	User string
	// Root that no address may leave. Default "/".
	Root string
	// QuotaDirs are directories that have a quota, which is looked at when a move
	// into them is planned. Of a directory without one the name node would count
	// the whole tree for every plan.
	QuotaDirs []string
	// Clients bounds the connections, each of which runs one call at a time.
	// Default 8; more than 16 gain little.
	Clients int
	// CallTimeout bounds every wait for an answer. Default 20 s. A name node
	// that is stopped for longer makes the outcome of a rename unknown until
	// it answers again.
	CallTimeout time.Duration
	// IdleTimeout closes connections that were not used. Default 8 s, less
	// than what name nodes allow.
	IdleTimeout time.Duration
	// Wait bounds how long a call waits while no name node serves. Default
	// 15 s; the engine waits on its own after that.
	Wait time.Duration
	// NoClobber: default Atomic.
	NoClobber NoClobber

	// Dial replaces the dialer of the name node connections.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Client may change what the library is given for each new client:
	// Kerberos credentials belong here. Addresses and dial functions are set
	// after it.
	Client func(*hdfs.ClientOptions) error

	// opaque pretends that requests cannot be read, for tests.
	opaque bool
}

func (o *Options) complete() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if o.Name == "" || strings.ContainsAny(o.Name, "/@?#%") {
		bad("the name %q of the file system is empty or holds one of / @ ? # %%", o.Name)
	}
	if len(o.Addresses) == 0 {
		bad("no address of a name node; give host:port of its RPC server, or a Hadoop configuration directory")
	}
	for _, a := range append(append([]string(nil), o.Addresses...), o.HTTPAddresses...) {
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("the name node address %q is not host:port", a)
		}
	}
	if o.User == "" {
		if u, err := user.Current(); err != nil {
			bad("no user is given and the process's is unknown: %w", err)
		} else {
			o.User = u.Username
		}
	}
	switch o.NoClobber {
	case "":
		o.NoClobber = Atomic
	case Atomic, BestEffort:
	default:
		bad("no_clobber is %q; it is %q or %q", o.NoClobber, Atomic, BestEffort)
	}
	if o.Clients == 0 {
		o.Clients = 8
	}
	if o.Clients < 1 || o.Clients > 256 {
		bad("%d clients; there may be 1 to 256", o.Clients)
	}
	for _, d := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{{"call timeout", &o.CallTimeout, 20 * time.Second}, {"idle timeout", &o.IdleTimeout, 8 * time.Second}, {"wait", &o.Wait, 15 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 {
			bad("the %s %s is negative", d.name, *d.v)
		}
	}
	if o.Namespace == "" {
		o.Namespace = o.Name
	}
	if len(errs) > 0 {
		return fmt.Errorf("hdfs %q: %w", o.Name, errors.Join(errs...))
	}
	return nil
}
