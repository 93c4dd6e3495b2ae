package weirgate

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"
)

// withoutAgent is the token of a grant for which the agent took nothing, so its settlements change nothing.
const withoutAgent = "without-agent"

// Options are options of a client. The zero value has the defaults.
type Options struct {
	// URL is http://host:port or unix:/path. Empty for the default: WEIRGATE_AGENT_URL, or http://127.0.0.1:2774.
	URL string
	// Token is the agent's secret. Default: WEIRGATE_AGENT_TOKEN, or in a Lambda function AWS_SESSION_TOKEN.
	Token string
	// AnswerTimeout is how long a call waits for the agent, beside its own Wait, Queue and Timeout. Default: 10 s.
	AnswerTimeout time.Duration
	// Retries is how often a call is sent again, which it is only if nothing was applied. Default: 2; negative for none.
	Retries int
	// MaxIdle is the number of connections that are kept while they are idle. Default: 10; negative for none. Without Unix,
	// such as on Windows, none are kept.
	MaxIdle int
	// OnAgentUnavailable is what an acquire does, after its retries, if the agent is down or has no decision for now. Fail,
	// the default, returns an UnavailableError; Deny returns ErrDenied; Allow grants: such a grant is degraded, and its
	// settlements change nothing. What only a repair ends, such as a wrong token or missing limits, is an error in any
	// case. The end of a call's context is no decision either.
	OnAgentUnavailable OnUnavailable
	// ErrorLog gets grants that a scope or an abandoned call could not settle. Default: the standard logger.
	ErrorLog *log.Logger
}

// A Client acquires by the agent. Share one in a process; it is safe for concurrent use.
type Client struct {
	transport     *transport
	answerTimeout time.Duration
	retries       int
	policy        OnUnavailable
	log           *log.Logger
	flights       flights
}

// New returns a client. It connects with the first call.
func New(options Options) (*Client, error) {
	where, err := endpointOf(options.URL, options.Token)
	if err != nil {
		return nil, err
	}
	if _, err := where.secret(); err != nil {
		return nil, err
	}
	if options.AnswerTimeout == 0 {
		options.AnswerTimeout = 10 * time.Second
	}
	if options.AnswerTimeout < 0 || options.AnswerTimeout > day {
		return nil, refuse("AnswerTimeout", "up to 24h", options.AnswerTimeout.String())
	}
	if options.Retries == 0 {
		options.Retries = 2
	}
	if options.MaxIdle == 0 {
		options.MaxIdle = 10
	}
	if options.MaxIdle < 0 {
		options.MaxIdle = 0
	}
	if err := checkPolicy(options.OnAgentUnavailable); err != nil {
		return nil, err
	}
	if options.OnAgentUnavailable == "" {
		options.OnAgentUnavailable = Fail
	}
	if options.ErrorLog == nil {
		options.ErrorLog = log.Default()
	}
	return &Client{
		transport: &transport{endpoint: where, maxIdle: options.MaxIdle, isOpen: isOpen}, answerTimeout: options.AnswerTimeout,
		retries: options.Retries, policy: options.OnAgentUnavailable, log: options.ErrorLog,
	}, nil
}

// String names the agent, and not the token.
func (c *Client) String() string { return fmt.Sprintf("weirgate.Client(%s)", c.transport.endpoint.url) }

// Close waits for what goes on in the background, which is settlements and rollbacks of abandoned calls, and closes the idle
// connections.
func (c *Client) Close() error {
	c.flights.wait()
	c.transport.closeIdle()
	return nil
}

// Acquire takes all amounts of the bucket, or returns a RefusedError and takes none.
func (c *Client) Acquire(ctx context.Context, bucket Bucket, options *AcquireOptions) (*Grant, error) {
	return c.AcquireAll(ctx, []Bucket{bucket}, options)
}

// AcquireAll takes of all buckets, or of none.
func (c *Client) AcquireAll(ctx context.Context, buckets []Bucket, options *AcquireOptions) (*Grant, error) {
	asked, err := acquireRequest(buckets, options)
	if err != nil {
		return nil, err
	}
	found, err := c.call(ctx, asked, c.takeBack)
	if err == nil {
		return c.granted(found)
	}
	policy := c.policy
	if options != nil && options.OnAgentUnavailable != "" {
		policy = options.OnAgentUnavailable
	}
	var unavailable *UnavailableError
	if policy == Fail || !errors.As(err, &unavailable) || !unavailable.Transient {
		return nil, err
	}
	if policy == Deny {
		return nil, deniedWithoutAgent(unavailable)
	}
	return c.grantedWithoutAgent(buckets, unavailable), nil
}

