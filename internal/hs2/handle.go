package hs2

import "errors"

// SessionHandle names a session of one server process. It can be stored and used
// again by another process. Whoever has it can use the session.
type SessionHandle struct{ id handleID }

// OperationHandle names an operation of one server process, in the same way.
type OperationHandle struct {
	id        handleID
	kind      int32
	hasResult bool
}

// handleID is the public and the secret half of a handle.
type handleID struct{ guid, secret [16]byte }

var errNotYet = errors.New("hs2: not yet")

// GUID is the public half, as the server's log and query list have it.
func (h SessionHandle) GUID() string { return "" }

// GUID is the public half, as the server's log and query list have it.
func (h OperationHandle) GUID() string { return "" }

// String is the GUID.
func (h SessionHandle) String() string { return h.GUID() }

// String is the GUID.
func (h OperationHandle) String() string { return h.GUID() }

// IsZero tells whether it names nothing.
func (h SessionHandle) IsZero() bool { return h == SessionHandle{} }

// IsZero tells whether it names nothing.
func (h OperationHandle) IsZero() bool { return h == OperationHandle{} }

// MarshalText has the secret in it.
func (h SessionHandle) MarshalText() ([]byte, error) { return nil, errNotYet }

// UnmarshalText reads what MarshalText wrote.
func (h *SessionHandle) UnmarshalText([]byte) error { return errNotYet }

// MarshalText has the secret in it.
func (h OperationHandle) MarshalText() ([]byte, error) { return nil, errNotYet }

// UnmarshalText reads what MarshalText wrote.
func (h *OperationHandle) UnmarshalText([]byte) error { return errNotYet }
