package cli

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// crashVariable is for tests of recovery: the process kills itself at the named
// point. It is not in the help.
const crashVariable = "COMMITSTEP_CRASH_AT"

// crashPoints are the driver's named points; those in the second list belong to
// a step and end in # and its index.
func crashPoints() (ofSequence, ofStep []string) {
	return []string{"put.before", "put.after", "attempt.recorded", "park.after", "complete.before", "complete.after",
			"cleanup.before", "cleanup.after", "cleaned.before", "cleaned.after"},
		[]string{"execute.before", "execute.after", "settle.after", "record.after"}
}

// checkCrash refuses a point that is never reached: a test of a crash that does
// not happen would pass.
func (in *invocation) checkCrash() error {
	at := in.Env(crashVariable)
	if at == "" {
		return nil
	}
	point, _ := splitCrash(at)
	of, step, hasStep := strings.Cut(point, "#")
	index, err := strconv.Atoi(step)
	sequence, steps := crashPoints()
	if !hasStep && slices.Contains(sequence, point) || hasStep && err == nil && index >= 0 && slices.Contains(steps, of) {
		return nil
	}
	return usagef("%s is %q, which is no point; there are %s, and for a step by its index from 0 %s#0; a count may follow, as put.after:2",
		crashVariable, at, strings.Join(sequence, ", "), strings.Join(steps, "#0, "))
}

// splitCrash reads "point:K".
func splitCrash(at string) (point string, count int) {
	if i := strings.LastIndexByte(at, ':'); i >= 0 {
		if k, err := strconv.Atoi(at[i+1:]); err == nil && k > 0 {
			return at[:i], k
		}
	}
	return at, 1
}

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
	at, count := splitCrash(at)
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
