package weirgate

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Paths of the operations.
const (
	acquirePath      = "/v1/acquire"
	settlePath       = "/v1/settle"
	reportPath       = "/v1/report"
	peekPath         = "/v1/peek"
	usagePath        = "/v1/usage"
	limitsPath       = "/v1/limits"
	setLimitsPath    = "/v1/limits/set"
	deleteLimitsPath = "/v1/limits/delete"
)

const (
	maxTokens  = 1_000_000_000_000
	day        = 24 * time.Hour
	maxPeriod  = 366 * day
	shownRunes = 40
	maxHeader  = 8_192
	maxValue   = 256
)

// ofVendorLimits are the fields of a vendor's answer that leave the process. Others may be secrets.
var ofVendorLimits = regexp.MustCompile(`^(date|retry-after(-ms)?|ratelimit|(x|anthropic)-ratelimit-.+)$`)

// A request is what is sent, and how much longer than usual the agent may take.
type request struct {
	path   string
	body   []byte
	longer time.Duration
}

// changesNothing returns whether the request changes nothing, whatever becomes of it.
func (r *request) changesNothing() bool {
	return r.path == peekPath || r.path == usagePath || r.path == limitsPath
}

type fields map[string]any

func newRequest(path string, body fields) *request {
	data, err := json.Marshal(body)
	if err != nil {
		// Each value was checked.
		panic(err)
	}
	return &request{path: path, body: data}
}

func acquireRequest(buckets []Bucket, options *AcquireOptions) (*request, error) {
	if len(buckets) == 0 {
		return nil, invalid("buckets must have at least one element, got none: add one")
	}
	all := make([]fields, len(buckets))
	for at, bucket := range buckets {
		one, err := bucketFields(bucket)
		if err != nil {
			return nil, err
		}
		all[at] = one
	}
	body := all[0]
	if len(all) > 1 {
		body = fields{"buckets": all}
	}
	if options == nil {
		options = &AcquireOptions{}
	}
	for _, span := range []struct {
		name, field  string
		given, most  time.Duration
		leastInMilli int64
	}{
		{"Wait", "wait_ms", options.Wait, day, 0},
		{"Queue", "queue_ms", options.Queue, time.Hour, 1},
		{"Lease", "lease_ms", options.Lease, day, 1},
		{"Timeout", "timeout_ms", options.Timeout, time.Hour, 1},
	} {
		if span.given == 0 {
			continue
		}
		ms, err := milliseconds(span.name, span.given, span.leastInMilli, span.most)
		if err != nil {
			return nil, err
		}
		body[span.field] = ms
	}
	if options.Now {
		if options.Queue == 0 {
			return nil, refuse("Now", "left out without Queue", "true")
		}
		body["answer"] = "now"
	}
	if options.OnUnavailable != "" {
		if !isDecision(options.OnUnavailable) {
			return nil, refuse("OnUnavailable", `"error", "deny", "allow" or "local 1" to "local 100"`, quoted(string(options.OnUnavailable)))
		}
		body["on_unavailable"] = options.OnUnavailable
	}
	if err := checkPolicy(options.OnAgentUnavailable); err != nil {
		return nil, err
	}
	if options.Bypass {
		body["bypass"] = true
	}
	asked := newRequest(acquirePath, body)
	asked.longer = options.Wait + options.Timeout
	if !options.Now {
		asked.longer += options.Queue
	}
	return asked, nil
}

