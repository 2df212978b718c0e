package hivepublish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commitstep/engine/internal/hs2"
)

var errDown = errors.New("connection refused")

// call passes one RPC through the point of that name.
func (w *warehouse) call(ctx context.Context, rpc string, fn func() error) error {
	return w.points.Do(rpc, func() error {
		if err := ctx.Err(); err != nil {
			return &hs2.TransportError{RPC: rpc, Err: err}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, rpc)
		if w.down {
			return &hs2.TransportError{RPC: rpc, Err: errDown}
		}
		return fn()
	})
}

func unknownHandle(rpc string) error {
	return errors.Join(&hs2.ServerError{RPC: rpc, Message: "Invalid handle"}, hs2.ErrUnknownHandle)
}

func (w *warehouse) id(what string) string {
	w.next++
	return fmt.Sprintf("%s-%d", what, w.next)
}

func (w *warehouse) Address() string { return cmp.Or(w.addr, "fake:10000") }

func (w *warehouse) Single(context.Context) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return false, &hs2.TransportError{RPC: "OpenSession", Err: errDown}
	}
	return !w.balanced, nil
}

func (w *warehouse) OpenSession(ctx context.Context, conf map[string]string) (ref sessionRef, err error) {
	err = w.call(ctx, "OpenSession", func() error {
		ref = sessionRef{handle: w.id("session")}
		ref.guid = "guid-" + ref.handle
		w.sessions[ref.handle] = &fakeSession{}
		return nil
	})
	if err != nil {
		return sessionRef{}, err
	}
	w.mu.Lock()
	opened := w.opened
	w.mu.Unlock()
	if opened != nil {
		opened(conf)
	}
	return ref, nil
}

func (w *warehouse) SessionAlive(ctx context.Context, s sessionRef) (alive bool, err error) {
	err = w.call(ctx, "GetInfo", func() error {
		alive = w.sessions[s.handle] != nil
		return nil
	})
	return alive, err
}

func (w *warehouse) CloseSession(ctx context.Context, s sessionRef) error {
	return w.call(ctx, "CloseSession", func() error {
		if w.sessions[s.handle] == nil {
			return unknownHandle("CloseSession")
		}
		delete(w.sessions, s.handle)
		for h, o := range w.ops {
			if o.session == s.handle {
				w.end(h)
			}
		}
		return nil
	})
}

func isLook(sql string) bool {
	return strings.HasPrefix(sql, "DESCRIBE") || strings.HasPrefix(sql, "SHOW") || strings.HasPrefix(sql, "/* commitstep metric */") || strings.HasSuffix(sql, "LIMIT 0") || strings.HasPrefix(sql, "DROP")
}

func (w *warehouse) Submit(ctx context.Context, s sessionRef, sql string, _ map[string]string) (ref operationRef, err error) {
	name := "ExecuteStatement"
	if isLook(sql) {
		name = "ExecuteStatement of a look"
	}
	err = w.call(ctx, name, func() error {
		if w.sessions[s.handle] == nil {
			return unknownHandle("ExecuteStatement")
		}
		o := &fakeOp{}
		if w.script != nil {
			if scripted := w.script(sql); scripted != nil {
				o = scripted
			}
		}
		if o.refuse != nil {
			return o.refuse
		}
		o.session, o.sql = s.handle, sql
		w.session = s.handle
		if o.apply == nil {
			o.apply = func() (*hs2.Table, error) { return w.run(sql) }
		}
		if o.held {
			session := w.sessions[s.handle]
			session.held = append(session.held, func() { _, _ = o.apply() })
			return &hs2.TransportError{RPC: "ExecuteStatement", Sent: true, Err: errors.New("cut")}
		}
		w.log = append(w.log, sql)
		if o.status.State == hs2.Unknown {
			t, rerr := o.apply()
			if rerr != nil && compile(rerr) {
				return rerr
			}
			o.table = t
			o.status = hs2.Status{State: hs2.Finished, HasResult: t != nil}
			if rerr != nil {
				o.status = hs2.Status{State: hs2.Error, SQLState: "08S01", Code: 40000, Message: rerr.Error()}
			}
		}
		ref = operationRef{handle: w.id("operation")}
		ref.guid = "guid-" + ref.handle
		w.ops[ref.handle] = o
		if o.lost {
			return &hs2.TransportError{RPC: "ExecuteStatement", Sent: true, Err: errors.New("cut")}
		}
		return nil
	})
	if err != nil {
		ref = operationRef{}
	}
	return ref, err
}

