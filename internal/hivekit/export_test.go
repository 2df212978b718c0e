package hivekit

import (
	"testing"

	"github.com/commitstep/engine/internal/testkit/jvm"
	"golang.org/x/sys/unix"
)

// AwaitEnd waits until a process has ended; the kernel signals it through a
// descriptor of the process.
func AwaitEnd(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(jvm.StartLimit.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("process %d lives on: %d %v", pid, n, err)
		}
		return
	}
}

// PidIn is the process of the server that was launched in dir.
func PidIn(t testing.TB, dir string) int {
	t.Helper()
	s, err := read(dir)
	if err != nil || !jvm.Is(s.Pid, s.mark()) {
		t.Fatalf("no process of a server in %s: %+v %v", dir, s, err)
	}
	return s.Pid
}