// Scope acquires, runs the work, and settles: it releases afterwards, or rolls back if the work returns an error. If the
// context is done or a settlement failed in the work, or if the work panics, it releases, because the tokens may have been
// used. It waits for that until the context is done. A failure to settle is logged, as the outcome of the work stays; the lease
// then expires by itself.
func (c *Client) Scope(ctx context.Context, bucket Bucket, options *AcquireOptions, work func(*Grant) error) error {
	grant, err := c.Acquire(ctx, bucket, options)
	if err != nil {
		return err
	}
	end := "release"
	defer func() {
		if grant.IsEnded() {
			return
		}
		if grant.IsUncertain() {
			end = "release"
		}
		c.endOfScope(ctx, grant, end)
	}()
	err = work(grant)
	if err != nil && ctx.Err() == nil {
		end = "roll_back"
	}
	return err
}

// endOfScope ends a grant. The end of the context ends the wait for it, and not the end itself, of which [Client.Close] waits
// for the log, too.
func (c *Client) endOfScope(ctx context.Context, grant *Grant, end string) {
	logged := make(chan struct{})
	c.flights.begin()
	outcome := grant.start(func() (fields, error) { return endOf(end, nil) })
	go func() {
		defer c.flights.end()
		defer close(logged)
		if found := <-outcome; found.err != nil {
			c.notSettled(found.err)
		}
	}()
	select {
	case <-logged:
	case <-ctx.Done():
	}
}

// Restore returns the grant of a token, to settle it. It sends nothing.
func (c *Client) Restore(token string) (*Grant, error) {
	if token == "" {
		return nil, refuse("the token of a grant", "text that is not empty", `""`)
	}
	// A restored grant may have a lease.
	return &Grant{client: c, token: token, mayHaveLease: true}, nil
}

// ReportVendor tells what the vendor answered, as [Grant.VendorSaid] does, without a grant.
func (c *Client) ReportVendor(ctx context.Context, entity, resource string, response *http.Response) (time.Time, error) {
	asked, err := reportRequest(entity, resource, response)
	if err != nil {
		return time.Time{}, err
	}
	return c.reported(ctx, asked)
}

// reported sends what a vendor said, and returns the end of the pause.
func (c *Client) reported(ctx context.Context, asked *request) (time.Time, error) {
	var found reportedJSON
	if _, err := c.read(ctx, asked, &found); err != nil || found.PausedUntilMs == nil {
		return time.Time{}, err
	}
	return time.UnixMilli(*found.PausedUntilMs), nil
}

// Peek reads the balances, and takes nothing.
func (c *Client) Peek(ctx context.Context, entity, resource string, options *PeekOptions) (*Balances, error) {
	asked, err := peekRequest(entity, resource, options)
	if err != nil {
		return nil, err
	}
	var found balancesJSON
	answered, err := c.read(ctx, asked, &found)
	if err != nil {
		return nil, err
	}
	return &Balances{found.Status, statuses(found.Limits), spanOrNil(found.RetryAfterMs), answered.rateLimitFields()}, nil
}

// Usage reads what an entity or the entities of a plan, a resource, or both consumed.
func (c *Client) Usage(ctx context.Context, query UsageQuery) (*UsageTotal, error) {
	asked, err := usageRequest(query, fields{"total": true})
	if err != nil {
		return nil, err
	}
	var found totalJSON
	if _, err := c.read(ctx, asked, &found); err != nil {
		return nil, err
	}
	return &UsageTotal{usageOf(found.usedJSON), textsOf(found.Unreadable)}, nil
}

