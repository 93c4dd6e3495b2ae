package weirgate

// SeeNoEnd makes a client as one of a platform where the end of an idle connection cannot be seen.
func (c *Client) SeeNoEnd() { c.transport.isOpen = noneIsOpen }
