package hs2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hiveserver"
)

// link is one connection. It carries one call at a time, and is of no more use
// after the first failure.
type link struct {
	raw     net.Conn // what was dialled
	nc      net.Conn // raw, or TLS over it
	carrier carrier
	stub    *hiveserver.TCLIServiceClient
	limit   int // longest answer

	answered time.Time // when it last did; zero when it is new
	keep     bool      // it may be used again

	out    bytes.Buffer
	sent   bool // a byte of this call's request may have left
	budget int  // how many bytes the answer may still have
}

// carrier packs messages into what the connection transports.
type carrier interface {
	// pack returns the bytes of a request.
	pack(message []byte) []byte
	// Read gives the answer's bytes, without the packing.
	io.Reader
	// finish is called after the whole answer was read, and tells whether the
	// connection can be used again.
	finish() bool
}

// dial connects, and logs in, within CallTimeout.
func dial(parent context.Context, cfg *Config, jar *cookies) (_ *link, err error) {
	ctx, cancel := context.WithTimeout(parent, cfg.CallTimeout)
	defer cancel()
	defer func() {
		// Not the caller's deadline, so it must not look like that.
		if err != nil && ctx.Err() != nil && parent.Err() == nil {
			err = fmt.Errorf("connect: %w", ending(parent, cfg.CallTimeout))
		}
	}()
	raw, err := cfg.Dial(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	l := &link{raw: raw, nc: raw, limit: cfg.MaxMessage, budget: cfg.MaxMessage}
	stop := context.AfterFunc(ctx, l.abort)
	err = l.login(ctx, cfg, jar)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.abort()
		return nil, err
	}
	conf := &thrift.TConfiguration{
		MaxMessageSize:    int32(min(cfg.MaxMessage, math.MaxInt32)),
		MaxFrameSize:      int32(min(cfg.MaxMessage, math.MaxInt32)),
		TBinaryStrictRead: thrift.BoolPtr(true), TBinaryStrictWrite: thrift.BoolPtr(true),
	}
	p := boundedProtocol{thrift.NewTBinaryProtocolConf(l, conf), l}
	l.stub = hiveserver.NewTCLIServiceClient(thrift.NewTStandardClient(p, p))
	return l, nil
}

func (l *link) login(ctx context.Context, cfg *Config, jar *cookies) error {
	if cfg.TLS != nil {
		c := tls.Client(l.raw, cfg.TLS)
		if err := c.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		l.nc = c
	}
	r := bufio.NewReaderSize(budgetReader{l}, 32<<10)
	switch {
	case cfg.Transport == TransportHTTP:
		l.carrier = newHTTPCarrier(r, cfg, jar)
	case cfg.Auth == AuthPlain:
		if err := saslPlain(l.nc, r, cfg.User, cfg.Password); err != nil {
			return err
		}
		l.carrier = &saslCarrier{r: r}
	default:
		l.carrier = bareCarrier{r}
	}
	return nil
}

// do runs one call. sent is meaningful with an error only.
func (l *link) do(ctx context.Context, f func(context.Context, *hiveserver.TCLIServiceClient) error) (sent bool, err error) {
	l.out.Reset()
	l.sent, l.budget = false, l.limit
	stop := context.AfterFunc(ctx, l.abort)
	err = l.decode(ctx, f)
	alive := stop() // otherwise the connection is closed, or about to be
	if err != nil {
		return l.sent, err
	}
	l.answered = time.Now()
	// The answer is there; nobody waits for long for what may follow it.
	_ = l.raw.SetReadDeadline(l.answered.Add(finishTime))
	l.keep = alive && l.carrier.finish() && l.raw.SetReadDeadline(time.Time{}) == nil
	return true, nil
}

// finishTime is how long the end of a packing is waited for, once the message in it
// has been read.
const finishTime = time.Second

// decode keeps a panic of the generated code from ending the process: what it
// reads comes from the network.
func (l *link) decode(ctx context.Context, f func(context.Context, *hiveserver.TCLIServiceClient) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the answer cannot be decoded: %v", p)
		}
	}()
	return f(ctx, l.stub)
}

// abort ends whatever the connection is at, at once. It is safe for concurrent
// use with a call.
func (l *link) abort() {
	// The raw one: closing TLS politely may wait for the other side.
	_ = l.raw.SetDeadline(time.Unix(1, 0))
	_ = l.raw.Close()
}

// close ends an idle connection.
func (l *link) close() {
	_ = l.raw.SetDeadline(time.Now().Add(time.Second))
	_ = l.nc.Close()
}

// usable looks whether an idle connection is still open, without a round trip.
func (l *link) usable() bool {
	return time.Since(l.answered) < idleFor && !peerClosed(l.raw, l.nc != l.raw)
}

// The link is the transport that Thrift's protocol reads and writes.
var _ thrift.TTransport = (*link)(nil)

func (l *link) Write(p []byte) (int, error) { return l.out.Write(p) }

// Flush sends the request that was written.
func (l *link) Flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.sent = true
	n, err := l.nc.Write(l.carrier.pack(l.out.Bytes()))
	if err != nil {
		// The kernel says how much it took from a bare socket. Encryption sends
		// more than it reports.
		if _, bare := l.nc.(*net.TCPConn); bare && n == 0 {
			l.sent = false
		}
		return thrift.NewTTransportExceptionFromError(err)
	}
	return nil
}

func (l *link) Read(p []byte) (int, error) { return l.carrier.Read(p) }

func (l *link) RemainingBytes() uint64 { return uint64(max(l.budget, 0)) }
func (l *link) Open() error            { return nil }
func (l *link) IsOpen() bool           { return true }
func (l *link) Close() error           { return l.raw.Close() }

// budgetReader reads the connection, and refuses to read more than an answer may
// have.
type budgetReader struct{ l *link }

func (b budgetReader) Read(p []byte) (int, error) {
	if b.l.budget <= 0 {
		return 0, fmt.Errorf("an answer of more than %d bytes", b.l.limit)
	}
	n, err := b.l.nc.Read(p[:min(len(p), b.l.budget)])
	b.l.budget -= n
	return n, err
}

// boundedProtocol refuses lists whose length is rubbish, since the generated code
// allocates a list before it reads it.
type boundedProtocol struct {
	thrift.TProtocol
	l *link
}

// maxElements is above any list that we ask for: a page of rows is 1000.
const maxElements = 1 << 16

func bounded(n int, err error) error {
	if err == nil && (n < 0 || n > maxElements) {
		return thrift.NewTProtocolExceptionWithType(thrift.SIZE_LIMIT, fmt.Errorf("a list of %d elements", n))
	}
	return err
}

func (p boundedProtocol) ReadListBegin(ctx context.Context) (thrift.TType, int, error) {
	t, n, err := p.TProtocol.ReadListBegin(ctx)
	return t, n, bounded(n, err)
}

func (p boundedProtocol) ReadSetBegin(ctx context.Context) (thrift.TType, int, error) {
	t, n, err := p.TProtocol.ReadSetBegin(ctx)
	return t, n, bounded(n, err)
}

func (p boundedProtocol) ReadMapBegin(ctx context.Context) (thrift.TType, thrift.TType, int, error) {
	k, v, n, err := p.TProtocol.ReadMapBegin(ctx)
	return k, v, n, bounded(n, err)
}

// bareCarrier is NOSASL: messages follow each other as they are.
type bareCarrier struct{ r *bufio.Reader }

func (c bareCarrier) pack(m []byte) []byte       { return m }
func (c bareCarrier) Read(p []byte) (int, error) { return c.r.Read(p) }
func (c bareCarrier) finish() bool               { return c.r.Buffered() == 0 }