// UsageRows reads the same by interval, and by bucket. The page is Next of the one before, or empty.
func (c *Client) UsageRows(ctx context.Context, query UsageQuery, page string) (*UsagePage, error) {
	more := fields{}
	if page != "" {
		more["page"] = page
	}
	asked, err := usageRequest(query, more)
	if err != nil {
		return nil, err
	}
	var found pageJSON
	if _, err := c.read(ctx, asked, &found); err != nil {
		return nil, err
	}
	read := &UsagePage{Unreadable: textsOf(found.Unreadable)}
	if found.Next != nil {
		read.Next = *found.Next
	}
	for _, row := range found.Items {
		start, end := time.UnixMilli(row.StartMs), time.UnixMilli(row.EndMs)
		read.Rows = append(read.Rows, UsageRow{usageOf(row.usedJSON), row.Entity, row.Resource, start, end})
	}
	return read, nil
}

// Limits reads the limits in force for an entity on a resource, and the level that they come from.
func (c *Client) Limits(ctx context.Context, entity, resource string) (*EffectiveLimits, error) {
	asked, err := limitsRequest(entity, resource)
	if err != nil {
		return nil, err
	}
	var found EffectiveLimits
	if _, err := c.read(ctx, asked, &found); err != nil {
		return nil, err
	}
	return &found, nil
}

// SetLimits sets limits of one level in the table, if the agent was started with --allow-limit-changes; otherwise it returns
// ErrNotAllowed. A change holds at once for acquires by this agent, and for others within a minute.
func (c *Client) SetLimits(ctx context.Context, level Level, patch LimitsPatch) (*LimitsChange, error) {
	asked, err := setLimitsRequest(level, patch)
	if err != nil {
		return nil, err
	}
	return c.changed(ctx, asked)
}

// DeleteLimits deletes the limits of one level, so that the next level with some applies, as SetLimits does. The author, for
// the audit event, may be empty.
func (c *Client) DeleteLimits(ctx context.Context, level Level, author string) (*LimitsChange, error) {
	asked, err := deleteLimitsRequest(level, author)
	if err != nil {
		return nil, err
	}
	return c.changed(ctx, asked)
}

func (c *Client) changed(ctx context.Context, asked *request) (*LimitsChange, error) {
	var found LimitsChange
	if _, err := c.read(ctx, asked, &found); err != nil {
		return nil, err
	}
	return &found, nil
}

// read sends a request, and reads its answer.
func (c *Client) read(ctx context.Context, asked *request, into any) (*answer, error) {
	found, err := c.call(ctx, asked, nil)
	if err != nil {
		return nil, err
	}
	if err := found.decode(into); err != nil {
		return nil, notOfTheAgent(asked)
	}
	return found, nil
}

func (c *Client) granted(found *answer) (*Grant, error) {
	var read grantedJSON
	if found.decode(&read) != nil || read.Grant == "" {
		return nil, notOfTheAgent(&request{path: acquirePath})
	}
	grant := &Grant{client: c, limits: statuses(read.Limits), header: found.rateLimitFields(), missingPlan: read.MissingPlan}
	grant.update(settledJSON{Grant: &read.Grant, Lease: read.Lease, Amounts: read.Amounts})
	if read.WouldDeny != nil {
		for _, status := range statuses(read.WouldDeny.Limits) {
			if status.IsShort() {
				grant.wouldDeny = append(grant.wouldDeny, status.Limit)
			}
		}
	}
	if read.StartsAtMs != nil {
		grant.startsAt = time.UnixMilli(*read.StartsAtMs)
	}
	if read.Degraded != nil {
		grant.degraded = read.Degraded.Reason
	}
	return grant, nil
}

func notOfTheAgent(asked *request) error {
	unavailable := &UnavailableError{Applied: MaybeApplied, kind: ErrUnavailable, text: errNotOfTheAgent.Error()}
	if asked.changesNothing() {
		unavailable.Applied = NotApplied
	}
	return unavailable
}

// call sends a request until it has an answer. If the context is done after it was sent, `takeBack` gets a success that the
// agent has answered with.
func (c *Client) call(ctx context.Context, asked *request, takeBack func(*answer)) (*answer, error) {
	return c.callUntil(ctx, asked, time.Now().Add(c.answerTimeout+asked.longer), takeBack)
}

