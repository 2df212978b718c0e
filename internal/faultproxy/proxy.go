// Package faultproxy stands between a client and its server on the loopback
// interface and breaks their conversation at a chosen message: before it is
// forwarded, after it is forwarded and before the answer comes back, or not at
// all but late. It is for tests. It knows how a protocol cuts its bytes into
// messages ([Framing]) and nothing else of it.
//
//	p, err := faultproxy.Listen("127.0.0.1:5432", faultproxy.PostgreSQL)
//	lost := p.On(faultproxy.Rule{Nth: 3, Do: faultproxy.DropReply})
//	… let the client work through p.Addr() …
//	<-lost.Fired()
package faultproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Action is what a rule does to the connection of the message that it met.
type Action uint8

// Actions.
const (
	// Pass forwards the message: the rule only watches.
	Pass Action = iota
	// DropBefore ends the connection; the server never sees the message.
	DropBefore
	// DropAfter forwards the message and ends the client's side at once, while
	// the server may still be at work.
	DropAfter
	// DropReply forwards the message and ends the client's side when the first
	// byte of the answer comes: the server has done its work.
	DropReply
	// Hold keeps the message back until Release. It reaches the server then, also
	// if the client has left.
	Hold
	// Delay keeps the message back for Rule.Delay.
	Delay
	// BlackHole swallows this and everything that follows on the connection, in
	// both directions, without ending it.
	BlackHole
	// Mute forwards this and everything that follows on the connection, and
	// swallows all answers, without ending it: the server does its work, and the
	// client never hears of it.
	Mute
)

// Message is one message of a client.
type Message struct {
	// Conn counts connections from 1; Index the messages of one from 1.
	Conn, Index int
	// Type is the framing's name of the message, 0 if it has none.
	Type byte
	// Turn: an answer follows before the client goes on.
	Turn bool
	// Data is the whole message. It is valid during the call only.
	Data []byte
}

// Rule says when to do what.
type Rule struct {
	// Match selects messages; nil takes every one.
	Match func(Message) bool
	// Nth is which of the selected messages, over all connections, from 1 on;
	// 0 is every one.
	Nth int
	Do  Action
	// Delay of the action Delay.
	Delay time.Duration
}

// Hook is a rule at work. Methods are safe for concurrent use.
type Hook struct {
	rule     Rule
	seen     atomic.Int64
	once     sync.Once
	fired    chan struct{}
	count    atomic.Int64
	release  chan struct{}
	released sync.Once
}

// Fired is closed once the rule has done something.
func (h *Hook) Fired() <-chan struct{} { return h.fired }

// Count is how often the rule has done something.
func (h *Hook) Count() int { return int(h.count.Load()) }

// Release lets the messages go that the rule holds, and all later ones.
func (h *Hook) Release() { h.released.Do(func() { close(h.release) }) }

func (h *Hook) meets(m Message) bool {
	if h.rule.Match != nil && !h.rule.Match(m) {
		return false
	}
	n := h.seen.Add(1)
	if h.rule.Nth != 0 && n != int64(h.rule.Nth) {
		return false
	}
	h.count.Add(1)
	h.once.Do(func() { close(h.fired) })
	return true
}

// Proxy forwards connections to one server. All methods are safe for
// concurrent use.
type Proxy struct {
	target  string
	framing Framing
	l       net.Listener
	wg      sync.WaitGroup
	turns   atomic.Int64
	msgs    atomic.Int64
	opened  atomic.Int64

	mu     sync.Mutex
	hooks  []*Hook
	conns  map[*conn]struct{}
	refuse bool
	closed bool
}

