package weirgate

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// errNotOfTheAgent is the error of JSON that the agent does not write.
var errNotOfTheAgent = errors.New("the answer is not one of the agent: is its URL right?")

// An answer is an HTTP response.
type answer struct {
	status int
	header http.Header
	body   []byte
	hide   hiding
}

type statusJSON struct {
	Entity       string  `json:"entity"`
	Resource     string  `json:"resource"`
	Limit        string  `json:"limit"`
	Mode         Mode    `json:"mode"`
	Capacity     float64 `json:"capacity_tokens"`
	Refill       float64 `json:"refill_tokens"`
	PeriodMs     int64   `json:"refill_period_ms"`
	Available    float64 `json:"available_tokens"`
	Requested    float64 `json:"requested_tokens"`
	IsRequested  bool    `json:"is_requested"`
	RetryAfterMs *int64  `json:"retry_after_ms"`
	// Of quotas alone, and of paused buckets.
	Window     json.RawMessage `json:"window,omitempty"`
	ResetsAtMs *int64          `json:"resets_at_ms,omitempty"`
	PausedMs   *int64          `json:"paused_ms,omitempty"`
}

type leaseJSON struct {
	ExpiresAtMs int64 `json:"expires_at_ms"`
}

type grantedJSON struct {
	Grant     string       `json:"grant"`
	Lease     *leaseJSON   `json:"lease"`
	Amounts   []Amounts    `json:"amounts"`
	Limits    []statusJSON `json:"limits"`
	WouldDeny *struct {
		Limits []statusJSON `json:"limits"`
	} `json:"would_deny"`
	Degraded *struct {
		Reason string `json:"reason"`
	} `json:"degraded"`
	StartsAtMs  *int64 `json:"starts_at_ms,omitempty"`
	MissingPlan string `json:"missing_plan,omitempty"`
}

type settledJSON struct {
	Grant      *string    `json:"grant"`
	Settlement Settlement `json:"settlement"`
	Lease      *leaseJSON `json:"lease"`
	Amounts    []Amounts  `json:"amounts"`
}

type reportedJSON struct {
	PausedUntilMs *int64 `json:"paused_until_ms"`
}

type balancesJSON struct {
	Status       Status       `json:"status"`
	Limits       []statusJSON `json:"limits"`
	RetryAfterMs *int64       `json:"retry_after_ms"`
}

type unreadableJSON struct {
	Error string `json:"error"`
}

type usedJSON struct {
	Usage struct {
		Tokens   map[string]json.Number `json:"tokens"`
		Acquires int64                  `json:"acquires"`
	} `json:"usage"`
	State           UsageState `json:"state"`
	CompleteUntilMs int64      `json:"complete_until_ms"`
}

type totalJSON struct {
	usedJSON
	Unreadable []unreadableJSON `json:"unreadable,omitempty"`
}

type rowJSON struct {
	usedJSON
	Entity   string `json:"entity"`
	Resource string `json:"resource"`
	StartMs  int64  `json:"start_ms"`
	EndMs    int64  `json:"end_ms"`
}

type pageJSON struct {
	Items      []rowJSON        `json:"items"`
	Next       *string          `json:"next"`
	Unreadable []unreadableJSON `json:"unreadable,omitempty"`
}

type problemJSON struct {
	Type         string    `json:"type,omitempty"`
	Detail       string    `json:"detail,omitempty"`
	Applied      Applied   `json:"applied,omitempty"`
	Retry        bool      `json:"retry,omitempty"`
	Grant        string    `json:"grant,omitempty"`
	RetryAfterMs *int64    `json:"retry_after_ms,omitempty"`
	StartsInMs   *int64    `json:"starts_in_ms,omitempty"`
	MissingPlan  string    `json:"missing_plan,omitempty"`
	Paused       bool      `json:"paused,omitempty"`
	Violated     []string  `json:"violated-policies,omitempty"`
	Blocking     *Blocking `json:"blocking,omitempty"`
}

// decode reads a success, with all of its fields.
func (a *answer) decode(into any) error {
	if json.Unmarshal(a.body, into) != nil || !isComplete(a.body, reflect.TypeOf(into).Elem()) {
		return errNotOfTheAgent
	}
	return nil
}

