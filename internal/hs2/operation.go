package hs2

import "context"

// Operation is a statement that the server accepted.
type Operation struct {
	c *Client
	h OperationHandle
}

// Handle names the operation, for a store.
func (o *Operation) Handle() OperationHandle { return o.h }

// QueryID is the server's name of the statement, in its logs and query list.
func (o *Operation) QueryID(ctx context.Context) (string, error) { return "", errNotYet }

// Status asks once. The server may hold its answer for up to 5 s while the
// statement runs.
func (o *Operation) Status(ctx context.Context) (Status, error) { return Status{}, errNotYet }

// Wait asks until the state is final or the context ends, and tells each answer
// to each, which may be nil.
func (o *Operation) Wait(ctx context.Context, each func(Status)) (Status, error) {
	return Status{}, errNotYet
}

// Cancel asks the server to interrupt the statement.
func (o *Operation) Cancel(ctx context.Context) error { return errNotYet }

// Close forgets the operation at the server; one that runs is cancelled.
func (o *Operation) Close(ctx context.Context) error { return errNotYet }

// Logs are the lines that the server keeps of the statement.
func (o *Operation) Logs(ctx context.Context) ([]string, error) { return nil, errNotYet }

// Rows opens the result.
func (o *Operation) Rows(ctx context.Context) (*Rows, error) { return nil, errNotYet }
