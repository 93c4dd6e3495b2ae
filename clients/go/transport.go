package weirgate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	maxHead = 64 << 10
	// A grant has up to 2 MiB, and each of its limits 300 bytes.
	maxBody = 8 << 20
	// Interim answers, of which the agent sends none.
	maxInterim = 100
	// grace is the time for the answer to a request that was given up. The agent needs a moment to see it.
	grace = 5 * time.Second
)

// A notSentError says that nothing of the request left this process.
type notSentError struct{ cause error }

func (e *notSentError) Error() string { return e.cause.Error() }

// A lostError says that the request was sent, and no whole answer came.
type lostError struct{ cause error }

func (e *lostError) Error() string { return e.cause.Error() }

// A transport sends requests, each at most once. One is surely not applied if it had no connection, or if the operating system
// took not one byte of it; after that its outcome is unknown until the answer.
//
// Its connections are its own, because one of net/http can neither be half closed, nor kept from the next request.
type transport struct {
	endpoint endpoint
	maxIdle  int
	isOpen   func(net.Conn) bool

	mu   sync.Mutex
	idle []*connection
}

// A connection carries one request at a time.
type connection struct {
	net.Conn
	limited *io.LimitedReader
	reader  *bufio.Reader
}

// noneIsOpen keeps no idle connections: a request on one that the agent closed would be lost.
func noneIsOpen(net.Conn) bool { return false }

// take returns the idle connection that was used last, if there is one that the agent has not closed.
func (t *transport) take() *connection {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.idle) > 0 {
		last := len(t.idle) - 1
		conn := t.idle[last]
		t.idle = t.idle[:last]
		if t.isOpen(conn.Conn) {
			return conn
		}
		conn.Close()
	}
	return nil
}

func (t *transport) putBack(conn *connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The deadline was that of a request.
	if len(t.idle) >= t.maxIdle || !t.isOpen(conn.Conn) || conn.SetDeadline(time.Time{}) != nil {
		conn.Close()
		return
	}
	t.idle = append(t.idle, conn)
}

func (t *transport) closeIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, conn := range t.idle {
		conn.Close()
	}
	t.idle = nil
}

// A flight is a request in flight. Its outcome is there once it is done.
type flight struct {
	mu sync.Mutex
	// conn is its connection, while it has one.
	conn      *connection
	isGivenUp bool
	stopDial  context.CancelFunc

	done   chan struct{}
	answer *answer
	err    error
}

// start sends a request.
func (t *transport) start(asked *request, deadline time.Time) *flight {
	ctx, stopDial := context.WithDeadline(context.Background(), deadline)
	f := &flight{stopDial: stopDial, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer stopDial()
		f.answer, f.err = t.send(ctx, f, asked, deadline)
	}()
	return f
}

// giveUp tells the agent that nothing waits for the answer. One that is on its way can still be read, for a while.
func (f *flight) giveUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isGivenUp = true
	f.stopDial()
	if f.conn == nil {
		return
	}
	if half, is := f.conn.Conn.(interface{ CloseWrite() error }); !is || half.CloseWrite() != nil {
		f.conn.Close()
	}
	time.AfterFunc(grace, func() { f.stop() })
}

// stop ends the flight.
func (f *flight) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isGivenUp = true
	f.stopDial()
	if f.conn != nil {
		f.conn.Close()
	}
}

// board gives the flight its connection. It returns false if the flight was given up meanwhile.
func (f *flight) board(conn *connection) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = conn
	return !f.isGivenUp
}

// leave takes the connection from the flight. It returns whether another one can have it.
func (f *flight) leave() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = nil
	return !f.isGivenUp
}

func (t *transport) send(ctx context.Context, f *flight, asked *request, deadline time.Time) (*answer, error) {
	secret, err := t.endpoint.secret()
	if err != nil {
		return nil, err
	}
	conn := t.take()
	if conn == nil {
		dialed, err := (&net.Dialer{}).DialContext(ctx, t.endpoint.network, t.endpoint.address)
		if err != nil {
			text := "no connection to the agent at %s: %w; start weirgate-agent, or set %s"
			return nil, &notSentError{fmt.Errorf(text, t.endpoint.url, err, urlVariable)}
		}
		limited := &io.LimitedReader{R: dialed}
		conn = &connection{dialed, limited, bufio.NewReader(limited)}
	}
	if !f.board(conn) {
		conn.Close()
		return nil, &notSentError{errors.New("the call was given up")}
	}
	found, isReusable, err := conn.exchange(t.endpoint.host, secret, asked, deadline)
	// Without the token after it was refused: a later connection has another one.
	if f.leave() && isReusable && found.status != http.StatusUnauthorized {
		t.putBack(conn)
	} else {
		conn.Close()
	}
	return found, t.withURL(err)
}

func (t *transport) withURL(err error) error {
	var lost *lostError
	if errors.As(err, &lost) {
		return &lostError{fmt.Errorf("no answer of the agent at %s: %w", t.endpoint.url, lost.cause)}
	}
	return err
}

// exchange sends a request and reads its answer. It returns whether the connection can carry another one.
func (c *connection) exchange(host, secret string, asked *request, deadline time.Time) (*answer, bool, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return nil, false, &notSentError{err}
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n", asked.path, host, len(asked.body))
	if secret != "" {
		head += "x-weirgate-token: " + secret + "\r\n"
	}
	if sent, err := c.Write(append([]byte(head+"\r\n"), asked.body...)); err != nil && sent == 0 {
		return nil, false, &notSentError{err}
	} else if err != nil {
		return nil, false, &lostError{err}
	}
	c.limited.N = maxHead + maxBody
	response, err := c.readResponse()
	if err != nil {
		return nil, false, &lostError{err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, false, &lostError{err}
	case len(body) > maxBody:
		return nil, false, &lostError{fmt.Errorf("the answer is longer than %d bytes", maxBody)}
	}
	// Bytes that came after the answer are one to nothing.
	isReusable := !response.Close && c.reader.Buffered() == 0 && response.StatusCode >= 200
	return &answer{response.StatusCode, response.Header, body, hiding(secret)}, isReusable, nil
}

func (c *connection) readResponse() (*http.Response, error) {
	for interim := 0; interim < maxInterim; interim++ {
		response, err := http.ReadResponse(c.reader, &http.Request{Method: http.MethodPost})
		if err != nil {
			// What cannot be read is not shown, because it may repeat the request with its token.
			var network net.Error
			if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, err
			}
			return nil, errNotOfTheAgent
		}
		if response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, nil
		}
	}
	return nil, errNotOfTheAgent
}
