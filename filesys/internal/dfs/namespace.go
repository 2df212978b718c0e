package dfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// ErrOtherNamespace: the name nodes serve another namespace than the one that
// this file system was used with before. Nothing more is done with it until it
// is opened anew.
var ErrOtherNamespace = errors.New("the name service leads to another namespace than before")

// Namespace knows which namespace the file ids belong to: files of two
// clusters have the same numbers. Safe for concurrent use.
type Namespace struct {
	// Ask gets the namespace from a name node; nil when it is Fixed.
	Ask func(ctx context.Context) (string, error)
	// Fixed is configured.
	Fixed string

	mu     sync.Mutex
	known  string
	fresh  bool
	flight *flight
	ctx    context.Context // of the questions; it ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// flight is one question that many wait for.
type flight struct {
	done chan struct{}
	ns   string
	err  error
}

// Get gives the namespace, with the way that it was obtained in front. One
// question is asked for all that wait, and each waits no longer than its own
// context.
func (n *Namespace) Get(ctx context.Context) (string, error) {
	if n.Ask == nil {
		return "named:" + n.Fixed, nil
	}
	n.mu.Lock()
	if n.fresh {
		defer n.mu.Unlock()
		return n.known, nil
	}
	if err := ctx.Err(); err != nil {
		n.mu.Unlock()
		return "", NotExecuted(err)
	}
	fl := n.flight
	if fl == nil {
		if n.ctx == nil {
			n.ctx, n.cancel = context.WithCancel(context.Background())
		}
		fl = &flight{done: make(chan struct{})}
		n.flight = fl
		n.wg.Go(func() { n.ask(fl) })
	}
	n.mu.Unlock()
	select {
	case <-fl.done:
		return fl.ns, fl.err
	case <-ctx.Done():
		return "", NotExecuted(ctx.Err())
	}
}

func (n *Namespace) ask(fl *flight) {
	defer close(fl.done)
	now, err := n.Ask(n.ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flight = nil
	if err != nil {
		fl.err = fmt.Errorf("which namespace it is cannot be told: %w", err)
		return
	}
	if fl.err = n.hold(now); fl.err == nil {
		n.fresh, fl.ns = true, n.known
	}
}

// Hold compares the block pool that a name node has with that of the others. It is to
// be asked before anything is done there: two clusters have files of the same
// paths. The first pool that is seen counts.
func (n *Namespace) Hold(pool string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hold(pool)
}

func (n *Namespace) hold(pool string) error {
	now := "pool:" + pool
	if n.known != "" && n.known != now {
		return fmt.Errorf("%w: it was %s and is %s; all addresses of a file system must be name nodes of one name service", ErrOtherNamespace, n.known, now)
	}
	n.known = now
	return nil
}

// Close ends a question in flight.
func (n *Namespace) Close() {
	n.mu.Lock()
	if n.ctx == nil {
		n.ctx, n.cancel = context.WithCancel(context.Background())
	}
	n.cancel()
	n.mu.Unlock()
	n.wg.Wait()
}

// Doubt makes the next Get ask again: a connection was lost, and the next one
// may lead to another cluster.
func (n *Namespace) Doubt() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fresh = false
}

// AskJMX gets the block pool's id, which is unique to one namespace of one
// cluster, from a name node's management page at base, "http://host:port".
func AskJMX(ctx context.Context, client *http.Client, base string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo", nil)
	if err != nil {
		return "", NotExecuted(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", Lost(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return "", Lost(err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s/jmx answers %s; if it is closed, configure a namespace", base, resp.Status)
	}
	var page struct {
		Beans []struct {
			BlockPoolID string `json:"BlockPoolId"`
		} `json:"beans"`
	}
	if err := json.Unmarshal(b, &page); err != nil {
		return "", Lost(fmt.Errorf("%s/jmx: %w", base, err))
	}
	if len(page.Beans) == 0 || page.Beans[0].BlockPoolID == "" {
		// A name node that is still starting has the page, not the content.
		return "", NotExecuted(fmt.Errorf("%s/jmx does not tell the block pool's id yet", base))
	}
	return page.Beans[0].BlockPoolID, nil
}
