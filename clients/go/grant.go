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
// Nothing in the table remembers a grant without a lease. So a settlement that changes amounts is ErrInvalidRequest while
// another one is in flight, or may have been applied. A release without amounts is always possible.
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
	inFlight     int
	hasFailed    bool
	// doubt is what became of a settlement that would count twice if it was applied twice.
	doubt string
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
	return g.hasFailed || g.inFlight > 0
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
	if err != nil || token == withoutAgent {
		return time.Time{}, err
	}
	return g.client.reported(ctx, settleRequest(token, fields{"vendor": said}))
}

// settle makes a change, which goes on if the context is done: only the wait for it ends.
func (g *Grant) settle(ctx context.Context, changes func() (fields, error)) (Settlement, error) {
	begun, err := g.begin(changes)
	if begun == nil {
		return Settled, err
	}
	type outcome struct {
		settlement Settlement
		err        error
	}
	done := make(chan outcome, 1)
	g.client.flights.begin()
	go func() {
		defer g.client.flights.end()
		settlement, err := g.finish(begun)
		done <- outcome{settlement, err}
	}()
	select {
	case found := <-done:
		return found.settlement, found.err
	case <-ctx.Done():
		return "", abandoned(ctx, begun.asked)
	}
}

// A settling is a settlement in flight.
type settling struct {
	asked *request
	// isCounted says that it changes amounts, and isOnce that it counts once however often it is applied.
	isCounted, isOnce bool
}

// begin returns a settlement to send. It returns none if there is nothing to change in the table, or with an error.
func (g *Grant) begin(changes func() (fields, error)) (*settling, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isEnded {
		return nil, g.failed(invalid("the grant has ended, so nothing of it can change: acquire again"))
	}
	changed, err := changes()
	if err != nil {
		return nil, g.failed(err)
	}
	_, isEnd := changed["end"]
	_, isRenewal := changed["renew_ms"]
	isRelease := changed["end"] == "release" && changed["adjust"] == nil
	if g.token == withoutAgent || (isRelease && !g.mayHaveLease) {
		// Changes nothing in the table.
		g.isEnded = isEnd
		return nil, nil
	}
	begun := &settling{asked: settleRequest(g.token, changed)}
	if !isRelease && !isRenewal {
		if g.doubt != "" {
			return nil, g.failed(invalid("another settlement of the grant " + g.doubt +
				", so this one could count twice: release the grant without amounts, and acquire again"))
		}
		g.doubt = "is in flight"
		begun.isCounted, begun.isOnce = true, isEnd && !g.expiresAt.IsZero()
	}
	g.inFlight++
	return begun, nil
}

// failed keeps in mind that a settlement failed.
func (g *Grant) failed(err error) error {
	g.hasFailed = true
	return err
}

// finish sends a settlement, and keeps its outcome.
func (g *Grant) finish(begun *settling) (Settlement, error) {
	var read settledJSON
	_, err := g.client.readSettled(begun.asked, &read)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
	left := ""
	if err == nil {
		g.update(read)
	} else {
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
		case unavailable.Applied == MaybeApplied && !begun.isOnce:
			left = "may have been applied"
		}
	}
	if begun.isCounted {
		g.doubt = left
	}
	return read.Settlement, err
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
func (c *Client) readSettled(asked *request, into *settledJSON) (*answer, error) {
	found, err := c.read(context.Background(), asked, into)
	if err == nil && (into.Settlement != Settled && into.Settlement != LeaseGone || into.Grant != nil && *into.Grant == "") {
		*into = settledJSON{}
		err = notOfTheAgent(asked)
	}
	return found, err
}
