//go:build unix

package hs2

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerClosed looks, without waiting and without reading, whether the other side
// has closed. encrypted connections may have bytes waiting that are no answer.
func peerClosed(c net.Conn, encrypted bool) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = rc.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil, n == 0:
			closed = true
		default:
			closed = !encrypted
		}
		return true
	})
	return closed || err != nil
}
