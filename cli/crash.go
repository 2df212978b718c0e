package cli

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// crashVariable is for tests of recovery: the process kills itself at the named
// point. It is not in the help.
const crashVariable = "COMMITSTEP_CRASH_AT"

// killPoint makes the function for driver.Config.KillPoint, nil when no crash
// is asked for.
func (in *invocation) killPoint() func(string) {
	if at := in.Env(crashVariable); at != "" {
		return crashAt(at, in.die)
	}
	return nil
}

// crashAt dies when point is reached; "point:K" dies the K-th time.
func crashAt(at string, die func()) func(string) {
	count := 1
	if i := strings.LastIndexByte(at, ':'); i >= 0 {
		if k, err := strconv.Atoi(at[i+1:]); err == nil && k > 0 {
			at, count = at[:i], k
		}
	}
	var mu sync.Mutex
	return func(point string) {
		if point != at {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if count--; count == 0 {
			die()
		}
	}
}

// killSelf dies as by a power cut: nothing deferred runs, nothing is flushed.
func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Signal(syscall.SIGKILL)
	}
	select {} // the signal is on its way; nothing may happen after the point
}
