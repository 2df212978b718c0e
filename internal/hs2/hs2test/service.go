package hs2test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hiveserver"
	"github.com/commitstep/engine/internal/hs2"
	"github.com/google/uuid"
)

type session struct {
	id   uuid.UUID
	key  uuid.UUID // the secret half
	conf map[string]string
	user string
}

type operation struct {
	id, key uuid.UUID
	session string
	user    string
	sql     string
	queryID string
	run     Run
	at      int // the step of the next answer
	fetched int
	logged  int
	begin   time.Time
	final   *Step // cancelled
}

func (o *operation) step() Step {
	switch {
	case o.final != nil:
		return *o.final
	case len(o.run.Steps) == 0:
		return Step{State: hs2.Finished, Tasks: TasksNone, Modified: new(int64)}
	}
	return o.run.Steps[min(o.at, len(o.run.Steps)-1)]
}

func (o *operation) next() {
	if o.at < len(o.run.Steps)-1 {
		o.at++
	}
}

// service is the server as one connection sees it.
type service struct {
	hiveserver.TCLIService // what is not here ends the connection
	*Server
	opened map[string]bool // sessions that end with the connection
}

var errInternal = errors.New("made to fail")

// exchange is what becomes of the present call's answer.
type exchange struct{ rubbish []byte }

type exchangeKey struct{}

// enter meets the hooks before the effect, and returns what to do after it.
func (s *service) enter(ctx context.Context, rpc string) (leave func() error, err error) {
	s.mu.Lock()
	s.calls[rpc]++
	hooks := slices.Clone(s.hooks)
	s.mu.Unlock()
	leave = func() error { return nil }
	for _, h := range hooks {
		if !h.meets(rpc) {
			continue
		}
		hang := func() error {
			select {
			case <-h.release:
				return nil
			case <-s.done:
				return thrift.ErrAbandonRequest
			}
		}
		switch h.do {
		case CutBefore:
			return nil, thrift.ErrAbandonRequest
		case Exception:
			return nil, errInternal
		case CutAfter:
			leave = func() error { return thrift.ErrAbandonRequest }
		case Hang:
			leave = hang
		case HangBefore:
			if err := hang(); err != nil {
				return nil, err
			}
		case Rubbish:
			leave = func() error {
				if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
					x.rubbish = h.bytes
				}
				return nil
			}
		}
		break
	}
	return leave, nil
}

// serve is one call: f has the effect, with the server locked.
func serve[T any](ctx context.Context, s *service, rpc string, f func() (*T, error)) (*T, error) {
	leave, err := s.enter(ctx, rpc)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	resp, err := f()
	s.mu.Unlock()
	if lerr := leave(); lerr != nil {
		return nil, lerr
	}
	return resp, err
}

func success() *hiveserver.TStatus {
	return &hiveserver.TStatus{StatusCode: hiveserver.TStatusCode_SUCCESS_STATUS}
}

func refusal(f Failure) *hiveserver.TStatus {
	st := &hiveserver.TStatus{StatusCode: hiveserver.TStatusCode_ERROR_STATUS, ErrorCode: &f.Code, ErrorMessage: &f.Message,
		InfoMessages: []string{"Server-side error; please check HS2 logs."}}
	if f.SQLState != "" {
		st.SqlState = &f.SQLState
	}
	return st
}

func (s *service) session(h *hiveserver.TSessionHandle) (*session, string) {
	guid := guidOf(h.GetSessionId())
	if found := s.sessions[guid]; found != nil && string(found.key[:]) == string(h.GetSessionId().GetSecret()) {
		return found, guid
	}
	return nil, guid
}

func invalidSession(guid string) *hiveserver.TStatus {
	return refusal(Failure{Message: "Invalid SessionHandle: SessionHandle [" + guid + "]"})
}

func (s *service) operation(h *hiveserver.TOperationHandle) (*operation, *hiveserver.TStatus) {
	guid := guidOf(h.GetOperationId())
	if found := s.operations[guid]; found != nil && string(found.key[:]) == string(h.GetOperationId().GetSecret()) {
		return found, nil
	}
	return nil, refusal(Failure{Message: "Invalid OperationHandle: OperationHandle [opType=EXECUTE_STATEMENT, getHandleIdentifier()=" + guid + "]"})
}

func guidOf(h *hiveserver.THandleIdentifier) string {
	id, err := uuid.FromBytes(h.GetGUID())
	if err != nil {
		return "damaged"
	}
	return id.String()
}

