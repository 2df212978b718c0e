package hdfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/commitstep/engine/filesys"
)

// changing are the calls that change the namespace. What is not in the list
// only reads, as far as this package calls it.
var changing = map[string]bool{"rename2": true, "mkdirs": true, "delete": true, "setPermission": true, "setOwner": true}

// conn is the connection of one client to one name node. It reads along: it
// knows which requests went out and what the name node said, clears the
// overwrite flag of renames, and bounds every read and write.
//
// The library calls Read and Write from one goroutine at a time, but its lease
// renewal may come between the requests of a call.
type conn struct {
	net.Conn
	timeout time.Duration
	count   func(method string)
	in      *bufio.Reader

	mu sync.Mutex
	// plain: no security layer, so answers may be made here.
	plain bool
	hello int // bytes of the connection header still to come
	// opaque: something was written that is no frame, so nothing is known.
	opaque bool
	failed error  // the first error of the connection
	fake   []byte // answers made here, not read yet
	left   int    // bytes of the frame that is being read
	id     int32  // of the last request of the call
	call   *exchange
}

// exchange is what happened on the connection during one call.
type exchange struct {
	// unasked is a path whose getFileInfo is not sent: the library looks at a
	// rename's destination and throws the answer away. It is told that nothing
	// is there.
	unasked string
	// listed is a path that the library looks at before it lists it. It is told
	// that it is a directory: the listing itself tells.
	listed string
	// instead is sent in place of the one getFileInfo of the call, about the same
	// path; the library has no such call and cannot read its answer.
	instead *substitute
	sent    bool // a request went out
	changed bool // a request that changes something went out, whole or in part
	answer  answer
	refused bool   // answer is a "no", and the last thing that came
	after   string // listings start behind this name
	anyway  bool   // an unreadable rename may be sent
	// mayChange: the call changes something; set by who makes it.
	mayChange bool
}

// substitute is a call that the library does not have.
type substitute struct {
	method string
	// protocol that has the method; "" is that of the clients. Calls of others are
	// sent without a path.
	protocol string
	params   []byte // fields behind that of the path
	answer   []byte // set once the name node said yes
}

// headerBytes is how long the header of a connection is; the last byte names
// the security layer, 0 is none.
const headerBytes = 7

// bufferBytes hold any answer but that of a listing, so that its header can be
// looked at as a whole.
const bufferBytes = 64 << 10

func newConn(raw net.Conn, timeout time.Duration, opaque bool, count func(string)) *conn {
	return &conn{opaque: opaque, Conn: raw, timeout: timeout, count: count, in: bufio.NewReaderSize(raw, bufferBytes), hello: headerBytes}
}

// begin starts a call, which is written to x until end, which says whether
// the connection is still sound.
func (c *conn) begin(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.call = x
}

func (c *conn) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.call = nil
	return c.failed
}

// errOpaque: requests through this connection cannot be read, so the overwrite
// flag of a rename cannot be cleared. It was not sent.
var errOpaque = fmt.Errorf("its requests cannot be read on the way out: %w", filesys.ErrNoClobberUnsupported)

// readable reports whether calls of this package's own can be made on it.
func (c *conn) readable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plain && !c.opaque && c.failed == nil
}

// abort makes the call in flight fail at once.
func (c *conn) abort() {
	c.fail(errAborted)
	_ = c.Conn.Close()
}

var errAborted = errors.New("the call was given up")

func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
}

// Write sends one frame, the header of the connection, or what a security
// layer needs.
func (c *conn) Write(b []byte) (int, error) {
	out, err := c.look(b)
	if err != nil {
		c.fail(err)
		return 0, err
	}
	if out == nil { // answered here
		return len(b), nil
	}
	if err := c.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		c.fail(err)
		return 0, err
	}
	n, err := c.Conn.Write(out)
	if err != nil {
		c.fail(err)
	}
	return n, err
}

