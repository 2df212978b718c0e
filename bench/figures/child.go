package figures

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Child is what a process that runs one measurement tells of itself: memory is
// measured per process.
type Child struct {
	Seconds  float64 `json:"seconds"`
	Count    int     `json:"count"`
	PeakAnon float64 `json:"peakAnonMiB"`
}

// Measure runs work in this process and prints a Child in JSON.
func Measure(work func() (count int, err error)) error {
	stop := WatchAnon()
	started := time.Now()
	n, err := work()
	took := time.Since(started)
	peak := stop()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(Child{Seconds: took.Seconds(), Count: n, PeakAnon: peak})
}

// WatchAnon samples this process's anonymous memory until the returned function
// is called, which gives the peak in MiB.
func WatchAnon() func() float64 {
	done, result := make(chan struct{}), make(chan float64)
	go func() {
		peak := 0.0
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			peak = max(peak, rssAnon())
			select {
			case <-done:
				result <- max(peak, rssAnon())
				return
			case <-tick.C:
			}
		}
	}()
	return func() float64 { close(done); return <-result }
}

func rssAnon() float64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "RssAnon:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024
		}
	}
	return 0
}

// InFlight calls fn for 0..n-1 from workers goroutines and returns how long that
// took. A worker ends with its first error; the first of all is returned.
func InFlight(n, workers int, fn func(i int) error) (time.Duration, error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	started := time.Now()
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(started), first
}
