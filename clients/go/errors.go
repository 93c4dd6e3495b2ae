package weirgate

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// Kinds of errors, for [errors.Is].
var (
	// ErrDenied says that there are too few tokens now.
	ErrDenied = errors.New("weirgate: denied")
	// ErrNeverFits says that an amount is above a limit's capacity: no wait helps, a smaller amount may.
	ErrNeverFits = errors.New("weirgate: above a capacity")
	// ErrDisabled says that an operator disabled or stopped the resource for the entity.
	ErrDisabled = errors.New("weirgate: disabled")
	// ErrUnavailable says that there was no decision, or no answer.
	ErrUnavailable = errors.New("weirgate: unavailable")
	// ErrMisconfigured says that there is no decision until a repair, such as of a permission or the table. It is
	// ErrUnavailable too.
	ErrMisconfigured = errors.New("weirgate: misconfigured")
	// ErrNotConfigured says that limits are neither in the call nor in the table. It is ErrMisconfigured too.
	ErrNotConfigured = errors.New("weirgate: limits are not configured")
	// ErrInvalidRequest says that the call is wrong, and nothing was taken. The text says what to change.
	ErrInvalidRequest = errors.New("weirgate: invalid request")
	// ErrUnauthorized says that the agent refused the token. Nothing was taken.
	ErrUnauthorized = errors.New("weirgate: unauthorized")
	// ErrNotAllowed says that the agent changes no limits. The text has the option that allows it.
	ErrNotAllowed = errors.New("weirgate: not allowed")
)

// A RefusedError is a decision that grants nothing. It is ErrDenied, ErrNeverFits or ErrDisabled.
//
// It is an [http.Handler] that answers the caller of an HTTP service as the agent answered.
type RefusedError struct {
	// Status is 429, 413 or 403.
	Status int
	// Header has the RateLimit fields, and Retry-After if a wait helps.
	Header http.Header
	// Problem has the members of an application/problem+json body.
	Problem map[string]any
	// Limits has the names of the short limits. A limit of another entity, such as a parent, has a number: rpm#2.
	Limits []string
	// Blocking is the short limit with the longest wait, if there is one.
	Blocking *Blocking

	kind, cause error
	text        string
	retryAfter  *int64
	startsIn    *int64
}

// Blocking is a short limit; numbers are whole tokens.
type Blocking struct {
	Limit     string `json:"policy"`
	Capacity  int64  `json:"quota"`
	Remaining int64  `json:"remaining"`
	Requested int64  `json:"requested"`
}

// Error returns the agent's sentence about the limit, its balance and the time to retry.
func (e *RefusedError) Error() string { return "weirgate: " + e.text }

// Is returns whether the target is the kind of the error.
func (e *RefusedError) Is(target error) bool { return target == e.kind }

// Unwrap returns why the client decided without the agent, or nil.
func (e *RefusedError) Unwrap() error { return e.cause }

// RetryAfter returns the time until the tokens are there, if no other request takes them. It returns false if time alone
// does not help.
func (e *RefusedError) RetryAfter() (time.Duration, bool) {
	if e.retryAfter == nil {
		return 0, false
	}
	return span(*e.retryAfter), true
}

// StartsIn returns the time until the start that a longer Queue would have. It returns false without a Queue, or if time alone
// does not help.
func (e *RefusedError) StartsIn() (time.Duration, bool) {
	if e.startsIn == nil {
		return 0, false
	}
	return span(*e.startsIn), true
}

// IsPaused returns whether the request waits for the end of a pause, for which a vendor asked, or an operator.
func (e *RefusedError) IsPaused() bool { return e.Problem["paused"] == true }

// MissingPlan returns the plan of the entity, or of an ancestor, of which no level has a configuration: other levels take its
// place. It is empty otherwise, and of a disabled resource.
func (e *RefusedError) MissingPlan() string {
	plan, _ := e.Problem["missing_plan"].(string)
	return plan
}

// ServeHTTP answers with the status, the fields and the problem.
func (e *RefusedError) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	for name, values := range e.Header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.Status)
	// A client that has left reads no answer.
	_ = json.NewEncoder(w).Encode(e.Problem)
}

// Applied says whether a call that failed has changed anything.
type Applied string

const (
	// NotApplied says that nothing was taken or changed.
	NotApplied Applied = "no"
	// MaybeApplied says that the call may have been applied anyway, so only the caller can know whether to repeat it.
	MaybeApplied Applied = "unknown"
)

// An UnavailableError is no decision, or no answer. It is ErrUnavailable, and maybe ErrMisconfigured and ErrNotConfigured.
type UnavailableError struct {
	Applied Applied
	// Transient says whether the same call may succeed later, without a repair.
	Transient bool
	// Status is that of the answer, or 0 without one.
	Status int
	// Grant is the token of a grant whose settlement stopped halfway. The grant has it already.
	Grant string

	kind, cause error
	text        string
}

// Error returns what is unavailable, and what to do.
func (e *UnavailableError) Error() string { return "weirgate: " + e.text }

// Is returns whether the target is a kind of the error.
func (e *UnavailableError) Is(target error) bool {
	switch target {
	case ErrUnavailable:
		return true
	case ErrMisconfigured:
		return e.kind == ErrMisconfigured || e.kind == ErrNotConfigured
	default:
		return target == e.kind
	}
}

// Unwrap returns the failure of the connection, or nil.
func (e *UnavailableError) Unwrap() error { return e.cause }

// A requestError is a call that is wrong.
type requestError struct {
	kind error
	text string
}

func (e *requestError) Error() string { return "weirgate: " + e.text }

func (e *requestError) Is(target error) bool { return target == e.kind }

func invalid(text string) error { return &requestError{ErrInvalidRequest, text} }
