package hdfs

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/internal/dfs"
)

// FS is HDFS as a file system. Safe for concurrent use.
type FS struct {
	*dfs.Files
	t    *transport
	http *http.Transport

	mu    sync.Mutex
	calls map[string]int64
}

var (
	_ filesys.FS          = (*FS)(nil)
	_ filesys.Sweeper     = (*FS)(nil)
	_ filesys.BatchStater = (*FS)(nil)
	_ filesys.Finder      = (*FS)(nil)
	_ filesys.PlanChecker = (*FS)(nil)
)

// New makes a file system. It connects on the first call. Close it.
func New(o Options) (*FS, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	f := &FS{calls: map[string]int64{}, http: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: o.IdleTimeout}}
	resource := "hdfs://" + o.Name
	f.t = &transport{
		o:    o,
		pool: newPool(o, f.count),
		over: &dfs.Failover{Resource: resource, Addresses: o.Addresses, Wait: o.Wait},
		ns:   &dfs.Namespace{Fixed: o.Namespace},
	}
	f.t.pool.vouch = f.t.vouch
	if len(o.HTTPAddresses) > 0 {
		over := &dfs.Failover{Resource: resource, Addresses: o.HTTPAddresses, Wait: o.Wait}
		client := &http.Client{Transport: f.http, Timeout: o.CallTimeout}
		f.t.askWeb = func(ctx context.Context, a string) (string, error) { return dfs.AskJMX(ctx, client, "http://"+a) }
		f.t.ns.Ask = func(ctx context.Context) (ns string, err error) {
			err = over.Do(ctx, true, func(ctx context.Context, a string) error {
				ns, err = f.t.askWeb(ctx, a)
				return err
			})
			return ns, err
		}
		f.t.pool.spoiled = f.t.ns.Doubt
	}
	var err error
	if f.Files, err = dfs.New(dfs.Config{Resource: resource, Root: o.Root, User: o.User, QuotaDirs: o.QuotaDirs}, f.t); err != nil {
		return nil, err
	}
	return f, nil
}

// Capabilities of this connection. NoClobber may become false when a
// connection turned out to be unreadable.
func (f *FS) Capabilities() filesys.Capabilities {
	return filesys.Capabilities{StableIDs: true, NoClobber: !f.t.opaque.Load(), ReplacesEmptyDir: f.t.opaque.Load(), BlursNotDirectory: true, Remote: true, NeedsLength: true}
}

// CheckMove implements filesys.PlanChecker. On a connection that cannot rename
// without the risk of overwriting it refuses files, unless the options accept
// the risk.
func (f *FS) CheckMove(ctx context.Context, from, to commitstep.Address) error {
	if err := f.Files.CheckMove(ctx, from, to); err != nil {
		return err
	}
	if !f.t.opaque.Load() || f.t.o.NoClobber == BestEffort {
		return nil
	}
	info, err := f.Stat(ctx, from)
	if err != nil {
		return err
	}
	if !info.Dir {
		return commitstep.Permanent(fmt.Errorf("%s: %w", from, errOpaque))
	}
	return nil
}

// User is who acts on the name node.
func (f *FS) User() string { return f.t.o.User }

// Close ends all connections, after the calls in flight.
func (f *FS) Close() error {
	f.t.ns.Close()
	f.t.pool.close()
	f.http.CloseIdleConnections()
	return nil
}

func (f *FS) count(method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[method]++
}

// Calls counts the calls that were sent, by the name node's names for them.
func (f *FS) Calls() map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}
