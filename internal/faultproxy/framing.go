package faultproxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Framing cuts what a client says into messages.
type Framing interface {
	// New starts on a new connection.
	New(r io.Reader) Splitter
}

// Splitter gives the messages of one connection.
type Splitter interface {
	// Next returns Type, Turn and Data of the next message. Data may be used
	// again by the next call.
	Next() (Message, error)
}

type framingFunc func(io.Reader) Splitter

func (f framingFunc) New(r io.Reader) Splitter { return f(r) }

// Raw takes every chunk, as it comes from the network, for a message that waits
// for an answer. It fits protocols whose clients send a request in one piece and
// then wait, as HTTP clients mostly do.
var Raw Framing = framingFunc(func(r io.Reader) Splitter { return &rawSplitter{r: r, buf: make([]byte, 64<<10)} })

type rawSplitter struct {
	r   io.Reader
	buf []byte
}

func (s *rawSplitter) Next() (Message, error) {
	n, err := s.r.Read(s.buf)
	if n > 0 {
		return Message{Turn: true, Data: s.buf[:n]}, nil
	}
	return Message{}, err
}

// PostgreSQL cuts the frontend messages of PostgreSQL's protocol 3. Type is the
// message's letter, 0 while a session starts. Sync and Query end a turn.
var PostgreSQL Framing = framingFunc(func(r io.Reader) Splitter { return &pgSplitter{r: bufio.NewReaderSize(r, 64<<10)} })

type pgSplitter struct {
	r       *bufio.Reader
	started bool
	buf     []byte
}

// maxMessage is the longest message that is kept in memory.
const maxMessage = 1 << 30

func (s *pgSplitter) Next() (Message, error) {
	var m Message
	head := 4
	if s.started {
		head = 5
	}
	s.buf = append(s.buf[:0], make([]byte, head)...)
	if _, err := io.ReadFull(s.r, s.buf); err != nil {
		return m, err
	}
	n := int(binary.BigEndian.Uint32(s.buf[head-4:]))
	if n < 4 || n > maxMessage {
		return m, fmt.Errorf("faultproxy: a message of %d bytes", n)
	}
	at := len(s.buf)
	s.buf = append(s.buf, make([]byte, n-4)...)
	if _, err := io.ReadFull(s.r, s.buf[at:]); err != nil {
		return m, err
	}
	m.Data = s.buf
	if s.started {
		m.Type = s.buf[0]
		switch m.Type {
		case 'S', 'Q', 'p':
			m.Turn = true
		}
		return m, nil
	}
	m.Turn = true
	// Requests for encryption, and cancellations, have codes above any version.
	if n >= 8 && binary.BigEndian.Uint32(s.buf[4:]) < 80877100 {
		s.started = true
	}
	return m, nil
}
