package hs2

import (
	"context"
	"errors"

	"github.com/beltran/gohive/hiveserver"
)

// Session is a session of the server. It is safe for concurrent use; the server
// compiles the statements of one session one after another.
type Session struct {
	c *Client
	h SessionHandle
}

// Handle names the session, for a store.
func (s *Session) Handle() SessionHandle { return s.h }

// Alive is false only on a definite answer that the server does not know the
// session. An error means that nobody knows. Asking counts as use of the session.
func (s *Session) Alive(ctx context.Context) (bool, error) {
	err := s.getInfo(ctx)
	var te *TransportError
	if errors.As(err, &te) && te.Sent && ctx.Err() == nil && !errors.Is(err, ErrCallTimeout) {
		// Hive has an answer for an unknown session which it cannot encode, and ends
		// the connection instead. This call has an answer for it.
		err = s.getTypeInfo(ctx)
	}
	if errors.Is(err, ErrUnknownHandle) {
		return false, nil
	}
	return err == nil, err
}

func (s *Session) getInfo(ctx context.Context) error {
	const rpc = "GetInfo"
	req := &hiveserver.TGetInfoReq{SessionHandle: s.h.thrift(), InfoType: hiveserver.TGetInfoType_CLI_DBMS_VER}
	var resp *hiveserver.TGetInfoResp
	err := s.c.call(ctx, callOptions{rpc: rpc, read: true}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.GetInfo(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	return s.c.check(rpc, resp.GetStatus())
}

// getTypeInfo opens an operation that reads nothing but constants, and closes it.
func (s *Session) getTypeInfo(ctx context.Context) error {
	const rpc = "GetTypeInfo"
	req := &hiveserver.TGetTypeInfoReq{SessionHandle: s.h.thrift()}
	var resp *hiveserver.TGetTypeInfoResp
	err := s.c.call(ctx, callOptions{rpc: rpc}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.GetTypeInfo(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.c.check(rpc, resp.GetStatus()); err != nil {
		return err
	}
	if h, err := operationHandle(resp.GetOperationHandle()); err == nil {
		_ = s.c.Operation(h).Close(ctx) // else it ends with its session
	}
	return nil
}

// Close closes the session. What runs in it is cancelled, wherever it is. The
// error is [ErrUnknownHandle] when the server does not know the session (any more).
func (s *Session) Close(ctx context.Context) error {
	const rpc = "CloseSession"
	req := &hiveserver.TCloseSessionReq{SessionHandle: s.h.thrift()}
	var resp *hiveserver.TCloseSessionResp
	err := s.c.call(ctx, callOptions{rpc: rpc}, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.CloseSession(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	return s.c.check(rpc, resp.GetStatus())
}

// Execute submits a statement, with overlay added to the session's configuration
// for it, and returns once the server accepted it; it runs on by itself then.
//
// A *[ServerError] means that it was not accepted and will not run. A
// *[TransportError] with Sent means that it may run, may have run, or may not;
// without Sent the server never saw it.
//
// By default the server compiles the statement before it answers, which may take
// minutes; SubmitTimeout bounds it.
func (s *Session) Execute(ctx context.Context, sql string, overlay map[string]string) (*Operation, error) {
	const rpc = "ExecuteStatement"
	req := hiveserver.NewTExecuteStatementReq()
	req.SessionHandle, req.Statement, req.ConfOverlay, req.RunAsync = s.h.thrift(), sql, overlay, true
	var resp *hiveserver.TExecuteStatementResp
	o := callOptions{rpc: rpc, timeout: s.c.cfg.SubmitTimeout, trust: trustFor}
	err := s.c.call(ctx, o, func(ctx context.Context, stub *hiveserver.TCLIServiceClient) (err error) {
		resp, err = stub.ExecuteStatement(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.c.check(rpc, resp.GetStatus()); err != nil {
		return nil, err
	}
	h, err := operationHandle(resp.GetOperationHandle())
	if err != nil {
		return nil, s.c.rubbish(rpc, err)
	}
	return &Operation{s.c, h}, nil
}
