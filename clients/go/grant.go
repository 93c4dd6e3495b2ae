package weirgate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// A Grant is tokens that were taken. Nothing is kept in the agent: the token is the grant, and settles it in another process
// too, by [Client.Restore]. A grant is safe for concurrent use.
//
// A settlement waits for the ones before it. Nothing in the table remembers a grant without a lease. So a settlement that
// changes amounts is ErrInvalidRequest after another one that may have been applied. A release without amounts waits for none,
// and is always possible.
type Grant struct {
	client *Client
	// As the acquire answered.
	limits      []LimitStatus
	wouldDeny   []string
	degraded    string
	missingPlan string
	header      http.Header
	startsAt    time.Time

	mu           sync.Mutex
	token        string
	amounts      []Amounts
	expiresAt    time.Time
	isEnded      bool
	mayHaveLease bool
	hasFailed    bool
	// mayCountTwice says that a settlement may have been applied which would count twice.
	mayCountTwice bool
	// settlings are those that have begun, by their turn.
	settlings []*settling
}

// Token returns the text that settles the grant. Each change makes a new one.
func (g *Grant) Token() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token
}

// Amounts returns the amounts of each bucket, by the last answer. They are empty after a restoration.
func (g *Grant) Amounts() []Amounts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.amounts
}

// Amount returns the amount taken of a limit, as adjusted: 0 if none was taken.
func (g *Grant) Amount(limit string) float64 {
	for _, amounts := range g.Amounts() {
		if tokens, is := amounts[limit]; is {
			return tokens
		}
	}
	return 0
}

// ExpiresAt returns the expiry of the lease. It returns false without a lease, and after a restoration.
func (g *Grant) ExpiresAt() (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.expiresAt, !g.expiresAt.IsZero()
}

// StartsAt returns the start of an acquire that queued, which may have passed. It does not move. It returns false without a
// Queue, without DynamoDB or the agent, and after a restoration.
func (g *Grant) StartsAt() (time.Time, bool) { return g.startsAt, !g.startsAt.IsZero() }

// IsEnded returns whether it was released or rolled back.
func (g *Grant) IsEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.isEnded
}

// IsUncertain returns whether a settlement has failed or is in flight, so the token may be outdated. A scope then releases: to
// roll back by an outdated token would return tokens twice.
func (g *Grant) IsUncertain() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hasFailed || len(g.settlings) > 0
}

// Limits returns every limit of the buckets, right after the take.
func (g *Grant) Limits() []LimitStatus { return g.limits }

// Remaining returns the balance of a limit right after the take. It returns false if the buckets do not have it.
func (g *Grant) Remaining(limit string) (float64, bool) { return remaining(g.limits, limit) }

// WouldDeny returns the names of the limits that are short, and do not deny as they are in shadow mode.
func (g *Grant) WouldDeny() []string { return g.wouldDeny }

// Degraded returns why the agent decided without DynamoDB, or the client without the agent; empty if neither did.
func (g *Grant) Degraded() string { return g.degraded }

// MissingPlan returns the plan of the entity, or of an ancestor, of which no level has a configuration: other levels take its
// place. It is empty otherwise, after a restoration, and if the agent could not read whether the plan exists.
func (g *Grant) MissingPlan() string { return g.missingPlan }

// Header returns the RateLimit fields, for an HTTP response.
func (g *Grant) Header() http.Header { return g.header }

// String says what is held, without the token.
func (g *Grant) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("weirgate.Grant(amounts=%v, expires=%v, ended=%v)", g.amounts, g.expiresAt, g.isEnded)
}

// GoString is String, so that no format shows the token.
func (g *Grant) GoString() string { return g.String() }

// Adjust corrects estimates: actual has the amounts that were really used. More than is there becomes debt. Of several
// buckets, each that has the limit is adjusted, or the one at a place, counted from 0.
func (g *Grant) Adjust(ctx context.Context, actual Amounts, bucket ...int) (Settlement, error) {
	return g.settle(ctx, func() (fields, error) { return changeOf("adjust", "actual", actual, false, bucket) })
}

