package hs2_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/commitstep/engine/internal/hs2"
	"github.com/commitstep/engine/internal/hs2/hs2test"
	"github.com/stretchr/testify/require"
)

// TestAnAnswerWithoutItsEndIsAnAnswer: a server in HTTP mode sends the message and
// then hangs, before the last chunk. Nobody waits for that, and the connection is
// not used again.
func TestAnAnswerWithoutItsEndIsAnAnswer(t *testing.T) {
	t.Parallel()
	srv := start(t, hs2test.Options{HTTP: true})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go neverEnding(c, "http://"+srv.Addr())
		}
	}()
	c := connect(t, l.Addr().String(), hs2.Config{Transport: hs2.TransportHTTP})
	s, err := c.OpenSession(t.Context(), nil)
	require.NoError(t, err)
	alive, err := s.Alive(t.Context())
	require.NoError(t, err)
	require.True(t, alive)
}

// neverEnding hands each request on, and the answer back without the end of its
// last chunk.
func neverEnding(c net.Conn, to string) {
	r := bufio.NewReader(c)
	for {
		in, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		out, err := http.NewRequest(http.MethodPost, to+in.URL.Path, in.Body)
		if err != nil {
			return
		}
		out.Header, out.ContentLength = in.Header, in.ContentLength
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			return
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body)
	}
}
