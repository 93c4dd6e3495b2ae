package weirgate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"weirgate"
)

type object = map[string]any

// A scenarioFile is a file of the contract, as clients/contract/README.md describes it.
type scenarioFile struct {
	Database           string
	AllowsLimitChanges *bool `json:"allows_limit_changes"`
	HasFile            bool  `json:"has_file"`
	Limits             map[string]json.RawMessage
	Scenarios          []struct {
		Name  string
		Steps []map[string]json.RawMessage
	}
}

func TestTheClientKeepsTheContract(t *testing.T) {
	backend := startBackend(t)
	allowed := []string{"WEIRGATE_AGENT_ALLOW_LIMIT_CHANGES", "true"}
	agents := map[string]*agent{
		"available":     startAgent(t, backend.with(allowed...)),
		"with_file":     startAgent(t, backend.with(append(allowed, "WEIRGATE_AGENT_LIMITS_FILE", contract+"agent.yaml")...)),
		"unchanging":    startAgent(t, backend.variables),
		"unavailable":   startAgent(t, with(withoutDatabase, allowed...)),
		"without_table": startAgent(t, backend.with(append(allowed, "WEIRGATE_TABLE", "missing")...)),
	}
	entries, err := os.ReadDir(contract)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		var file scenarioFile
		readJSON(t, contract+entry.Name(), &file)
		kind := file.Database
		if kind == "" {
			kind = "available"
		}
		if file.HasFile {
			kind = "with_file"
		}
		if file.AllowsLimitChanges != nil && !*file.AllowsLimitChanges {
			kind = "unchanging"
		}
		for _, scenario := range file.Scenarios {
			count++
			steps := scenario.Steps
			name := regexp.MustCompile(`[^A-Za-z0-9]`).ReplaceAllString(scenario.Name, "-")
			t.Run(scenario.Name, func(t *testing.T) {
				run := &run{t: t, agent: agents[kind], file: &file, prefix: "go:" + name + ":", grants: map[string]string{}}
				run.client = newClient(t, weirgate.Options{URL: agents[kind].url()})
				for at, step := range steps {
					run.step(at, step)
				}
			})
		}
	}
	if count < 40 {
		t.Fatalf("%d scenarios", count)
	}
}

