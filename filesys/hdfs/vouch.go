package hdfs

import (
	"context"
	"errors"
	"fmt"

	"github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/filesys/internal/dfs"
)

// errUntold: the connection or the name node does not let this program ask which
// block pool it is.
var errUntold = errors.New("which block pool it has cannot be asked here")

// blockPool asks the name node that a connection leads to for its block pool,
// whose id belongs to one namespace of one cluster. Standby ones tell it too.
func (c *client) blockPool(ctx context.Context) (pool string, err error) {
	if !c.conn.readable() {
		return "", errUntold
	}
	s := substitute{method: "versionRequest", protocol: "org.apache.hadoop.hdfs.server.protocol.NamenodeProtocol"}
	err, sound := c.do(ctx, "version", "/", &exchange{instead: &s}, func(cl *hdfs.Client) error {
		_, err := cl.Stat("/")
		if s.answer != nil {
			return nil // what the library makes of it means nothing
		}
		return err
	})
	var no *dfs.RemoteError
	switch {
	case sound && errors.As(err, &no) && !no.NotServing():
		return "", errors.Join(errUntold, err)
	case err != nil:
		return "", err
	}
	const fieldInfo, fieldPool = 1, 3
	if info, ok := bytesField(s.answer, fieldInfo); ok {
		if b, ok := bytesField(info, fieldPool); ok && len(b) > 0 {
			return string(b), nil
		}
	}
	return "", errUntold
}

// vouch refuses a name node of another namespace than the one used so far,
// before anything is asked of it.
func (t *transport) vouch(ctx context.Context, c *client) error {
	pool, err := c.blockPool(ctx)
	if errors.Is(err, errUntold) {
		return nil
	}
	if err == nil {
		err = t.ns.Hold(pool)
	}
	if err != nil {
		return fmt.Errorf("name node %s: %w", c.address, err)
	}
	return nil
}

// Servers asks every configured address which namespace it serves; see
// [filesys.ServerLister].
func (f *FS) Servers(ctx context.Context) []filesys.Server {
	var out []filesys.Server
	for _, a := range f.t.o.Addresses {
		s := filesys.Server{Address: a}
		// A connection of its own: those of the pool lead to one namespace only.
		c, err := f.t.pool.open(ctx, a)
		if err == nil {
			s.Namespace, err = c.blockPool(ctx)
			c.close()
		}
		s.Err = err
		out = append(out, s)
	}
	for _, a := range f.t.o.HTTPAddresses {
		s := filesys.Server{Address: "http://" + a}
		s.Namespace, s.Err = f.t.askWeb(ctx, a)
		out = append(out, s)
	}
	return out
}