func bucketFields(bucket Bucket) (fields, error) {
	body, err := names(bucket.Entity, bucket.Resource)
	if err != nil {
		return nil, err
	}
	take := fields{}
	for limit, tokens := range bucket.Take {
		if err := checkAmount("Take", limit, tokens, false); err != nil {
			return nil, err
		}
		take[limit] = tokens
	}
	for limit, span := range bucket.UpTo {
		if _, is := take[limit]; is || limit == "" {
			return nil, refuse("a limit of UpTo", "a name that is not in Take", quoted(limit))
		}
		if span.AtLeast < 0 || span.AtMost > maxTokens || span.AtMost < span.AtLeast {
			got := fmt.Sprintf("%d to %d", span.AtLeast, span.AtMost)
			return nil, refuse(fmt.Sprintf("UpTo[%s]", quoted(limit)), "0 to 10^12 whole tokens, AtLeast first", got)
		}
		take[limit] = fields{"at_least": span.AtLeast, "at_most": span.AtMost}
	}
	if len(take) == 0 {
		return nil, invalid("Take must name a limit, got none: add one")
	}
	body["take"] = take
	if err := addLimits(body, bucket.Limits); err != nil {
		return nil, err
	}
	if bucket.LimitsVersion < 0 {
		return nil, refuse("LimitsVersion", "1 or more, or 0 for none", itoa(bucket.LimitsVersion))
	}
	if bucket.LimitsVersion > 0 {
		body["limits_version"] = bucket.LimitsVersion
	}
	if bucket.Cascading {
		body["cascading"] = true
	}
	if bucket.Class != "" {
		body["class"] = bucket.Class
	}
	return body, nil
}

func peekRequest(entity, resource string, options *PeekOptions) (*request, error) {
	body, err := names(entity, resource)
	if err != nil {
		return nil, err
	}
	if options != nil {
		if len(options.Need) > 0 {
			if err := checkAmounts("Need", options.Need, true); err != nil {
				return nil, err
			}
			body["need"] = options.Need
		}
		if err := addLimits(body, options.Limits); err != nil {
			return nil, err
		}
	}
	return newRequest(peekPath, body), nil
}

func usageRequest(query UsageQuery, more fields) (*request, error) {
	if err := checkPlan(query.Entity, query.Plan); err != nil {
		return nil, err
	}
	scope := fields{}
	for name, given := range map[string]string{"entity": query.Entity, "plan": query.Plan, "resource": query.Resource} {
		if given != "" {
			scope[name] = given
		}
	}
	if len(scope) == 0 {
		return nil, invalid("the query must have Entity or Plan, Resource, or both, got none: add one")
	}
	by := query.By
	if by == "" {
		by = Daily
	}
	if by != Hourly && by != Daily && by != Monthly {
		return nil, refuse("By", `"hour", "day" or "month"`, quoted(string(by)))
	}
	from, to := query.Start.UnixMilli(), query.End.UnixMilli()
	if from < 0 || to < 0 {
		return nil, invalid("Start and End must be times since 1970: give both")
	}
	body := fields{"scope": scope, "by": by, "from_ms": from, "to_ms": to}
	for name, value := range more {
		body[name] = value
	}
	return newRequest(usagePath, body), nil
}

func limitsRequest(entity, resource string) (*request, error) {
	body, err := names(entity, resource)
	if err != nil {
		return nil, err
	}
	return newRequest(limitsPath, body), nil
}

func setLimitsRequest(level Level, patch LimitsPatch) (*request, error) {
	body, err := levelFields(level, patch.Author)
	if err != nil {
		return nil, err
	}
	if err := addLimits(body, patch.Limits); err != nil {
		return nil, err
	}
	if patch.Status != "" {
		if patch.Status != StatusEnforced && patch.Status != StatusDisabled && patch.Status != StatusUnlimited {
			return nil, refuse("Status", `"enforced", "disabled" or "unlimited"`, quoted(string(patch.Status)))
		}
		body["status"] = patch.Status
	}
	if patch.Shadow != nil {
		body["is_shadow"] = *patch.Shadow
	}
	if patch.Class != "" {
		body["class"] = patch.Class
	}
	if len(patch.Limits) == 0 && patch.Status == "" && patch.Shadow == nil && patch.Class == "" {
		return nil, invalid("the change sets nothing: give Limits, Status, Shadow or Class")
	}
	if patch.Replace {
		body["replace"] = true
	}
	return newRequest(setLimitsPath, body), nil
}

func deleteLimitsRequest(level Level, author string) (*request, error) {
	body, err := levelFields(level, author)
	if err != nil {
		return nil, err
	}
	return newRequest(deleteLimitsPath, body), nil
}

