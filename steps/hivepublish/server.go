package hivepublish

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"github.com/commitstep/engine/internal/hs2"
)

// Config says how to reach one HiveServer2, and where its warehouse lies. Only
// Address is required.
type Config struct {
	// Address is host:port of one server. Sessions and operations live in that
	// process only, so a balancer in front of several breaks every later look.
	Address string
	// HTTP uses the HTTP transport at HTTPPath (default "cliservice").
	HTTP     bool
	HTTPPath string
	// NoSASL is for servers with hive.server2.authentication=NOSASL.
	NoSASL         bool
	User, Password string
	// TLS is used when it is not nil. Its certificates are also those of a web UI
	// with https.
	TLS *tls.Config
	// Dial opens connections; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// CallTimeout ends every call but the submission of a statement; default 60 s.
	// SubmitTimeout ends that one, inside of which Hive compiles; default 10 min.
	// An answer that comes later than this is unknown for ever.
	CallTimeout, SubmitTimeout time.Duration
	// WebUI is the address of the server's web pages, http://host:10002, whose
	// list of statements is evidence. Without it a person who decides sees less, and
	// every ALTER whose answer was lost is waited for as long as Quiet says: one that
	// runs when its session is closed was seen to take effect seconds later, which only
	// this list shows.
	WebUI                    string
	WebUser, WebUserPassword string

	// Session is Hive configuration for every session.
	Session map[string]string
	// Sessions is how many sessions do the work of this process at once, besides
	// those of hive.insert_overwrite and of ALTERs; default 4. Each costs the
	// server an own Tez session.
	Sessions int
	// Volumes are the parts of the warehouse whose files this process can see.
	Volumes []Volume
	// Grace is how long a directory stays after its partition was swapped away;
	// default 24 h. It must be longer than the longest statement of any reader.
	Grace time.Duration
	// Quiet is how long a statement may still take effect that was being compiled
	// when its session was closed, or that the server shows no more; default a
	// minute. Before that a person cannot say that it was not published, and an ALTER
	// whose answer was lost is neither done nor tried again.
	Quiet time.Duration
}

// Volume binds what Hive calls a place to a file system.
type Volume struct {
	// URI is how Hive's locations begin: hdfs://namenode:8020 or file:///warehouse.
	URI string
	// Files is the file system with the same tree, and At the address in it that
	// URI stands for; zero is its root.
	Files filesys.FS
	At    commitstep.Address
}

// Defaults of a Config.
const (
	DefaultSessions = 4
	DefaultGrace    = 24 * time.Hour
)

// Server is one HiveServer2 under the name that plans use (`hive: dw`). It is
// safe for concurrent use.
type Server struct {
	name    string
	cfg     Config
	conn    conn
	list    queryLister // nil without a web UI
	close   func() error
	volumes []volume
	// now is the clock of notes and grace times.
	now func() time.Time
	// slack is lookSlack. It is also what a caller waits for an answer that it does not
	// need once its time is over.
	slack time.Duration

	slots chan struct{}
	mu    sync.Mutex
	idle  []sessionRef
	// singleAt is when the address was last seen to lead to one server.
	singleAt time.Time
}

