//go:build unix

package weirgate

import (
	"net"
	"syscall"
)

// isOpen returns whether an idle connection is usable. One that the agent closed is readable, as its end has come.
var isOpen = hasNotEnded

func hasNotEnded(conn net.Conn) bool {
	of, is := conn.(syscall.Conn)
	if !is {
		return true
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return false
	}
	isOpen := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		isOpen = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && isOpen
}
