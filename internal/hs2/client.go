package hs2

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/beltran/gohive/hiveserver"
)

// How long an idle connection is trusted.
const (
	// idleFor is short enough for the firewalls that forget silent connections.
	idleFor = 2 * time.Minute
	// trustFor is for Execute, whose lost answer nobody can ask for again: it goes
	// out on a connection that has just answered, or on a new one.
	trustFor = time.Second
)

// Client speaks to one HiveServer2. It is safe for concurrent use; each call has a
// connection of its own while it runs.
type Client struct {
	cfg     Config
	cookies cookies

	mu     sync.Mutex
	idle   []*link // the latest used one last
	closed bool
}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg}, nil
}

// Close closes idle connections and lets no new call begin; those that run go on
// to their end. Sessions and statements live on at the server.
func (c *Client) Close() error {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, l := range idle {
		l.close()
	}
	return nil
}

// Address is the server's host:port.
func (c *Client) Address() string { return c.cfg.Address }

// String describes the server, without the password.
func (c *Client) String() string { return c.cfg.String() }

// OpenSession opens a session with conf as its configuration ("use:database"
// selects a database). Two settings are false unless conf names them, and left to
// the server if conf has them with an empty value:
//
//   - hive.server2.close.session.on.disconnect, so that the session outlives its
//     connection. An idle session stays at the server until it is closed or the
//     server's time-out comes.
//   - hive.server2.thrift.resultset.serialize.in.tasks, whose results are not read.
//
// A lost answer leaves a session that nobody has a handle of, and nothing else.
func (c *Client) OpenSession(ctx context.Context, conf map[string]string) (*Session, error) {
	const rpc = "OpenSession"
	all := map[string]string{closeOnDisconnect: "false", packedResults: "false"}
	for k, v := range conf {
		if _, ours := all[k]; ours && v == "" {
			delete(all, k)
			continue
		}
		all[k] = v
	}
	req := hiveserver.NewTOpenSessionReq()
	req.ClientProtocol = hiveserver.TProtocolVersion_HIVE_CLI_SERVICE_PROTOCOL_V10
	req.Username, req.Password, req.Configuration = &c.cfg.User, &c.cfg.Password, all
	var resp *hiveserver.TOpenSessionResp
	err := c.call(ctx, callOptions{rpc: rpc}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.OpenSession(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := c.check(rpc, resp.GetStatus()); err != nil {
		return nil, err
	}
	h, err := sessionHandle(resp.GetSessionHandle())
	if err != nil {
		return nil, c.rubbish(rpc, err)
	}
	s := &Session{c, h}
	if v := resp.GetServerProtocolVersion(); v < hiveserver.TProtocolVersion_HIVE_CLI_SERVICE_PROTOCOL_V6 {
		_ = s.Close(ctx)
		return nil, &ServerError{RPC: rpc, Message: fmt.Sprintf("it speaks %v; results are read from V6 (Hive 0.13) on", v)}
	}
	return s, nil
}

// Settings that OpenSession decides.
const (
	closeOnDisconnect = "hive.server2.close.session.on.disconnect"
	packedResults     = "hive.server2.thrift.resultset.serialize.in.tasks"
)

// Session attaches to a session, without I/O.
func (c *Client) Session(h SessionHandle) *Session { return &Session{c, h} }

// Operation attaches to an operation, without I/O.
func (c *Client) Operation(h OperationHandle) *Operation { return &Operation{c, h} }

// maxTable is how many rows Query keeps.
const maxTable = 1_000_000

// Query runs one statement to its end, returns its rows and closes it. Rows is
// empty for a statement without a result. It is for reads and repeatable
// statements: the error of a statement that ended badly is a *[StatementError], and
// one whose answer was lost goes on by itself.
func (c *Client) Query(ctx context.Context, s *Session, sql string) (*Table, error) {
	op, err := s.Execute(ctx, sql, nil)
	if err != nil {
		return nil, err
	}
	t, err := op.table(ctx)
	// What was read is whole, whether the server forgets the operation or not. An
	// operation that may still run is left alone: closing would cancel it.
	var te *TransportError
	if !errors.As(err, &te) {
		_ = op.Close(ctx)
	}
	return t, err
}

func (o *Operation) table(ctx context.Context) (*Table, error) {
	st, err := o.Wait(ctx, nil)
	if err != nil {
		return nil, err
	}
	if st.State != Finished {
		return nil, &StatementError{st}
	}
	if !st.HasResult {
		return &Table{}, nil
	}
	rows, err := o.Rows(ctx)
	if err != nil {
		return nil, err
	}
	t := &Table{Columns: rows.Columns()}
	for row, err := range rows.All() {
		if err != nil {
			return nil, err
		}
		if len(t.Rows) == maxTable {
			return nil, fmt.Errorf("hs2: a result of more than %d rows: %w", maxTable, ErrTooManyRows)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// callOptions of one call.
type callOptions struct {
	rpc string
	// timeout is CallTimeout when 0.
	timeout time.Duration
	// read: asking twice does no harm.
	read bool
	// trust is how long ago the connection must have answered at most; idleFor
	// when 0.
	trust time.Duration
}

// call runs f with a connection. Its error is nil or a *TransportError.
func (c *Client) call(ctx context.Context, o callOptions, f func(context.Context, *hiveserver.TCLIServiceClient) error) error {
	if o.timeout == 0 {
		o.timeout = c.cfg.CallTimeout
	}
	if o.trust == 0 {
		o.trust = idleFor
	}
	err, again := c.once(ctx, o, f)
	if err != nil && again {
		// The server may have been restarted since the connection was used last.
		o.trust = -1
		err, _ = c.once(ctx, o, f)
	}
	return err
}

// once is one try of call. again tells that an idle connection was dead and that
// nothing speaks against another try.
func (c *Client) once(parent context.Context, o callOptions, f func(context.Context, *hiveserver.TCLIServiceClient) error) (_ error, again bool) {
	fail := func(ctx context.Context, sent bool, err error) error {
		if ctx.Err() != nil {
			err = ending(parent, o.timeout)
		}
		return &TransportError{RPC: o.rpc, Address: c.cfg.Address, Sent: sent, Err: err}
	}
	ctx, cancel := context.WithTimeout(parent, o.timeout)
	defer cancel()
	l, err := c.get(ctx, o.trust)
	if err != nil {
		return fail(ctx, false, err), false
	}
	reused := !l.answered.IsZero()
	sent, err := l.do(ctx, f)
	if err != nil {
		c.drop(l)
		return fail(ctx, sent, err), (o.read || !sent) && reused && ctx.Err() == nil
	}
	c.put(l)
	return nil, false
}

// ending says why a call ended before its answer.
func ending(parent context.Context, timeout time.Duration) error {
	err := parent.Err()
	if err == nil {
		return fmt.Errorf("%w (%v)", ErrCallTimeout, timeout)
	}
	if cause := context.Cause(parent); !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// get takes an idle connection that answered within trust, or makes one.
func (c *Client) get(ctx context.Context, trust time.Duration) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		n := len(c.idle)
		if n == 0 || trust < 0 || time.Since(c.idle[n-1].answered) > trust {
			c.mu.Unlock()
			return dial(ctx, &c.cfg, &c.cookies)
		}
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if l.usable() {
			return l, nil
		}
		l.close()
	}
}

// put keeps a connection that has answered.
func (c *Client) put(l *link) {
	var surplus []*link
	c.mu.Lock()
	if c.closed || !l.keep {
		surplus = append(surplus, l)
	} else {
		c.idle = append(c.idle, l)
	}
	for len(c.idle) > 0 && (len(c.idle) > c.cfg.MaxIdle || time.Since(c.idle[0].answered) > idleFor) {
		surplus = append(surplus, c.idle[0])
		c.idle = c.idle[1:]
	}
	c.mu.Unlock()
	for _, l := range surplus {
		l.close()
	}
}

// drop throws a connection away that failed, and the idle ones with it: what broke
// it has often broken them.
func (c *Client) drop(l *link) {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	l.abort()
	for _, l := range idle {
		l.close()
	}
}

// check turns an answer's status into an error.
func (c *Client) check(rpc string, st *hiveserver.TStatus) error {
	if st == nil {
		return c.rubbish(rpc, errors.New("an answer without a status"))
	}
	switch st.StatusCode {
	case hiveserver.TStatusCode_SUCCESS_STATUS, hiveserver.TStatusCode_SUCCESS_WITH_INFO_STATUS, hiveserver.TStatusCode_STILL_EXECUTING_STATUS:
		return nil
	case hiveserver.TStatusCode_ERROR_STATUS, hiveserver.TStatusCode_INVALID_HANDLE_STATUS:
		return serverError(rpc, st)
	}
	return c.rubbish(rpc, fmt.Errorf("an answer with status %d", int64(st.StatusCode)))
}

// rubbish is the error of an answer that makes no sense.
func (c *Client) rubbish(rpc string, err error) error {
	return &TransportError{RPC: rpc, Address: c.cfg.Address, Sent: true, Err: err}
}
