package weirgate_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weirgate"
)

const granted = `{"grant": "g1", "lease": {"expires_at_ms": 1900000000000}, "amounts": [{"rpm": 1}], "limits": [], "would_deny": null, "degraded": null}`
const ended = `{"grant": null, "settlement": "settled", "lease": null, "amounts": []}`

var (
	background = context.Background()
	oneToken   = weirgate.Bucket{Entity: "a", Resource: "api", Take: weirgate.Amounts{"rpm": 1}}
)

// served is a server that answers as a function says, and keeps what it was asked.
type served struct {
	*httptest.Server
	mu    sync.Mutex
	asked []sent
}

type sent struct {
	path string
	head http.Header
	body map[string]any
}

func serve(t testing.TB, answer func(w http.ResponseWriter, path string)) *served {
	s := &served{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one := sent{path: r.URL.Path, head: r.Header}
		if err := json.NewDecoder(r.Body).Decode(&one.body); err != nil {
			t.Errorf("the body is no JSON: %v", err)
		}
		s.mu.Lock()
		s.asked = append(s.asked, one)
		s.mu.Unlock()
		answer(w, r.URL.Path)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *served) requests() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sent{}, s.asked...)
}

func answering(w http.ResponseWriter, path string) {
	if path == "/v1/acquire" {
		io.WriteString(w, granted)
	} else {
		io.WriteString(w, ended)
	}
}

// everyCall has each call that asks the agent.
var everyCall = map[string]func(*weirgate.Client) error{
	"acquire":     func(c *weirgate.Client) error { _, err := c.Acquire(background, oneToken, nil); return err },
	"acquire_all": func(c *weirgate.Client) error { _, err := c.AcquireAll(background, twoBuckets, nil); return err },
	"settle": func(c *weirgate.Client) error {
		grant, err := c.Restore("g")
		if err == nil {
			_, err = grant.Adjust(background, weirgate.Amounts{"rpm": 1})
		}
		return err
	},
	"vendor_said": func(c *weirgate.Client) error {
		grant, err := c.Restore("g")
		if err == nil {
			_, err = grant.VendorSaid(background, responseOf(429, nil))
		}
		return err
	},
	"report_vendor": func(c *weirgate.Client) error {
		_, err := c.ReportVendor(background, "a", "api", responseOf(429, nil))
		return err
	},
	"peek":  func(c *weirgate.Client) error { _, err := c.Peek(background, "a", "api", nil); return err },
	"usage": func(c *weirgate.Client) error { _, err := c.Usage(background, aDay); return err },
	"usage_rows": func(c *weirgate.Client) error {
		_, err := c.UsageRows(background, aDay, "")
		return err
	},
	"limits": func(c *weirgate.Client) error { _, err := c.Limits(background, "a", "api"); return err },
	"set_limits": func(c *weirgate.Client) error {
		patch := weirgate.LimitsPatch{Limits: []weirgate.Limit{{Text: "rpm=5/minute"}}}
		_, err := c.SetLimits(background, weirgate.Level{Resource: "api"}, patch)
		return err
	},
	"delete_limits": func(c *weirgate.Client) error {
		_, err := c.DeleteLimits(background, weirgate.Level{Entity: "a"}, "")
		return err
	},
}

var (
	aDay       = weirgate.UsageQuery{Entity: "a", Start: time.Unix(0, 0), End: time.Unix(86_400, 0)}
	twoBuckets = []weirgate.Bucket{oneToken, {
		Entity: "b", Resource: "api", UpTo: map[string]weirgate.Range{"rpm": {AtLeast: 1, AtMost: 5}},
	}}
)

// A failure is a row of clients/contract/client/failures.json.
type failure struct {
	Failure     json.RawMessage
	Raises      string
	IsTransient *bool `json:"is_transient"`
}

// failing returns the URL of a server that fails in one way, and the server.
func failing(t *testing.T, how json.RawMessage) (string, *served) {
	var status int
	var body json.RawMessage
	_ = json.Unmarshal(how, &[]any{&status, &body})
	server := serve(t, func(w http.ResponseWriter, _ string) {
		if status == 0 {
			panic(http.ErrAbortHandler) // no answer
		}
		w.WriteHeader(status)
		w.Write(body)
	})
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if string(how) == `"refused"` {
		return "http://127.0.0.1:1", server
	}
	return server.URL, server
}

var kinds = map[string]error{
	"Denied": weirgate.ErrDenied, "Disabled": weirgate.ErrDisabled, "Unavailable": weirgate.ErrUnavailable,
	"Misconfigured": weirgate.ErrMisconfigured, "NotConfigured": weirgate.ErrNotConfigured,
	"InvalidRequest": weirgate.ErrInvalidRequest, "Unauthorized": weirgate.ErrUnauthorized,
}

func checkKind(t *testing.T, err error, row failure) {
	t.Helper()
	expected := map[error]bool{kinds[row.Raises]: true}
	switch kinds[row.Raises] {
	case weirgate.ErrNotConfigured:
		expected[weirgate.ErrMisconfigured], expected[weirgate.ErrUnavailable] = true, true
	case weirgate.ErrMisconfigured:
		expected[weirgate.ErrUnavailable] = true
	}
	for _, kind := range kinds {
		if errors.Is(err, kind) != expected[kind] {
			t.Errorf("%v: is %v: %v", err, kind, !expected[kind])
		}
	}
	var unavailable *weirgate.UnavailableError
	if errors.As(err, &unavailable) != (row.IsTransient != nil) {
		t.Errorf("%v is an UnavailableError: %v", err, row.IsTransient == nil)
	} else if unavailable != nil && unavailable.Transient != *row.IsTransient {
		t.Errorf("%v: transient must be %v", err, *row.IsTransient)
	}
}

func TestEachFailureIsAnErrorOfItsKindAndAPolicyDecidesTransientOnesAlone(t *testing.T) {
	var table struct{ Failures []failure }
	readJSON(t, contract+"client/failures.json", &table)
	for _, row := range table.Failures {
		for _, policy := range []weirgate.OnUnavailable{weirgate.Fail, weirgate.Deny, weirgate.Allow} {
			url, server := failing(t, row.Failure)
			client := newClient(t, weirgate.Options{URL: url, Retries: -1, OnAgentUnavailable: policy})
			for name, call := range everyCall {
				t.Run(fmt.Sprintf("%s %s %s", row.Failure, policy, name), func(t *testing.T) {
					err := call(client)
					isDecided := row.IsTransient != nil && *row.IsTransient && strings.HasPrefix(name, "acquire")
					switch {
					case isDecided && policy == weirgate.Allow:
						if err != nil {
							t.Error(err)
						}
					case isDecided && policy == weirgate.Deny:
						checkDeniedWithoutAgent(t, err)
					default:
						checkKind(t, err, row)
					}
				})
			}
			for _, one := range server.requests() {
				if one.path == "/v1/settle" && one.body["grant"] != "g" {
					t.Errorf("what was not taken is settled: %v", one.body)
				}
			}
		}
	}
}

