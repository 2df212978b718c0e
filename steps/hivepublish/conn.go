package hivepublish

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/commitstep/engine/internal/hs2"
)

// conn is what the kinds ask of a HiveServer2. Tests put a fake or a fault in its
// place. Errors are those of package hs2: *hs2.ServerError is a definite answer,
// *hs2.TransportError none.
type conn interface {
	Address() string
	OpenSession(ctx context.Context, conf map[string]string) (sessionRef, error)
	// SessionAlive is false only when the server says that it does not know it.
	SessionAlive(ctx context.Context, s sessionRef) (bool, error)
	CloseSession(ctx context.Context, s sessionRef) error
	// Submit returns once the server accepted or refused the statement.
	Submit(ctx context.Context, s sessionRef, sql string, overlay map[string]string) (operationRef, error)
	Status(ctx context.Context, o operationRef) (hs2.Status, error)
	QueryID(ctx context.Context, o operationRef) (string, error)
	Logs(ctx context.Context, o operationRef) ([]string, error)
	Fetch(ctx context.Context, o operationRef) (*hs2.Table, error)
	CloseOperation(ctx context.Context, o operationRef) error
	// Single is false when the address certainly leads to more than one server.
	Single(ctx context.Context) (bool, error)
}

// queryLister reads the server's list of statements, an *hs2.QueryList.
type queryLister interface {
	Find(ctx context.Context, text string) ([]hs2.Query, error)
}

// sessionRef is a session as it is noted. Whoever has the handle can use the
// session, so it is never printed.
type sessionRef struct {
	handle string
	guid   string
}

// operationRef is an operation as it is noted.
type operationRef struct {
	handle string
	guid   string
}

type storedRef struct {
	GUID string `json:"guid"`
	// Handle is a credential; whoever prints notes leaves it out.
	Handle string `json:"handle"`
}

func (r sessionRef) String() string   { return r.guid }
func (r sessionRef) GoString() string { return r.guid }
func (r sessionRef) IsZero() bool     { return r.handle == "" }

func (r operationRef) String() string   { return r.guid }
func (r operationRef) GoString() string { return r.guid }
func (r operationRef) IsZero() bool     { return r.handle == "" }

func (r sessionRef) MarshalJSON() ([]byte, error)   { return json.Marshal(storedRef{r.guid, r.handle}) }
func (r operationRef) MarshalJSON() ([]byte, error) { return json.Marshal(storedRef{r.guid, r.handle}) }

func (r *sessionRef) UnmarshalJSON(b []byte) error {
	var s storedRef
	err := json.Unmarshal(b, &s)
	r.guid, r.handle = s.GUID, s.Handle
	return err
}

func (r *operationRef) UnmarshalJSON(b []byte) error {
	var s storedRef
	err := json.Unmarshal(b, &s)
	r.guid, r.handle = s.GUID, s.Handle
	return err
}

// client is a conn on the real protocol.
type client struct{ c *hs2.Client }

var _ conn = client{}

func (c client) Address() string { return c.c.Address() }

func (c client) Single(ctx context.Context) (bool, error) { return c.c.Single(ctx) }

func (c client) session(s sessionRef) (*hs2.Session, error) {
	var h hs2.SessionHandle
	if err := h.UnmarshalText([]byte(s.handle)); err != nil {
		return nil, fmt.Errorf("noted session %s: %w", s.guid, err)
	}
	return c.c.Session(h), nil
}

func (c client) operation(o operationRef) (*hs2.Operation, error) {
	var h hs2.OperationHandle
	if err := h.UnmarshalText([]byte(o.handle)); err != nil {
		return nil, fmt.Errorf("noted operation %s: %w", o.guid, err)
	}
	return c.c.Operation(h), nil
}

func (c client) OpenSession(ctx context.Context, conf map[string]string) (sessionRef, error) {
	s, err := c.c.OpenSession(ctx, conf)
	if err != nil {
		return sessionRef{}, err
	}
	h, err := s.Handle().MarshalText()
	if err != nil {
		return sessionRef{}, err
	}
	return sessionRef{handle: string(h), guid: s.Handle().GUID()}, nil
}

func (c client) SessionAlive(ctx context.Context, ref sessionRef) (bool, error) {
	s, err := c.session(ref)
	if err != nil {
		return false, err
	}
	return s.Alive(ctx)
}

func (c client) CloseSession(ctx context.Context, ref sessionRef) error {
	s, err := c.session(ref)
	if err != nil {
		return err
	}
	return s.Close(ctx)
}

func (c client) Submit(ctx context.Context, ref sessionRef, sql string, overlay map[string]string) (operationRef, error) {
	s, err := c.session(ref)
	if err != nil {
		return operationRef{}, err
	}
	o, err := s.Execute(ctx, sql, overlay)
	if err != nil {
		return operationRef{}, err
	}
	h, err := o.Handle().MarshalText()
	if err != nil {
		return operationRef{}, err
	}
	return operationRef{handle: string(h), guid: o.Handle().GUID()}, nil
}

func (c client) Status(ctx context.Context, ref operationRef) (hs2.Status, error) {
	o, err := c.operation(ref)
	if err != nil {
		return hs2.Status{}, err
	}
	return o.Status(ctx)
}

func (c client) QueryID(ctx context.Context, ref operationRef) (string, error) {
	o, err := c.operation(ref)
	if err != nil {
		return "", err
	}
	return o.QueryID(ctx)
}

func (c client) Logs(ctx context.Context, ref operationRef) ([]string, error) {
	o, err := c.operation(ref)
	if err != nil {
		return nil, err
	}
	return o.Logs(ctx)
}

func (c client) CloseOperation(ctx context.Context, ref operationRef) error {
	o, err := c.operation(ref)
	if err != nil {
		return err
	}
	return o.Close(ctx)
}

// maxRows bounds what a metric or a description may return.
const maxRows = 100_000

func (c client) Fetch(ctx context.Context, ref operationRef) (*hs2.Table, error) {
	o, err := c.operation(ref)
	if err != nil {
		return nil, err
	}
	rows, err := o.Rows(ctx)
	if err != nil {
		return nil, err
	}
	t := &hs2.Table{Columns: rows.Columns()}
	for row, err := range rows.All() {
		if err != nil {
			return nil, err
		}
		if len(t.Rows) == maxRows {
			return nil, fmt.Errorf("more than %d rows: %w", maxRows, hs2.ErrTooManyRows)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}
