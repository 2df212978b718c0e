package webhdfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/commitstep/engine/filesys/internal/dfs"
)

// maxAnswer bounds an answer of a name node; a page of a listing has some
// hundred bytes for each of its entries.
const maxAnswer = 64 << 20

// escape writes a path or value so that no server on the way reads more into
// it than its bytes.
func escape(s string, slash bool) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == '~', c == '/' && slash:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// query is a list of names and values.
type query []string

// ask makes one call on the name node that serves, and decodes its answer into
// out unless that is nil.
func (t *transport) ask(ctx context.Context, method, op, path string, q query, out any) error {
	t.count(op)
	read := method == http.MethodGet
	return t.over.Do(ctx, read, func(ctx context.Context, base string) error {
		resp, cancel, err := t.send(ctx, method, base, op, path, q, nil)
		if err != nil {
			t.ns.Doubt()
			return err
		}
		defer cancel()
		defer resp.Body.Close()
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		if err != nil || len(b) > maxAnswer {
			t.ns.Doubt()
			return dfs.Lost(fmt.Errorf("name node %s: the answer to %s broke off after %d bytes: %w", base, op, len(b), err))
		}
		if resp.StatusCode != http.StatusOK {
			return refusal(resp, b, base, op, path)
		}
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(b, out); err != nil {
			return dfs.Lost(fmt.Errorf("name node %s: the answer to %s cannot be read: %w", base, op, err))
		}
		return nil
	})
}

// send sends one request. cancel must be called once the answer was read.
func (t *transport) send(ctx context.Context, method, base, op, path string, q query, body io.Reader) (*http.Response, context.CancelFunc, error) {
	u := base + apiPath + escape(path, true) + "?op=" + op
	for i := 0; i < len(q); i += 2 {
		u += "&" + q[i] + "=" + escape(q[i+1], false)
	}
	if t.o.Token != nil {
		token, err := t.o.Token()
		if err != nil {
			return nil, nil, dfs.NotExecuted(fmt.Errorf("delegation token: %w", err))
		}
		if token != "" {
			u += "&delegation=" + escape(token, false)
		}
	}
	if t.o.User != "" {
		u += "&user.name=" + escape(t.o.User, false)
	}
	return t.do(ctx, method, u, base, op, body)
}

// do sends a request to a URL and marks an error by whether any of it was
// written to a connection.
func (t *transport) do(ctx context.Context, method, u, server, op string, body io.Reader) (*http.Response, context.CancelFunc, error) {
	var written atomic.Bool
	rctx, cancel := context.WithTimeout(ctx, t.o.CallTimeout)
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(rctx, &httptrace.ClientTrace{
		WroteHeaderField: func(string, []string) { written.Store(true) },
	}), method, u, body)
	if err != nil {
		cancel()
		return nil, nil, dfs.NotExecuted(fmt.Errorf("name node %s: %s: the URL is malformed", server, op))
	}
	resp, err := t.client.Do(req)
	if err == nil {
		return resp, cancel, nil
	}
	cancel()
	err = bare(err)
	if cerr := ctx.Err(); cerr != nil {
		err = errors.Join(cerr, err)
	} else if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s: %w", t.o.CallTimeout, err)
	}
	err = fmt.Errorf("name node %s: %s: %w", server, op, err)
	if !written.Load() {
		return nil, nil, dfs.NotExecuted(err)
	}
	return nil, nil, dfs.Lost(err)
}

// refusal makes an error of an answer that is not 200. Only the name node's
// own exception says what is with a file: a web server that is starting, or a
// proxy, has pages for missing things too.
func refusal(resp *http.Response, body []byte, server, op, path string) error {
	var e struct {
		RemoteException *struct {
			JavaClassName string `json:"javaClassName"`
			Exception     string `json:"exception"`
			Message       string `json:"message"`
		} `json:"RemoteException"`
	}
	if json.Unmarshal(body, &e) == nil && e.RemoteException != nil {
		r := &dfs.RemoteError{Op: strings.ToLower(op), Path: path, Exception: e.RemoteException.JavaClassName, Server: server}
		if r.Exception == "" {
			r.Exception = e.RemoteException.Exception
		}
		r.Message, _, _ = strings.Cut(e.RemoteException.Message, "\n")
		return r
	}
	err := fmt.Errorf("name node %s answers %s to %s, without saying why", server, resp.Status, op)
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return &dfs.RemoteError{Op: strings.ToLower(op), Path: path, Exception: resp.Status, Message: "configure a delegation token, or a transport that authenticates", Server: server}
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusServiceUnavailable:
		// No file system is served at this URL, or not yet.
		return dfs.NotExecuted(err)
	case resp.StatusCode >= 300 && resp.StatusCode < 500:
		return &dfs.RemoteError{Op: strings.ToLower(op), Path: path, Exception: resp.Status, Server: server}
	}
	return dfs.Lost(err)
}