func levelFields(level Level, author string) (fields, error) {
	if err := checkPlan(level.Entity, level.Plan); err != nil {
		return nil, err
	}
	if level.System == (level.Entity != "" || level.Plan != "" || level.Resource != "") {
		return nil, invalid("a level must have Entity or Plan, Resource, or both, or System alone: give one of these")
	}
	body := fields{"level": level}
	if author != "" {
		body["author"] = author
	}
	return body, nil
}

// checkPlan requires that a plan stands without an entity.
func checkPlan(entity, plan string) error {
	if entity != "" && plan != "" {
		return refuse("Plan", "left out beside Entity", quoted(plan))
	}
	return nil
}

func reportRequest(entity, resource string, response *http.Response) (*request, error) {
	body, err := names(entity, resource)
	if err != nil {
		return nil, err
	}
	if body["vendor"], err = vendorFields(response); err != nil {
		return nil, err
	}
	return newRequest(reportPath, body), nil
}

// vendorFields returns what a vendor's response says about its limits, as far as the agent can read it: an answer of the
// vendor is no error of the caller.
func vendorFields(response *http.Response) (fields, error) {
	if response == nil {
		return nil, invalid("the vendor's response must be given, got nil: pass it with its StatusCode and Header")
	}
	if response.StatusCode < 100 || response.StatusCode > 599 {
		return nil, refuse("StatusCode", "a status of HTTP, 100 to 599", itoa(int64(response.StatusCode)))
	}
	header, left := map[string][]string{}, maxHeader
	for key, values := range response.Header {
		name := strings.ToLower(key)
		for _, value := range values {
			isASCII := strings.IndexFunc(name+value, func(letter rune) bool { return letter > unicode.MaxASCII }) < 0
			if !isASCII || !ofVendorLimits.MatchString(name) || len(value) > maxValue || left < len(name)+len(value) {
				continue
			}
			left -= len(name) + len(value)
			header[name] = append(header[name], value)
		}
	}
	return fields{"status": response.StatusCode, "headers": header}, nil
}

func settleRequest(token string, changes fields) *request {
	body := fields{"grant": token}
	for name, value := range changes {
		body[name] = value
	}
	return newRequest(settlePath, body)
}

// changeOf returns the change of amounts, of each bucket that has the limit or of one.
func changeOf(field, what string, amounts Amounts, isWhole bool, bucket []int) (fields, error) {
	if err := checkAmounts(what, amounts, isWhole); err != nil {
		return nil, err
	}
	changes := fields{field: amounts}
	if len(bucket) > 1 {
		return nil, invalid(fmt.Sprintf("at most one bucket must be given, got %d: leave the others out", len(bucket)))
	}
	if len(bucket) == 1 {
		if bucket[0] < 0 {
			return nil, refuse("bucket", "the place of a bucket, from 0", itoa(int64(bucket[0])))
		}
		changes["bucket"] = bucket[0]
	}
	return changes, nil
}

func endOf(end string, actual Amounts) (fields, error) {
	changes := fields{"end": end}
	if actual != nil {
		if err := checkAmounts("actual", actual, false); err != nil {
			return nil, err
		}
		changes["adjust"] = actual
	}
	return changes, nil
}

func names(entity, resource string) (fields, error) {
	if entity == "" {
		return nil, refuse("Entity", "text that is not empty", `""`)
	}
	if resource == "" {
		return nil, refuse("Resource", "text that is not empty", `""`)
	}
	return fields{"entity": entity, "resource": resource}, nil
}

func addLimits(body fields, limits []Limit) error {
	if limits == nil {
		return nil
	}
	for _, limit := range limits {
		if err := limit.check(); err != nil {
			return err
		}
	}
	body["limits"] = limits
	return nil
}

