package main

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// waiting knows when a call to HiveServer2 was outstanding, over all connections
// that were opened by its dial. Its protocol has one call at a time in a
// connection, so a call is outstanding from its first byte until the last one of
// its answer.
type waiting struct {
	mu    sync.Mutex
	spans []span
	conns map[*conn]struct{}
	calls int
}

type span struct{ from, to time.Time }

func (w *waiting) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, w: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns == nil {
		w.conns = map[*conn]struct{}{}
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// reset forgets all calls.
func (w *waiting) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spans, w.calls = nil, 0
	for c := range w.conns {
		c.call = span{}
	}
}

// since gives how much of the time from then until now a call was outstanding, and
// how many calls there were since the reset.
func (w *waiting) since(then, now time.Time) (time.Duration, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.spans)
	for c := range w.conns {
		if !c.call.to.IsZero() {
			all = append(all, c.call)
		}
	}
	return union(all, then, now), w.calls
}

// union is the time between from and to that the spans cover.
func union(spans []span, from, to time.Time) time.Duration {
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var sum time.Duration
	at := from
	for _, s := range spans {
		if s.from.After(at) {
			at = s.from
		}
		end := s.to
		if end.After(to) {
			end = to
		}
		if end.After(at) {
			sum += end.Sub(at)
			at = end
		}
	}
	return sum
}

type conn struct {
	net.Conn
	w *waiting
	// call is the last one: from its first byte until the last byte of its answer
	// that was read, which is zero as long as there was none.
	call span
}

func (c *conn) Write(b []byte) (int, error) {
	c.w.mu.Lock()
	if c.call.from.IsZero() || !c.call.to.IsZero() {
		c.done()
		c.call.from = time.Now()
		c.w.calls++
	}
	c.w.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.w.mu.Lock()
		if !c.call.from.IsZero() {
			c.call.to = time.Now()
		}
		c.w.mu.Unlock()
	}
	return n, err
}

// done keeps the last call.
func (c *conn) done() {
	if !c.call.to.IsZero() {
		c.w.spans = append(c.w.spans, c.call)
	}
	c.call = span{}
}

func (c *conn) Close() error {
	c.w.mu.Lock()
	c.done()
	delete(c.w.conns, c)
	c.w.mu.Unlock()
	return c.Conn.Close()
}