var marshaler = reflect.TypeOf((*json.Unmarshaler)(nil)).Elem()

// isComplete returns whether JSON that was read as a type has each of its fields, and null only for pointers.
func isComplete(data json.RawMessage, kind reflect.Type) bool {
	isNull := string(data) == "null"
	switch {
	case kind.Kind() == reflect.Pointer:
		return isNull || isComplete(data, kind.Elem())
	case isNull:
		return false
	case reflect.PointerTo(kind).Implements(marshaler):
		return true
	}
	switch kind.Kind() {
	case reflect.Slice:
		var all []json.RawMessage
		return json.Unmarshal(data, &all) == nil && areComplete(all, kind.Elem())
	case reflect.Map:
		var all map[string]json.RawMessage
		if json.Unmarshal(data, &all) != nil {
			return false
		}
		for _, one := range all {
			if !isComplete(one, kind.Elem()) {
				return false
			}
		}
	case reflect.Struct:
		var all map[string]json.RawMessage
		if json.Unmarshal(data, &all) != nil {
			return false
		}
		for _, field := range reflect.VisibleFields(kind) {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			value, is := all[name]
			if field.Anonymous || name == "-" || (!is && options == "omitempty") {
				continue
			}
			if !is || !isComplete(value, field.Type) {
				return false
			}
		}
	}
	return true
}

func areComplete(all []json.RawMessage, kind reflect.Type) bool {
	for _, one := range all {
		if !isComplete(one, kind) {
			return false
		}
	}
	return true
}

func statuses(all []statusJSON) []LimitStatus {
	found := make([]LimitStatus, len(all))
	for at, one := range all {
		found[at] = LimitStatus{
			Entity: one.Entity, Resource: one.Resource, Limit: one.Limit, Mode: one.Mode,
			Capacity: one.Capacity, Refill: one.Refill, Period: span(one.PeriodMs),
			Available: one.Available, Requested: one.Requested, IsRequested: one.IsRequested,
			RetryAfter: spanOrNil(one.RetryAfterMs), PausedFor: spanOrNil(one.PausedMs), isQuota: one.Window != nil,
		}
		if one.ResetsAtMs != nil {
			found[at].ResetsAt = time.UnixMilli(*one.ResetsAtMs)
		}
	}
	return found
}

func usageOf(used usedJSON) Usage {
	return Usage{used.Usage.Tokens, used.Usage.Acquires, used.State, time.UnixMilli(used.CompleteUntilMs)}
}

func textsOf(all []unreadableJSON) []string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.Error)
	}
	return texts
}