func (l Limit) check() error {
	if l.Text != "" {
		if name, rest, is := strings.Cut(l.Text, "="); !is || name == "" || rest == "" || l != (Limit{Text: l.Text}) {
			return refuse("Text of a limit", `as "rpm=600/minute", and alone`, quoted(l.Text))
		}
		return nil
	}
	if l.Name == "" {
		return refuse("the name of a limit", "text that is not empty", `""`)
	}
	of := "limit " + quoted(l.Name) + ": "
	switch l.Mode {
	case "", Enforced, Shadow, Soft:
	default:
		return refuse(of+"mode", `"enforced", "shadow" or "soft"`, quoted(string(l.Mode)))
	}
	if l.Classes != "" && l.Kind() != RateLimit {
		return refuse(of+"classes", "left out without a rate", quoted(l.Classes))
	}
	amounts := map[string]int64{"refill": l.Refill}
	if l.Kind() == QuotaLimit && (l.Refill != 0 || l.Period != 0) {
		return refuse(of+"window", "left out of a rate", quoted(l.Window))
	}
	if l.Kind() == QuotaLimit {
		amounts = map[string]int64{"quota": l.Capacity}
	} else if l.Kind() == SlotLimit {
		amounts = map[string]int64{"slots": l.Capacity}
	} else if l.Refill >= 1 && l.Refill <= maxTokens {
		amounts["capacity"] = l.Capacity
	}
	for name, tokens := range amounts {
		if tokens < 1 || tokens > maxTokens {
			return refuse(of+name, "1 to 10^12 whole tokens", itoa(tokens))
		}
	}
	if l.Kind() == RateLimit && (l.Period < time.Millisecond || l.Period > maxPeriod || l.Period%time.Millisecond != 0) {
		return refuse(of+"period", "1 ms to 366 days in whole milliseconds", l.Period.String())
	}
	return nil
}

func checkAmounts(what string, amounts Amounts, isWhole bool) error {
	if len(amounts) == 0 {
		return invalid(what + " must name a limit, got none: add one")
	}
	for limit, tokens := range amounts {
		if err := checkAmount(what, limit, tokens, isWhole); err != nil {
			return err
		}
	}
	return nil
}

// checkAmount requires an amount that JSON keeps, and that the agent takes.
func checkAmount(what, limit string, tokens float64, isWhole bool) error {
	if limit == "" {
		return refuse("a limit of "+what, "text that is not empty", `""`)
	}
	text := strconv.FormatFloat(tokens, 'f', -1, 64)
	_, decimals, _ := strings.Cut(text, ".")
	isInRange := tokens >= 0 && tokens <= maxTokens && !math.Signbit(tokens)
	switch {
	case isInRange && isWhole && decimals == "", isInRange && !isWhole && len(decimals) <= 3:
		return nil
	case isWhole:
		return refuse(fmt.Sprintf("%s[%s]", what, quoted(limit)), "0 to 10^12 whole tokens", cut(text))
	default:
		rule := "0 to 10^12 tokens with at most three decimal places"
		return refuse(fmt.Sprintf("%s[%s]", what, quoted(limit)), rule, cut(text))
	}
}

// milliseconds returns the whole milliseconds of a span, rounded.
func milliseconds(what string, span time.Duration, least int64, most time.Duration) (int64, error) {
	ms := span.Round(time.Millisecond).Milliseconds()
	if span < 0 || span > most || ms < least {
		rule := fmt.Sprintf("%v to %v", time.Duration(least)*time.Millisecond, most)
		return 0, refuse(what, rule, span.String())
	}
	return ms, nil
}

// checkPolicy requires a decision that a client can make without the agent, or none.
func checkPolicy(given OnUnavailable) error {
	switch given {
	case "", Fail, Deny, Allow:
		return nil
	default:
		return refuse("OnAgentUnavailable", "Fail, Deny or Allow", quoted(string(given)))
	}
}

func isDecision(given OnUnavailable) bool {
	if given == Fail || given == Deny || given == Allow {
		return true
	}
	percent, err := strconv.Atoi(strings.TrimPrefix(string(given), "local "))
	return err == nil && percent >= 1 && percent <= 100 && given == Local(percent)
}

// refuse returns the error of a value that breaks a rule.
func refuse(what, rule, got string) error {
	return invalid(fmt.Sprintf("%s must be %s, got %s", what, rule, got))
}

func quoted(text string) string { return strconv.Quote(cut(text)) }

// cut returns the beginning of a text for an error.
func cut(text string) string {
	count := 0
	for at := range text {
		if count == shownRunes {
			return text[:at] + " ..."
		}
		count++
	}
	return text
}

func itoa(number int64) string { return strconv.FormatInt(number, 10) }