func newClient(t testing.TB, options weirgate.Options) *weirgate.Client {
	t.Helper()
	client, err := weirgate.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// A run is one of a scenario, on entities of its own.
type run struct {
	t      *testing.T
	agent  *agent
	client *weirgate.Client
	file   *scenarioFile
	prefix string
	grants map[string]string
}

// A call has the fields of every request.
type call struct {
	Entity, Resource string
	Take             map[string]json.RawMessage
	Limits           []string
	LimitsVersion    int64 `json:"limits_version"`
	Cascading        bool  `json:"cascading"`
	WaitMs           int64 `json:"wait_ms"`
	QueueMs          int64 `json:"queue_ms"`
	Answer           string
	LeaseMs          int64  `json:"lease_ms"`
	TimeoutMs        int64  `json:"timeout_ms"`
	OnUnavailable    string `json:"on_unavailable"`
	Bypass           bool
	Buckets          []call
	Need             weirgate.Amounts
	Grant, Token     string
	Bucket           []int
	Adjust           weirgate.Amounts
	GiveBack         weirgate.Amounts `json:"give_back"`
	TakeMore         weirgate.Amounts `json:"take_more"`
	RenewMs          int64            `json:"renew_ms"`
	End              string
	Scope            struct{ Entity, Plan, Resource string }
	By               string
	Total            bool
	Page             string
	Level            struct{ Level, Entity, Plan, Resource string }
	Status           string
	IsShadow         *bool `json:"is_shadow"`
	Class            string
	Replace          bool
	Author           string
	Vendor           struct {
		Status  int
		Headers map[string]string
	}
}

var calls = map[string]func(*run, context.Context, call) (object, error){
	"acquire": (*run).acquire, "settle": (*run).settle, "report": (*run).report, "peek": (*run).peek, "usage": (*run).usage,
	"limits": (*run).limits, "set_limits": (*run).setLimits, "delete_limits": (*run).deleteLimits,
}

func (r *run) step(at int, step map[string]json.RawMessage) {
	r.t.Helper()
	if _, is := step["restart"]; is {
		r.agent.restart()
		return
	}
	for name, work := range calls {
		given, is := step[name]
		if !is {
			continue
		}
		// A place of a bucket is a list of at most one, as the client takes it.
		given = regexp.MustCompile(`"bucket": (\d+)`).ReplaceAll(given, []byte(`"bucket": [$1]`))
		var asked call
		if err := json.Unmarshal(given, &asked); err != nil {
			r.t.Fatalf("step %d: %v", at, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		found, err := work(r, ctx, asked)
		if err != nil {
			found = r.refused(err)
		}
		var as string
		_ = json.Unmarshal(step["as"], &as)
		if name == "settle" && as == "" {
			as = asked.Grant
		}
		if token, is := found["grant"].(string); is && as != "" && token != "" {
			r.grants[as] = token
		}
		var expect object
		if err := json.Unmarshal(step["expect"], &expect); err != nil {
			r.t.Fatal(err)
		}
		for key, expected := range expect {
			if !r.holds(key, expected, found) {
				r.t.Fatalf("step %d: %s must be %v, got %v", at, key, expected, found)
			}
		}
		return
	}
	r.t.Fatalf("step %d has no call", at)
}

func (r *run) entity(name string) string {
	if name == "" || name == "orphan" {
		return name
	}
	return r.prefix + name
}

func (r *run) named(names []string) []weirgate.Limit {
	if names == nil {
		return nil
	}
	limits := []weirgate.Limit{}
	for _, name := range names {
		var text string
		if json.Unmarshal(r.file.Limits[name], &text) == nil {
			limits = append(limits, weirgate.Limit{Text: text})
			continue
		}
		var given struct {
			Name, Mode string
			Slots      int64
			Capacity   int64 `json:"capacity_tokens"`
			Refill     int64 `json:"refill_tokens"`
			PeriodMs   int64 `json:"refill_period_ms"`
			Classes    map[string]struct {
				AtLeast int64 `json:"at_least_percent"`
				Leaves  int64 `json:"leaves_percent"`
			}
		}
		if err := json.Unmarshal(r.file.Limits[name], &given); err != nil {
			r.t.Fatal(err)
		}
		classes := []string{}
		for name, percent := range given.Classes {
			classes = append(classes, fmt.Sprintf("%s:%d%%:%d%%", name, percent.AtLeast, percent.Leaves))
		}
		sort.Strings(classes)
		limits = append(limits, weirgate.Limit{
			Name: given.Name, Capacity: given.Capacity + given.Slots, Refill: given.Refill, Period: span(given.PeriodMs),
			Mode: weirgate.Mode(given.Mode), Classes: strings.Join(classes, ","),
		})
	}
	return limits
}

func (r *run) bucket(asked call) weirgate.Bucket {
	bucket := weirgate.Bucket{
		Entity: r.entity(asked.Entity), Resource: asked.Resource, Take: weirgate.Amounts{}, UpTo: map[string]weirgate.Range{},
		Limits: r.named(asked.Limits), LimitsVersion: asked.LimitsVersion, Cascading: asked.Cascading,
		Class: asked.Class,
	}
	for limit, given := range asked.Take {
		var tokens float64
		if json.Unmarshal(given, &tokens) == nil {
			bucket.Take[limit] = tokens
			continue
		}
		var span struct {
			AtLeast int64 `json:"at_least"`
			AtMost  int64 `json:"at_most"`
		}
		if err := json.Unmarshal(given, &span); err != nil {
			r.t.Fatal(err)
		}
		bucket.UpTo[limit] = weirgate.Range{AtLeast: span.AtLeast, AtMost: span.AtMost}
	}
	return bucket
}

func span(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func (r *run) acquire(ctx context.Context, asked call) (object, error) {
	options := &weirgate.AcquireOptions{
		Wait: span(asked.WaitMs), Queue: span(asked.QueueMs), Now: asked.Answer == "now", Lease: span(asked.LeaseMs), Timeout: span(asked.TimeoutMs),
		OnUnavailable: weirgate.OnUnavailable(asked.OnUnavailable), Bypass: asked.Bypass,
	}
	if asked.Buckets == nil {
		grant, err := r.client.Acquire(ctx, r.bucket(asked), options)
		return held("granted", grant), err
	}
	buckets := []weirgate.Bucket{}
	for _, bucket := range asked.Buckets {
		buckets = append(buckets, r.bucket(bucket))
	}
	grant, err := r.client.AcquireAll(ctx, buckets, options)
	return held("granted", grant), err
}

func (r *run) settle(ctx context.Context, asked call) (object, error) {
	token := asked.Token
	if token == "" {
		token = r.grants[asked.Grant]
	}
	grant, err := r.client.Restore(token)
	if err != nil {
		return nil, err
	}
	outcome := weirgate.Settled
	switch {
	case asked.TakeMore != nil:
		err = grant.TakeMore(ctx, asked.TakeMore, asked.Bucket...)
	case asked.End == "release":
		outcome, err = grant.Release(ctx, asked.Adjust)
	case asked.End == "roll_back":
		outcome, err = grant.RollBack(ctx)
	case asked.RenewMs != 0:
		outcome, err = grant.Renew(ctx, span(asked.RenewMs))
	case asked.Adjust != nil:
		outcome, err = grant.Adjust(ctx, asked.Adjust, asked.Bucket...)
	default:
		outcome, err = grant.GiveBack(ctx, asked.GiveBack, asked.Bucket...)
	}
	return held(string(outcome), grant), err
}

// report tells what a vendor said, of a bucket or of the buckets of a grant.
func (r *run) report(ctx context.Context, asked call) (object, error) {
	response := responseOf(asked.Vendor.Status, asked.Vendor.Headers)
	var until time.Time
	grant, err := r.client.Restore(r.grants[asked.Grant])
	if asked.Grant == "" {
		until, err = r.client.ReportVendor(ctx, r.entity(asked.Entity), asked.Resource, response)
	} else if err == nil {
		until, err = grant.VendorSaid(ctx, response)
	}
	found := object{"outcome": "reported"}
	if !until.IsZero() {
		found["paused_ms"] = float64(time.Until(until).Milliseconds())
	}
	return found, err
}

// responseOf returns a vendor's response.
func responseOf(status int, headers map[string]string) *http.Response {
	response := &http.Response{StatusCode: status, Header: http.Header{}}
	for name, value := range headers {
		response.Header.Set(name, value)
	}
	return response
}

func (r *run) peek(ctx context.Context, asked call) (object, error) {
	options := &weirgate.PeekOptions{Need: asked.Need, Limits: r.named(asked.Limits)}
	balances, err := r.client.Peek(ctx, r.entity(asked.Entity), asked.Resource, options)
	if err != nil {
		return nil, err
	}
	found := object{"outcome": "balances", "status": string(balances.Status), "remaining": available(balances.Limits)}
	if balances.RetryAfter != nil {
		found["retry_after_ms"] = float64(balances.RetryAfter.Milliseconds())
	}
	return found, nil
}

// usage asks for usage from yesterday to the end of today.
func (r *run) usage(ctx context.Context, asked call) (object, error) {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	query := weirgate.UsageQuery{
		Entity: r.entity(asked.Scope.Entity), Plan: asked.Scope.Plan, Resource: asked.Scope.Resource,
		By: weirgate.Interval(asked.By), Start: today.AddDate(0, 0, -1), End: today.AddDate(0, 0, 1),
	}
	if asked.Total {
		total, err := r.client.Usage(ctx, query)
		if err != nil {
			return nil, err
		}
		return used("usage", &total.Usage), nil
	}
	page, err := r.client.UsageRows(ctx, query, asked.Page)
	if err != nil {
		return nil, err
	}
	if len(page.Rows) == 0 {
		return used("rows", &weirgate.Usage{}), nil
	}
	return used("rows", &page.Rows[len(page.Rows)-1].Usage), nil
}

func (r *run) limits(ctx context.Context, asked call) (object, error) {
	effective, err := r.client.Limits(ctx, r.entity(asked.Entity), asked.Resource)
	if err != nil {
		return nil, err
	}
	bucket := effective.Buckets[0]
	found := object{"outcome": "limits", "level": nil, "status": nil, "limits": plain(bucket.Limits)}
	if bucket.Level != nil {
		found["level"], found["status"] = string(bucket.Level.Kind()), string(*bucket.Status)
	}
	return found, nil
}

func (r *run) level(asked call) weirgate.Level {
	level := asked.Level
	return weirgate.Level{
		Entity: r.entity(level.Entity), Plan: level.Plan, Resource: level.Resource, System: level.Level == "system",
	}
}

func (r *run) setLimits(ctx context.Context, asked call) (object, error) {
	change, err := r.client.SetLimits(ctx, r.level(asked), weirgate.LimitsPatch{
		Limits: r.named(asked.Limits), Status: weirgate.Status(asked.Status), Shadow: asked.IsShadow, Class: asked.Class,
		Replace: asked.Replace, Author: asked.Author,
	})
	return changed(change), err
}

func (r *run) deleteLimits(ctx context.Context, asked call) (object, error) {
	change, err := r.client.DeleteLimits(ctx, r.level(asked), asked.Author)
	return changed(change), err
}

func changed(change *weirgate.LimitsChange) object {
	if change == nil {
		return nil
	}
	found := object{"outcome": "unchanged", "before": nil, "after": nil}
	if change.Changed {
		found["outcome"] = "changed"
	}
	if change.After != nil && change.After.Class != "" {
		found["class"] = change.After.Class
	}
	for when, config := range map[string]*weirgate.Config{"before": change.Before, "after": change.After} {
		if config != nil {
			found[when] = plain(config.Limits)
		}
	}
	return found
}

// plain returns limits in the order of their names.
func plain(limits []weirgate.Limit) []weirgate.Limit {
	sorted := append([]weirgate.Limit{}, limits...)
	for at := range sorted {
		if sorted[at].Mode == "" {
			sorted[at].Mode = weirgate.Enforced
		}
	}
	sort.Slice(sorted, func(one, other int) bool { return sorted[one].Name < sorted[other].Name })
	return sorted
}

func used(outcome string, usage *weirgate.Usage) object {
	tokens := object{}
	for limit, number := range usage.Tokens {
		tokens[limit], _ = number.Float64()
	}
	return object{"outcome": outcome, "used": tokens, "acquires": float64(usage.Acquires), "state": string(usage.State)}
}

func available(limits []weirgate.LimitStatus) map[string]float64 {
	balances := map[string]float64{}
	for _, status := range limits {
		balances[status.Limit] = status.Available
	}
	return balances
}

func held(outcome string, grant *weirgate.Grant) object {
	if grant == nil {
		return nil
	}
	_, hasLease := grant.ExpiresAt()
	amounts := []any{}
	for _, of := range grant.Amounts() {
		one := object{}
		for limit, tokens := range of {
			one[limit] = tokens
		}
		amounts = append(amounts, one)
	}
	wouldDeny := []any{}
	for _, limit := range grant.WouldDeny() {
		wouldDeny = append(wouldDeny, limit)
	}
	found := object{
		"outcome": outcome, "ended": grant.IsEnded(), "amounts": amounts, "remaining": available(grant.Limits()),
		"lease": hasLease, "would_deny": wouldDeny, "degraded": grant.Degraded() != "",
	}
	if at, is := grant.StartsAt(); is {
		found["starts_ms"] = float64(time.Until(at).Milliseconds())
	}
	if plan := grant.MissingPlan(); plan != "" {
		found["missing_plan"] = plan
	}
	if !grant.IsEnded() {
		found["grant"] = grant.Token()
	}
	return found
}

func (r *run) refused(err error) object {
	found := object{"text": err.Error(), "applied": "no"}
	var (
		refused     *weirgate.RefusedError
		unavailable *weirgate.UnavailableError
	)
	for _, kind := range []struct {
		err     error
		outcome string
	}{
		{weirgate.ErrDenied, "denied"}, {weirgate.ErrNeverFits, "never_fits"}, {weirgate.ErrDisabled, "disabled"},
		{weirgate.ErrNotAllowed, "not_allowed"}, {weirgate.ErrInvalidRequest, "invalid"},
		{weirgate.ErrNotConfigured, "not_configured"}, {weirgate.ErrMisconfigured, "misconfigured"},
		{weirgate.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, kind.err) && found["outcome"] == nil {
			found["outcome"] = kind.outcome
		}
	}
	if errors.As(err, &unavailable) {
		found["applied"] = string(unavailable.Applied)
	}
	if errors.As(err, &refused) {
		short := []any{}
		for _, limit := range refused.Limits {
			short = append(short, limit)
		}
		found["short"], found["paused"] = short, refused.IsPaused()
		if plan := refused.MissingPlan(); plan != "" {
			found["missing_plan"] = plan
		}
		if after, is := refused.RetryAfter(); is {
			found["retry_after_ms"] = float64(after.Milliseconds())
		}
		if after, is := refused.StartsIn(); is {
			found["starts_ms"] = float64(after.Milliseconds())
		}
	}
	if found["outcome"] == nil {
		r.t.Fatalf("no error of the contract: %v", err)
	}
	return found
}

func (r *run) holds(key string, expected any, found object) bool {
	actual := found[key]
	switch key {
	case "outcome", "class", "missing_plan", "lease", "ended", "degraded", "applied", "status", "short", "would_deny", "paused", "acquires", "state", "level",
		"amounts", "used":
		return reflect.DeepEqual(actual, expected)
	case "limits", "before", "after":
		if expected == nil {
			return actual == nil
		}
		names := []string{}
		for _, name := range expected.([]any) {
			names = append(names, name.(string))
		}
		return reflect.DeepEqual(actual, plain(r.named(names)))
	case "remaining":
		balances, is := actual.(map[string]float64)
		for limit, tokens := range expected.(object) {
			now, known := balances[limit]
			// A limit that refills may have gained while the scenario ran.
			gained := now - tokens.(float64)
			is = is && known && gained >= 0 && gained < 0.01 && !math.IsNaN(gained)
		}
		return is
	case "retry_after_ms", "starts_ms", "paused_ms":
		if expected == nil {
			return actual == nil
		}
		ms, is := actual.(float64)
		bounds := expected.([]any)
		return is && ms >= bounds[0].(float64) && ms <= bounds[1].(float64)
	case "mentions":
		for _, word := range expected.([]any) {
			// Names of fields begin with a capital here.
			text, is := found["text"].(string)
			if !is || !strings.Contains(strings.ToLower(text), strings.ToLower(word.(string))) {
				return false
			}
		}
		return true
	}
	r.t.Fatalf("there is no expectation %q: correct the scenario", key)
	return false
}
