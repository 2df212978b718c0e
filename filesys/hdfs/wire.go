package hdfs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Frames of the name node's RPC protocol. A request is a length of four bytes,
// then three messages, each behind its length as a varint: header, method,
// parameters. An answer is a length, a header, and a message or none.

var errFrame = errors.New("not a frame of the name node's protocol")

// request is what is needed of a request frame.
type request struct {
	callID int32
	method string
	body   []byte // of the frame: changing it changes the frame
}

// parseRequest reads a whole frame.
func parseRequest(frame []byte) (request, error) {
	var r request
	if len(frame) < 4 || uint64(binary.BigEndian.Uint32(frame)) != uint64(len(frame)-4) {
		return r, errFrame
	}
	rest := frame[4:]
	var parts [3][]byte
	for i := range parts {
		b, n := protowire.ConsumeBytes(rest)
		if n < 0 {
			return r, errFrame
		}
		parts[i], rest = b, rest[n:]
	}
	if len(rest) > 0 {
		return r, errFrame
	}
	id, ok := varintField(parts[0], 3)
	if !ok {
		return r, errFrame
	}
	method, ok := bytesField(parts[1], 1)
	if !ok || len(method) == 0 {
		return r, errFrame
	}
	r.callID = int32(protowire.DecodeZigZag(id))
	r.method, r.body = string(method), parts[2]
	return r, nil
}

// fields calls fn for every field of a message until it returns false, and
// reports whether the message is well formed that far. at is where the value
// starts.
func fields(b []byte, fn func(num protowire.Number, t protowire.Type, at int) bool) bool {
	for pos := 0; pos < len(b); {
		num, t, n := protowire.ConsumeTag(b[pos:])
		if n < 0 {
			return false
		}
		pos += n
		if !fn(num, t, pos) {
			return true
		}
		n = protowire.ConsumeFieldValue(num, t, b[pos:])
		if n < 0 {
			return false
		}
		pos += n
	}
	return true
}

func varintField(b []byte, want protowire.Number) (v uint64, ok bool) {
	whole := fields(b, func(num protowire.Number, t protowire.Type, at int) bool {
		if num == want && t == protowire.VarintType {
			var n int
			v, n = protowire.ConsumeVarint(b[at:])
			ok = n > 0
			return false
		}
		return true
	})
	return v, ok && whole
}

func bytesField(b []byte, want protowire.Number) (v []byte, ok bool) {
	whole := fields(b, func(num protowire.Number, t protowire.Type, at int) bool {
		if num == want && t == protowire.BytesType {
			var n int
			v, n = protowire.ConsumeBytes(b[at:])
			ok = n > 0
			return false
		}
		return true
	})
	return v, ok && whole
}

// Fields of the parameters that are looked at.
const (
	fieldMethod    = 1 // of a request's header
	fieldProtocol  = 2 // of a request's header
	fieldSource    = 1 // of rename2, and the path of getFileInfo
	fieldOverwrite = 3 // of rename2
	fieldAfter     = 2 // of getListing
)

// clearOverwrite clears the flag of a rename2 in its frame. It is an error if
// there is anything but exactly one flag: then the frame must not be sent.
func clearOverwrite(r request) error {
	flags := 0
	whole := fields(r.body, func(num protowire.Number, t protowire.Type, at int) bool {
		if num != fieldOverwrite {
			return true
		}
		flags++
		// A flag is one byte; a longer varint is nothing that we know.
		if t != protowire.VarintType || at >= len(r.body) || r.body[at] > 1 {
			flags = 2
			return false
		}
		r.body[at] = 0
		return true
	})
	if !whole || flags != 1 {
		return fmt.Errorf("rename2 without its overwrite flag where it is expected: %w", errFrame)
	}
	return nil
}

// startAfter puts a name into the frame of a getListing that starts at the
// start. A later page of the same listing has a name already and is left alone.
func startAfter(frame []byte, r request, name string) ([]byte, error) {
	var body []byte
	set := false
	whole := fields(r.body, func(num protowire.Number, t protowire.Type, at int) bool {
		n := protowire.ConsumeFieldValue(num, t, r.body[at:])
		if n < 0 {
			return true // fields finds it too
		}
		if num != fieldAfter {
			body = append(protowire.AppendTag(body, num, t), r.body[at:at+n]...)
		} else if v, n := protowire.ConsumeBytes(r.body[at:]); n < 0 || len(v) > 0 {
			set = true
		}
		return true
	})
	if !whole {
		return nil, fmt.Errorf("getListing: %w", errFrame)
	}
	if set {
		return frame, nil
	}
	body = protowire.AppendString(protowire.AppendTag(body, fieldAfter, protowire.BytesType), name)
	// The parameters are the last part of the frame, behind their length.
	head := len(frame) - len(r.body) - protowire.SizeVarint(uint64(len(r.body)))
	out := append([]byte(nil), frame[:head]...)
	out = protowire.AppendBytes(out, body)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}