func TestAnAnswerThatIsNotOfTheAgentLeavesUnknownWhatWasApplied(t *testing.T) {
	var table struct {
		Foreign struct {
			Transient []int
			Bodies    []json.RawMessage
		}
	}
	readJSON(t, contract+"client/failures.json", &table)
	for _, body := range table.Foreign.Bodies {
		var status atomic.Int32
		server := serve(t, func(w http.ResponseWriter, _ string) {
			w.WriteHeader(int(status.Load()))
			w.Write(body)
		})
		client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
		for code := 400; code < 600; code++ {
			status.Store(int32(code))
			isTransient := code > 500
			for _, one := range table.Foreign.Transient {
				isTransient = isTransient || one == code
			}
			_, err := client.Acquire(background, oneToken, nil)
			checkKind(t, err, failure{Raises: "Unavailable", IsTransient: &isTransient})
			var found *weirgate.UnavailableError
			if errors.As(err, &found) && (found.Applied != weirgate.MaybeApplied || found.Status != code) {
				t.Errorf("%d, %s: %+v", code, body, found)
			}
			if strings.Contains(err.Error(), "of a proxy") {
				t.Errorf("%d, %s: the error shows the body: %v", code, body, err)
			}
		}
	}
}

func TestOneCallMayHaveAnotherPolicyThanItsClient(t *testing.T) {
	policies := []weirgate.OnUnavailable{weirgate.Fail, weirgate.Deny, weirgate.Allow}
	for _, ofClient := range policies {
		client := newClient(t, weirgate.Options{URL: "http://127.0.0.1:1", Retries: -1, OnAgentUnavailable: ofClient})
		for _, ofCall := range policies {
			grant, err := client.AcquireAll(background, twoBuckets, &weirgate.AcquireOptions{OnAgentUnavailable: ofCall})
			switch ofCall {
			case weirgate.Allow:
				if err != nil || grant.Degraded() == "" {
					t.Errorf("%s, %s: %v", ofClient, ofCall, err)
				}
			case weirgate.Deny:
				checkDeniedWithoutAgent(t, err)
			default:
				if !errors.Is(err, weirgate.ErrUnavailable) || errors.Is(err, weirgate.ErrDenied) {
					t.Errorf("%s, %s: %v", ofClient, ofCall, err)
				}
			}
		}
	}
}

func checkDeniedWithoutAgent(t *testing.T, err error) {
	t.Helper()
	var refused *weirgate.RefusedError
	if !errors.Is(err, weirgate.ErrDenied) || !errors.As(err, &refused) || !errors.Is(err, weirgate.ErrUnavailable) {
		t.Fatalf("%v must be a denial with its cause", err)
	}
	answered := httptest.NewRecorder()
	refused.ServeHTTP(answered, nil)
	head := answered.Header()
	if answered.Code != 429 || head.Get("Retry-After") != "1" || head.Get("X-RateLimit-Degraded") != "true" {
		t.Errorf("%d %v", answered.Code, head)
	}
	if strings.Contains(answered.Body.String(), "127.0.0.1") {
		t.Errorf("it names the agent: %s", answered.Body)
	}
	if after, is := refused.RetryAfter(); !is || after != time.Second {
		t.Errorf("%v %v", after, is)
	}
}

func TestATimeToRetryIsNeverNegativeAndNeverFalls(t *testing.T) {
	before := time.Duration(0)
	for _, ms := range []int64{0, 5, 9_223_372_036_854, 9_223_372_036_855, 31_535_979_645_901, 1 << 62, math.MaxInt64} {
		agent := serve(t, func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprintf(w, `{"status":429,"detail":"denied","applied":"no","retry":false,"retry_after_ms":%d}`, ms)
		})
		_, err := newClient(t, weirgate.Options{URL: agent.URL}).Acquire(background, twoBuckets[0], nil)
		var refused *weirgate.RefusedError
		if !errors.As(err, &refused) {
			t.Fatal(err)
		}
		after, is := refused.RetryAfter()
		if !is || after < before || ms > 0 && after <= 0 {
			t.Errorf("%d ms: %v after %v", ms, after, before)
		}
		before = after
	}
}