// Connect binds a HiveServer2. It does no I/O: a server that is down makes steps
// wait. Close it at the end of the process.
func Connect(name string, cfg Config) (*Server, error) {
	hc := hs2.Config{Address: cfg.Address, User: cfg.User, Password: cfg.Password, HTTPPath: cfg.HTTPPath, TLS: cfg.TLS, Dial: cfg.Dial, CallTimeout: cfg.CallTimeout, SubmitTimeout: cfg.SubmitTimeout}
	if cfg.HTTP {
		hc.Transport = hs2.TransportHTTP
	}
	if cfg.NoSASL {
		hc.Auth = hs2.AuthNoSASL
	}
	c, err := hs2.New(hc)
	if err != nil {
		return nil, fmt.Errorf("hive server %q: %w", name, err)
	}
	var list queryLister
	closers := []func() error{c.Close}
	if cfg.WebUI != "" {
		q, err := hs2.NewQueryList(hs2.QueryListConfig{URL: cfg.WebUI, User: cfg.WebUser, Password: cfg.WebUserPassword, TLS: cfg.webTLS()})
		if err != nil {
			return nil, fmt.Errorf("hive server %q: web UI: %w", name, err)
		}
		list = q
		closers = append(closers, q.Close)
	}
	s, err := newServer(name, cfg, client{c}, list)
	if err != nil {
		return nil, err
	}
	s.close = func() error {
		var errs []error
		for _, f := range closers {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	return s, nil
}

// webTLS is TLS for another address.
func (c Config) webTLS() *tls.Config {
	if c.TLS == nil {
		return nil
	}
	t := c.TLS.Clone()
	t.ServerName = ""
	return t
}

func newServer(name string, cfg Config, c conn, list queryLister) (*Server, error) {
	if err := commitstep.CheckName("hive server", name); err != nil {
		return nil, err
	}
	if strings.ContainsAny(name, "/ ") {
		return nil, fmt.Errorf("hive server %q: its name holds a slash or a blank", name)
	}
	if cfg.Sessions == 0 {
		cfg.Sessions = DefaultSessions
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Quiet == 0 {
		cfg.Quiet = compileQuiet
	}
	if cfg.Sessions < 1 || cfg.Grace < 0 || cfg.Quiet < 0 {
		return nil, fmt.Errorf("hive server %q: Sessions, Grace and Quiet must be positive", name)
	}
	s := &Server{name: name, cfg: cfg, conn: c, list: list, now: time.Now, slack: lookSlack, close: func() error { return nil }, slots: make(chan struct{}, cfg.Sessions)}
	for _, v := range cfg.Volumes {
		vol, err := newVolume(v)
		if err != nil {
			return nil, fmt.Errorf("hive server %q: %w", name, err)
		}
		s.volumes = append(s.volumes, vol)
	}
	return s, nil
}

// Name is the name that plans use.
func (s *Server) Name() string { return s.name }

// Same reports whether both speak to one address, however it is spelled. Locks
// hold the name, so one server must not have two. It does not resolve host names.
func (s *Server) Same(o *Server) bool {
	return sameEndpoint(s.conn.Address(), o.conn.Address())
}

func sameEndpoint(a, b string) bool { return endpoint(a) == endpoint(b) }

// endpoint brings host:port into one spelling.
func endpoint(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address // which no connection can be made to
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	return net.JoinHostPort(host, strings.TrimLeft(port, "0"))
}

// closeTimeout bounds calls whose failure does no harm.
const closeTimeout = 10 * time.Second

// Close ends the sessions that wait for work, and the connections. Statements
// that run go on.
func (s *Server) Close() error {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, ref := range idle {
		if err := s.conn.CloseSession(ctx, ref); transport(err) {
			break // it is away; its idle timeout closes them
		}
	}
	return s.close()
}

// transport reports that err is no answer of the server.
func transport(err error) bool {
	var t *hs2.TransportError
	return errors.As(err, &t)
}

// answered reports that err is a definite answer of the server.
func answered(err error) bool {
	var se *hs2.ServerError
	return errors.As(err, &se)
}

// conf is the configuration of a session.
func (s *Server) conf(more map[string]string) map[string]string {
	c := map[string]string{}
	maps.Copy(c, s.cfg.Session)
	maps.Copy(c, more)
	return c
}

// metricConf makes sessions count rows and not repeat what was once counted.
var metricConf = map[string]string{
	"hive.compute.query.using.stats":   "false",
	"hive.query.results.cache.enabled": "false",
}

// lend says what becomes of a session that was lent out.
type lend uint8

const (
	// lendDrop: something in it is unknown or wrong; it is closed.
	lendDrop lend = iota
	// lendAgain: all of it is known.
	lendAgain
	// lendKeep: a statement runs on in it, and whoever looks after that closes it.
	lendKeep
)

// work lends a session to one step at a time, since several statements of one
// session are not equally well kept apart by all servers. done gives it back.
func (s *Server) work(ctx context.Context) (ref sessionRef, done func(lend), err error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ref, nil, ctx.Err()
	}
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		ref, s.idle = s.idle[n-1], s.idle[:n-1]
	}
	s.mu.Unlock()
	if ref.IsZero() {
		if ref, err = s.conn.OpenSession(ctx, s.conf(metricConf)); err != nil {
			<-s.slots
			return ref, nil, err
		}
	}
	return ref, func(as lend) {
		switch as {
		case lendAgain:
			s.mu.Lock()
			s.idle = append(s.idle, ref)
			s.mu.Unlock()
		case lendDrop:
			s.forget(ctx, ref)
		}
		<-s.slots
	}, nil
}

// forget closes a session if that is easy. What is left of it ends with the
// server's idle timeout.
func (s *Server) forget(ctx context.Context, ref sessionRef) {
	ctx, cancel := s.closing(ctx)
	defer cancel()
	_ = s.conn.CloseSession(ctx, ref)
}

// closing is a context for a call whose failure does no harm, also when ctx has
// ended. Whose time is over is not kept for an answer that nobody needs.
func (s *Server) closing(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := closeTimeout
	if ctx.Err() != nil {
		limit = s.slack
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// query runs a statement that only reads, or whose effect ends with its session,
// and returns its rows. After a restart of the server the sessions lent out
// before are unknown to it; then a new one is tried.
func (s *Server) query(ctx context.Context, sql string) (*hs2.Table, error) {
	for try := 1; ; try++ {
		var t *hs2.Table
		err := s.inSession(ctx, func(ref sessionRef) (err error) {
			t, err = s.queryIn(ctx, ref, sql)
			return err
		})
		if !errors.Is(err, hs2.ErrUnknownHandle) || try == 3 || ctx.Err() != nil {
			return t, err
		}
	}
}

// inSession lends a session to fn, and lends it out again when fn's error is none
// or a definite answer.
func (s *Server) inSession(ctx context.Context, fn func(sessionRef) error) error {
	ref, done, err := s.work(ctx)
	if err != nil {
		return err
	}
	as := lendDrop
	defer func() { done(as) }() // also when fn panics
	err = fn(ref)
	var failed *hs2.StatementError
	unknown := errors.Is(err, hs2.ErrUnknownHandle)
	if err == nil || !unknown && (errors.As(err, &failed) || answered(err)) {
		as = lendAgain
	}
	if unknown {
		s.dropIdle()
	}
	return err
}

// dropIdle forgets the sessions of a server that was restarted.
func (s *Server) dropIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = nil
}

// queryIn runs a statement in a session to its end. A statement that was accepted
// and did not finish is an *hs2.StatementError.
func (s *Server) queryIn(ctx context.Context, ref sessionRef, sql string) (*hs2.Table, error) {
	op, err := s.conn.Submit(ctx, ref, sql, nil)
	if err != nil {
		return nil, err
	}
	st, err := s.final(ctx, op)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := s.closing(ctx)
		defer cancel()
		_ = s.conn.CloseOperation(ctx, op)
	}()
	if st.State != hs2.Finished {
		return nil, &hs2.StatementError{Status: st}
	}
	if !st.HasResult {
		return &hs2.Table{}, nil
	}
	return s.conn.Fetch(ctx, op)
}

// final asks until the state cannot change any more. The server holds its
// answers while the statement runs, so this is no busy loop.
func (s *Server) final(ctx context.Context, op operationRef) (hs2.Status, error) {
	for {
		asked := time.Now()
		st, err := s.conn.Status(ctx, op)
		if err != nil || st.State.Final() {
			return st, err
		}
		if err := ctx.Err(); err != nil {
			return st, err
		}
		if st.State == hs2.Unknown {
			return st, fmt.Errorf("operation %s has a state that is not known here", op)
		}
		pause(ctx, statusPause-time.Since(asked))
	}
}

// statusPause is between two looks at a statement at least: it keeps a server that
// answers at once from being asked all the time.
const statusPause = 20 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