// GiveBack returns a part of what was taken, and keeps the rest.
func (g *Grant) GiveBack(ctx context.Context, unused Amounts, bucket ...int) (Settlement, error) {
	return g.settle(ctx, func() (fields, error) { return changeOf("give_back", "unused", unused, false, bucket) })
}

// TakeMore takes more within the grant, in whole tokens, or returns a RefusedError and leaves it as it was.
func (g *Grant) TakeMore(ctx context.Context, more Amounts, bucket ...int) error {
	_, err := g.settle(ctx, func() (fields, error) { return changeOf("take_more", "more", more, true, bucket) })
	return err
}

// Renew moves the expiry of the lease to so long from now, never to an earlier time.
func (g *Grant) Renew(ctx context.Context, lasts time.Duration) (Settlement, error) {
	return g.settle(ctx, func() (fields, error) {
		ms, err := milliseconds("lasts", lasts, 1, day)
		return fields{"renew_ms": ms}, err
	})
}

// Release ends the grant: slots come back, rate tokens stay used. With amounts it adjusts to them in the same call; nil leaves
// them as they are.
func (g *Grant) Release(ctx context.Context, actual Amounts) (Settlement, error) {
	return g.settle(ctx, func() (fields, error) { return endOf("release", actual) })
}

// RollBack ends the grant and returns everything, as if it had never been taken.
func (g *Grant) RollBack(ctx context.Context) (Settlement, error) {
	return g.settle(ctx, func() (fields, error) { return endOf("roll_back", nil) })
}

// VendorSaid tells all callers what the vendor answered: a 429, 503 or 529 pauses the buckets until its Retry-After. Only the
// status and the fields of limits are sent. It returns the end of the pause, or the zero time without one. The grant stays as it
// is, so settle it as usual.
func (g *Grant) VendorSaid(ctx context.Context, response *http.Response) (time.Time, error) {
	said, err := vendorFields(response)
	token := g.Token()
	var until time.Time
	if err == nil && token != withoutAgent {
		until, err = g.client.reported(ctx, settleRequest(token, fields{"vendor": said}))
	}
	if err != nil {
		// The vendor has answered, so the work is done and its tokens are used.
		g.mu.Lock()
		g.hasFailed = true
		g.mu.Unlock()
	}
	return until, err
}

// settle makes a change, which goes on if the context is done: only the wait for it ends.
func (g *Grant) settle(ctx context.Context, changes func() (fields, error)) (Settlement, error) {
	done := g.start(changes)
	select {
	case found := <-done:
		return found.settlement, found.err
	default:
	}
	select {
	case found := <-done:
		return found.settlement, found.err
	case <-ctx.Done():
		return "", abandoned(ctx, settlePath)
	}
}

type outcome struct {
	settlement Settlement
	err        error
}

// A settling is a settlement that waits for its turn, or is in flight.
type settling struct {
	changed  fields
	deadline time.Time
	// isRelease says that it is a release without amounts, which counts once by any text.
	isRelease bool
	isSent    bool
	// countsTwice says that it was sent, and would count twice if it was applied twice.
	countsTwice bool
	done        chan outcome
}

