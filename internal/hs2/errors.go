package hs2

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hiveserver"
)

// Sentinels.
var (
	// ErrUnknownHandle: the server does not know the session or operation. It was
	// closed, timed out, or the server was restarted; which of them, and what
	// became of a statement, cannot be told from it.
	ErrUnknownHandle = errors.New("the server does not know the handle")
	// ErrCallTimeout: the call was ended by CallTimeout or SubmitTimeout.
	ErrCallTimeout = errors.New("no answer in time")
	// ErrClosed: the client was closed. Nothing was sent.
	ErrClosed = errors.New("the client is closed")
	// ErrTooManyRows: a result of Query is longer than what is kept in memory.
	ErrTooManyRows = errors.New("too many rows")
)

// ServerError is an answer of the server that says no. For Execute it means that
// the statement was not accepted and will not run.
type ServerError struct {
	// RPC is the call's Thrift name.
	RPC string
	// SQLState and Code are empty and 0 when the server sent none. Both say
	// little: 08S01 goes with most runtime errors.
	SQLState string
	Code     int32
	Message  string
	// Infos are the server's further messages, mostly its stack trace.
	Infos []string

	unknownHandle bool
}

func (e *ServerError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "hs2: %s: the server says: %s", e.RPC, e.Message)
	if e.SQLState != "" || e.Code != 0 {
		fmt.Fprintf(&b, " (SQL state %s, code %d)", orNone(e.SQLState), e.Code)
	}
	return b.String()
}

// Is matches ErrUnknownHandle.
func (e *ServerError) Is(target error) bool { return target == ErrUnknownHandle && e.unknownHandle }

// TransportError means that there is no answer which says what happened. Err may
// be a context's error, [ErrCallTimeout], one of the network, or what was wrong
// with the answer.
type TransportError struct {
	// RPC is the Thrift name of the call that was asked for, also when the
	// connection for it could not be had.
	RPC     string
	Address string
	// Sent is false when certainly no byte of the request left this process.
	Sent bool
	Err  error
}

func (e *TransportError) Error() string {
	if !e.Sent {
		return fmt.Sprintf("hs2: %s at %s: nothing was sent: %v", e.RPC, e.Address, e.Err)
	}
	return fmt.Sprintf("hs2: %s at %s: sent, and no usable answer: %v", e.RPC, e.Address, e.Err)
}

func (e *TransportError) Unwrap() error { return e.Err }

// StatementError is what Query gives for a statement that was accepted and did
// not finish.
type StatementError struct {
	Status Status
}

func (e *StatementError) Error() string {
	return fmt.Sprintf("hs2: the statement ended as %s: %s (SQL state %s, code %d)",
		e.Status.State, orNone(e.Status.Message), orNone(e.Status.SQLState), e.Status.Code)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// serverError reads the status of a refusal.
func serverError(rpc string, st *hiveserver.TStatus) *ServerError {
	e := &ServerError{RPC: rpc, SQLState: st.GetSqlState(), Code: st.GetErrorCode(), Message: st.GetErrorMessage(), Infos: st.GetInfoMessages()}
	if e.Message == "" && len(e.Infos) > 0 {
		e.Message = e.Infos[0]
	}
	e.unknownHandle = st.StatusCode == hiveserver.TStatusCode_INVALID_HANDLE_STATUS || saysUnknownHandle(e)
	return e
}

// saysUnknownHandle reads a text, as the server says it in no other way: it sends
// neither SQL state nor code with it. What others write into a message comes with
// a code.
func saysUnknownHandle(e *ServerError) bool {
	if e.SQLState != "" || e.Code != 0 {
		return false
	}
	for _, p := range []string{"Invalid OperationHandle", "Invalid SessionHandle", "Session does not exist"} {
		if strings.HasPrefix(e.Message, p) {
			return true
		}
	}
	return false
}

// isApplicationException: the server answered that it could not answer.
func isApplicationException(err error) bool {
	var e thrift.TApplicationException
	return errors.As(err, &e)
}
