package faultproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// SASLPlain cuts what a Thrift client says after it logged in with SASL PLAIN:
// two messages of the login, then frames with their length in front. The second of
// the login and every frame wait for an answer. [ThriftMethod] names a frame.
var SASLPlain Framing = framingFunc(func(r io.Reader) Splitter {
	return &saslSplitter{r: bufio.NewReaderSize(r, 64<<10), login: 2}
})

type saslSplitter struct {
	r     *bufio.Reader
	login int // messages that are left of it
	buf   []byte
}

func (s *saslSplitter) Next() (Message, error) {
	m := Message{Turn: s.login <= 1}
	head := 4
	if s.login > 0 {
		head = 5
		s.login--
	}
	s.buf = append(s.buf[:0], make([]byte, head)...)
	if _, err := io.ReadFull(s.r, s.buf); err != nil {
		return m, err
	}
	n := int(binary.BigEndian.Uint32(s.buf[head-4:]))
	if n > maxMessage {
		return m, fmt.Errorf("faultproxy: a message of %d bytes", n)
	}
	s.buf = append(s.buf, make([]byte, n)...)
	if _, err := io.ReadFull(s.r, s.buf[head:]); err != nil {
		return m, err
	}
	if head == 5 {
		m.Type = s.buf[0]
	}
	m.Data = s.buf
	return m, nil
}

// ThriftMethod is the method that a message of Thrift's binary protocol calls, bare
// or in a SASL frame or an HTTP request; empty if it calls none.
func ThriftMethod(data []byte) string {
	call := []byte{0x80, 1, 0, 1} // version 1, a call
	at := bytes.Index(data, call)
	if at < 0 || len(data) < at+8 {
		return ""
	}
	rest := data[at+8:]
	n := int(binary.BigEndian.Uint32(data[at+4:]))
	if n > len(rest) {
		return ""
	}
	return string(rest[:n])
}
