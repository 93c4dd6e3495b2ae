//go:build !unix

package weirgate

import "net"

// isOpen returns whether an idle connection is usable, which cannot be known here.
func isOpen(net.Conn) bool { return true }
