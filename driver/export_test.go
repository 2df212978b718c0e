package driver

import (
	"context"

	"github.com/commitstep/engine/store"
)

// RecoverInline claims and runs a job's sequences on the caller's goroutine.
func RecoverInline(e *Engine, job string) {
	ctx := context.Background()
	l := e.currentLease()
	batch, err := e.cfg.Store.Claim(ctx, l.instance.ID, store.ClaimFilter{Job: job, Limit: 10})
	if err != nil {
		panic(err)
	}
	for _, live := range batch {
		(&run{e: e, lease: l, live: live, fence: l.fence(live), recovering: true, waitUntil: e.now().Add(e.cfg.Policy.WaitBudget)}).finish(ctx, e.now())
	}
}