func compile(err error) bool {
	var se *hs2.ServerError
	return errors.As(err, &se)
}

// letGo lets every statement on its way arrive. It takes effect where its session
// is still open; returned is how many did.
func (w *warehouse) letGo() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.sessions {
		for _, f := range s.held {
			f()
			n++
		}
		s.held = nil
	}
	return n
}

// restart forgets all sessions and operations.
func (w *warehouse) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions, w.ops, w.closed = map[string]*fakeSession{}, map[string]*fakeOp{}, nil
}

// end closes an operation. The state that it has then stays in the list for ever.
func (w *warehouse) end(handle string) {
	q := w.listed(handle)
	q.Running, q.End = false, time.Now()
	delete(w.ops, handle)
	w.closed = append(w.closed, q)
	w.closed = w.closed[max(0, len(w.closed)-shortKeeps):]
}

func (w *warehouse) listed(handle string) hs2.Query {
	o := w.ops[handle]
	return hs2.Query{State: o.status.State, StateText: o.status.State.String(), QueryID: "hive_guid-" + handle, Operation: "guid-" + handle, Session: "guid-" + o.session, Text: o.sql, Running: true}
}

func (w *warehouse) op(rpc string, o operationRef) (*fakeOp, error) {
	op := w.ops[o.handle]
	if op == nil {
		return nil, unknownHandle(rpc)
	}
	return op, nil
}

func (w *warehouse) Status(ctx context.Context, o operationRef) (st hs2.Status, err error) {
	w.mu.Lock()
	looked, op := w.looked, w.ops[o.handle]
	w.mu.Unlock()
	if looked != nil && op != nil {
		looked(ctx, op.sql)
	}
	err = w.call(ctx, "GetOperationStatus", func() error {
		op, err := w.op("GetOperationStatus", o)
		if err == nil {
			st = op.status
		}
		return err
	})
	return st, err
}

func (w *warehouse) QueryID(ctx context.Context, o operationRef) (id string, err error) {
	err = w.call(ctx, "GetQueryId", func() error {
		_, err := w.op("GetQueryId", o)
		id = "hive_" + o.guid
		return err
	})
	return id, err
}

func (w *warehouse) Logs(ctx context.Context, o operationRef) (lines []string, err error) {
	err = w.call(ctx, "FetchResults of the log", func() error {
		_, err := w.op("FetchResults", o)
		lines = []string{"a log line"}
		return err
	})
	return lines, err
}

func (w *warehouse) Fetch(ctx context.Context, o operationRef) (t *hs2.Table, err error) {
	err = w.call(ctx, "FetchResults", func() error {
		op, err := w.op("FetchResults", o)
		if err == nil {
			t = op.table
		}
		return err
	})
	return t, err
}

func (w *warehouse) CloseOperation(ctx context.Context, o operationRef) error {
	rpc := "CloseOperation"
	w.mu.Lock()
	op := w.ops[o.handle]
	w.mu.Unlock()
	end := func() error {
		if _, err := w.op(rpc, o); err != nil {
			return err
		}
		w.end(o.handle)
		return nil
	}
	if op != nil && isLook(op.sql) {
		// It does no harm when this fails, so it is no point of a step.
		w.mu.Lock()
		defer w.mu.Unlock()
		return end()
	}
	return w.call(ctx, rpc, end)
}

// Find reads the web UI's list.
func (w *warehouse) Find(_ context.Context, text string) ([]hs2.Query, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return nil, errDown
	}
	var all []hs2.Query
	for h := range w.ops {
		all = append(all, w.listed(h))
	}
	all = append(all, w.closed...)
	return slices.DeleteFunc(all, func(q hs2.Query) bool { return !strings.Contains(q.Text, text) }), nil
}
