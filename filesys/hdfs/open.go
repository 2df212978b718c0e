package hdfs

import (
	"context"
	"io"

	"github.com/colinmarc/hdfs/v2"
)

// Open reads a file. Its connections end with ctx.
func (t *transport) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	var c *client
	var f *hdfs.FileReader
	err := t.over.Do(ctx, true, func(ctx context.Context, address string) error {
		var err error
		// Held while the file is read, as a long listing is.
		if c, err = t.pool.get(ctx, t.pool.lists, address); err != nil {
			return err
		}
		err, sound := c.do(ctx, "open", path, &exchange{}, func(cl *hdfs.Client) (err error) { f, err = cl.Open(path); return err })
		if err != nil {
			t.pool.put(t.pool.lists, c, sound)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &reader{ctx: ctx, t: t, c: c, f: f, path: path}, nil
}

type reader struct {
	ctx   context.Context
	t     *transport
	c     *client
	f     *hdfs.FileReader
	path  string
	spoil bool
}

func (r *reader) Read(b []byte) (n int, err error) {
	if r.spoil {
		return 0, io.ErrUnexpectedEOF
	}
	var end error
	err, sound := r.c.do(r.ctx, "read", r.path, &exchange{}, func(*hdfs.Client) (err error) {
		n, err = r.f.Read(b)
		if err == io.EOF {
			end, err = io.EOF, nil
		}
		return err
	})
	r.spoil = !sound
	if err != nil {
		return n, err
	}
	return n, end
}

func (r *reader) Close() error {
	err := r.f.Close()
	r.t.pool.put(r.t.pool.lists, r.c, !r.spoil)
	return err
}
