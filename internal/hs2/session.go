package hs2

import "context"

// Session is a session of the server. It is safe for concurrent use, in so far as
// the server is.
type Session struct {
	c *Client
	h SessionHandle
}

// Handle names the session, for a store.
func (s *Session) Handle() SessionHandle { return s.h }

// Alive is false only on a definite answer that the server does not know the
// session. An error means that nobody knows.
func (s *Session) Alive(ctx context.Context) (bool, error) { return false, errNotYet }

// Close closes the session; what runs in it is cancelled.
func (s *Session) Close(ctx context.Context) error { return errNotYet }

// Execute submits a statement and returns once the server accepted it.
func (s *Session) Execute(ctx context.Context, sql string, overlay map[string]string) (*Operation, error) {
	return nil, errNotYet
}