// look decides what to send in place of b; nil is nothing.
func (c *conn) look(b []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return nil, c.failed
	}
	if c.hello > 0 {
		if len(b) == headerBytes && c.hello == headerBytes && bytes.HasPrefix(b, []byte("hrpc")) {
			c.plain = b[headerBytes-1] == 0
		} else {
			c.opaque = true
		}
		c.hello = 0
		return b, nil
	}
	r, err := parseRequest(b)
	x := c.call
	if err != nil || c.opaque && x != nil {
		// Between calls it is the rest of the handshake, whose frames have two
		// messages. In a call it may be anything, and if the call is a rename,
		// then also one with its flag set.
		if x != nil {
			c.opaque = true
			if x.unasked != "" && !x.anyway {
				return nil, errOpaque
			}
			if x.instead != nil {
				return nil, fmt.Errorf("%s: requests through this connection cannot be read: %w", x.instead.method, errors.ErrUnsupported)
			}
			if x.after != "" {
				return nil, fmt.Errorf("a directory of more than %d entries cannot be listed: %w", pageEntries, errFrame)
			}
			x.sent, x.changed = true, x.mayChange
		}
		return b, nil
	}
	if r.method == "renewLease" && c.plain {
		// The library renews leases of files that it writes, once a second. This
		// package writes none.
		c.fake = append(c.fake, emptyAnswer(r.callID)...)
		return nil, nil
	}
	if x == nil || r.method == "renewLease" {
		return b, nil
	}
	if r.method == "getFileInfo" && c.plain && x.unasked+x.listed != "" {
		switch p, ok := bytesField(r.body, fieldSource); {
		case ok && string(p) == x.unasked:
			c.fake = append(c.fake, emptyAnswer(r.callID)...)
			return nil, nil
		case ok && string(p) == x.listed:
			c.fake = append(c.fake, directoryAnswer(r.callID)...)
			return nil, nil
		}
	}
	if r.method == "rename2" {
		// Write must not change what it is given.
		b = bytes.Clone(b)
		if r, err = parseRequest(b); err == nil {
			err = clearOverwrite(r)
		}
		if err != nil {
			c.opaque = true
			return nil, errors.Join(errOpaque, err)
		}
	}
	if r.method == "getFileInfo" && x.instead != nil {
		if b, err = replaceCall(r, b, *x.instead); err != nil {
			return nil, err
		}
		r.method = x.instead.method
	}
	if r.method == "getListing" && x.after != "" {
		if b, err = startAfter(b, r, x.after); err != nil {
			return nil, err
		}
	}
	x.sent, x.refused = true, false
	x.changed = x.changed || changing[r.method]
	c.id = r.callID
	c.count(r.method)
	return b, nil
}

// Read gives the answers. It looks at the header of every frame before the
// library sees it.
func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	if c.left == 0 && len(c.fake) > 0 {
		n := copy(b, c.fake)
		c.fake = c.fake[n:]
		c.mu.Unlock()
		return n, nil
	}
	left := c.left
	c.mu.Unlock()
	if err := c.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		c.fail(err)
		return 0, err
	}
	if left == 0 {
		var err error
		if left, err = c.next(); err != nil {
			c.fail(err)
			return 0, err
		}
	}
	n, err := c.in.Read(b[:min(len(b), left)])
	if err != nil {
		c.fail(err)
	}
	c.mu.Lock()
	c.left = left - n
	c.mu.Unlock()
	return n, err
}

// next looks at the frame that comes and returns its length.
func (c *conn) next() (int, error) {
	head, err := c.in.Peek(4)
	if err != nil {
		return 0, err
	}
	length := 4 + int(binary.BigEndian.Uint32(head))
	if b, err := c.in.Peek(min(length, bufferBytes)); err == nil || len(b) > 4 && errors.Is(err, bufio.ErrBufferFull) {
		c.heard(b[4:])
	} else {
		return 0, err
	}
	return length, nil
}

func (c *conn) heard(frame []byte) {
	a, ok := parseAnswer(frame)
	if !ok {
		return
	}
	body, err := answerBody(frame)
	c.mu.Lock()
	defer c.mu.Unlock()
	const fatal = 2
	if x := c.call; x != nil && x.sent && (a.callID == c.id || a.status == fatal) {
		x.answer, x.refused = a, a.status != 0
		if x.instead != nil && !x.refused && err == nil {
			x.instead.answer = bytes.Clone(body)
		}
		if a.status == fatal && c.failed == nil {
			c.failed = fmt.Errorf("the name node ended the connection: %s", a.exception)
		}
	}
}

// timedOut reports whether err is a deadline of the connection.
func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
