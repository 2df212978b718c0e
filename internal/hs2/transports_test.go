package hs2_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

// certificate for the loopback, and who trusts it.
func certificate(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}

// TestEveryTransport runs a statement to its rows.
func TestEveryTransport(t *testing.T) {
	t.Parallel()
	serverTLS, clientTLS := certificate(t)
	for _, secure := range []bool{false, true} {
		for _, kind := range []string{"sasl", "nosasl", "http"} {
			t.Run(fmt.Sprintf("%s/tls=%v", kind, secure), func(t *testing.T) {
				t.Parallel()
				o, c := hs2test.Options{NoSASL: kind == "nosasl", HTTP: kind == "http"}, hs2.Config{User: "ann", Password: "secret"}
				if secure {
					o.TLS, c.TLS = serverTLS, clientTLS
				}
				if o.NoSASL {
					c.Auth = hs2.AuthNoSASL
				}
				if o.HTTP {
					c.Transport = hs2.TransportHTTP
				}
				srv := start(t, o)
				var rows [][]any
				for i := range 2500 { // more than two pages, and chunked over HTTP
					rows = append(rows, []any{int64(i)})
				}
				srv.Statement("", hs2test.Run{Columns: []hs2.Column{{Name: "n", Type: "BIGINT"}}, Rows: rows})
				client := connect(t, srv.Addr(), c)
				session := open(t, client)
				for range 3 {
					table, err := client.Query(bounded(t), session, "SELECT")
					require.NoError(t, err)
					require.Equal(t, rows, table.Rows)
				}
				require.LessOrEqual(t, srv.Connections(), 1)
				require.NoError(t, session.Close(t.Context()))
			})
		}
	}
}

// TestAStrangersCertificateEndsIt before anything is sent.
func TestAStrangersCertificateEndsIt(t *testing.T) {
	t.Parallel()
	serverTLS, _ := certificate(t)
	_, other := certificate(t)
	for _, o := range []hs2test.Options{{TLS: serverTLS}, {TLS: serverTLS, HTTP: true}} {
		srv := start(t, o)
		c := hs2.Config{TLS: other}
		if o.HTTP {
			c.Transport = hs2.TransportHTTP
		}
		_, err := connect(t, srv.Addr(), c).OpenSession(t.Context(), nil)
		transportError(t, err, false)
		var unknown x509.UnknownAuthorityError
		require.ErrorAs(t, err, &unknown)
		require.Zero(t, srv.Logins())
	}
}

// TestHTTPLogin: password always, cookie when there is one; a refusal stops at the
// server's door.
func TestHTTPLogin(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{HTTP: true, Cookie: "cu=ann&rn=1&s=abc", Login: func(user, password string) string {
		if user != "ann" || password != "secret" {
			return "no"
		}
		return ""
	}})
	good := connect(t, srv.Addr(), hs2.Config{Transport: hs2.TransportHTTP, User: "ann", Password: "secret"})
	s := open(t, good)
	for range 3 {
		_, err := good.Query(t.Context(), s, "SELECT")
		require.NoError(t, err)
	}
	require.Equal(t, 1, srv.Logins(), "the cookie spares the password's check")
	for _, h := range srv.Requests() {
		require.Equal(t, "application/x-thrift", h.Get("Content-Type"))
		require.NotEmpty(t, h.Get("X-Xsrf-Header"))
		require.NotEmpty(t, h.Get("Authorization"))
	}
	bad := connect(t, srv.Addr(), hs2.Config{Transport: hs2.TransportHTTP, User: "ann", Password: "wrong-secret"})
	_, err := bad.OpenSession(t.Context(), nil)
	require.ErrorIs(t, err, hs2.ErrLogin)
	require.NotContains(t, err.Error(), "wrong-secret")
	require.ErrorContains(t, err, "401")
	lost := connect(t, srv.Addr(), hs2.Config{Transport: hs2.TransportHTTP, User: "ann", Password: "secret", HTTPPath: "elsewhere"})
	_, err = lost.OpenSession(t.Context(), nil)
	require.ErrorContains(t, err, "404")
}

