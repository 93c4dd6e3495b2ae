package weirgate

// SeeNoEnd makes a client as one of a platform where the end of an idle connection cannot be seen.
func (c *Client) SeeNoEnd() { c.transport.isOpen = noneIsOpen }

// TokenFor returns the token that a client without one of its own sends to a URL.
func TokenFor(url string) (string, error) {
	found, err := endpointOf(url, "")
	if err != nil {
		return "", err
	}
	return found.secret()
}