func TestAGrantWithoutTheAgentSettlesWithoutIt(t *testing.T) {
	client := newClient(t, weirgate.Options{URL: "http://127.0.0.1:1", Retries: -1, OnAgentUnavailable: weirgate.Allow})
	grant, err := client.AcquireAll(background, twoBuckets, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(grant.Amounts(), []weirgate.Amounts{{"rpm": 1}, {"rpm": 5}}) {
		t.Errorf("%v", grant.Amounts())
	}
	if !strings.Contains(grant.Degraded(), "without the agent") || grant.Header().Get("X-RateLimit-Degraded") != "true" {
		t.Errorf("%q %v", grant.Degraded(), grant.Header())
	}
	if _, err := grant.Adjust(background, weirgate.Amounts{"rpm": 2}); err != nil {
		t.Error(err)
	}
	if _, err := grant.Adjust(background, weirgate.Amounts{"rpm": -1}); !errors.Is(err, weirgate.ErrInvalidRequest) {
		t.Error(err)
	}
	if outcome, err := grant.Release(background, nil); outcome != weirgate.Settled || err != nil || !grant.IsEnded() {
		t.Error(outcome, err)
	}
	if _, err := grant.Release(background, nil); !errors.Is(err, weirgate.ErrInvalidRequest) {
		t.Error(err)
	}
}

// A table is clients/contract/client/checks.json. Texts in it are numbers that JSON does not have.
type checks struct {
	Amounts      kept            `json:"amounts"`
	WholeAmounts kept            `json:"whole_amounts"`
	TimesMs      map[string]kept `json:"times_ms"`
	Limits       []struct {
		Rate, Slots, Quota map[string]any
		Sent               any
		Mentions           []string
	}
	Vendor []struct {
		Status   int
		Headers  map[string]string
		Sent     map[string][]string
		Mentions []string
	}
}

type kept struct{ Kept, Refused []any }

// numbers returns what a float64 holds.
func numbers(t *testing.T, all []any) []float64 {
	special := map[string]float64{"NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1), "-0": math.Copysign(0, -1)}
	found := []float64{}
	for _, one := range all {
		switch of := one.(type) {
		case float64:
			found = append(found, of)
		case string:
			number, is := special[of]
			if !is {
				t.Fatalf("%q is no number", of)
			}
			found = append(found, number)
		}
	}
	return found
}

func TestAmountsThatTheAgentDoesNotTakeAreNotSent(t *testing.T) {
	var table checks
	readJSON(t, contract+"client/checks.json", &table)
	server := serve(t, func(w http.ResponseWriter, path string) {
		if path == "/v1/acquire" {
			io.WriteString(w, granted)
		} else {
			io.WriteString(w, `{"grant": "g2", "settlement": "settled", "lease": null, "amounts": [{"rpm": 1}]}`)
		}
	})
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	settling := func(settle func(*weirgate.Grant) error) error {
		grant, err := client.Restore("g")
		if err != nil {
			t.Fatal(err)
		}
		return settle(grant)
	}
	calls := map[string]func(weirgate.Amounts) error{
		"take": func(amounts weirgate.Amounts) error {
			_, err := client.Acquire(background, weirgate.Bucket{Entity: "a", Resource: "api", Take: amounts}, nil)
			return err
		},
		"adjust": func(amounts weirgate.Amounts) error {
			return settling(func(g *weirgate.Grant) error { _, err := g.Adjust(background, amounts); return err })
		},
		"give_back": func(amounts weirgate.Amounts) error {
			return settling(func(g *weirgate.Grant) error { _, err := g.GiveBack(background, amounts); return err })
		},
		"release": func(amounts weirgate.Amounts) error {
			return settling(func(g *weirgate.Grant) error { _, err := g.Release(background, amounts); return err })
		},
	}
	whole := map[string]func(weirgate.Amounts) error{
		"take_more": func(amounts weirgate.Amounts) error {
			return settling(func(g *weirgate.Grant) error { return g.TakeMore(background, amounts) })
		},
		"need": func(amounts weirgate.Amounts) error {
			_, err := client.Peek(background, "a", "api", &weirgate.PeekOptions{Need: amounts})
			return err
		},
	}
	refused := func(name string, call func(weirgate.Amounts) error, tokens float64) {
		err := call(weirgate.Amounts{"rpm": tokens})
		if !errors.Is(err, weirgate.ErrInvalidRequest) || !strings.Contains(err.Error(), "rpm") || len(err.Error()) > 300 {
			t.Errorf("%s of %v: %v", name, tokens, err)
		}
	}
	for name, call := range calls {
		for _, tokens := range numbers(t, table.Amounts.Refused) {
			refused(name, call, tokens)
		}
	}
	for name, call := range whole {
		for _, tokens := range numbers(t, append(table.Amounts.Refused, table.WholeAmounts.Refused...)) {
			refused(name, call, tokens)
		}
	}
	if len(server.requests()) != 0 {
		t.Errorf("%v", server.requests())
	}
	for name, call := range calls {
		for _, tokens := range numbers(t, table.Amounts.Kept) {
			if err := call(weirgate.Amounts{"rpm": tokens}); err != nil {
				t.Errorf("%s of %v: %v", name, tokens, err)
			}
			all := server.requests()
			body := all[len(all)-1].body
			amounts := body["take"]
			for _, field := range []string{"adjust", "give_back"} {
				if body[field] != nil {
					amounts = body[field]
				}
			}
			if !reflect.DeepEqual(amounts, map[string]any{"rpm": tokens}) {
				t.Errorf("%s of %v sends %v", name, tokens, body)
			}
		}
	}
}

func TestOfAVendorsAnswerOnlyTheFieldsOfLimitsAreSent(t *testing.T) {
	var table checks
	readJSON(t, contract+"client/checks.json", &table)
	const said = `{"grant": "g2", "settlement": "settled", "lease": null, "amounts": [], "paused_until_ms": 5000}`
	server := serve(t, func(w http.ResponseWriter, _ string) { io.WriteString(w, said) })
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	grant, err := client.Restore("g")
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(*http.Response) (time.Time, error){
		"/v1/settle": func(response *http.Response) (time.Time, error) { return grant.VendorSaid(background, response) },
		"/v1/report": func(response *http.Response) (time.Time, error) {
			return client.ReportVendor(background, "a", "api", response)
		},
	}
	many := http.Header{"Retry-After": {"1", "2"}, "Cookie": {"secret"}}
	for at := 0; at < 1_000; at++ {
		many.Set("X-Ratelimit-"+strconv.Itoa(at), strings.Repeat("9", 200))
	}
	for path, call := range calls {
		for _, row := range table.Vendor {
			before := len(server.requests())
			until, err := call(responseOf(row.Status, row.Headers))
			if row.Mentions != nil {
				if !errors.Is(err, weirgate.ErrInvalidRequest) || !strings.Contains(err.Error(), "StatusCode") || len(server.requests()) != before {
					t.Errorf("%v: %v", row, err)
				}
				continue
			}
			if err != nil || !until.Equal(time.UnixMilli(5000)) {
				t.Fatal(until, err)
			}
			sent := server.requests()[before]
			headers := map[string][]string{}
			vendor := sent.body["vendor"].(map[string]any)
			for name, values := range vendor["headers"].(map[string]any) {
				for _, value := range values.([]any) {
					headers[name] = append(headers[name], value.(string))
				}
			}
			if sent.path != path || vendor["status"] != float64(row.Status) || !reflect.DeepEqual(headers, row.Sent) {
				t.Errorf("%v: %s %v", row, sent.path, sent.body)
			}
		}
		before := len(server.requests())
		if _, err := call(&http.Response{StatusCode: 429, Header: many}); err != nil {
			t.Fatal(err)
		}
		bytes := 0
		headers := server.requests()[before].body["vendor"].(map[string]any)["headers"].(map[string]any)
		for name, values := range headers {
			for _, value := range values.([]any) {
				bytes += len(name) + len(value.(string))
			}
		}
		if bytes > 8_192 || len(headers) < 30 {
			t.Errorf("%d bytes of %d fields", bytes, len(headers))
		}
		if _, err := call(nil); !errors.Is(err, weirgate.ErrInvalidRequest) {
			t.Error(err)
		}
	}
	// The last one failed.
	if grant.Token() != "g" || !grant.IsUncertain() {
		t.Errorf("a report changes the grant: %s", grant.Token())
	}
	if _, err := client.ReportVendor(background, "", "api", responseOf(429, nil)); !errors.Is(err, weirgate.ErrInvalidRequest) {
		t.Error(err)
	}
}

func TestWrongRequestsAreNotSent(t *testing.T) {
	var table checks
	readJSON(t, contract+"client/checks.json", &table)
	server := serve(t, answering)
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	acquire := func(bucket weirgate.Bucket, options *weirgate.AcquireOptions) error {
		_, err := client.Acquire(background, bucket, options)
		return err
	}
	refused := func(err error, mentions ...string) {
		t.Helper()
		if !errors.Is(err, weirgate.ErrInvalidRequest) {
			t.Errorf("%v", err)
			return
		}
		for _, word := range mentions {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v: %s", err, word)
			}
		}
	}
	fields := map[string]func(time.Duration) *weirgate.AcquireOptions{
		"wait":    func(d time.Duration) *weirgate.AcquireOptions { return &weirgate.AcquireOptions{Wait: d} },
		"queue":   func(d time.Duration) *weirgate.AcquireOptions { return &weirgate.AcquireOptions{Queue: d} },
		"lease":   func(d time.Duration) *weirgate.AcquireOptions { return &weirgate.AcquireOptions{Lease: d} },
		"timeout": func(d time.Duration) *weirgate.AcquireOptions { return &weirgate.AcquireOptions{Timeout: d} },
	}
	for name, times := range table.TimesMs {
		for _, ms := range numbers(t, times.Refused) {
			// 0 is no time, and a duration has no others.
			if given := time.Duration(ms * 1e6); ms != 0 && math.Abs(ms) < 1e9 {
				refused(acquire(oneToken, fields[name](given)), strings.ToUpper(name[:1])+name[1:])
			}
		}
	}
	for _, row := range table.Limits {
		limit, is := limitOf(row.Rate, row.Slots, row.Quota)
		bucket := oneToken
		bucket.Limits = []weirgate.Limit{limit}
		switch {
		case !is: // no value of this language
		case row.Sent == nil:
			refused(acquire(bucket, nil), row.Mentions...)
		default:
			before := len(server.requests())
			if err := acquire(bucket, nil); err != nil {
				t.Errorf("%v: %v", row, err)
				continue
			}
			if of, is := row.Sent.(map[string]any); is {
				of["name"], of["mode"] = "rpm", "enforced"
			}
			if sent := server.requests()[before].body["limits"]; !reflect.DeepEqual(sent, []any{row.Sent}) {
				t.Errorf("%v is sent as %v", row.Sent, sent)
			}
		}
	}
	before := len(server.requests())
	with := func(change func(*weirgate.Bucket)) error {
		bucket := oneToken
		change(&bucket)
		return acquire(bucket, nil)
	}
	refused(acquire(oneToken, &weirgate.AcquireOptions{Now: true}), "Now", "Queue")
	if err := acquire(oneToken, &weirgate.AcquireOptions{Queue: time.Second, Now: true}); err != nil {
		t.Error(err)
	}
	if sent := server.requests()[before].body; sent["queue_ms"] != 1000.0 || sent["answer"] != "now" {
		t.Errorf("a queue is sent as %v", sent)
	}
	before++
	if err := with(func(b *weirgate.Bucket) { b.Class = "batch" }); err != nil {
		t.Error(err)
	}
	if sent := server.requests()[before].body["class"]; sent != "batch" {
		t.Errorf("a class is sent as %v", sent)
	}
	before++
	for _, wrong := range []weirgate.Limit{weirgate.Slots("a", 5), weirgate.Quota("a", 5, "month")} {
		wrong.Classes = "batch:10%"
		refused(with(func(b *weirgate.Bucket) { b.Limits = []weirgate.Limit{wrong} }), "classes", "rate")
	}
	refused(with(func(b *weirgate.Bucket) { b.Entity = "" }), "Entity")
	refused(with(func(b *weirgate.Bucket) { b.Resource = "" }), "Resource")
	refused(with(func(b *weirgate.Bucket) { b.Take = nil }), "Take")
	refused(with(func(b *weirgate.Bucket) { b.Take = weirgate.Amounts{"": 1} }), "Take")
	refused(with(func(b *weirgate.Bucket) { b.LimitsVersion = -1 }), "LimitsVersion")
	for _, span := range []weirgate.Range{{AtLeast: 2, AtMost: 1}, {AtLeast: -1, AtMost: 1}, {AtLeast: 0, AtMost: 1e12 + 1}} {
		refused(with(func(b *weirgate.Bucket) { b.UpTo = map[string]weirgate.Range{"tpm": span} }), "tpm")
	}
	refused(with(func(b *weirgate.Bucket) { b.UpTo = map[string]weirgate.Range{"rpm": {AtLeast: 1, AtMost: 2}} }), "rpm")
	for _, text := range []string{"rpm", "=5", "rpm="} {
		refused(with(func(b *weirgate.Bucket) { b.Limits = []weirgate.Limit{{Text: text}} }), "rpm=600/minute")
	}
	for _, decision := range []weirgate.OnUnavailable{"alow", "local", "local 0", "local 101", "local 05", "Allow", weirgate.Local(-1)} {
		refused(acquire(oneToken, &weirgate.AcquireOptions{OnUnavailable: decision}), "OnUnavailable")
		refused(acquire(oneToken, &weirgate.AcquireOptions{OnAgentUnavailable: decision}), "OnAgentUnavailable")
	}
	_, err := client.AcquireAll(background, nil, nil)
	refused(err, "buckets")
	_, err = client.Restore("")
	refused(err, "token")
	grant, _ := client.Restore("g")
	_, err = grant.Adjust(background, weirgate.Amounts{"rpm": 1}, -1)
	refused(err, "bucket")
	_, err = grant.Adjust(background, weirgate.Amounts{"rpm": 1}, 0, 1)
	refused(err, "bucket")
	_, err = grant.Renew(background, 0)
	refused(err, "lasts")
	for _, level := range []weirgate.Level{{}, {System: true, Entity: "a"}, {System: true, Plan: "a"}, {System: true, Resource: "a"}} {
		_, err = client.SetLimits(background, level, weirgate.LimitsPatch{Status: weirgate.StatusDisabled})
		refused(err, "level")
		_, err = client.DeleteLimits(background, level, "")
		refused(err, "level")
	}
	both, query := weirgate.Level{Entity: "a", Plan: "pro"}, aDay
	query.Entity, query.Plan = "a", "pro"
	const beside = `Plan must be left out beside Entity, got "pro"`
	_, err = client.SetLimits(background, both, weirgate.LimitsPatch{Status: weirgate.StatusDisabled})
	refused(err, beside)
	_, err = client.DeleteLimits(background, both, "")
	refused(err, beside)
	_, err = client.Usage(background, query)
	refused(err, beside)
	_, err = client.UsageRows(background, query, "")
	refused(err, beside)
	_, err = client.SetLimits(background, weirgate.Level{System: true}, weirgate.LimitsPatch{})
	refused(err, "sets nothing")
	_, err = client.SetLimits(background, weirgate.Level{System: true}, weirgate.LimitsPatch{Status: "off"})
	refused(err, "Status")
	_, err = client.Usage(background, weirgate.UsageQuery{By: "week", Entity: "a"})
	refused(err, "By")
	_, err = client.Usage(background, weirgate.UsageQuery{})
	refused(err, "Entity")
	_, err = client.Usage(background, weirgate.UsageQuery{Entity: "a"})
	refused(err, "Start")
	if after := len(server.requests()); after != before {
		t.Errorf("%d requests were sent", after-before)
	}
}

// limitOf returns the limit of a row, if this language can have it.
func limitOf(rate, slots, quota map[string]any) (weirgate.Limit, bool) {
	given := rate
	if rate == nil {
		given = slots
	}
	if quota != nil {
		given = quota
	}
	numbers := map[string]int64{}
	for _, name := range []string{"refill", "period_ms", "capacity", "slots", "quota"} {
		value, is := given[name]
		number, isNumber := value.(float64)
		if is && (!isNumber || number != math.Trunc(number)) {
			return weirgate.Limit{}, false
		}
		numbers[name] = int64(number)
	}
	name, mode := "rpm", weirgate.Enforced
	if value, is := given["name"]; is {
		if name, is = value.(string); !is {
			return weirgate.Limit{}, false
		}
	}
	if value, is := given["mode"]; is {
		text, isText := value.(string)
		if !isText {
			return weirgate.Limit{}, false
		}
		mode = weirgate.Mode(text)
	}
	if quota != nil {
		window, is := quota["window"].(string)
		// Without a window it has slots.
		return weirgate.Quota(name, numbers["quota"], window).In(mode), is && window != ""
	}
	if rate == nil {
		return weirgate.Slots(name, numbers["slots"]).In(mode), true
	}
	limit := weirgate.Rate(name, numbers["refill"], time.Duration(numbers["period_ms"])*time.Millisecond).In(mode)
	if _, is := given["capacity"]; is {
		limit = limit.WithBurst(numbers["capacity"])
	}
	// Without both it has slots.
	return limit, limit.Refill != 0 || limit.Period != 0
}

func TestAnAnswerWithoutEveryFieldIsNotOneOfTheAgent(t *testing.T) {
	status := `{"entity": "a", "resource": "api", "limit": "rpm", "mode": "enforced", "capacity_tokens": 10, "refill_tokens": 10,
		"refill_period_ms": 60000, "available_tokens": 9.5, "requested_tokens": 1, "is_requested": true, "retry_after_ms": null}`
	used := `"usage": {"tokens": {"rpm": 6.5, "tpm": "9300000000000000000"}, "acquires": 2}, "state": "interim", "complete_until_ms": 5`
	config := `{"limits": [{"name": "rpm", "capacity_tokens": 10, "refill_tokens": 5, "refill_period_ms": 60000, "mode": "enforced"},
		{"name": "slots", "slots": 2, "mode": "soft"},
		{"text": "tpm=quota:10/month,mode=soft", "name": "tpm", "quota_tokens": 10, "mode": "soft"},
		{"name": "tpm", "capacity_tokens": 10, "refill_tokens": 5, "refill_period_ms": 60000, "mode": "enforced",
			"classes": {"batch": {"at_least_percent": 10, "leaves_percent": 30}}}],
		"status": "enforced", "is_shadow": false, "class": "batch"}`
	level := `{"level": "entity_resource", "entity": "a", "resource": "api"}`
	ofPlan := `{"level": {"level": "plan_resource", "plan": "pro", "resource": "api"}, "config": null, "is_from_file": false},
		{"level": {"level": "plan", "plan": "pro"}, "config": null, "is_from_file": false}`
	whole := map[string]string{
		"acquire": `{"grant": "g1", "lease": {"expires_at_ms": 5}, "amounts": [{"rpm": 1}], "limits": [` + status + `],
			"would_deny": {"retry_after_ms": 5, "limits": [` + status + `]}, "degraded": {"reason": "no answer"}, "starts_at_ms": 5, "missing_plan": "pro"}`,
		"settle":        `{"grant": "g2", "settlement": "settled", "lease": {"expires_at_ms": 5}, "amounts": [{"rpm": 0.5}]}`,
		"report_vendor": `{"paused_until_ms": 5}`,
		"peek":          `{"status": "enforced", "limits": [` + status + `], "retry_after_ms": 12}`,
		"usage":         `{` + used + `, "unreadable": [{"error": "wrong"}]}`,
		"usage_rows":    `{"items": [{"entity": "a", "resource": "api", "start_ms": 0, "end_ms": 5, ` + used + `}], "next": "p2"}`,
		"limits": `{"buckets": [{"entity": "a", "level": ` + level + `, "status": "enforced", "limits": []}],
			"levels": [{"level": ` + level + `, "config": ` + config + `, "is_from_file": false}, ` + ofPlan + `],
			"missing_plan": "pro"}`,
		"set_limits": `{"changed": true, "before": ` + config + `, "after": ` + config + `}`,
	}
	var current string
	server := serve(t, func(w http.ResponseWriter, _ string) { io.WriteString(w, current) })
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	for name, text := range whole {
		current = text
		if err := everyCall[name](client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(name, err)
		}
		count := 0
		mutate(value, func(wrong string, isOptional bool) {
			current = wrong
			err := everyCall[name](client)
			var unavailable *weirgate.UnavailableError
			if err == nil && isOptional {
				return
			}
			count++
			if !errors.As(err, &unavailable) || unavailable.Transient {
				t.Errorf("%s: %s: %v", name, wrong, err)
			}
		})
		if count < 2 || (count < 8 && name != "report_vendor") {
			t.Errorf("%s: %d answers", name, count)
		}
	}
}

func TestLimitsInForceHaveTheLevelsOfThePlanAndThePlanThatLacksThem(t *testing.T) {
	levels := []string{
		`{"level":"entity","entity":"a"}`, `{"level":"plan_resource","plan":"pro","resource":"api"}`, `{"level":"plan","plan":"pro"}`,
	}
	var current string
	server := serve(t, func(w http.ResponseWriter, _ string) { io.WriteString(w, current) })
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	for _, missing := range []string{"pro", ""} {
		of := []string{}
		for _, level := range levels {
			of = append(of, `{"level": `+level+`, "config": null, "is_from_file": false}`)
		}
		current = `{"buckets": [{"entity": "a", "level": null, "status": null, "limits": []}], "levels": [` + strings.Join(of, ",") + `]`
		if missing != "" {
			current += `, "missing_plan": "` + missing + `"`
		}
		current += `}`
		found, err := client.Limits(background, "a", "api")
		if err != nil {
			t.Fatal(err)
		}
		if found.MissingPlan != missing {
			t.Errorf("%q is missing, not %q", found.MissingPlan, missing)
		}
		kinds := []weirgate.LevelKind{weirgate.OfEntity, weirgate.OfPlanResource, weirgate.OfPlan}
		for at, of := range found.Levels {
			written, _ := json.Marshal(of.Level)
			if string(written) != levels[at] || of.Level.Kind() != kinds[at] {
				t.Errorf("%s is %s, %s", levels[at], written, of.Level.Kind())
			}
		}
	}
}

// mutate calls a function with a JSON value of which each part once is missing, or of another type.
func mutate(value any, each func(wrong string, isOptional bool)) {
	var walk func(part any)
	whole := func() string {
		data, _ := json.Marshal(value)
		return string(data)
	}
	walk = func(part any) {
		switch of := part.(type) {
		case map[string]any:
			for name, inner := range of {
				// What is not read, may be null, or is not in every answer.
				isOptional := name == "retry_after_ms" || name == "unreadable"
				delete(of, name)
				isInSome := name == "rpm" || name == "tpm" || name == "missing_plan" || name == "starts_at_ms" ||
					name == "class" || name == "classes" || name == "batch"
				each(whole(), isOptional || isInSome)
				of[name] = map[string]any{"another": []any{}}
				if _, is := inner.(map[string]any); is {
					of[name] = 5.5
				}
				each(whole(), isOptional || name == "tokens")
				of[name] = inner
				walk(inner)
			}
		case []any:
			for _, inner := range of {
				walk(inner)
			}
		}
	}
	walk(value)
}

func TestRepetitionsAreOfWhatWasNotAppliedAlone(t *testing.T) {
	for _, row := range []struct {
		status int
		body   string
		after  string
		asked  int
	}{
		{503, `{"applied": "no", "retry": true}`, "", 3},
		{503, `{"applied": "no", "retry": true}`, "0", 3},
		{503, `{"applied": "no", "retry": true}`, "3600", 1},
		{503, `{"applied": "no", "retry": true}`, "soon", 1},
		{503, `{"applied": "unknown", "retry": true}`, "", 1},
		{503, `{"applied": "no", "retry": false}`, "", 1},
		{429, `{"applied": "no", "retry": false, "retry_after_ms": 5}`, "1", 1},
		{502, `of a proxy`, "", 1},
	} {
		server := serve(t, func(w http.ResponseWriter, _ string) {
			if row.after != "" {
				w.Header().Set("Retry-After", row.after)
			}
			w.WriteHeader(row.status)
			io.WriteString(w, row.body)
		})
		client := newClient(t, weirgate.Options{URL: server.URL})
		if _, err := client.Acquire(background, oneToken, nil); err == nil {
			t.Errorf("%+v is granted", row)
		}
		if asked := len(server.requests()); asked != row.asked {
			t.Errorf("%+v: %d requests", row, asked)
		}
	}
}

func TestConnectionsAreSharedAndOneThatTheAgentClosedIsNotUsed(t *testing.T) {
	var mu sync.Mutex
	connections := map[net.Conn]bool{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		answering(w, r.URL.Path)
	}))
	server.Config.ConnState = func(conn net.Conn, _ http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		connections[conn] = true
	}
	server.Start()
	defer server.Close()
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(connections)
	}
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	for range [20]int{} {
		acquired(t, client)
	}
	if count() != 1 {
		t.Errorf("%d connections", count())
	}
	for made := 2; made < 20; made++ {
		server.CloseClientConnections()
		acquired(t, client)
		if count() != made {
			t.Errorf("%d connections", count())
		}
	}
	made := count()
	unseen := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	unseen.SeeNoEnd()
	for _, without := range []*weirgate.Client{newClient(t, weirgate.Options{URL: server.URL, Retries: -1, MaxIdle: -1}), unseen} {
		for range [10]int{} {
			made++
			acquired(t, without)
			server.CloseClientConnections()
		}
		if count() != made {
			t.Errorf("%d connections", count())
		}
	}
}