// replaceCall makes another call of the frame of a getFileInfo: its method, its
// parameters, which begin with the same path, and its protocol, which then has
// no parameters.
func replaceCall(r request, frame []byte, s substitute) ([]byte, error) {
	path, ok := bytesField(r.body, fieldSource)
	if !ok {
		return nil, fmt.Errorf("getFileInfo without a path: %w", errFrame)
	}
	header, n := protowire.ConsumeBytes(frame[4:])
	if n < 0 {
		return nil, errFrame
	}
	old, m := protowire.ConsumeBytes(frame[4+n:])
	if m < 0 {
		return nil, errFrame
	}
	call := protowire.AppendString(protowire.AppendTag(nil, fieldMethod, protowire.BytesType), s.method)
	whole := fields(old, func(num protowire.Number, t protowire.Type, at int) bool {
		n := protowire.ConsumeFieldValue(num, t, old[at:])
		switch {
		case n < 0 || num == fieldMethod:
		case num == fieldProtocol && s.protocol != "":
			call = protowire.AppendString(protowire.AppendTag(call, num, protowire.BytesType), s.protocol)
		default:
			call = append(protowire.AppendTag(call, num, t), old[at:at+n]...)
		}
		return true
	})
	if !whole {
		return nil, errFrame
	}
	var body []byte
	if s.protocol == "" {
		body = protowire.AppendBytes(protowire.AppendTag(nil, fieldSource, protowire.BytesType), path)
	}
	out := protowire.AppendBytes(make([]byte, 4), header)
	out = protowire.AppendBytes(out, call)
	out = protowire.AppendBytes(out, append(body, s.params...))
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}

// answerBody is the message behind the header at the start of an answer.
func answerBody(b []byte) ([]byte, error) {
	_, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return nil, errFrame
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 {
		return nil, errFrame
	}
	return body, nil
}

// answer is what is needed of an answer's header.
type answer struct {
	callID    int32
	status    uint64 // 0 is success
	exception string
	message   string // first line
}

// parseAnswer reads the header at the start of an answer, behind the frame's
// length. b may end inside the message that follows the header.
func parseAnswer(b []byte) (answer, bool) {
	var a answer
	head, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return a, false
	}
	whole := fields(head, func(num protowire.Number, t protowire.Type, at int) bool {
		switch {
		case num == 1 && t == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(head[at:])
			a.callID = int32(uint32(v))
		case num == 2 && t == protowire.VarintType:
			a.status, _ = protowire.ConsumeVarint(head[at:])
		case num == 4 && t == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(head[at:])
			a.exception = string(v)
		case num == 5 && t == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(head[at:])
			a.message = firstLine(v)
		}
		return true
	})
	return a, whole
}

func firstLine(b []byte) string {
	for i, c := range b {
		if c == '\n' {
			return string(b[:i])
		}
	}
	return string(b)
}

// emptyAnswer is a success without content.
func emptyAnswer(callID int32) []byte { return successAnswer(callID, nil) }

// directoryAnswer is a getFileInfo's answer that says of something that it is a
// directory, and nothing else that is true.
func directoryAnswer(callID int32) []byte {
	var st []byte
	varint := func(num protowire.Number, v uint64) {
		st = protowire.AppendVarint(protowire.AppendTag(st, num, protowire.VarintType), v)
	}
	str := func(num protowire.Number, v []byte) {
		st = protowire.AppendBytes(protowire.AppendTag(st, num, protowire.BytesType), v)
	}
	varint(1, 1)                                                                         // a directory
	str(2, nil)                                                                          // its name
	varint(3, 0)                                                                         // its length
	str(4, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 0)) // its mode
	str(5, nil)                                                                          // its owner
	str(6, nil)                                                                          // its group
	varint(7, 0)                                                                         // its times
	varint(8, 0)
	return successAnswer(callID, protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), st))
}

func successAnswer(callID int32, content []byte) []byte {
	var head []byte
	head = protowire.AppendTag(head, 1, protowire.VarintType)
	head = protowire.AppendVarint(head, uint64(uint32(callID)))
	head = protowire.AppendTag(head, 2, protowire.VarintType)
	head = protowire.AppendVarint(head, 0)
	body := protowire.AppendBytes(nil, head)
	body = protowire.AppendBytes(body, content)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}
