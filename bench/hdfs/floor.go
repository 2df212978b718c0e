package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/colinmarc/hdfs/v2"
	"github.com/commitstep/engine/internal/hadoopkit"
)

// connections of floor and engine alike: the engine's default.
const connections = 8

// bare is a pool of the library's own clients, one call in flight each.
type bare struct{ clients []*hdfs.Client }

func newBare(c *hadoopkit.Cluster, n int) (*bare, error) {
	b := &bare{}
	for range n {
		cl, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: c.RPCs(), User: "root"})
		if err != nil {
			b.close()
			return nil, err
		}
		b.clients = append(b.clients, cl)
	}
	return b, nil
}

func (b *bare) close() {
	for _, c := range b.clients {
		_ = c.Close() // only measured with
	}
}

// each calls fn for 0..n-1, spread over the clients.
func (b *bare) each(n int, fn func(c *hdfs.Client, i int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make(chan error, len(b.clients))
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	start := time.Now()
	for _, c := range b.clients {
		wg.Go(func() {
			for i := range next {
				if err := fn(c, i); err != nil {
					errs <- fmt.Errorf("floor: %w", err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	select {
	case err := <-errs:
		return took, err
	default:
		return took, nil
	}
}

// stage makes n empty files at the paths that at gives, and all directories.
func stage(c *hadoopkit.Cluster, dirs []string, n int, at func(int) string) error {
	b, err := newBare(c, 2*connections)
	if err != nil {
		return err
	}
	defer b.close()
	if _, err := b.each(len(dirs), func(c *hdfs.Client, i int) error { return c.MkdirAll(dirs[i], 0o755) }); err != nil {
		return err
	}
	_, err = b.each(n, func(c *hdfs.Client, i int) error { return hadoopkit.Put(c, at(i), "") })
	return err
}