// serveChunks answers each request with chunks, and closes its connection unless the next one can follow. It returns its URL, and
// counts its connections.
func serveChunks(t *testing.T, chunks *atomic.Value, areWhole bool) (string, *atomic.Int32) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	filled := strings.NewReplacer("SIZE", strconv.FormatInt(int64(len(granted)), 16), "BODY", granted)
	connections := new(atomic.Int32)
	serve := func(conn net.Conn) {
		defer conn.Close()
		connections.Add(1)
		for requests := bufio.NewReader(conn); ; {
			request, err := http.ReadRequest(requests)
			if err != nil {
				return
			}
			io.Copy(io.Discard, request.Body)
			io.WriteString(conn, "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n"+filled.Replace(chunks.Load().(string)))
			if !areWhole {
				return
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "http://" + listener.Addr().String(), connections
}

func TestAnAnswerInChunksIsReadAndWrongChunksAreRefused(t *testing.T) {
	var table struct{ Read, Refused []string }
	readJSON(t, contract+"client/chunks.json", &table)
	var chunks atomic.Value
	url, connections := serveChunks(t, &chunks, true)
	client := newClient(t, weirgate.Options{URL: url, Retries: -1})
	for _, text := range table.Read {
		chunks.Store(text)
		acquired(t, client)
	}
	if count := connections.Load(); count != 1 {
		t.Errorf("%d connections", count)
	}
	url, _ = serveChunks(t, &chunks, false)
	client = newClient(t, weirgate.Options{URL: url, Retries: -1})
	for _, text := range table.Refused {
		chunks.Store(text)
		var unavailable *weirgate.UnavailableError
		_, err := client.Acquire(background, oneToken, nil)
		if !errors.As(err, &unavailable) || unavailable.Applied != weirgate.MaybeApplied {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNothingShowsTheTokenOrAPassword(t *testing.T) {
	const secret = "hunter2/hunter2"
	repeated := []string{secret, strings.ToUpper(secret), `hunter2\/hunter2`, `hunter2%2Fhunter2`, `hunter2\\u002fhunter2`}
	for _, text := range repeated {
		server := serve(t, func(w http.ResponseWriter, _ string) {
			w.Header().Set("RateLimit", text)
			w.WriteHeader(429)
			fmt.Fprintf(w, `{"detail": "%s", "applied": "no", "retry_after_ms": 5, "violated-policies": ["%s"], "%s": 1}`, text, text, text)
		})
		client := newClient(t, weirgate.Options{URL: server.URL, Token: secret})
		_, err := client.Acquire(background, oneToken, nil)
		if server.requests()[0].head.Get("X-Weirgate-Token") != secret {
			t.Fatal("it is not sent")
		}
		var refused *weirgate.RefusedError
		if !errors.As(err, &refused) {
			t.Fatal(err)
		}
		answered := httptest.NewRecorder()
		refused.ServeHTTP(answered, nil)
		shown := fmt.Sprintf("%v %+v %v %s %v", err, refused, answered.Header(), answered.Body, client)
		if strings.Contains(strings.ToLower(shown), "hunter2") {
			t.Errorf("%s shows it: %s", text, shown)
		}
	}
	_, err := weirgate.New(weirgate.Options{URL: "https://user:hunter2@a.example/path"})
	if !errors.Is(err, weirgate.ErrInvalidRequest) || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	grant := acquired(t, newClient(t, weirgate.Options{URL: serve(t, answering).URL}))
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if shown := fmt.Sprintf(format, grant); strings.Contains(shown, "g1") || !strings.Contains(shown, "rpm:1") {
			t.Errorf("%s: %s", format, shown)
		}
	}
}

func acquired(t *testing.T, client *weirgate.Client) *weirgate.Grant {
	t.Helper()
	grant, err := client.Acquire(background, oneToken, nil)
	if err != nil {
		t.Fatal(err)
	}
	return grant
}

func TestASettlementThatMayHaveBeenAppliedIsFollowedByNoOther(t *testing.T) {
	// Without an answer, and with those of a proxy.
	for _, status := range []int{0, 400, 401, 403, 404, 408, 413, 425, 429, 502} {
		t.Run(strconv.Itoa(status), func(t *testing.T) { checkFollowedByNoOther(t, status) })
	}
}

func checkFollowedByNoOther(t *testing.T, status int) {
	var isBack atomic.Bool
	server := serve(t, func(w http.ResponseWriter, path string) {
		if path == "/v1/acquire" {
			io.WriteString(w, strings.Replace(granted, `{"expires_at_ms": 1900000000000}`, "null", 1))
			return
		}
		switch {
		case isBack.Load():
		case status == 0:
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, "of a proxy", status)
			return
		}
		answering(w, path)
	})
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1})
	grant := acquired(t, client)
	var unavailable *weirgate.UnavailableError
	_, err := grant.Adjust(background, weirgate.Amounts{"rpm": 5})
	if !errors.As(err, &unavailable) || unavailable.Applied != weirgate.MaybeApplied || !grant.IsUncertain() {
		t.Fatal(err)
	}
	isBack.Store(true)
	for name, settle := range map[string]func() error{
		"adjust":    func() error { _, err := grant.Adjust(background, weirgate.Amounts{"rpm": 5}); return err },
		"roll back": func() error { _, err := grant.RollBack(background); return err },
		"release":   func() error { _, err := grant.Release(background, weirgate.Amounts{"rpm": 5}); return err },
	} {
		if err := settle(); !errors.Is(err, weirgate.ErrInvalidRequest) || !strings.Contains(err.Error(), "count twice") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := grant.Release(background, nil); err != nil || !grant.IsEnded() {
		t.Error(err)
	}
	if count := len(server.requests()); count != 2 {
		t.Errorf("%d requests", count)
	}
}

// The answer to the first one has the text of before, which would bring amounts back that are not held any more.
func TestASettlementWaitsForTheOneBeforeIt(t *testing.T) {
	settlements := map[string]func(*weirgate.Grant) error{
		"renew":  func(g *weirgate.Grant) error { _, err := g.Renew(background, time.Minute); return err },
		"adjust": func(g *weirgate.Grant) error { _, err := g.Adjust(background, weirgate.Amounts{"rpm": 5}); return err },
		"give back": func(g *weirgate.Grant) error {
			_, err := g.GiveBack(background, weirgate.Amounts{"rpm": 1})
			return err
		},
		"take more": func(g *weirgate.Grant) error { return g.TakeMore(background, weirgate.Amounts{"rpm": 5}) },
		"roll back": func(g *weirgate.Grant) error { _, err := g.RollBack(background); return err },
	}
	for first, begin := range settlements {
		for second, settle := range settlements {
			t.Run(first+" and "+second, func(t *testing.T) {
				arrived, overtaken := make(chan struct{}), make(chan struct{})
				var count atomic.Int32
				server := serve(t, func(w http.ResponseWriter, path string) {
					if path == "/v1/acquire" {
						io.WriteString(w, granted)
						return
					}
					number := count.Add(1)
					if number == 1 {
						close(arrived)
						// A settlement that waits for no other one is answered within this time.
						select {
						case <-overtaken:
						case <-time.After(50 * time.Millisecond):
						}
					}
					fmt.Fprintf(w, `{"grant": "g%d", "settlement": "settled", "lease": null, "amounts": []}`, number+1)
					if number == 2 {
						close(overtaken)
					}
				})
				grant := acquired(t, newClient(t, weirgate.Options{URL: server.URL}))
				done := make(chan error)
				go func() { done <- begin(grant) }()
				<-arrived
				if err := settle(grant); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				if sent := server.requests()[2].body["grant"]; sent != "g2" || grant.Token() != "g3" || grant.IsUncertain() {
					t.Errorf("sent %v, left %s", sent, grant.Token())
				}
			})
		}
	}
}

func TestAReleaseWithoutAmountsWaitsForNoOtherSettlement(t *testing.T) {
	arrived, released := make(chan struct{}), make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, path string) {
		if path == "/v1/settle" {
			select {
			case <-arrived:
			default:
				close(arrived)
				<-released
			}
		}
		answering(w, path)
	})
	grant := acquired(t, newClient(t, weirgate.Options{URL: server.URL}))
	renewed := make(chan error)
	go func() {
		_, err := grant.Renew(background, time.Minute)
		renewed <- err
	}()
	<-arrived
	if _, err := grant.Release(background, nil); err != nil || !grant.IsEnded() || !grant.IsUncertain() {
		t.Error(err)
	}
	close(released)
	if err := <-renewed; err != nil {
		t.Error(err)
	}
}

