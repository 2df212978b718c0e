package pgstore

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// sockets are the open connections of a store, so that those on which nobody
// answers can be ended: the pool takes leave of each politely, for long.
type sockets struct {
	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
}

type socket struct {
	net.Conn
	of *sockets
}

// dial keeps account of what dial connects to.
func (s *sockets) dial(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			_ = c.Close()
			return nil, net.ErrClosed
		}
		k := &socket{c, s}
		if s.open == nil {
			s.open = map[*socket]struct{}{}
		}
		s.open[k] = struct{}{}
		return k, nil
	}
}

func (k *socket) Close() error {
	k.of.mu.Lock()
	delete(k.of.open, k)
	k.of.mu.Unlock()
	return k.Conn.Close()
}

// close ends all that are open, and those to come.
func (s *sockets) close() {
	s.mu.Lock()
	s.closed = true
	list := s.open
	s.open = nil
	s.mu.Unlock()
	for k := range list {
		_ = k.Conn.Close()
	}
}