// span returns a span of so many milliseconds. One of more than 292 years is that long.
func span(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

func spanOrNil(ms *int64) *time.Duration {
	if ms == nil {
		return nil
	}
	found := span(*ms)
	return &found
}

// rateLimitFields returns the fields that an HTTP service passes on to its own caller.
func (a *answer) rateLimitFields() http.Header {
	found := http.Header{}
	for name, values := range a.header {
		lower := strings.ToLower(name)
		if lower != "retry-after" && !strings.HasPrefix(strings.TrimPrefix(lower, "x-"), "ratelimit") {
			continue
		}
		for _, value := range values {
			found.Add(name, a.hide.text(value))
		}
	}
	return found
}

// problem returns the agent's problem, or an empty one. Nothing of another body is shown, because it may repeat the request with
// its token.
func (a *answer) problem() (problemJSON, map[string]any) {
	var found problemJSON
	var members map[string]any
	isProblem := json.Unmarshal(a.body, &members) == nil && members != nil
	if isProblem {
		members = a.hide.value(members).(map[string]any)
		// With numbers as they were written: as floating point, a time of ages does not fit into an integer any more.
		var exact map[string]any
		digits := json.NewDecoder(bytes.NewReader(a.body))
		digits.UseNumber()
		isProblem = digits.Decode(&exact) == nil
		hidden, err := json.Marshal(a.hide.value(exact))
		isProblem = isProblem && err == nil && json.Unmarshal(hidden, &found) == nil
	}
	// Every problem of the agent has it, and those of other servers have not.
	if !isProblem || (found.Applied != NotApplied && found.Applied != MaybeApplied) {
		return problemJSON{}, map[string]any{}
	}
	return found, members
}

// failure returns the error of an answer that is no success.
func (a *answer) failure(problem problemJSON, members map[string]any) error {
	text := problem.Detail
	if text == "" {
		text = "the answer must be one of the agent, got " + strconv.Itoa(a.status) +
			" of another server: check the agent's URL, and proxies before it"
	}
	// By the type of a problem: 404 is also an unknown path.
	kind := map[string]error{"limits-not-configured": ErrNotConfigured, "misconfigured": ErrMisconfigured}[problem.Type]
	if kind == nil && problem.Applied == NotApplied && a.status >= 400 && a.status < 500 {
		return a.refusal(problem, members, text)
	}
	unavailable := &UnavailableError{
		Applied: problem.Applied, Status: a.status, Grant: problem.Grant, kind: kind, text: text,
		Transient: kind == nil && (a.status == http.StatusRequestTimeout || a.status == http.StatusTooManyRequests || a.status > 500),
	}
	if problem.Applied == "" {
		unavailable.Applied = MaybeApplied
	}
	if kind == nil {
		unavailable.kind = ErrUnavailable
	}
	return unavailable
}

// refusal returns the error of a request that the agent refused.
func (a *answer) refusal(problem problemJSON, members map[string]any, text string) error {
	refused := func(kind error) error {
		return &RefusedError{
			Status: a.status, Header: a.rateLimitFields(), Problem: members, Limits: problem.Violated,
			Blocking: problem.Blocking, kind: kind, text: text, retryAfter: problem.RetryAfterMs, startsIn: problem.StartsInMs,
		}
	}
	switch {
	case a.status == http.StatusTooManyRequests:
		return refused(ErrDenied)
	case a.status == http.StatusRequestEntityTooLarge && problem.Blocking != nil:
		return refused(ErrNeverFits)
	case a.status == http.StatusForbidden && problem.Type == "limit-changes-not-allowed":
		return &requestError{ErrNotAllowed, text}
	case a.status == http.StatusForbidden:
		return refused(ErrDisabled)
	case a.status == http.StatusUnauthorized:
		return &requestError{ErrUnauthorized, text}
	}
	return &requestError{ErrInvalidRequest, text}
}

// Attempts decide whether a request is sent again: only if nothing of it was applied.
type attempts struct {
	left     int
	deadline time.Time
	pause    time.Duration
}

var random = struct {
	sync.Mutex
	*rand.Rand
}{Rand: rand.New(rand.NewSource(time.Now().UnixNano()))}

const firstPause = 50 * time.Millisecond

// next returns the time to wait before the next attempt, or false if there is none.
//
// It is random, so that requests which were refused together do not come back together, and never less than `after`. Half of
// the time that is left after it stays for the attempt.
func (a *attempts) next(isRepeatable bool, after *time.Duration) (time.Duration, bool) {
	least := a.pause / 2
	if after != nil {
		least = *after
	}
	left := time.Until(a.deadline) - least
	if !isRepeatable || a.left <= 0 || left <= 0 {
		return 0, false
	}
	a.left--
	spread := a.pause
	if least > spread {
		spread = least
	}
	if left/2 < spread {
		spread = left / 2
	}
	a.pause *= 2
	random.Lock()
	defer random.Unlock()
	return least + time.Duration(random.Float64()*float64(spread)), true
}

var digits = regexp.MustCompile(`^[0-9]{1,9}$`)

// afterAnswer returns the same after an answer that is no success.
func (a *attempts) afterAnswer(found *answer, problem problemJSON) (time.Duration, bool) {
	// The agent says so only if nothing was applied.
	isRepeatable := problem.Retry && problem.Applied == NotApplied
	given := found.header.Values("Retry-After")
	if len(given) == 0 {
		return a.next(isRepeatable, nil)
	}
	// What cannot be read may ask for any time.
	seconds, err := strconv.ParseInt(given[0], 10, 64)
	if err != nil || !digits.MatchString(given[0]) {
		return 0, false
	}
	after := time.Duration(seconds) * time.Second
	return a.next(isRepeatable, &after)
}