func TestTheContextOfAScopeEndsItsWaitForAnAgentThatHangs(t *testing.T) {
	for _, failure := range []error{nil, io.EOF} {
		ctx, cancel := context.WithCancel(background)
		lost := make(chan struct{})
		server := serve(t, func(w http.ResponseWriter, path string) {
			if path == "/v1/settle" {
				cancel()
				<-lost
				panic(http.ErrAbortHandler)
			}
			answering(w, path)
		})
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		var logged bytes.Buffer
		client := newClient(t, weirgate.Options{URL: server.URL, AnswerTimeout: time.Hour, ErrorLog: log.New(&logged, "", 0)})
		ended := make(chan error)
		go func() { ended <- client.Scope(ctx, oneToken, nil, func(*weirgate.Grant) error { return failure }) }()
		select {
		case err := <-ended:
			if err != failure {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("it waits for the agent")
		}
		close(lost)
		client.Close()
		if !strings.Contains(logged.String(), "could not be settled") {
			t.Error(logged.String())
		}
	}
}

func TestAScopeReleasesOrRollsBack(t *testing.T) {
	for _, row := range []struct {
		name string
		work func(context.CancelFunc, *weirgate.Grant) error
		end  string
	}{
		{"that returns", func(context.CancelFunc, *weirgate.Grant) error { return nil }, "release"},
		{"that fails", func(context.CancelFunc, *weirgate.Grant) error { return io.EOF }, "roll_back"},
		{"that is canceled", func(cancel context.CancelFunc, _ *weirgate.Grant) error { cancel(); return io.EOF }, "release"},
		{"that panics", func(context.CancelFunc, *weirgate.Grant) error { panic(io.EOF) }, "release"},
		{"whose settlement failed", func(_ context.CancelFunc, grant *weirgate.Grant) error {
			_, err := grant.Adjust(background, nil)
			return err
		}, "release"},
		{"that could not tell what the vendor answered", func(_ context.CancelFunc, grant *weirgate.Grant) error {
			_, err := grant.VendorSaid(background, nil)
			return err
		}, "release"},
	} {
		t.Run(row.name, func(t *testing.T) {
			server := serve(t, answering)
			client := newClient(t, weirgate.Options{URL: server.URL})
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			func() {
				defer func() { _ = recover() }()
				_ = client.Scope(ctx, oneToken, nil, func(grant *weirgate.Grant) error { return row.work(cancel, grant) })
			}()
			client.Close()
			all := server.requests()
			if last := all[len(all)-1]; len(all) != 2 || last.body["end"] != row.end {
				t.Errorf("%v", all)
			}
		})
	}
}

func TestAScopeLogsWhatItCannotSettle(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, path string) {
		if path == "/v1/settle" {
			w.WriteHeader(500)
			return
		}
		answering(w, path)
	})
	var logged bytes.Buffer
	client := newClient(t, weirgate.Options{URL: server.URL, Retries: -1, ErrorLog: log.New(&logged, "", 0)})
	if err := client.Scope(background, oneToken, nil, func(*weirgate.Grant) error { return nil }); err != nil {
		t.Error(err)
	}
	if !strings.Contains(logged.String(), "could not be settled") {
		t.Error(logged.String())
	}
}

