package faultproxy_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitstep/engine/internal/faultproxy"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers every line by "ok " and the line, and remembers the lines.
type server struct {
	l    net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	got  []string
	seen chan string
}

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{l: l, seen: make(chan string, 100)}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				sc := bufio.NewScanner(c)
				for sc.Scan() {
					s.mu.Lock()
					s.got = append(s.got, sc.Text())
					s.mu.Unlock()
					s.seen <- sc.Text()
					if _, err := io.WriteString(c, "ok "+sc.Text()+"\n"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); s.wg.Wait() })
	return s
}

func newProxy(t *testing.T, s *server, f faultproxy.Framing) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Listen(s.l.Addr().String(), f)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	t.Cleanup(func() { _ = c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) say(s string) {
	c.t.Helper()
	_, err := io.WriteString(c, s+"\n")
	require.NoError(c.t, err)
}

func (c *client) hear() (string, error) {
	s, err := c.r.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err
}

func (c *client) ask(s string) {
	c.t.Helper()
	c.say(s)
	got, err := c.hear()
	require.NoError(c.t, err)
	require.Equal(c.t, "ok "+s, got)
}

func TestWithoutRulesNothingChanges(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	a, b := dial(t, p), dial(t, p)
	a.ask("one")
	b.ask("two")
	a.ask("three")
	require.Equal(t, 3, p.RoundTrips())
	require.Equal(t, 2, p.Connections())
	require.Equal(t, 2, p.Open())
}

func TestDropBeforeHidesTheMessageFromTheServer(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	h := p.On(faultproxy.Rule{Nth: 2, Do: faultproxy.DropBefore})
	c := dial(t, p)
	c.ask("one")
	c.say("two")
	<-h.Fired()
	_, err := c.hear()
	require.Error(t, err)
	dial(t, p).ask("three") // the rule meant the second message only
	require.Equal(t, []string{"one", "three"}, s.got)
	require.Equal(t, 1, h.Count())
}

func TestDroppedRepliesMeanThatTheServerHasDoneItsWork(t *testing.T) {
	t.Parallel()
	for _, do := range []faultproxy.Action{faultproxy.DropAfter, faultproxy.DropReply} {
		s := newServer(t)
		p := newProxy(t, s, faultproxy.Raw)
		h := p.On(faultproxy.Rule{Nth: 1, Do: do})
		c := dial(t, p)
		c.say("one")
		<-h.Fired()
		require.Equal(t, "one", <-s.seen)
		_, err := c.hear()
		require.Error(t, err, "the answer is lost")
		dial(t, p).ask("two")
	}
}

func TestHoldKeepsAMessageUntilItIsReleased(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	h := p.On(faultproxy.Rule{Match: func(m faultproxy.Message) bool { return string(m.Data) == "slow\n" }, Do: faultproxy.Hold})
	a, b := dial(t, p), dial(t, p)
	a.say("slow")
	<-h.Fired()
	b.ask("quick")
	require.Equal(t, "quick", <-s.seen, "the held message has not reached the server")
	h.Release()
	got, err := a.hear()
	require.NoError(t, err)
	require.Equal(t, "ok slow", got)
}

func TestABlackHoleSwallowsAndStaysOpen(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	h := p.On(faultproxy.Rule{Nth: 1, Do: faultproxy.BlackHole})
	c := dial(t, p)
	c.say("one")
	<-h.Fired()
	c.say("two")
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.hear()
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout(), "the connection is open and silent")
	require.Empty(t, s.got)
}

func TestAMutedServerHearsAndIsNotHeard(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	p.On(faultproxy.Rule{Nth: 1, Do: faultproxy.Mute})
	c := dial(t, p)
	c.say("one")
	require.Equal(t, "one", <-s.seen)
	c.say("two")
	require.Equal(t, "two", <-s.seen)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.hear()
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout(), "the connection is open and silent")
}

func TestADelayedMessageArrivesLate(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	p.On(faultproxy.Rule{Nth: 1, Do: faultproxy.Delay, Delay: 60 * time.Millisecond})
	c := dial(t, p)
	started := time.Now()
	c.ask("one")
	require.GreaterOrEqual(t, time.Since(started), 60*time.Millisecond)
}

func TestRefuseIsAServerThatIsDown(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(t, s, faultproxy.Raw)
	c := dial(t, p)
	c.ask("one")
	p.Refuse(true)
	_, err := c.hear()
	require.Error(t, err)
	_, err = dial(t, p).hear()
	require.Error(t, err)
	p.Refuse(false)
	dial(t, p).ask("two")
}

// A start-up, a request in three messages, and a simple query, as the protocol
// lays them out.
func TestPostgreSQLMessagesAreCut(t *testing.T) {
	t.Parallel()
	msg := func(typ byte, body string) []byte {
		var b []byte
		if typ != 0 {
			b = append(b, typ)
		}
		b = binary.BigEndian.AppendUint32(b, uint32(4+len(body)))
		return append(b, body...)
	}
	version := string(binary.BigEndian.AppendUint32(nil, 196608))
	ssl := string(binary.BigEndian.AppendUint32(nil, 80877103))
	var stream []byte
	for _, m := range [][]byte{msg(0, ssl), msg(0, version+"user\x00pg\x00\x00"), msg('P', "parse"), msg('B', "bind"), msg('S', ""), msg('Q', "select\x00")} {
		stream = append(stream, m...)
	}
	r, w := io.Pipe()
	go func() {
		for _, b := range stream { // one byte at a time, as a network may
			_, _ = w.Write([]byte{b})
		}
		_ = w.Close()
	}()
	s := faultproxy.PostgreSQL.New(r)
	types, turns := "", 0
	var size int
	for {
		m, err := s.Next()
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		if m.Type == 0 {
			m.Type = '-'
		}
		types += string(m.Type)
		size += len(m.Data)
		if m.Turn {
			turns++
		}
	}
	require.Equal(t, "--PBSQ", types)
	require.Equal(t, 4, turns)
	require.Equal(t, len(stream), size, "every byte is in one message")
}
