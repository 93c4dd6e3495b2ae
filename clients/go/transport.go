package weirgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

const (
	maxHead = 64 << 10
	// A grant has up to 2 MiB, and each of its limits 300 bytes.
	maxBody = 8 << 20
	// grace is the time for the answer to a request that was given up. The agent needs a moment to see it.
	grace = 5 * time.Second
)

// A notSentError says that nothing of the request left this process.
type notSentError struct{ cause error }

func (e *notSentError) Error() string { return e.cause.Error() }

// A lostError says that the request was sent, and no whole answer came.
type lostError struct{ cause error }

func (e *lostError) Error() string { return e.cause.Error() }

// A transport sends requests, each at most once. One is surely not applied if it had no connection; after that its outcome
// is unknown until the answer.
type transport struct {
	endpoint endpoint
	http     *http.Transport
}

func newTransport(endpoint endpoint, maxIdle int) *transport {
	dialer := &net.Dialer{}
	return &transport{endpoint, &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, endpoint.network, endpoint.address)
		},
		DisableCompression: true,
		DisableKeepAlives:  maxIdle == 0,
		// No limit of connections in use: a request that waits for slots must not keep back the one that releases them.
		MaxIdleConnsPerHost:    maxIdle,
		MaxResponseHeaderBytes: maxHead,
	}}
}

// A flight is a request in flight.
type flight struct {
	mu        sync.Mutex
	conn      net.Conn
	isGivenUp bool
	cancel    context.CancelFunc
	done      chan struct{}
	answer    *answer
	err       error
}

// start sends a request, whose outcome is there once it is done.
func (t *transport) start(asked *request, deadline time.Time) *flight {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { f.connected(info.Conn) },
	})
	go func() {
		defer close(f.done)
		defer cancel()
		answer, err := t.send(ctx, asked)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.answer, f.err = answer, t.classified(err, f.conn != nil)
	}()
	return f
}

func (f *flight) connected(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isGivenUp {
		// Before a byte of the request.
		conn.Close()
		return
	}
	f.conn = conn
}

// giveUp tells the agent that nothing waits for the answer. One that is on its way can still be read, for a while.
func (f *flight) giveUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isGivenUp = true
	half, is := f.conn.(interface{ CloseWrite() error })
	if !is || half.CloseWrite() != nil {
		f.cancel()
		return
	}
	time.AfterFunc(grace, f.cancel)
}

// close ends the connection of a flight that was given up: it carries no other request.
func (f *flight) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Close()
	}
}

func (t *transport) send(ctx context.Context, asked *request) (*answer, error) {
	secret, err := t.endpoint.secret()
	if err != nil {
		return nil, err
	}
	sent, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.endpoint.host+asked.path, bytes.NewReader(asked.body))
	if err != nil {
		return nil, err
	}
	sent.Header.Set("Content-Type", "application/json")
	sent.Header.Set("User-Agent", "weirgate-go")
	if secret != "" {
		sent.Header.Set("X-Weirgate-Token", secret)
	}
	// Without a client, so nothing follows a redirection.
	response, err := t.http.RoundTrip(sent)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the answer is longer than %d bytes", maxBody)
	}
	return &answer{response.StatusCode, response.Header, body, hiding(secret)}, nil
}

func (t *transport) classified(err error, wasConnected bool) error {
	var wrong *requestError
	switch {
	case err == nil || errors.As(err, &wrong):
		return err
	case wasConnected:
		return &lostError{fmt.Errorf("no answer of the agent at %s: %w", t.endpoint.url, err)}
	default:
		return &notSentError{fmt.Errorf("no connection to the agent at %s: %w; start weirgate-agent, or set %s", t.endpoint.url, err, urlVariable)}
	}
}
