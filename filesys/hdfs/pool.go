package hdfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/filesys/internal/dfs"
)

// ErrClosed: the file system was closed.
var ErrClosed = errors.New("the file system is closed")

// client is one client of the library with its one connection.
type client struct {
	*hdfs.Client
	conn    *conn
	address string
	used    time.Time
}

// pool keeps clients. Each runs one call at a time.
type pool struct {
	o     Options
	slots chan struct{}
	lists chan struct{} // of long listings, which are held while others work
	count func(method string)
	// spoiled is called when a client was thrown away: a new one may lead
	// elsewhere.
	spoiled func()

	// vouch says whether the name node that a new connection leads to may be
	// used. It is asked once for every address, and again after a connection of
	// that address was thrown away.
	vouch func(ctx context.Context, c *client) error

	mu     sync.Mutex
	known  map[string]bool // addresses that were vouched for
	idle   []*client       // the last used one last
	timer  *time.Timer
	closed bool
}

func newPool(o Options, count func(string)) *pool {
	return &pool{o: o, slots: make(chan struct{}, o.Clients), lists: make(chan struct{}, o.Clients), count: count, spoiled: func() {}, known: map[string]bool{}}
}

// get takes an idle client of address, or opens one. Nothing was sent when it
// fails.
func (p *pool) get(ctx context.Context, slots chan struct{}, address string) (*client, error) {
	if err := ctx.Err(); err != nil {
		return nil, dfs.NotExecuted(err)
	}
	select {
	case slots <- struct{}{}:
	default:
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil, dfs.NotExecuted(fmt.Errorf("waiting for one of %d connections: %w", cap(slots), ctx.Err()))
		}
	}
	for {
		c, err := p.take(address)
		if err == nil && c == nil {
			if c, err = p.open(ctx, address); err == nil {
				err = p.check(ctx, c)
			}
		}
		if err != nil {
			<-slots
			return nil, dfs.NotExecuted(err)
		}
		// A connection that was busy a moment ago needs no system call to be
		// trusted.
		if c.used.IsZero() || time.Since(c.used) < 500*time.Millisecond || alive(c.conn.Conn) {
			return c, nil
		}
		p.discard(c)
	}
}

// check lets a new connection be vouched for, and closes it if it is not.
func (p *pool) check(ctx context.Context, c *client) error {
	p.mu.Lock()
	known := p.known[c.address]
	p.mu.Unlock()
	if known || p.vouch == nil {
		return nil
	}
	if err := p.vouch(ctx, c); err != nil {
		p.discard(c)
		return err
	}
	p.mu.Lock()
	p.known[c.address] = true
	p.mu.Unlock()
	return nil
}

func (p *pool) take(address string) (*client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	for i := len(p.idle) - 1; i >= 0; i-- {
		if c := p.idle[i]; c.address == address {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			return c, nil
		}
	}
	return nil, nil
}

// put gives a client back. One that did not behave is thrown away.
func (p *pool) put(slots chan struct{}, c *client, sound bool) {
	defer func() { <-slots }()
	if !sound {
		p.discard(c)
		return
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.discard(c)
		return
	}
	c.used = time.Now()
	p.idle = append(p.idle, c)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.o.IdleTimeout, p.reap)
	}
	p.mu.Unlock()
}

// reap closes what was idle for too long.
func (p *pool) reap() {
	p.mu.Lock()
	p.timer = nil
	var old []*client
	for len(p.idle) > 0 && (p.closed || time.Since(p.idle[0].used) >= p.o.IdleTimeout) {
		old = append(old, p.idle[0])
		p.idle = p.idle[1:]
	}
	if len(p.idle) > 0 {
		p.timer = time.AfterFunc(max(time.Millisecond, p.o.IdleTimeout-time.Since(p.idle[0].used)), p.reap)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (p *pool) discard(c *client) {
	c.close()
	p.mu.Lock()
	delete(p.known, c.address)
	p.mu.Unlock()
	p.spoiled()
}

// close ends a client. The connection first: the library's Close waits for a
// call in flight.
func (c *client) close() {
	c.conn.abort()
	_ = c.Client.Close() // closed already
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
	// Those in use are closed when they are given back. The slots are freed
	// again for callers that come too late, and for a second close.
	for _, s := range []chan struct{}{p.slots, p.lists} {
		for range cap(s) {
			s <- struct{}{}
		}
		for range cap(s) {
			<-s
		}
	}
}

// open connects a new client. The library connects again by itself, to send
// what it did not send, which is not for it to decide: its second connection
// is refused.
func (p *pool) open(ctx context.Context, address string) (*client, error) {
	var cn *conn
	var derr error
	dial := p.o.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	o := hdfs.ClientOptions{User: p.o.User}
	if p.o.Client != nil {
		if err := p.o.Client(&o); err != nil {
			return nil, fmt.Errorf("name node %s: %w", address, err)
		}
	}
	o.Addresses = []string{address}
	var mu sync.Mutex // the library's lease renewal dials too
	o.NamenodeDialFunc = func(_ context.Context, network, a string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if cn != nil {
			return nil, errors.New("this client has lost its connection")
		}
		dctx, cancel := context.WithTimeout(ctx, p.o.CallTimeout)
		defer cancel()
		var raw net.Conn
		if raw, derr = dial(dctx, network, a); derr != nil {
			return nil, derr
		}
		cn = newConn(raw, p.o.CallTimeout, p.o.opaque, p.count)
		return cn, nil
	}
	// A handshake with a security layer waits for answers.
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if cn != nil {
			cn.abort()
		}
	})
	c, err := hdfs.NewClient(o)
	inTime := stop()
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err == nil && inTime:
		return &client{Client: c, conn: cn, address: address}, nil
	case err == nil:
		(&client{Client: c, conn: cn}).close()
		err = ctx.Err()
	case derr != nil:
		err = derr // with its class, which the library's text has lost
	case ctx.Err() != nil:
		err = errors.Join(ctx.Err(), err)
	}
	if cn != nil {
		cn.abort()
	}
	return nil, fmt.Errorf("name node %s: %w", address, err)
}