func (c *Client) callUntil(ctx context.Context, asked *request, deadline time.Time, takeBack func(*answer)) (*answer, error) {
	attempts := attempts{left: c.retries, deadline: deadline, pause: firstPause}
	for {
		if ctx.Err() != nil {
			return nil, abandoned(ctx, asked.path)
		}
		flight := c.transport.start(asked, deadline)
		select {
		case <-flight.done:
		case <-ctx.Done():
			c.abandon(flight, takeBack)
			return nil, abandoned(ctx, asked.path)
		}
		found, err := flight.answer, flight.err
		pause, isNext := time.Duration(0), false
		switch {
		case err == nil && found.status == 200:
			return found, nil
		case err == nil:
			problem, members := found.problem()
			err = found.failure(problem, members)
			pause, isNext = attempts.afterAnswer(found, problem)
		default:
			isNext, err = unanswered(err, asked)
			if isNext {
				pause, isNext = attempts.next(true, nil)
			}
		}
		if !isNext {
			return nil, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// abandon ends a flight that nothing waits for. What it took returns.
func (c *Client) abandon(flight *flight, takeBack func(*answer)) {
	if takeBack == nil {
		flight.stop()
		return
	}
	flight.giveUp()
	c.flights.begin()
	go func() {
		defer c.flights.end()
		<-flight.done
		if flight.err == nil && flight.answer.status == 200 {
			takeBack(flight.answer)
		}
	}()
}

// takeBack rolls back a grant whose caller does not have it.
func (c *Client) takeBack(found *answer) {
	grant, err := c.granted(found)
	if err == nil {
		_, err = grant.RollBack(context.Background())
	}
	if err != nil {
		c.notSettled(err)
	}
}

func (c *Client) notSettled(err error) {
	c.log.Printf("weirgate: a grant could not be settled, its lease expires by itself: %v", err)
}

func abandoned(ctx context.Context, path string) error {
	return fmt.Errorf("weirgate: the call of %s was abandoned: %w", path, ctx.Err())
}

// unanswered returns whether a request without an answer can be sent again, and its error.
func unanswered(err error, asked *request) (bool, error) {
	var (
		notSent *notSentError
		lost    *lostError
	)
	unavailable := &UnavailableError{Applied: NotApplied, Transient: true, kind: ErrUnavailable, cause: err, text: err.Error()}
	switch {
	case errors.As(err, &notSent):
		return true, unavailable
	case !errors.As(err, &lost):
		return false, err
	case !asked.changesNothing():
		unavailable.Applied = MaybeApplied
		unavailable.text += "; whether the request was applied is unknown"
	}
	return false, unavailable
}

// deniedWithoutAgent returns the denial of a client whose agent is unavailable.
func deniedWithoutAgent(cause error) error {
	// Without the cause, which names the agent: the problem is for the service's own callers.
	text := "the limits of this request could not be checked at the moment: try again"
	var second int64 = 1_000
	return &RefusedError{
		Status:  429,
		Header:  map[string][]string{"X-Ratelimit-Degraded": {"true"}, "Retry-After": {"1"}},
		Problem: map[string]any{"type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": text, "retry_after": 1, "retry_after_ms": second},
		kind:    ErrDenied, cause: cause, text: text, retryAfter: &second,
	}
}

func (c *Client) grantedWithoutAgent(buckets []Bucket, cause error) *Grant {
	grant := &Grant{
		client: c, token: withoutAgent, degraded: "without the agent: " + cause.Error(),
		header: map[string][]string{"X-Ratelimit-Degraded": {"true"}},
	}
	for _, bucket := range buckets {
		amounts := Amounts{}
		for limit, tokens := range bucket.Take {
			amounts[limit] = tokens
		}
		for limit, span := range bucket.UpTo {
			amounts[limit] = float64(span.AtMost)
		}
		grant.amounts = append(grant.amounts, amounts)
	}
	return grant
}

// flights counts what goes on in the background.
type flights struct {
	mu    sync.Mutex
	count int
	none  chan struct{}
}

func (f *flights) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		f.none = make(chan struct{})
	}
	f.count++
}

func (f *flights) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count--
	if f.count == 0 {
		close(f.none)
	}
}

func (f *flights) wait() {
	for {
		f.mu.Lock()
		count, none := f.count, f.none
		f.mu.Unlock()
		if count == 0 {
			return
		}
		<-none
	}
}