// start begins a settlement, and returns where its outcome comes. [Client.Close] waits for it.
//
// Each sends the text that the one before it left, because an answer that came out of order would bring amounts back that are
// not held any more. A release without amounts waits for none.
func (g *Grant) start(changes func() (fields, error)) <-chan outcome {
	changed, err := changes()
	begun := &settling{
		changed: changed, deadline: time.Now().Add(g.client.answerTimeout), done: make(chan outcome, 1),
		isRelease: changed["end"] == "release" && changed["adjust"] == nil,
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settlings = append(g.settlings, begun)
	g.client.flights.begin()
	switch {
	case err != nil:
		g.end(begun, "", err)
	case begun.isRelease:
		g.send(begun)
	default:
		g.sendNext()
	}
	return begun.done
}

// sendNext sends the settlement whose turn it is.
func (g *Grant) sendNext() {
	for len(g.settlings) > 0 && !g.settlings[0].isSent {
		g.send(g.settlings[0])
	}
}

func (g *Grant) send(begun *settling) {
	begun.isSent = true
	asked, err := g.next(begun)
	if asked == nil {
		g.end(begun, Settled, err)
		return
	}
	go func() {
		var read settledJSON
		err := g.client.readSettled(asked, begun.deadline, &read)
		g.mu.Lock()
		defer g.mu.Unlock()
		if err == nil {
			g.update(read)
		}
		g.end(begun, read.Settlement, err)
		g.sendNext()
	}()
}

// next returns the request of a settlement. It returns none if there is nothing to change in the table, or with an error.
func (g *Grant) next(begun *settling) (*request, error) {
	if g.isEnded {
		return nil, invalid("the grant has ended, so nothing of it can change: acquire again")
	}
	_, isEnd := begun.changed["end"]
	if g.token == withoutAgent || (begun.isRelease && !g.mayHaveLease) {
		g.isEnded = isEnd
		return nil, nil
	}
	if _, isRenewal := begun.changed["renew_ms"]; !isRenewal && !begun.isRelease {
		if g.mayCountTwice {
			return nil, invalid("another settlement of the grant may have been applied, so this one could count twice: " +
				"release the grant without amounts, and acquire again")
		}
		begun.countsTwice = !isEnd || g.expiresAt.IsZero()
	}
	return settleRequest(g.token, begun.changed), nil
}

// end keeps the outcome of a settlement.
func (g *Grant) end(begun *settling, settlement Settlement, err error) {
	for at, one := range g.settlings {
		if one == begun {
			g.settlings = append(g.settlings[:at], g.settlings[at+1:]...)
			break
		}
	}
	if err != nil {
		settlement = ""
		g.failed(begun, err)
	}
	begun.done <- outcome{settlement, err}
	g.client.flights.end()
}

func (g *Grant) failed(begun *settling, err error) {
	var (
		refused     *RefusedError
		unavailable *UnavailableError
	)
	// A decision that refuses a settlement changes nothing.
	g.hasFailed = g.hasFailed || !errors.As(err, &refused)
	switch {
	case !errors.As(err, &unavailable):
	case unavailable.Grant != "":
		// The old token is of amounts that are not held any more.
		g.token = unavailable.Grant
	case unavailable.Applied == MaybeApplied && begun.countsTwice:
		g.mayCountTwice = true
	}
}

func (g *Grant) update(found settledJSON) {
	if found.Grant == nil {
		g.isEnded = true
		return
	}
	g.token, g.amounts = *found.Grant, found.Amounts
	g.mayHaveLease, g.expiresAt = found.Lease != nil, time.Time{}
	if found.Lease != nil {
		g.expiresAt = time.UnixMilli(found.Lease.ExpiresAtMs)
	}
}

// readSettled sends a settlement to its end.
func (c *Client) readSettled(asked *request, deadline time.Time, into *settledJSON) error {
	if !time.Now().Before(deadline) {
		text := "an earlier settlement of the grant is still in flight: try again"
		return &UnavailableError{Applied: NotApplied, Transient: true, kind: ErrUnavailable, text: text}
	}
	found, err := c.callUntil(context.Background(), asked, deadline, nil)
	if err != nil {
		return err
	}
	isSettled := found.decode(into) == nil && (into.Settlement == Settled || into.Settlement == LeaseGone)
	if !isSettled || into.Grant != nil && *into.Grant == "" {
		*into = settledJSON{}
		return notOfTheAgent(asked)
	}
	return nil
}
