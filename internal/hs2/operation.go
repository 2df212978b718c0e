package hs2

import (
	"context"
	"errors"
	"time"

	"github.com/beltran/gohive/hiveserver"
)

// Operation is a statement that the server accepted. It is safe for concurrent
// use, but for Rows and Logs, which share the server's cursors.
type Operation struct {
	c *Client
	h OperationHandle
}

// Handle names the operation, for a store.
func (o *Operation) Handle() OperationHandle { return o.h }

// QueryID is the server's name of the statement, in its logs and query list. It
// is empty with servers that keep none.
func (o *Operation) QueryID(ctx context.Context) (string, error) {
	const rpc = "GetQueryId"
	req := &hiveserver.TGetQueryIdReq{OperationHandle: o.h.thrift()}
	var id string
	err := o.c.call(ctx, callOptions{rpc: rpc, read: true}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) error {
		resp, err := stub.GetQueryId(ctx, req)
		if err == nil {
			id = resp.GetQueryId()
		}
		return err
	})
	if err != nil && ctx.Err() == nil && isApplicationException(err) {
		// This call has no status to answer with, so an unknown handle is an
		// internal error. Asked otherwise, the server says what it is.
		if _, serr := o.once(ctx); errors.Is(serr, ErrUnknownHandle) {
			return "", serr
		}
	}
	return id, err
}

// errorPause is how long the server gets to attach the reason to an error.
const errorPause = 100 * time.Millisecond

// Status asks once. While the statement runs, the server may hold its answer for
// up to 5 s. An error whose reason is missing is asked for once more, as the server
// shows the state a moment before the reason.
//
// [ErrUnknownHandle] says nothing of what became of the statement.
func (o *Operation) Status(ctx context.Context) (Status, error) {
	st, err := o.once(ctx)
	if err != nil || st.State != Error || st.Code != 0 {
		return st, err
	}
	if !pause(ctx, errorPause) {
		return st, nil
	}
	if again, err := o.once(ctx); err == nil {
		return again, nil
	}
	return st, nil // an answer, if a poor one
}

func (o *Operation) once(ctx context.Context) (Status, error) {
	const rpc = "GetOperationStatus"
	// With progress, the server may wait for half a minute until there is some.
	progress := false
	req := &hiveserver.TGetOperationStatusReq{OperationHandle: o.h.thrift(), GetProgressUpdate: &progress}
	var resp *hiveserver.TGetOperationStatusResp
	err := o.c.call(ctx, callOptions{rpc: rpc, read: true}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.GetOperationStatus(ctx, req)
		return err
	})
	if err != nil {
		return Status{}, err
	}
	if err := o.c.check(rpc, resp.GetStatus()); err != nil {
		return Status{}, err
	}
	return o.status(resp), nil
}

// Pauses of Wait: between answers that came at once, and after lost ones.
const (
	shortPause  = 20 * time.Millisecond
	longPause   = 500 * time.Millisecond
	lostAnswers = 3 // in a row, until Wait gives up
)

// Wait asks until the state is final or the context ends, and tells each answer
// to each, which may be nil. It gives up when the server cannot be asked several
// times in a row, and at once on a [ServerError]; the statement goes on in either
// case, and Wait may be called again.
func (o *Operation) Wait(ctx context.Context, each func(Status)) (Status, error) {
	wait, lost := shortPause, 0
	for {
		asked := time.Now()
		st, err := o.Status(ctx)
		var te *TransportError
		switch {
		case err == nil:
			lost = 0
			if each != nil {
				each(st)
			}
			if st.State.Final() {
				return st, nil
			}
			if time.Since(asked) > longPause {
				wait = 0 // the server holds its answers, which is pause enough
			}
		case errors.As(err, &te) && ctx.Err() == nil && lost < lostAnswers && !errors.Is(err, ErrClosed):
			lost++
			wait = longPause
		default:
			return st, err
		}
		if !pause(ctx, wait) {
			return st, &TransportError{RPC: "GetOperationStatus", Address: o.c.cfg.Address, Err: ending(ctx, 0)}
		}
		wait = min(2*max(wait, shortPause), longPause)
	}
}

// Cancel asks the server to interrupt the statement. What it has done by then is
// not undone. The call may take several seconds.
func (o *Operation) Cancel(ctx context.Context) error {
	const rpc = "CancelOperation"
	req := &hiveserver.TCancelOperationReq{OperationHandle: o.h.thrift()}
	var resp *hiveserver.TCancelOperationResp
	err := o.c.call(ctx, callOptions{rpc: rpc}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.CancelOperation(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	return o.c.check(rpc, resp.GetStatus())
}

// Close makes the server forget the operation. One that still runs is cancelled.
func (o *Operation) Close(ctx context.Context) error {
	const rpc = "CloseOperation"
	req := &hiveserver.TCloseOperationReq{OperationHandle: o.h.thrift()}
	var resp *hiveserver.TCloseOperationResp
	err := o.c.call(ctx, callOptions{rpc: rpc}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.CloseOperation(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	return o.c.check(rpc, resp.GetStatus())
}

// pause waits, unless the context ends.
func pause(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
