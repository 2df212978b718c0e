//go:build unix

package hdfs

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// alive reports whether a connection that lay idle is still open and has
// nothing to be read. A name node closes idle connections; the next request
// would be sent into the void, and then nobody could tell what became of it.
func alive(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var n int
	var perr error
	var b [1]byte
	err = rc.Read(func(fd uintptr) bool {
		n, _, perr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && n <= 0 && (perr == unix.EAGAIN || perr == unix.EWOULDBLOCK)
}
