package hs2

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"runtime"
	"testing"
	"time"
)

// rubbishConn answers every request with the same bytes, and then the end.
type rubbishConn struct {
	net.Conn // nil: what is not here is not used
	r        *bytes.Reader
}

func (c *rubbishConn) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *rubbishConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *rubbishConn) Close() error                { return nil }
func (c *rubbishConn) SetDeadline(time.Time) error { return nil }

// answerWith gives a client whose server says b and nothing else.
func answerWith(tb testing.TB, auth Auth, transport Transport, b []byte) *Client {
	tb.Helper()
	c, err := New(Config{Address: "h:1", Auth: auth, Transport: transport, Dial: func(context.Context, string, string) (net.Conn, error) {
		return &rubbishConn{r: bytes.NewReader(b)}, nil
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// statusHead is the head of an answer to GetOperationStatus.
const statusHead = "\x80\x01\x00\x02\x00\x00\x00\x12GetOperationStatus\x00\x00\x00\x01"

func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte("\x05\x00\x00\x00\x00"), uint32(len(b))), b...)
}

// FuzzAnswer: whatever a server says, no call panics, and each ends.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"", "\x0c\x00\x00\x0c\x00\x01\x08\x00\x01\x00\x00\x00\x00\x00\x00", "\x0c\x00\x00\x0c\x00\x01\x08\x00\x01\x00\x00\x00\x03\x0f\x00\x02\x0b\x00\x00\x00\x01\x00\x00\x00\x01x\x00\x00", "\x0c\x00\x00\x0c\x00\x01\x0f\x00\x02\x0b\x03\xff\xff\xff", "\x0c\x00\x00\x0d\x00\x09\x0b\x0b\x7f\xff\xff\xff"} {
		f.Add([]byte(statusHead + s))
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx := context.Background()
		for _, c := range []*Client{answerWith(t, AuthNoSASL, TransportBinary, b), answerWith(t, AuthPlain, TransportBinary, b), answerWith(t, AuthPlain, TransportBinary, framed(b)), answerWith(t, AuthPlain, TransportHTTP, b)} {
			op := c.Operation(OperationHandle{})
			_, _ = op.Status(ctx)
			_, _ = op.QueryID(ctx)
			_, _ = op.Rows(ctx)
			_, _ = op.Logs(ctx)
			_, _ = c.OpenSession(ctx, nil)
			_, _ = c.Session(SessionHandle{}).Alive(ctx)
			_ = c.Close()
		}
	})
}

// TestRubbishLengthsCostNoMemory: the generated code makes room for a list before
// it reads the first element.
func TestRubbishLengthsCostNoMemory(t *testing.T) { // not parallel: it measures allocations
	for name, body := range map[string]string{
		"texts":          "\x0c\x00\x00\x0c\x00\x01\x0f\x00\x02\x0b\x03\xff\xff\xff",
		"the most texts": "\x0c\x00\x00\x0c\x00\x01\x0f\x00\x02\x0b\x7f\xff\xff\xff",
		"text":           "\x0c\x00\x00\x0c\x00\x01\x0b\x00\x05\x03\xff\xff\xff",
		"a skipped map":  "\x0c\x00\x00\x0d\x00\x09\x0b\x0b\x03\xff\xff\xff",
	} {
		for kind, c := range map[string]*Client{
			"bare":  answerWith(t, AuthNoSASL, TransportBinary, []byte(statusHead+body)),
			"sasl":  answerWith(t, AuthPlain, TransportBinary, framed([]byte(statusHead+body))),
			"frame": answerWith(t, AuthPlain, TransportBinary, append([]byte("\x05\x00\x00\x00\x00\x7f\xff\xff\xff"), statusHead+body...)),
			"login": answerWith(t, AuthPlain, TransportBinary, []byte("\x05\x7f\xff\xff\xff"+body)),
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := c.Operation(OperationHandle{}).Status(context.Background())
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("%s, %s: no error", name, kind)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20 {
				t.Errorf("%s, %s: %d bytes were allocated", name, kind, n)
			}
		}
	}
}
