package hs2

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// QueryListConfig says where HiveServer2's web server is.
type QueryListConfig struct {
	// URL is its address, http://host:10002.
	URL            string
	User, Password string // Basic authentication, if User is not empty
	TLS            *tls.Config
	Dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	Timeout        time.Duration // of one request; default 30 s
	MaxBody        int64         // longest answer; default 16 MiB
}

// QueryList reads which statements a HiveServer2 runs and ran. The list is in the
// server's memory: gone after a restart, and the finished ones are the latest few.
type QueryList struct{ cfg QueryListConfig }

// NewQueryList checks cfg. It does no I/O.
func NewQueryList(cfg QueryListConfig) (*QueryList, error) { return &QueryList{cfg}, nil }

// Query is one entry of the list.
type Query struct {
	State     State
	StateText string // as the server wrote it
	QueryID   string
	Operation string // GUID of the operation's handle
	Session   string // GUID of the session's handle
	User      string
	Text      string // the statement, with its leading comment
	Error     string
	Begin     time.Time
	End       time.Time // zero while it runs
	Tasks     []Task
}

// Active lists what runs, and what ended and was not closed.
func (q *QueryList) Active(ctx context.Context) ([]Query, error) { return nil, errNotYet }

// Historical lists the latest closed ones.
func (q *QueryList) Historical(ctx context.Context) ([]Query, error) { return nil, errNotYet }

// Find lists every entry, active or historical, whose text contains text.
func (q *QueryList) Find(ctx context.Context, text string) ([]Query, error) { return nil, errNotYet }

// Close drops idle connections.
func (q *QueryList) Close() error { return nil }
