package hdfs

import (
	"context"
	"errors"
	"fmt"

	"github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/filesys/internal/dfs"
	"google.golang.org/protobuf/encoding/protowire"
)

// ask makes a call about a path that the library does not have, in place of a
// look that it has. It must only read.
func (t *transport) ask(ctx context.Context, op, path string, s substitute) (answer []byte, err error) {
	err = t.over.Do(ctx, true, func(ctx context.Context, address string) error {
		c, err := t.pool.get(ctx, t.pool.slots, address)
		if err != nil {
			return err
		}
		try := s
		err, sound := c.do(ctx, op, path, &exchange{instead: &try}, func(cl *hdfs.Client) error {
			_, err := cl.Stat(path)
			if try.answer != nil {
				return nil // what the library makes of it means nothing
			}
			return err
		})
		answer = try.answer
		t.pool.put(t.pool.slots, c, sound)
		if err == nil && answer == nil {
			return dfs.Lost(fmt.Errorf("name node %s: the answer to %s cannot be read", address, s.method))
		}
		return err
	})
	return answer, err
}

// CheckAccess implements dfs.Transport. Where the connection cannot be read
// nothing is refused: the name node does it itself, later.
func (t *transport) CheckAccess(ctx context.Context, path string, a dfs.Access) error {
	const fieldAction = 2 // whose values are the bits
	_, err := t.ask(ctx, "check access", path, substitute{method: "checkAccess",
		params: protowire.AppendVarint(protowire.AppendTag(nil, fieldAction, protowire.VarintType), uint64(a))})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// Quota implements dfs.Transport; without limits where the connection cannot be
// read.
func (t *transport) Quota(ctx context.Context, dir string) (dfs.Quota, error) {
	q := dfs.Quota{MaxNames: -1, MaxSpace: -1}
	b, err := t.ask(ctx, "quota", dir, substitute{method: "getQuotaUsage"})
	if errors.Is(err, errors.ErrUnsupported) {
		return q, nil
	}
	if err != nil {
		return q, err
	}
	usage, ok := bytesField(b, 1)
	for num, to := range map[protowire.Number]*int64{1: &q.Names, 2: &q.MaxNames, 3: &q.Space, 4: &q.MaxSpace} {
		v, there := varintField(usage, num)
		ok = ok && there
		*to = int64(v)
	}
	if !ok {
		return q, fmt.Errorf("the name node does not tell the quota of %s", dir)
	}
	return q, nil
}
