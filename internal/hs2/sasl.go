package hs2

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrLogin: the server refused user or password. Over HTTP these go with every
// request, so there the refused one has been sent.
var ErrLogin = errors.New("the server refuses the login")

// States of Thrift's SASL negotiation that PLAIN meets.
const (
	saslStart    = 1
	saslOK       = 2
	saslBad      = 3
	saslError    = 4
	saslComplete = 5
)

// maxSASLMessage is longer than any text of a refusal.
const maxSASLMessage = 64 << 10

// saslPlain logs in. Mechanism and answer go out in one piece, as they need no
// word of the server in between.
func saslPlain(w io.Writer, r io.Reader, user, password string) error {
	b := saslMessage(nil, saslStart, "PLAIN")
	b = saslMessage(b, saslOK, "\x00"+user+"\x00"+password)
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("SASL: %w", err)
	}
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("SASL: %w (a server with NOSASL, or with TLS, ends a login like this)", err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxSASLMessage {
		return fmt.Errorf("SASL: the server does not speak it: status %d with %d bytes", head[0], n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return fmt.Errorf("SASL: %w", err)
	}
	switch head[0] {
	case saslComplete:
		return nil
	case saslBad, saslError:
		return fmt.Errorf("%w: %q", ErrLogin, text)
	}
	return fmt.Errorf("SASL: the server does not speak it: status %d", head[0])
}

func saslMessage(b []byte, status byte, text string) []byte {
	b = append(b, status)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// saslCarrier puts the length in front of every message.
type saslCarrier struct {
	r    *bufio.Reader
	left int // of the present frame
}

func (c *saslCarrier) pack(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(m)), uint32(len(m))), m...)
}

// Read never waits for a frame as a whole, so a length that is rubbish costs
// nothing.
func (c *saslCarrier) Read(p []byte) (int, error) {
	for c.left == 0 {
		var head [4]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return 0, err
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > 1<<31-1 {
			return 0, fmt.Errorf("SASL: a frame of %d bytes", n)
		}
		c.left = int(n)
	}
	n, err := c.r.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func (c *saslCarrier) finish() bool { return c.left == 0 && c.r.Buffered() == 0 }
