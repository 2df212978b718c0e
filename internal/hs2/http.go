package hs2

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// httpCarrier sends each message as one POST. It is written by hand since the
// standard client would hide whether a request was sent, and might send it again.
type httpCarrier struct {
	r    *bufio.Reader
	cfg  *Config
	jar  *cookies
	resp *http.Response // of the present call
}

func newHTTPCarrier(r *bufio.Reader, cfg *Config, jar *cookies) *httpCarrier {
	return &httpCarrier{r: r, cfg: cfg, jar: jar}
}

func (c *httpCarrier) pack(m []byte) []byte {
	c.resp = nil
	var b strings.Builder
	line := func(parts ...string) {
		for _, p := range parts {
			b.WriteString(p)
		}
		b.WriteString("\r\n")
	}
	line("POST /", strings.TrimPrefix(c.cfg.HTTPPath, "/"), " HTTP/1.1")
	line("Host: ", c.cfg.Address)
	line("Content-Type: application/x-thrift")
	line("Accept: application/x-thrift")
	line("User-Agent: commitstep")
	// What a server with its filter against cross-site requests asks for.
	line("X-XSRF-HEADER: true")
	// Always, also with a cookie: a server that knows the cookie looks no further,
	// and one that does not any more needs no second request.
	line("Authorization: Basic ", base64.StdEncoding.EncodeToString([]byte(c.cfg.User+":"+c.cfg.Password)))
	if jar := c.jar.header(); jar != "" {
		line("Cookie: ", jar)
	}
	line("Content-Length: ", strconv.Itoa(len(m)))
	line()
	return append([]byte(b.String()), m...)
}

func (c *httpCarrier) Read(p []byte) (int, error) {
	if c.resp == nil {
		resp, err := http.ReadResponse(c.r, &http.Request{Method: http.MethodPost})
		if err != nil {
			return 0, fmt.Errorf("HTTP: %w", err)
		}
		c.resp = resp
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
			err := fmt.Errorf("HTTP status %s: %q", resp.Status, strings.TrimSpace(string(text)))
			if resp.StatusCode == http.StatusUnauthorized {
				err = fmt.Errorf("%w: %w", ErrLogin, err)
			}
			return 0, err
		}
		c.jar.set(resp.Cookies())
	}
	return c.resp.Body.Read(p)
}

func (c *httpCarrier) finish() bool {
	if c.resp == nil || c.resp.Close {
		return false
	}
	// The end of a chunked body follows the message.
	var rest [16]byte
	n, err := c.resp.Body.Read(rest[:])
	return n == 0 && errors.Is(err, io.EOF) && c.r.Buffered() == 0
}

// cookies spare a server that gives them the check of the password. They are
// credentials and are kept in memory only.
type cookies struct {
	mu     sync.Mutex
	values map[string]string
}

func (j *cookies) set(list []*http.Cookie) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range list {
		if c.MaxAge < 0 {
			delete(j.values, c.Name)
			continue
		}
		if j.values == nil {
			j.values = map[string]string{}
		}
		if _, known := j.values[c.Name]; known || len(j.values) < 16 {
			j.values[c.Name] = c.Value
		}
	}
}

func (j *cookies) header() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for name, value := range j.values {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString((&http.Cookie{Name: name, Value: value, Quoted: strings.ContainsAny(value, " ,")}).String())
	}
	return b.String()
}
