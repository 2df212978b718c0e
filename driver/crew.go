package driver

import (
	"sync"
	"sync/atomic"
	"time"
)

// soloTime is how long one goroutine works through a batch before others join.
// Local steps are done by then, and starting goroutines for them would cost
// more than the steps; remote ones are not slowed down by it.
const soloTime = 100 * time.Microsecond

// crews are used again and again, since a busy engine starts tens of thousands
// of batches a second. The zero value is ready; safe for concurrent use.
type crews struct{ pool sync.Pool }

// crew works through one batch at a time.
type crew struct {
	fn      func(int)
	n       int
	workers int
	next    atomic.Int64
	others  sync.WaitGroup
	timer   *time.Timer
	joined  chan struct{} // gets one value whenever the timer fired
}

func (c *crews) do(n, workers int, fn func(int)) {
	w, _ := c.pool.Get().(*crew)
	if w == nil {
		w = &crew{joined: make(chan struct{}, 1)}
	}
	w.n, w.workers, w.fn = n, workers, fn
	w.next.Store(0)
	if w.timer == nil {
		w.timer = time.AfterFunc(soloTime, w.join)
	} else {
		w.timer.Reset(soloTime)
	}
	// Also after a panic that nothing holds back (a kill point), the others
	// must not run on.
	defer func() {
		if !w.timer.Stop() {
			<-w.joined
		}
		w.others.Wait()
		w.fn = nil
		c.pool.Put(w)
	}()
	w.work()
}

func (w *crew) join() {
	for range w.workers - 1 {
		w.others.Go(w.work)
	}
	w.joined <- struct{}{}
}

func (w *crew) work() {
	for i := int(w.next.Add(1)) - 1; i < w.n; i = int(w.next.Add(1)) - 1 {
		w.fn(i)
	}
}