func identifier(id, key uuid.UUID) *hiveserver.THandleIdentifier {
	return &hiveserver.THandleIdentifier{GUID: id[:], Secret: key[:]}
}

func (s *service) OpenSession(ctx context.Context, req *hiveserver.TOpenSessionReq) (*hiveserver.TOpenSessionResp, error) {
	return serve(ctx, s, "OpenSession", func() (*hiveserver.TOpenSessionResp, error) {
		n := &session{id: uuid.New(), key: uuid.New(), conf: req.GetConfiguration(), user: req.GetUsername()}
		s.sessions[n.id.String()] = n
		if n.conf["hive.server2.close.session.on.disconnect"] != "false" {
			s.opened[n.id.String()] = true
		}
		return &hiveserver.TOpenSessionResp{Status: success(), ServerProtocolVersion: min(req.ClientProtocol, s.o.protocol()),
			SessionHandle: &hiveserver.TSessionHandle{SessionId: identifier(n.id, n.key)}}, nil
	})
}

func (s *service) CloseSession(ctx context.Context, req *hiveserver.TCloseSessionReq) (*hiveserver.TCloseSessionResp, error) {
	return serve(ctx, s, "CloseSession", func() (*hiveserver.TCloseSessionResp, error) {
		found, guid := s.session(req.GetSessionHandle())
		if found == nil {
			return &hiveserver.TCloseSessionResp{Status: refusal(Failure{Message: "Session does not exist: SessionHandle [" + guid + "]"})}, nil
		}
		s.endSession(guid)
		return &hiveserver.TCloseSessionResp{Status: success()}, nil
	})
}

// endSession closes a session and its operations.
func (s *Server) endSession(guid string) {
	delete(s.sessions, guid)
	for _, o := range s.operations {
		if o.session == guid {
			s.endOperation(o)
		}
	}
}

func (s *Server) endOperation(o *operation) {
	if !o.step().State.Final() {
		o.final = &Step{State: hs2.Canceled}
	}
	s.historical = append(s.historical, o)
	delete(s.operations, o.id.String())
}

func (s *service) GetInfo(ctx context.Context, req *hiveserver.TGetInfoReq) (*hiveserver.TGetInfoResp, error) {
	return serve(ctx, s, "GetInfo", func() (*hiveserver.TGetInfoResp, error) {
		if found, _ := s.session(req.GetSessionHandle()); found == nil {
			return nil, thrift.ErrAbandonRequest // as Hive, which cannot encode its answer
		}
		version := "4.0.1"
		return &hiveserver.TGetInfoResp{Status: success(), InfoValue: &hiveserver.TGetInfoValue{StringValue: &version}}, nil
	})
}

func (s *service) GetTypeInfo(ctx context.Context, req *hiveserver.TGetTypeInfoReq) (*hiveserver.TGetTypeInfoResp, error) {
	return serve(ctx, s, "GetTypeInfo", func() (*hiveserver.TGetTypeInfoResp, error) {
		found, guid := s.session(req.GetSessionHandle())
		if found == nil {
			return &hiveserver.TGetTypeInfoResp{Status: invalidSession(guid)}, nil
		}
		o := s.add(found, "", Run{})
		return &hiveserver.TGetTypeInfoResp{Status: success(), OperationHandle: o.handle(hiveserver.TOperationType_GET_TYPE_INFO)}, nil
	})
}

func (s *service) add(in *session, sql string, run Run) *operation {
	o := &operation{id: uuid.New(), key: uuid.New(), session: in.id.String(), user: in.user, sql: sql, run: run, begin: time.Now()}
	o.queryID = fmt.Sprintf("hive_%s_%s", o.begin.UTC().Format("20060102150405"), uuid.New())
	s.operations[o.id.String()] = o
	return o
}

func (o *operation) handle(kind hiveserver.TOperationType) *hiveserver.TOperationHandle {
	return &hiveserver.TOperationHandle{OperationId: identifier(o.id, o.key), OperationType: kind, HasResultSet: o.hasResult()}
}

func (o *operation) hasResult() bool { return o.run.Columns != nil }

