package hs2test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hiveserver"
)

// Options of a server. The zero value speaks SASL PLAIN over the binary transport
// and takes every user with every password that is not empty.
type Options struct {
	NoSASL bool
	HTTP   bool
	TLS    *tls.Config
	// Login refuses with its text, unless that is empty.
	Login func(user, password string) string
	// Cookie of the HTTP transport that stands for a login; "" gives none.
	Cookie string
	// Protocol is the highest version that it speaks; 0 is V11's.
	Protocol hiveserver.TProtocolVersion
}

func (o Options) protocol() hiveserver.TProtocolVersion {
	if o.Protocol == 0 {
		return hiveserver.TProtocolVersion_HIVE_CLI_SERVICE_PROTOCOL_V11
	}
	return o.Protocol
}

// Server is the server. All methods are safe for concurrent use.
type Server struct {
	o    Options
	l    net.Listener
	web  *http.Server
	webL net.Listener
	wg   sync.WaitGroup
	done chan struct{}

	mu         sync.Mutex
	conns      map[net.Conn]struct{}
	closed     bool
	sessions   map[string]*session
	operations map[string]*operation
	historical []*operation
	submitted  []Statement
	scripts    []script
	hooks      []*Hook
	calls      map[string]int
	logins     int
	requests   []http.Header
}

// Start starts a server on the loopback. End it with Close.
func Start(o Options) (*Server, error) {
	s := &Server{o: o, done: make(chan struct{}), conns: map[net.Conn]struct{}{}, sessions: map[string]*session{}, operations: map[string]*operation{}, calls: map[string]int{}}
	var err error
	if s.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if s.webL, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		_ = s.l.Close()
		return nil, err
	}
	s.web = &http.Server{Handler: s.queryList(), ReadHeaderTimeout: time.Minute}
	s.wg.Go(func() { _ = s.web.Serve(s.webL) })
	s.wg.Go(s.accept)
	return s, nil
}

// Addr is host:port.
func (s *Server) Addr() string { return s.l.Addr().String() }

// WebUI is the address of the query list.
func (s *Server) WebUI() string { return "http://" + s.webL.Addr().String() }

// Close ends everything and waits for it.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	close(s.done)
	_ = s.l.Close()
	_ = s.web.Close()
	s.DropConnections()
	s.wg.Wait()
}

// DropConnections ends all connections there are.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

// Connections is how many there are.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Logins counts the passwords that were checked.
func (s *Server) Logins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

// Requests are the headers of the HTTP transport's requests.
func (s *Server) Requests() []http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]http.Header(nil), s.requests...)
}

func (s *Server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			defer func() {
				_ = c.Close()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			}()
			s.serve(c)
		})
	}
}

// serve speaks on one connection until it ends.
func (s *Server) serve(raw net.Conn) {
	c := raw
	if s.o.TLS != nil {
		c = tls.Server(raw, s.o.TLS)
	}
	svc := &service{Server: s, opened: map[string]bool{}}
	defer func() {
		_ = recover() // of a call that is not served
		s.mu.Lock()
		defer s.mu.Unlock()
		for guid := range svc.opened {
			s.endSession(guid)
		}
	}()
	r := bufio.NewReader(c)
	switch {
	case s.o.HTTP:
		s.serveHTTP(svc, c, r)
	case s.o.NoSASL:
		for {
			answer, ok := svc.answer(r)
			if !ok {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	default:
		if !s.login(c, r) {
			return
		}
		for {
			var head [4]byte
			if _, err := io.ReadFull(r, head[:]); err != nil {
				return
			}
			answer, ok := svc.answer(io.LimitReader(r, int64(binary.BigEndian.Uint32(head[:]))))
			if !ok {
				return
			}
			if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(answer))), answer...)); err != nil {
				return
			}
		}
	}
}

// answer reads one message and makes the bytes of its answer.
func (s *service) answer(r io.Reader) ([]byte, bool) {
	x := &exchange{}
	ctx := context.WithValue(context.Background(), exchangeKey{}, x)
	in := thrift.NewTBinaryProtocolConf(thrift.NewStreamTransportR(r), nil)
	mem := thrift.NewTMemoryBuffer()
	out := thrift.NewTBinaryProtocolConf(mem, nil)
	if ok, err := hiveserver.NewTCLIServiceProcessor(s).Process(ctx, in, out); !ok && (errors.Is(err, thrift.ErrAbandonRequest) || mem.Len() == 0) {
		return nil, false
	}
	if x.rubbish != nil {
		return x.rubbish, true
	}
	return mem.Bytes(), true
}

// login is the server's half of SASL PLAIN.
func (s *Server) login(w io.Writer, r io.Reader) bool {
	mechanism, ok := saslMessage(r, 1)
	if !ok {
		return false
	}
	text, ok := saslMessage(r, 2)
	if !ok {
		return false
	}
	say := func(status byte, text string) bool {
		_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{status}, uint32(len(text))), text...))
		return err == nil && status == 5
	}
	parts := strings.Split(text, "\x00")
	switch {
	case mechanism != "PLAIN":
		return say(3, "Unsupported mechanism type "+mechanism)
	case len(parts) != 3:
		return say(4, "Error validating the login")
	}
	if no := s.refuse(parts[1], parts[2]); no != "" {
		return say(3, no)
	}
	return say(5, "")
}

func (s *Server) refuse(user, password string) string {
	s.mu.Lock()
	s.logins++
	s.mu.Unlock()
	if user == "" || password == "" {
		return "Error validating the login"
	}
	if s.o.Login != nil {
		return s.o.Login(user, password)
	}
	return ""
}

func saslMessage(r io.Reader, status byte) (string, bool) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || head[0] != status {
		return "", false
	}
	b, err := io.ReadAll(io.LimitReader(r, int64(binary.BigEndian.Uint32(head[1:]))))
	return string(b), err == nil
}

// serveHTTP takes a POST for each message.
func (s *Server) serveHTTP(svc *service, c net.Conn, r *bufio.Reader) {
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.requests = append(s.requests, req.Header)
		s.mu.Unlock()
		resp := &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}}
		var answer []byte
		cookie, cookieErr := req.Cookie("hive.server2.auth")
		known := cookieErr == nil && s.o.Cookie != "" && cookie.Value == s.o.Cookie
		user, password, _ := req.BasicAuth()
		switch {
		case req.Method != http.MethodPost || req.URL.Path != "/cliservice":
			resp.StatusCode = http.StatusNotFound
		case !known && s.refuse(user, password) != "":
			resp.StatusCode = http.StatusUnauthorized
			answer = []byte("Authentication Error: Error validating the login")
		default:
			var ok bool
			if answer, ok = svc.answer(bytes.NewReader(body)); !ok {
				return
			}
			if !known && s.o.Cookie != "" {
				resp.Header.Add("Set-Cookie", (&http.Cookie{Name: "hive.server2.auth", Value: s.o.Cookie, HttpOnly: true}).String())
			}
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(answer)), int64(len(answer))
		if len(answer) > 4096 { // as servers do it
			resp.ContentLength, resp.TransferEncoding = -1, []string{"chunked"}
		}
		if err := resp.Write(c); err != nil {
			return
		}
	}
}
