package hs2

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Defaults of a QueryListConfig.
const (
	DefaultListTimeout = 30 * time.Second
	DefaultListBody    = 64 << 20
)

// QueryListConfig says where HiveServer2's web server is. Its text forms leave the
// password out.
type QueryListConfig struct {
	// URL is its address, http://host:10002.
	URL string
	// User and Password are sent as Basic authentication if User is not empty.
	User, Password string
	TLS            *tls.Config
	// Dial opens connections; default a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Timeout of one request; default 30 s.
	Timeout time.Duration
	// MaxBody is the longest answer in bytes that is read; default 64 MiB.
	MaxBody int64
}

// String is the address.
func (c QueryListConfig) String() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return "an address that cannot be read"
	}
	return u.Redacted()
}

// Format keeps the password out of %+v and %#v.
func (c QueryListConfig) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, c.String()) }

// LogValue keeps the password out of logs.
func (c QueryListConfig) LogValue() slog.Value { return slog.StringValue(c.String()) }

// QueryList reads which statements a HiveServer2 runs and ran. The list is in that
// process's memory: it is gone after a restart, and of the closed statements it has
// the latest few (hive.server2.webui.max.historic.queries, 25). So an entry proves
// that the server got the statement, and a missing one proves nothing. It is safe
// for concurrent use.
type QueryList struct {
	cfg  QueryListConfig
	base *url.URL
	http *http.Client
}

// NewQueryList checks cfg. It does no I/O.
func NewQueryList(cfg QueryListConfig) (*QueryList, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		// Its text is the address, which may hold a password.
		return nil, errors.New("hs2: the query list's address is no URL, want http://host:port")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, fmt.Errorf("hs2: the query list's address %q: want http://host:port", u.Redacted())
	case u.User != nil:
		return nil, fmt.Errorf("hs2: the query list's address %q holds a user; give it beside the address", u.Redacted())
	case cfg.Timeout < 0 || cfg.MaxBody < 0:
		return nil, errors.New("hs2: a time-out or size of the query list is negative")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultListTimeout
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = DefaultListBody
	}
	t := &http.Transport{DialContext: cfg.Dial, TLSClientConfig: cfg.TLS, MaxIdleConns: 2, IdleConnTimeout: idleFor, MaxResponseHeaderBytes: 64 << 10}
	return &QueryList{cfg: cfg, base: u, http: &http.Client{
		Transport: t,
		// A login page is no list.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections.
func (q *QueryList) Close() error {
	q.http.CloseIdleConnections()
	return nil
}

// Query is one entry of the list.
type Query struct {
	State     State
	StateText string // as the server wrote it
	QueryID   string
	Operation string // GUID of the operation's handle
	Session   string // GUID of the session's handle
	User      string
	Engine    string
	Text      string // the statement, with its leading comment
	Error     string
	Begin     time.Time
	End       time.Time // zero until it is closed
	// Running is the server's own word for "not closed"; State tells what runs.
	Running bool
	Tasks   []Task
}

// Active lists what runs, and what ended and was not closed.
func (q *QueryList) Active(ctx context.Context) ([]Query, error) { return q.get(ctx, "active") }

// Historical lists the latest closed ones.
func (q *QueryList) Historical(ctx context.Context) ([]Query, error) { return q.get(ctx, "historical") }

// Find lists every entry, active or historical, whose statement contains text.
func (q *QueryList) Find(ctx context.Context, text string) ([]Query, error) {
	// In this order a statement that is closed between the two is seen twice, and
	// never missed.
	active, err := q.Active(ctx)
	if err != nil {
		return nil, err
	}
	historical, err := q.Historical(ctx)
	if err != nil {
		return nil, err
	}
	var found []Query
	at := map[string]int{}
	for _, e := range append(active, historical...) {
		if !strings.Contains(e.Text, text) {
			continue
		}
		if i, twice := at[e.Operation]; twice && e.Operation != "" {
			found[i] = e // the later answer
			continue
		}
		at[e.Operation] = len(found)
		found = append(found, e)
	}
	return found, nil
}

// get reads one of the lists.
func (q *QueryList) get(parent context.Context, which string) (_ []Query, err error) {
	u := q.base.JoinPath("api/v1/queries", which)
	defer func() {
		if err != nil {
			err = fmt.Errorf("hs2: query list %s: %w", u.Redacted(), err)
		}
	}()
	ctx, cancel := context.WithTimeout(parent, q.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if q.cfg.User != "" {
		req.SetBasicAuth(q.cfg.User, q.cfg.Password)
	}
	body, err := q.body(req)
	if err != nil {
		if ctx.Err() != nil {
			err = ending(parent, q.cfg.Timeout)
		}
		return nil, err
	}
	return parseQueries(body)
}

func (q *QueryList) body(req *http.Request) ([]byte, error) {
	resp, err := q.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return nil, fmt.Errorf("HTTP status %s: %q", resp.Status, strings.TrimSpace(string(text)))
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, q.cfg.MaxBody+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > q.cfg.MaxBody {
		return nil, fmt.Errorf("an answer of more than %d bytes", q.cfg.MaxBody)
	}
	return b, nil
}

// parseQueries reads a list. What it does not know it passes over, and a value of
// another type than usual is as good as none, but where the statement or its state
// cannot be read the whole list is refused: a statement that is missing from the
// list means something to the caller.
func parseQueries(b []byte) ([]Query, error) {
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("not a list of queries: %w", err)
	}
	if list == nil {
		return nil, errors.New("not a list of queries: null")
	}
	queries := make([]Query, 0, len(list))
	for i, e := range list {
		display := map[string]json.RawMessage{}
		raw, ok := e["queryDisplay"]
		if ok && json.Unmarshal(raw, &display) != nil {
			return nil, fmt.Errorf("query %d of %d: its display is no object", i+1, len(list))
		}
		q := Query{
			StateText: text(e["state"]), User: text(e["userName"]), Engine: text(e["executionEngine"]),
			Session: text(e["sessionId"]), Operation: text(e["operationId"]),
			QueryID: text(display["queryId"]), Text: text(display["queryString"]), Error: text(display["errorMessage"]),
			Begin: moment(e["beginTime"]), End: moment(e["endTime"]),
		}
		q.State = parseState(q.StateText)
		if q.StateText == "" {
			return nil, fmt.Errorf("query %d of %d: no state", i+1, len(list))
		}
		if _, has := display["queryString"]; has && q.Text == "" && string(display["queryString"]) != `""` && string(display["queryString"]) != "null" {
			return nil, fmt.Errorf("query %d of %d: its statement is no text", i+1, len(list))
		}
		_ = json.Unmarshal(e["running"], &q.Running)
		q.Tasks, _ = parseTasks(display["taskDisplays"])
		queries = append(queries, q)
	}
	return queries, nil
}

func text(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s)
	return s
}

func moment(raw json.RawMessage) time.Time {
	var ms int64
	_ = json.Unmarshal(raw, &ms)
	return millis(ms)
}