func TestAGrantWhoseAnswerComesAfterItsCallerLeftIsRolledBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	paths := make(chan string, 10)
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		// Only then the server sees that its client has left.
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/acquire" {
			// The answer is on its way when the caller leaves.
			cancel()
			<-r.Context().Done()
		}
		answering(w, r.URL.Path)
	}))
	client := newClient(t, weirgate.Options{URL: "http://" + listener.Addr().String(), Retries: -1})
	if _, err := client.Acquire(ctx, oneToken, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	client.Close()
	close(paths)
	asked := []string{}
	for path := range paths {
		asked = append(asked, path)
	}
	if !reflect.DeepEqual(asked, []string{"/v1/acquire", "/v1/settle"}) {
		t.Errorf("%v", asked)
	}
}

func TestTheEnvironmentSaysWhereTheAgentIs(t *testing.T) {
	for _, name := range []string{"WEIRGATE_AGENT_URL", "WEIRGATE_AGENT_TOKEN", "WEIRGATE_HTTP_PORT", "AWS_LAMBDA_FUNCTION_NAME"} {
		t.Setenv(name, "")
	}
	where := func(url string) string {
		client, err := weirgate.New(weirgate.Options{URL: url})
		if err != nil {
			return err.Error()
		}
		return client.String()
	}
	check := func(url, expected string) {
		t.Helper()
		if found := where(url); !strings.Contains(found, expected) {
			t.Errorf("%q: %s", url, found)
		}
	}
	check("", "(http://127.0.0.1:2774)")
	t.Setenv("WEIRGATE_HTTP_PORT", "tcp://10.0.0.1:2774")
	check("", "(http://127.0.0.1:2774)")
	t.Setenv("WEIRGATE_HTTP_PORT", "2800")
	check("", "(http://127.0.0.1:2800)")
	t.Setenv("WEIRGATE_HTTP_PORT", "65536")
	check("", "WEIRGATE_HTTP_PORT must be 1 to 65535")
	t.Setenv("WEIRGATE_AGENT_URL", "unix:/run/agent.sock")
	check("", "(unix:/run/agent.sock)")
	check("http://[::1]:9", "(http://[::1]:9)")
	t.Setenv("WEIRGATE_AGENT_URL", "tcp://10.0.0.1:2774")
	check("", "WEIRGATE_AGENT_URL must be http://host:port")
	for _, url := range []string{"https://a:1", "a:1", "unix:agent.sock", "http://a/path", "http://a:b", "http://u@a:1", "http://a:0"} {
		check(url, "URL must be http://host:port or unix:/path")
	}
	refused := func(token, source string) {
		t.Helper()
		_, err := weirgate.New(weirgate.Options{URL: "http://127.0.0.1:1", Token: token})
		if !errors.Is(err, weirgate.ErrInvalidRequest) || !strings.Contains(err.Error(), "correct "+source) {
			t.Errorf("%q: %v", token, err)
		}
	}
	for _, token := range []string{"a\r\nb: c", "a\n", "a\x00", " a", "a ", " ", "ü", "\x7f"} {
		refused(token, "Token")
	}
	t.Setenv("WEIRGATE_AGENT_TOKEN", "a\nb")
	refused("", "WEIRGATE_AGENT_TOKEN")
}

