package hs2

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hiveserver"
	"github.com/google/uuid"
)

// SessionHandle names a session of one server process. It can be stored and used
// again by another process. Whoever has it can use the session, so only MarshalText
// has all of it; every way of printing shows the GUID. The zero value names nothing.
type SessionHandle struct{ id handleID }

// OperationHandle names an operation of one server process, in the same way.
type OperationHandle struct {
	id        handleID
	kind      hiveserver.TOperationType
	hasResult bool
	modified  float64
	counted   bool // modified was sent
}

// handleID is the public and the secret half of a handle.
type handleID struct{ guid, secret [16]byte }

// GUID is the public half, as the server's log and query list have it.
func (h SessionHandle) GUID() string { return uuid.UUID(h.id.guid).String() }

// GUID is the public half, as the server's log and query list have it.
func (h OperationHandle) GUID() string { return uuid.UUID(h.id.guid).String() }

// IsZero tells whether it names nothing.
func (h SessionHandle) IsZero() bool { return h == SessionHandle{} }

// IsZero tells whether it names nothing.
func (h OperationHandle) IsZero() bool { return h == OperationHandle{} }

// String is the GUID.
func (h SessionHandle) String() string { return h.GUID() }

// String is the GUID.
func (h OperationHandle) String() string { return h.GUID() }

// GoString is the GUID.
func (h SessionHandle) GoString() string { return fmt.Sprintf("hs2.SessionHandle(%s)", h.GUID()) }

// GoString is the GUID.
func (h OperationHandle) GoString() string { return fmt.Sprintf("hs2.OperationHandle(%s)", h.GUID()) }

// Format prints the GUID, whatever the verb.
func (h SessionHandle) Format(f fmt.State, verb rune) { formatGUID(f, verb, h.GUID(), h.GoString()) }

// Format prints the GUID, whatever the verb.
func (h OperationHandle) Format(f fmt.State, verb rune) { formatGUID(f, verb, h.GUID(), h.GoString()) }

func formatGUID(f fmt.State, verb rune, guid, goString string) {
	switch {
	case verb == 'v' && f.Flag('#'):
		guid = goString
	case verb == 'q':
		guid = `"` + guid + `"`
	}
	_, _ = f.Write([]byte(guid))
}

// LogValue is the GUID; package slog would take MarshalText otherwise.
func (h SessionHandle) LogValue() slog.Value { return slog.StringValue(h.GUID()) }

// LogValue is the GUID; package slog would take MarshalText otherwise.
func (h OperationHandle) LogValue() slog.Value { return slog.StringValue(h.GUID()) }

// MarshalText is the whole handle, its secret included.
func (h SessionHandle) MarshalText() ([]byte, error) { return marshalHandle(h.thrift()) }

// MarshalText is the whole handle, its secret included.
func (h OperationHandle) MarshalText() ([]byte, error) { return marshalHandle(h.thrift()) }

// UnmarshalText reads what MarshalText wrote.
func (h *SessionHandle) UnmarshalText(text []byte) error {
	var t hiveserver.TSessionHandle
	err := unmarshalHandle(text, &t)
	var read SessionHandle
	if err == nil {
		read, err = sessionHandle(&t)
	}
	if err != nil {
		return fmt.Errorf("hs2: not a session handle: %w", err)
	}
	*h = read
	return nil
}

// UnmarshalText reads what MarshalText wrote.
func (h *OperationHandle) UnmarshalText(text []byte) error {
	var t hiveserver.TOperationHandle
	err := unmarshalHandle(text, &t)
	var read OperationHandle
	if err == nil {
		read, err = operationHandle(&t)
	}
	if err != nil {
		return fmt.Errorf("hs2: not an operation handle: %w", err)
	}
	*h = read
	return nil
}

func (h SessionHandle) thrift() *hiveserver.TSessionHandle {
	return &hiveserver.TSessionHandle{SessionId: h.id.thrift()}
}

func (h OperationHandle) thrift() *hiveserver.TOperationHandle {
	t := &hiveserver.TOperationHandle{OperationId: h.id.thrift(), OperationType: h.kind, HasResultSet: h.hasResult}
	if h.counted {
		t.ModifiedRowCount = &h.modified
	}
	return t
}

func (id handleID) thrift() *hiveserver.THandleIdentifier {
	return &hiveserver.THandleIdentifier{GUID: id.guid[:], Secret: id.secret[:]}
}

func sessionHandle(t *hiveserver.TSessionHandle) (h SessionHandle, err error) {
	h.id, err = identifier(t.GetSessionId())
	return h, err
}

func operationHandle(t *hiveserver.TOperationHandle) (h OperationHandle, err error) {
	if h.id, err = identifier(t.GetOperationId()); err != nil {
		return h, err
	}
	h.kind, h.hasResult = t.OperationType, t.HasResultSet
	if t.ModifiedRowCount != nil {
		h.modified, h.counted = *t.ModifiedRowCount, true
	}
	return h, nil
}

func identifier(t *hiveserver.THandleIdentifier) (id handleID, err error) {
	if t == nil {
		return id, fmt.Errorf("no handle in it")
	}
	// The lengths only: the rest is secret.
	if len(t.GUID) != len(id.guid) || len(t.Secret) != len(id.secret) {
		return id, fmt.Errorf("a handle of %d and %d bytes, want %d and %d", len(t.GUID), len(t.Secret), len(id.guid), len(id.secret))
	}
	copy(id.guid[:], t.GUID)
	copy(id.secret[:], t.Secret)
	return id, nil
}

func marshalHandle(t thrift.TStruct) ([]byte, error) {
	b, err := thrift.NewTSerializer().Write(context.Background(), t)
	if err != nil {
		return nil, fmt.Errorf("hs2: %w", err)
	}
	return []byte(base64.StdEncoding.EncodeToString(b)), nil
}

// maxHandle is far above the 62 bytes that a handle has.
const maxHandle = 1024

func unmarshalHandle(text []byte, t thrift.TStruct) (err error) {
	if len(text) > maxHandle {
		return fmt.Errorf("%d bytes of text", len(text))
	}
	b, err := base64.StdEncoding.Strict().DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("its text is damaged: no base64")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its text is damaged: %v", p)
		}
	}()
	buf := &thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(b)}
	p := thrift.NewTBinaryProtocolConf(buf, &thrift.TConfiguration{MaxMessageSize: maxHandle, MaxFrameSize: maxHandle})
	if err := t.Read(context.Background(), p); err != nil {
		return fmt.Errorf("its text is damaged: %w", err)
	}
	if buf.Len() > 0 {
		return fmt.Errorf("its text is damaged: %d bytes follow", buf.Len())
	}
	return nil
}
