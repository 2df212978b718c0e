package hs2

import "context"

// Client speaks to one HiveServer2. It is safe for concurrent use.
type Client struct{ cfg Config }

// New checks cfg. It does no I/O.
func New(cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg}, nil
}

// Close closes idle connections; calls that run go on to their end. Sessions live
// on at the server.
func (c *Client) Close() error { return nil }

// Address is the server's host:port.
func (c *Client) Address() string { return c.cfg.Address }

// OpenSession opens a session with conf as its configuration.
func (c *Client) OpenSession(ctx context.Context, conf map[string]string) (*Session, error) {
	return nil, errNotYet
}

// Session attaches to a session, without I/O.
func (c *Client) Session(h SessionHandle) *Session { return &Session{c, h} }

// Operation attaches to an operation, without I/O.
func (c *Client) Operation(h OperationHandle) *Operation { return &Operation{c, h} }

// Query runs one statement to its end and returns its rows.
func (c *Client) Query(ctx context.Context, s *Session, sql string) (*Table, error) {
	return nil, errNotYet
}