func TestTheSessionsTokenGoesToTheAgentOfThisMachineAlone(t *testing.T) {
	server := serve(t, answering)
	t.Setenv("WEIRGATE_AGENT_TOKEN", "")
	t.Setenv("AWS_SESSION_TOKEN", "session")
	for name, expected := range map[string]string{"": "", "f": "session"} {
		t.Setenv("AWS_LAMBDA_FUNCTION_NAME", name)
		acquired(t, newClient(t, weirgate.Options{URL: server.URL}))
		all := server.requests()
		if sent := all[len(all)-1].head.Get("X-Weirgate-Token"); sent != expected {
			t.Errorf("%q: %q", name, sent)
		}
	}
	client := newClient(t, weirgate.Options{URL: strings.Replace(server.URL, "127.0.0.1", "127.0.0.2", 1), Retries: -1})
	_, _ = client.Acquire(background, oneToken, nil)
	all := server.requests()
	if sent := all[len(all)-1].head.Get("X-Weirgate-Token"); len(all) == 3 && sent != "" {
		t.Errorf("it goes to another machine: %q", sent)
	}
}

func TestTheSessionsTokenGoesToTheAgentsOfTheTable(t *testing.T) {
	var table struct {
		SessionToken struct {
			SentTo   []string `json:"sent_to"`
			KeptFrom []string `json:"kept_from"`
		} `json:"session_token"`
	}
	readJSON(t, contract+"client/checks.json", &table)
	t.Setenv("WEIRGATE_AGENT_TOKEN", "")
	t.Setenv("AWS_LAMBDA_FUNCTION_NAME", "f")
	t.Setenv("AWS_SESSION_TOKEN", "session")
	check := func(urls []string, expected string) {
		for _, url := range urls {
			if token, err := weirgate.TokenFor(url); err != nil || token != expected {
				t.Errorf("%s: %q, %v", url, token, err)
			}
		}
	}
	check(table.SessionToken.SentTo, "session")
	check(table.SessionToken.KeptFrom, "")
}
