package hs2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Transport is how Thrift messages travel (hive.server2.transport.mode).
type Transport uint8

// Transports.
const (
	TransportBinary Transport = iota
	TransportHTTP
)

// String is the name that HiveServer2's configuration has for it.
func (t Transport) String() string {
	switch t {
	case TransportBinary:
		return "binary"
	case TransportHTTP:
		return "http"
	}
	return fmt.Sprintf("transport(%d)", uint8(t))
}

// Auth is what the binary transport begins with (hive.server2.authentication).
// Over HTTP user and password travel as Basic authentication in any case.
type Auth uint8

// Kinds of authentication.
const (
	// AuthPlain is SASL PLAIN, which a server wants for NONE, LDAP, PAM and CUSTOM.
	AuthPlain Auth = iota
	// AuthNoSASL is the bare protocol, NOSASL.
	AuthNoSASL
)

// String names it.
func (a Auth) String() string {
	switch a {
	case AuthPlain:
		return "plain"
	case AuthNoSASL:
		return "nosasl"
	}
	return fmt.Sprintf("auth(%d)", uint8(a))
}

// Defaults of a Config.
const (
	DefaultHTTPPath      = "cliservice"
	DefaultCallTimeout   = 60 * time.Second
	DefaultSubmitTimeout = 10 * time.Minute
	DefaultMaxIdle       = 4
	DefaultMaxMessage    = 64 << 20
	DefaultUser          = "anonymous"
)

// Config says how to reach one HiveServer2. Its text forms leave the password out.
type Config struct {
	// Address is host:port of one server; a balancer in front of several breaks
	// every handle.
	Address   string
	Transport Transport
	Auth      Auth
	// User is who statements run as; default "anonymous", as other clients have it.
	User, Password string
	// HTTPPath is hive.server2.thrift.http.path; default "cliservice".
	HTTPPath string
	// TLS is used when it is not nil. ServerName defaults to Address's host.
	TLS *tls.Config
	// Dial opens connections; default a net.Dialer. Tests put a proxy here.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// CallTimeout ends every call but Execute, and connecting; default 60 s. A
	// server holds the answer to a status request for up to 5 s and may take that
	// long to cancel, so less than 10 s is for tests.
	CallTimeout time.Duration
	// SubmitTimeout ends Execute; default 10 min. By default a server compiles
	// inside this call, and one whose answer is lost leaves no handle.
	SubmitTimeout time.Duration
	// MaxIdle connections are kept; default 4, none if negative.
	MaxIdle int
	// MaxMessage is the longest answer in bytes that is read; default 64 MiB.
	MaxMessage int
}

// String describes the server, without the password.
func (c Config) String() string {
	s := c.Transport.String() + "://" + c.User + "@" + c.Address
	if c.TLS != nil {
		s += " (TLS)"
	}
	return s
}

// Format keeps the password out of %+v and %#v.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, c.String()) }

// LogValue keeps the password out of logs.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// withDefaults checks c and fills it in.
func (c Config) withDefaults() (Config, error) {
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return c, fmt.Errorf("hs2: address %q: want host:port: %w", c.Address, err)
	}
	if host == "" || port == "" {
		return c, fmt.Errorf("hs2: address %q: want host:port", c.Address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '+' {
		return c, fmt.Errorf("hs2: address %q: the port is a number from 1 to 65535", c.Address)
	}
	// Resolvers read 127.1 or 0x7f000001 as addresses; one server must not have
	// names that nobody can compare.
	last := strings.TrimSuffix(host, ".")
	last = last[strings.LastIndexByte(last, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil {
		if _, err := netip.ParseAddr(host); err != nil {
			return c, fmt.Errorf("hs2: address %q: %s is neither a name nor an IP address in its usual form", c.Address, host)
		}
	}
	if c.Transport > TransportHTTP {
		return c, fmt.Errorf("hs2: unknown %v", c.Transport)
	}
	if c.Auth > AuthNoSASL {
		return c, fmt.Errorf("hs2: unknown %v", c.Auth)
	}
	if c.CallTimeout < 0 || c.SubmitTimeout < 0 || c.MaxMessage < 0 {
		return c, errors.New("hs2: a time-out or size is negative")
	}
	if strings.ContainsRune(c.User, 0) || strings.ContainsRune(c.Password, 0) {
		return c, errors.New("hs2: user or password holds a zero byte, which SASL PLAIN uses as a separator")
	}
	if c.Transport == TransportHTTP && strings.ContainsRune(c.User, ':') {
		return c, errors.New("hs2: the user name holds a colon, which Basic authentication uses as a separator")
	}
	if strings.ContainsAny(c.Address, " \r\n") || strings.ContainsAny(c.HTTPPath, " \r\n") {
		return c, errors.New("hs2: a blank or a line break in Address or HTTPPath")
	}
	if c.User == "" {
		c.User = DefaultUser
	}
	if c.Password == "" {
		// An empty one is refused by the servers' SASL PLAIN; those that want no
		// password take any.
		c.Password = "x"
	}
	if c.HTTPPath == "" {
		c.HTTPPath = DefaultHTTPPath
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = DefaultCallTimeout
	}
	if c.SubmitTimeout == 0 {
		c.SubmitTimeout = DefaultSubmitTimeout
	}
	if c.MaxIdle == 0 {
		c.MaxIdle = DefaultMaxIdle
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = DefaultMaxMessage
	}
	if c.Dial == nil {
		var d net.Dialer
		c.Dial = d.DialContext
	}
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
		if c.TLS.ServerName == "" {
			c.TLS.ServerName = host
		}
	}
	return c, nil
}
