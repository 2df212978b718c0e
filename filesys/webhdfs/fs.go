package webhdfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/internal/dfs"
)

// FS is HDFS as a file system. Safe for concurrent use.
type FS struct {
	*dfs.Files
	t *transport

	mu    sync.Mutex
	calls map[string]int64
}

var (
	_ filesys.FS            = (*FS)(nil)
	_ filesys.Sweeper       = (*FS)(nil)
	_ filesys.BatchStater   = (*FS)(nil)
	_ filesys.Finder        = (*FS)(nil)
	_ filesys.PlanChecker   = (*FS)(nil)
	_ filesys.WriterChecker = (*FS)(nil)
)

// New makes a file system. It connects on the first call. Close it.
func New(o Options) (*FS, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	rt := o.Transport
	if rt == nil {
		rt = &http.Transport{
			TLSClientConfig:     o.TLS,
			DialContext:         (&net.Dialer{Timeout: o.CallTimeout}).DialContext,
			MaxConnsPerHost:     o.Connections,
			MaxIdleConnsPerHost: o.Connections,
			// Less than what the web servers allow: a request on a connection
			// that is being closed has an unknown outcome.
			IdleConnTimeout:        8 * time.Second,
			MaxResponseHeaderBytes: 1 << 20,
			DisableCompression:     true,
		}
	}
	f := &FS{calls: map[string]int64{}}
	resource := "webhdfs://" + o.Name
	f.t = &transport{
		o: o,
		client: &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
		over:  &dfs.Failover{Resource: resource, Addresses: o.URLs, Wait: o.Wait},
		ns:    &dfs.Namespace{Fixed: o.Namespace},
		count: f.count,
	}
	if o.Namespace == "" {
		over := &dfs.Failover{Resource: resource, Addresses: o.URLs, Wait: o.Wait}
		f.t.ns.Ask = func(ctx context.Context) (ns string, err error) {
			err = over.Do(ctx, true, func(ctx context.Context, base string) error {
				ns, err = f.t.blockPool(ctx, base)
				return err
			})
			return ns, err
		}
		f.t.over.Vouch = func(ctx context.Context, base string) error {
			pool, err := f.t.blockPool(ctx, base)
			if err == nil {
				err = f.t.ns.Hold(pool)
			}
			if err != nil {
				return fmt.Errorf("name node %s: %w", base, err)
			}
			return nil
		}
	}
	var err error
	if f.Files, err = dfs.New(dfs.Config{Resource: resource, Root: o.Root, User: o.User, QuotaDirs: o.QuotaDirs}, f.t); err != nil {
		return nil, err
	}
	return f, nil
}

// Servers asks every configured URL which namespace it serves; see
// [filesys.ServerLister].
func (f *FS) Servers(ctx context.Context) []filesys.Server {
	var out []filesys.Server
	for _, u := range f.t.o.URLs {
		s := filesys.Server{Address: u}
		s.Namespace, s.Err = f.t.blockPool(ctx, u)
		out = append(out, s)
	}
	return out
}

// Capabilities of this connection.
func (f *FS) Capabilities() filesys.Capabilities {
	return filesys.Capabilities{StableIDs: true, NoClobber: true, BlursNotDirectory: true, Remote: true}
}

// Writing reports whether a writer has a file open; see filesys.WriterChecker.
func (f *FS) Writing(ctx context.Context, a commitstep.Address) (bool, error) {
	if !f.Root().Contains(a) {
		return false, fmt.Errorf("look at the writer of %s: %w", a, filesys.ErrEscapes)
	}
	open, err := f.t.writing(ctx, a.Path)
	if err != nil {
		return false, fmt.Errorf("look at the writer of %s: %w", a, err)
	}
	return open, nil
}

// Create writes a new file through a data node and never overwrites one:
// fs.ErrExist. When it fails half-way a shorter file may be left.
func (f *FS) Create(ctx context.Context, a commitstep.Address, content io.Reader) error {
	if !f.Root().Contains(a) {
		return fmt.Errorf("create %s: %w", a, filesys.ErrEscapes)
	}
	if err := f.t.create(ctx, a.Path, content); err != nil {
		return fmt.Errorf("create %s: %w", a, err)
	}
	return nil
}

// Close drops idle connections. Calls in flight go on.
func (f *FS) Close() error {
	f.t.ns.Close()
	f.t.client.CloseIdleConnections()
	return nil
}

func (f *FS) count(op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
}

// Calls counts the calls that were made, by their WebHDFS names.
func (f *FS) Calls() map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.calls)
}

// bare takes the URL, which may hold a token, off an error.
func bare(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