// TestHTTPRequestsAreNeverSentAgain, neither by a redirect nor by a proxy's word
// that the server may be back in a moment.
func TestHTTPRequestsAreNeverSentAgain(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		requests := make(chan string, 10)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests <- r.Method
			w.Header().Set("Location", "/cliservice")
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(status)
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		c := connect(t, l.Addr().String(), hs2.Config{Transport: hs2.TransportHTTP})
		_, err = c.OpenSession(t.Context(), nil)
		transportError(t, err, true)
		require.ErrorContains(t, err, fmt.Sprint(status))
		require.Len(t, requests, 1)
		require.NoError(t, srv.Close())
		<-done
	}
}

// TestCutsOverHTTPAndTLS are as unclear as over the binary transport.
func TestCutsOverHTTPAndTLS(t *testing.T) {
	t.Parallel()
	serverTLS, clientTLS := certificate(t)
	for _, secure := range []bool{false, true} {
		for _, do := range []faultproxy.Action{faultproxy.DropBefore, faultproxy.DropAfter, faultproxy.DropReply} {
			t.Run(fmt.Sprintf("tls=%v/%d", secure, do), func(t *testing.T) {
				t.Parallel()
				o, c := hs2test.Options{HTTP: true}, hs2.Config{Transport: hs2.TransportHTTP}
				if secure {
					o.TLS, c.TLS = serverTLS, clientTLS
				}
				srv := start(t, o)
				p, err := faultproxy.Listen(srv.Addr(), faultproxy.Raw)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, p.Close()) })
				client := connect(t, p.Addr(), c)
				session := open(t, client)
				p.On(faultproxy.Rule{Nth: 1, Do: do})
				_, err = session.Execute(bounded(t), "INSERT", nil)
				transportError(t, err, true)
				want := 1
				if do == faultproxy.DropBefore {
					want = 0
				}
				require.Eventually(t, func() bool { return srv.Count("INSERT") == want }, patience, time.Millisecond)
				_, err = session.Execute(bounded(t), "SELECT", nil)
				require.NoError(t, err)
				require.Equal(t, want, srv.Count("INSERT"))
			})
		}
	}
}

// TestConfigIsChecked when the client is made.
func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]hs2.Config{
		"want host:port":   {Address: "hive"},
		"from 1 to 65535":  {Address: "hive:+10000"},
		"1 to 65535":       {Address: "hive:65536"},
		"to 65535":         {Address: "hive:http"},
		"in its usual":     {Address: "127.1:10000"},
		"usual form":       {Address: "0x7f000001:10000"},
		`address ":10000"`: {Address: ":10000"},
		"transport(9)":     {Address: "h:1", Transport: 9},
		"auth(9)":          {Address: "h:1", Auth: 9},
		"negative":         {Address: "h:1", CallTimeout: -1},
		"zero byte":        {Address: "h:1", User: "a\x00b"},
		"holds a colon":    {Address: "h:1", User: "a:b", Transport: hs2.TransportHTTP},
		"a blank or":       {Address: "h:1", HTTPPath: "a HTTP/1.1\r\nX: y", Transport: hs2.TransportHTTP},
		"a line break":     {Address: "h\r\nX:1", Transport: hs2.TransportHTTP},
	} {
		_, err := hs2.New(c)
		require.ErrorContains(t, err, says)
	}
	c := hs2.Config{Address: "h:1", User: "ann", Password: "s3cret"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d"} {
		require.NotContains(t, fmt.Sprintf(format, c), "s3cret")
		require.NotContains(t, fmt.Sprintf(format, &c), "s3cret")
	}
	require.NotContains(t, c.LogValue().String(), "s3cret")
}

// TestDialMayBeAnything: the proxy's way in, and a connection of another type.
func TestDialMayBeAnything(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{})
	c := connect(t, "hive.example:10000", hs2.Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		require.Equal(t, "hive.example:10000", addr)
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, srv.Addr())
		return struct{ net.Conn }{conn}, err
	}})
	_, err := c.Query(bounded(t), open(t, c), "SELECT")
	require.NoError(t, err)
}