func (s *service) ExecuteStatement(ctx context.Context, req *hiveserver.TExecuteStatementReq) (*hiveserver.TExecuteStatementResp, error) {
	return serve(ctx, s, "ExecuteStatement", func() (*hiveserver.TExecuteStatementResp, error) {
		found, guid := s.session(req.GetSessionHandle())
		st := Statement{SQL: req.GetStatement(), Overlay: req.GetConfOverlay(), Session: guid, Async: req.GetRunAsync()}
		defer func() { s.submitted = append(s.submitted, st) }()
		if found == nil {
			return &hiveserver.TExecuteStatementResp{Status: invalidSession(guid)}, nil
		}
		run := s.runOf(st.SQL)
		if run.Reject != nil {
			return &hiveserver.TExecuteStatementResp{Status: refusal(*run.Reject)}, nil
		}
		o := s.add(found, st.SQL, run)
		st.Operation = o.id.String()
		return &hiveserver.TExecuteStatementResp{Status: success(), OperationHandle: o.handle(hiveserver.TOperationType_EXECUTE_STATEMENT)}, nil
	})
}

func (s *service) GetQueryId(ctx context.Context, req *hiveserver.TGetQueryIdReq) (*hiveserver.TGetQueryIdResp, error) {
	return serve(ctx, s, "GetQueryId", func() (*hiveserver.TGetQueryIdResp, error) {
		o, bad := s.operation(req.GetOperationHandle())
		if bad != nil {
			return nil, errors.New(bad.GetErrorMessage())
		}
		return &hiveserver.TGetQueryIdResp{QueryId: o.queryID}, nil
	})
}

var wire = map[hs2.State]hiveserver.TOperationState{
	hs2.Initialized: hiveserver.TOperationState_INITIALIZED_STATE,
	hs2.Pending:     hiveserver.TOperationState_PENDING_STATE,
	hs2.Running:     hiveserver.TOperationState_RUNNING_STATE,
	hs2.Finished:    hiveserver.TOperationState_FINISHED_STATE,
	hs2.Canceled:    hiveserver.TOperationState_CANCELED_STATE,
	hs2.Closed:      hiveserver.TOperationState_CLOSED_STATE,
	hs2.Error:       hiveserver.TOperationState_ERROR_STATE,
	hs2.TimedOut:    hiveserver.TOperationState_TIMEDOUT_STATE,
	hs2.Unknown:     hiveserver.TOperationState_UKNOWN_STATE,
}

func (s *service) GetOperationStatus(ctx context.Context, req *hiveserver.TGetOperationStatusReq) (*hiveserver.TGetOperationStatusResp, error) {
	return serve(ctx, s, "GetOperationStatus", func() (*hiveserver.TGetOperationStatusResp, error) {
		o, bad := s.operation(req.GetOperationHandle())
		if bad != nil {
			return &hiveserver.TGetOperationStatusResp{Status: bad}, nil
		}
		step := o.step()
		o.next()
		state, started, has := wire[step.State], o.begin.UnixMilli(), o.hasResult()
		r := &hiveserver.TGetOperationStatusResp{Status: success(), OperationState: &state, OperationStarted: &started, HasResultSet: &has, NumModifiedRows: step.Modified}
		if step.Tasks != "" {
			r.TaskStatus = &step.Tasks
		}
		if step.SQLState != "" {
			r.SqlState = &step.SQLState
		}
		if step.Code != 0 {
			r.ErrorCode = &step.Code
		}
		if step.Message != "" {
			r.ErrorMessage = &step.Message
		}
		if step.State.Final() {
			completed := time.Now().UnixMilli()
			r.OperationCompleted = &completed
		}
		return r, nil
	})
}

func (s *service) CancelOperation(ctx context.Context, req *hiveserver.TCancelOperationReq) (*hiveserver.TCancelOperationResp, error) {
	return serve(ctx, s, "CancelOperation", func() (*hiveserver.TCancelOperationResp, error) {
		o, bad := s.operation(req.GetOperationHandle())
		if bad != nil {
			return &hiveserver.TCancelOperationResp{Status: bad}, nil
		}
		if !o.step().State.Final() {
			o.final = &Step{State: hs2.Canceled}
		}
		return &hiveserver.TCancelOperationResp{Status: success()}, nil
	})
}

func (s *service) CloseOperation(ctx context.Context, req *hiveserver.TCloseOperationReq) (*hiveserver.TCloseOperationResp, error) {
	return serve(ctx, s, "CloseOperation", func() (*hiveserver.TCloseOperationResp, error) {
		o, bad := s.operation(req.GetOperationHandle())
		if bad != nil {
			return &hiveserver.TCloseOperationResp{Status: bad}, nil
		}
		s.endOperation(o)
		return &hiveserver.TCloseOperationResp{Status: success()}, nil
	})
}