// Listen starts a proxy in front of target, host:port, on a random port. End
// it with Close.
func Listen(target string, f Framing) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{target: target, framing: f, l: l, conns: map[*conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect, host:port.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// On adds a rule. The first rule that meets a message acts on it.
func (p *Proxy) On(r Rule) *Hook {
	h := &Hook{rule: r, fired: make(chan struct{}), release: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks = append(p.hooks, h)
	return h
}

// Clear removes all rules, and releases what they hold.
func (p *Proxy) Clear() {
	p.mu.Lock()
	hooks := p.hooks
	p.hooks = nil
	p.mu.Unlock()
	for _, h := range hooks {
		h.Release()
	}
}

// Refuse makes new connections fail, and true also ends those there are: the
// server is down. Refuse(false) brings it back.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refuse = refuse
	var list []*conn
	if refuse {
		for c := range p.conns {
			list = append(list, c)
		}
	}
	p.mu.Unlock()
	for _, c := range list {
		c.end()
	}
}

// RoundTrips counts the messages that waited for an answer, over all
// connections; Messages all of them; Connections those that were opened.
func (p *Proxy) RoundTrips() int { return int(p.turns.Load()) }

// Messages counts the messages of all clients.
func (p *Proxy) Messages() int { return int(p.msgs.Load()) }

// Connections counts the connections that were opened.
func (p *Proxy) Connections() int { return int(p.opened.Load()) }

// Open counts the connections that are open now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Close ends all connections and returns once nothing of the proxy runs.
func (p *Proxy) Close() error {
	p.Clear()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.l.Close()
	p.Refuse(true)
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse || p.closed
		p.mu.Unlock()
		if refuse {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &conn{p: p, n: int(p.opened.Add(1)), client: client, server: server, ended: make(chan struct{})}
		p.mu.Lock()
		if p.closed || p.refuse {
			p.mu.Unlock()
			c.end()
			continue
		}
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.wg.Go(c.up)
		p.wg.Go(c.down)
	}
}

// conn is one connection through the proxy.
type conn struct {
	p              *Proxy
	n              int
	client, server net.Conn
	cutReply       atomic.Bool
	hole, mute     atomic.Bool // what is said, and what is answered, is swallowed
	owed           atomic.Bool // a held message was let go, and not answered yet
	once           sync.Once
	ended          chan struct{}
}

// end closes both sides.
func (c *conn) end() {
	c.once.Do(func() {
		close(c.ended)
		_ = c.client.Close()
		_ = c.server.Close()
		c.p.mu.Lock()
		delete(c.p.conns, c)
		c.p.mu.Unlock()
	})
}

// up forwards what the client says.
func (c *conn) up() {
	defer c.end()
	s := c.p.framing.New(c.client)
	for i := 1; ; i++ {
		m, err := s.Next()
		if err != nil {
			if c.owed.Load() {
				c.await() // or the message would be lost in the server's socket
			}
			return
		}
		m.Conn, m.Index = c.n, i
		c.p.msgs.Add(1)
		if m.Turn {
			c.p.turns.Add(1)
		}
		h := c.p.meet(m)
		if h == nil {
			if !c.forward(m.Data) {
				return
			}
			continue
		}
		switch h.rule.Do {
		case Pass:
		case DropBefore:
			return
		case DropAfter:
			// The server's side stays until it answers, so that the message is
			// not lost in its socket.
			c.cutReply.Store(true)
			if c.forward(m.Data) {
				_ = c.client.Close()
				if m.Turn {
					c.await()
				}
			}
			return
		case DropReply:
			c.cutReply.Store(true)
		case Hold:
			select {
			case <-h.release:
				c.owed.Store(true)
			case <-c.ended:
				return
			}
		case Delay:
			t := time.NewTimer(h.rule.Delay)
			select {
			case <-t.C:
			case <-c.ended:
				t.Stop()
				return
			}
		case BlackHole:
			c.hole.Store(true)
			c.mute.Store(true)
		case Mute:
			c.mute.Store(true)
		}
		if !c.forward(m.Data) {
			return
		}
	}
}

func (c *conn) forward(b []byte) bool {
	if c.hole.Load() {
		return true
	}
	_, err := c.server.Write(b)
	return err == nil
}

// await waits until down has seen the answer, or the end.
func (c *conn) await() {
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-t.C:
	}
}

// down passes the answers back.
func (c *conn) down() {
	defer c.end()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(buf)
		if n > 0 {
			c.owed.Store(false)
			if c.cutReply.Load() {
				return
			}
			if !c.mute.Load() {
				if _, err := c.client.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		if err != nil {
			if c.mute.Load() && errors.Is(err, io.EOF) {
				<-c.ended
			}
			return
		}
	}
}

func (p *Proxy) meet(m Message) *Hook {
	p.mu.Lock()
	hooks := p.hooks
	p.mu.Unlock()
	for _, h := range hooks {
		if h.meets(m) {
			return h
		}
	}
	return nil
}
