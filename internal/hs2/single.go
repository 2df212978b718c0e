package hs2

import (
	"context"
	"errors"
	"time"
)

// singleLooks is how many new connections ask for one session. A balancer that
// takes turns, or chance, sends one of them elsewhere.
const singleLooks = 5

// Single reports whether the address leads to one server: it opens a session, and
// asks for it over several new connections. False is certain; true is as good as
// a balancer is fair, since one that sends a client to the same server every time
// is not found out. An error means that nobody knows.
func (c *Client) Single(ctx context.Context) (bool, error) {
	s, err := c.OpenSession(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx) // or its idle time-out does
	}()
	for range singleLooks {
		alive, err := c.aliveElsewhere(ctx, s.h)
		if err != nil || !alive {
			return false, err
		}
	}
	return true, nil
}

// aliveElsewhere asks over a connection of its own, without what HTTP remembers. It
// asks in the one way that has an answer for an unknown session: another would be
// repeated, and reach another server then.
func (c *Client) aliveElsewhere(ctx context.Context, h SessionHandle) (bool, error) {
	other, err := New(c.cfg)
	if err != nil {
		return false, err
	}
	defer other.Close()
	err = other.Session(h).getTypeInfo(ctx)
	if errors.Is(err, ErrUnknownHandle) {
		return false, nil
	}
	return err == nil, err
}
