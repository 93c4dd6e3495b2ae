//go:build !unix

package weirgate

// isOpen returns whether an idle connection is usable, which cannot be known here.
var isOpen = noneIsOpen
