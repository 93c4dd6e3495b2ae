package weirgate

import (
	"encoding/json"
	"net/http"
	"sort"
	"strings"
	"time"
)

// Amounts are tokens by limit: whole, or with at most three decimal places.
type Amounts map[string]float64

// A Range takes as much as there is, between both amounts, in whole tokens.
type Range struct {
	AtLeast, AtMost int64
}

// A Bucket is what an acquire takes of one entity on one resource.
type Bucket struct {
	Entity, Resource string
	Take             Amounts
	// UpTo has ranges by limit, beside Take.
	UpTo map[string]Range
	// Limits are those of the table, by default.
	Limits []Limit
	// LimitsVersion is the version of Limits, from 1 on: older ones cannot replace newer ones. Default: none.
	LimitsVersion int64
	// Cascading takes of the entity's parents too, with limits given here.
	Cascading bool
	// Class is the caller's, of limits with classes. The class of the entity's configuration counts instead.
	Class string
}

// OnUnavailable is a decision that cannot be asked for.
type OnUnavailable string

const (
	// Fail is no decision: the call ends in an UnavailableError.
	Fail OnUnavailable = "error"
	// Deny denies.
	Deny OnUnavailable = "deny"
	// Allow grants.
	Allow OnUnavailable = "allow"
)

// Local returns the decision by a percentage of each limit, counted by the agent alone.
func Local(percent int) OnUnavailable {
	return OnUnavailable("local " + itoa(int64(percent)))
}

// AcquireOptions are options of an acquire. The zero value has the defaults.
type AcquireOptions struct {
	// Wait is how long to wait for the tokens. Default: not at all.
	Wait time.Duration
	// Queue is how long to wait in line instead, up to an hour: callers of all processes are served in the order of their
	// acquires, if all callers of the bucket queue. The grant comes at its start. Default: not at all.
	Queue time.Duration
	// Now is whether the grant comes at once. Until its StartsAt it may only be rolled back. It needs Queue.
	Now bool
	// Lease is when the tokens come back if this process dies. Slots always have a lease, of 60 s by default.
	Lease time.Duration
	// Timeout is the time for the decision, without the wait. Default: the agent's.
	Timeout time.Duration
	// OnUnavailable is the decision without DynamoDB. Default: the agent's.
	OnUnavailable OnUnavailable
	// OnAgentUnavailable is the decision without the agent: Fail, Deny or Allow. Default: Options.OnAgentUnavailable.
	OnAgentUnavailable OnUnavailable
	// Bypass counts the amounts, and takes none of them.
	Bypass bool
}

// Mode is what happens to a request that a limit cannot cover.
type Mode string

const (
	// Enforced denies it.
	Enforced Mode = "enforced"
	// Shadow grants it, and says that it would have been denied.
	Shadow Mode = "shadow"
	// Soft grants it into debt.
	Soft Mode = "soft"
)

// Kind is what kind of limit it is.
type Kind string

const (
	// RateLimit refills with time.
	RateLimit Kind = "rate"
	// SlotLimit has slots, which come back when their leases end.
	SlotLimit Kind = "slots"
	// QuotaLimit has tokens of a window, of which the next one begins full.
	QuotaLimit Kind = "quota"
)

// A Limit is a rate, a quota with a window, or slots without either. Make one by PerSecond, PerMinute, PerHour, PerDay,
// Rate, Quota or Slots. A call that has a wrong one is ErrInvalidRequest.
type Limit struct {
	Name     string
	Capacity int64
	// Refill is the tokens every Period.
	Refill int64
	Period time.Duration
	// Mode is Enforced by default.
	Mode Mode
	// Window of a quota: "month,day=15,at=09:00,tz=Europe/Berlin", or "5h" from the first use.
	Window string
	// Schedule is the rules that scale a configured limit: "0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin". The agent
	// checks them.
	Schedule string
	// Classes of callers of a rate: "batch:10%:30%,night:5%". The agent checks them.
	Classes string
	// Text is the limit as text, "rpm=600/minute", in place of all other fields.
	Text string
}

// Rate returns a limit that refills so many tokens every period. The capacity is as much.
func Rate(name string, tokens int64, period time.Duration) Limit {
	return Limit{Name: name, Capacity: tokens, Refill: tokens, Period: period}
}

// PerSecond returns a limit of so many tokens a second.
func PerSecond(name string, tokens int64) Limit { return Rate(name, tokens, time.Second) }

// PerMinute returns a limit of so many tokens a minute.
func PerMinute(name string, tokens int64) Limit { return Rate(name, tokens, time.Minute) }

// PerHour returns a limit of so many tokens an hour.
func PerHour(name string, tokens int64) Limit { return Rate(name, tokens, time.Hour) }

// PerDay returns a limit of so many tokens a day.
func PerDay(name string, tokens int64) Limit { return Rate(name, tokens, 24*time.Hour) }

// Slots returns a concurrency limit: its tokens come back only when a lease ends.
func Slots(name string, slots int64) Limit { return Limit{Name: name, Capacity: slots} }

// Quota returns a limit of so many tokens in each window, of which the next one begins full. The agent checks the window:
// "month", "week,day=sunday", "day,at=09:00,tz=Europe/Berlin", or "5h" from the first use.
func Quota(name string, tokens int64, window string) Limit {
	return Limit{Name: name, Capacity: tokens, Window: window}
}

// WithBurst returns the limit with another capacity.
func (l Limit) WithBurst(tokens int64) Limit {
	l.Capacity = tokens
	return l
}

// In returns the limit in another mode.
func (l Limit) In(mode Mode) Limit {
	l.Mode = mode
	return l
}

// Kind returns whether it is a rate or a quota, or has slots.
func (l Limit) Kind() Kind {
	if l.Window != "" {
		return QuotaLimit
	}
	if l.Refill == 0 && l.Period == 0 {
		return SlotLimit
	}
	return RateLimit
}

// limitJSON is a limit as the agent has it.
type limitJSON struct {
	Name     string `json:"name"`
	Slots    *int64 `json:"slots,omitempty"`
	Capacity *int64 `json:"capacity_tokens,omitempty"`
	Refill   *int64 `json:"refill_tokens,omitempty"`
	PeriodMs *int64 `json:"refill_period_ms,omitempty"`
	Quota    *int64 `json:"quota_tokens,omitempty"`
	Mode     Mode   `json:"mode"`
	Text     string `json:"text,omitempty"`

	Schedule json.RawMessage      `json:"schedule,omitempty"`
	Classes  map[string]classJSON `json:"classes,omitempty"`
}

// classJSON is a class of callers as the agent has it.
type classJSON struct {
	AtLeast *int64 `json:"at_least_percent"`
	Leaves  *int64 `json:"leaves_percent"`
}

// MarshalJSON returns the limit as the agent reads it.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l.Text != "" {
		return json.Marshal(l.Text)
	}
	mode := l.Mode
	if mode == "" {
		mode = Enforced
	}
	rest := ",mode=" + string(mode)
	if l.Schedule != "" {
		rest += ",schedule=" + l.Schedule
	}
	if l.Kind() == QuotaLimit {
		kind := "quota"
		if l.Window[0] >= '0' && l.Window[0] <= '9' {
			kind = "session"
		}
		return json.Marshal(l.Name + "=" + kind + ":" + itoa(l.Capacity) + "/" + l.Window + rest)
	}
	if l.Schedule != "" || l.Classes != "" {
		amount := itoa(l.Capacity)
		if l.Kind() == RateLimit {
			amount = itoa(l.Refill) + "/" + itoa(l.Period.Milliseconds()) + "ms,burst=" + amount
		}
		if l.Classes != "" {
			amount += ",class=" + strings.ReplaceAll(l.Classes, ",", ",class=")
		}
		return json.Marshal(l.Name + "=" + amount + rest)
	}
	if l.Kind() == SlotLimit {
		return json.Marshal(limitJSON{Name: l.Name, Slots: &l.Capacity, Mode: mode})
	}
	period := l.Period.Milliseconds()
	return json.Marshal(limitJSON{Name: l.Name, Capacity: &l.Capacity, Refill: &l.Refill, PeriodMs: &period, Mode: mode})
}

// UnmarshalJSON reads a limit as the agent writes it.
func (l *Limit) UnmarshalJSON(data []byte) error {
	var found limitJSON
	if err := json.Unmarshal(data, &found); err != nil {
		return err
	}
	*l = Limit{Name: found.Name, Mode: found.Mode}
	if found.Schedule != nil {
		is := false
		found.Text, l.Schedule, is = strings.Cut(found.Text, ",schedule=")
		if !is {
			return errNotOfTheAgent
		}
	}
	switch {
	case found.Mode == "":
		return errNotOfTheAgent
	case found.Slots != nil:
		l.Capacity = *found.Slots
	case found.Quota != nil:
		_, window, is := strings.Cut(found.Text, "/")
		l.Capacity = *found.Quota
		l.Window, _, _ = strings.Cut(window, ",mode=")
		if !is || l.Window == "" {
			return errNotOfTheAgent
		}
	case found.Capacity != nil && found.Refill != nil && found.PeriodMs != nil:
		l.Capacity, l.Refill = *found.Capacity, *found.Refill
		l.Period = span(*found.PeriodMs)
		var err error
		if l.Classes, err = classesOf(found.Classes); err != nil {
			return err
		}
	default:
		return errNotOfTheAgent
	}
	return l.check()
}

// classesOf returns the text of classes, in the order of their names.
func classesOf(found map[string]classJSON) (string, error) {
	texts := []string{}
	for name, class := range found {
		if class.AtLeast == nil || class.Leaves == nil {
			return "", errNotOfTheAgent
		}
		if *class.AtLeast < 0 || *class.AtLeast > 99 || *class.Leaves < 0 || *class.Leaves > 99 {
			return "", errNotOfTheAgent
		}
		text := name + ":" + itoa(*class.AtLeast) + "%"
		if *class.Leaves > 0 {
			text += ":" + itoa(*class.Leaves) + "%"
		}
		texts = append(texts, text)
	}
	sort.Strings(texts)
	return strings.Join(texts, ","), nil
}

// Settlement is the outcome of a settlement.
type Settlement string

const (
	// Settled says that the settlement was applied.
	Settled Settlement = "settled"
	// LeaseGone says that a lease had already ended, by a release or by its expiry. Nothing of its bucket changed.
	LeaseGone Settlement = "lease_gone"
)

// Status is whether limits apply.
type Status string

const (
	// StatusEnforced says that they apply.
	StatusEnforced Status = "enforced"
	// StatusDisabled says that all requests are denied.
	StatusDisabled Status = "disabled"
	// StatusUnlimited says that all requests are granted, and nothing is counted.
	StatusUnlimited Status = "unlimited"
)

// A LimitStatus is one limit of a bucket.
type LimitStatus struct {
	Entity, Resource, Limit string
	Mode                    Mode
	Capacity                float64
	// Refill is the tokens every Period; both are 0 for slots and quotas.
	Refill float64
	Period time.Duration
	// Available is the balance; negative in debt.
	Available float64
	// Requested is what the request takes, if it takes of the limit.
	Requested   float64
	IsRequested bool
	// RetryAfter is the time until Requested is there; nil if time alone does not help.
	RetryAfter *time.Duration
	// ResetsAt is the end of a quota's window; zero for other limits, and for a session before its first use.
	ResetsAt time.Time
	// PausedFor is the time until the bucket's pause ends, before which nothing is granted; nil without one.
	PausedFor *time.Duration
	isQuota   bool
}

// Kind returns whether it is a rate or a quota, or has slots.
func (s LimitStatus) Kind() Kind {
	if s.isQuota {
		return QuotaLimit
	}
	if s.Refill == 0 {
		return SlotLimit
	}
	return RateLimit
}

// IsShort returns whether the limit has too little for the request, or its bucket is paused.
func (s LimitStatus) IsShort() bool {
	lacks := s.Requested > s.Available || s.PausedFor != nil
	return s.IsRequested && lacks && s.Mode != Soft
}

// Balances are the balances of a bucket.
type Balances struct {
	Status Status
	Limits []LimitStatus
	// RetryAfter is the time until all that is needed is there; nil if time alone does not help.
	RetryAfter *time.Duration
	// Header has the RateLimit fields, for an HTTP response.
	Header http.Header
}

// Remaining returns the balance of a limit. It returns false if the bucket does not have it.
func (b Balances) Remaining(limit string) (float64, bool) { return remaining(b.Limits, limit) }

func remaining(limits []LimitStatus, limit string) (float64, bool) {
	for _, status := range limits {
		if status.Limit == limit {
			return status.Available, true
		}
	}
	return 0, false
}

// PeekOptions are options of a peek. The zero value has the defaults.
type PeekOptions struct {
	// Need has whole amounts of which the answer says when they will be there.
	Need Amounts
	// Limits are those of the table, by default.
	Limits []Limit
}

// Interval is the length of the rows of usage, and of what it is rounded to.
type Interval string

const (
	// Hourly has rows by hour.
	Hourly Interval = "hour"
	// Daily has rows by day.
	Daily Interval = "day"
	// Monthly has rows by month.
	Monthly Interval = "month"
)

// A UsageQuery is whose usage is asked for, and from when to when: each the start of an hour, a day or a month in UTC, as By
// says.
type UsageQuery struct {
	// Entity or Plan, Resource, or both. Usage of a plan is that of the entities which have it now.
	Entity, Plan, Resource string
	// By is Daily by default.
	By         Interval
	Start, End time.Time
}

// UsageState says whether usage can change.
type UsageState string

const (
	// Interim usage may still change.
	Interim UsageState = "interim"
	// Final usage does not.
	Final UsageState = "final"
	// Unknown usage may no longer be kept, in part.
	Unknown UsageState = "unknown"
)

// Usage is what was used.
type Usage struct {
	// Tokens by limit, exact above the 15 digits of a float64 too.
	Tokens   map[string]json.Number
	Acquires int64
	State    UsageState
	// CompleteUntil is the time before which all usage is included.
	CompleteUntil time.Time
}

// A UsageTotal is the sum of usage.
type UsageTotal struct {
	Usage
	// Unreadable has what is wrong with each item that cannot be read, whose usage is missing, and what to do.
	Unreadable []string
}

// A UsageRow is the usage of an entity on a resource in one interval.
type UsageRow struct {
	Usage
	Entity, Resource string
	Start, End       time.Time
}

// A UsagePage is a page of usage.
type UsagePage struct {
	Rows []UsageRow
	// Next is the page of the next one; empty after the last. A page before it may have no rows.
	Next string
	// Unreadable is as that of a total.
	Unreadable []string
}

// A Level is what limits of the table are for: an entity or a plan, a resource, or both, or with System alone the whole
// namespace.
type Level struct {
	Entity, Plan, Resource string
	System                 bool
}

// LevelKind is which of the six a level is.
type LevelKind string

const (
	// OfEntityResource is an entity on a resource.
	OfEntityResource LevelKind = "entity_resource"
	// OfEntity is an entity on all resources.
	OfEntity LevelKind = "entity"
	// OfPlanResource is the entities of a plan on a resource.
	OfPlanResource LevelKind = "plan_resource"
	// OfPlan is the entities of a plan on all resources.
	OfPlan LevelKind = "plan"
	// OfResource is a resource for all entities.
	OfResource LevelKind = "resource"
	// OfSystem is the whole namespace.
	OfSystem LevelKind = "system"
)

// Kind returns which of the six it is.
func (l Level) Kind() LevelKind {
	switch {
	case l.Entity != "" && l.Resource != "":
		return OfEntityResource
	case l.Entity != "":
		return OfEntity
	case l.Plan != "" && l.Resource != "":
		return OfPlanResource
	case l.Plan != "":
		return OfPlan
	case l.Resource != "":
		return OfResource
	default:
		return OfSystem
	}
}

type levelJSON struct {
	Level    LevelKind `json:"level"`
	Entity   string    `json:"entity,omitempty"`
	Plan     string    `json:"plan,omitempty"`
	Resource string    `json:"resource,omitempty"`
}

// MarshalJSON returns the level as the agent reads it.
func (l Level) MarshalJSON() ([]byte, error) {
	return json.Marshal(levelJSON{l.Kind(), l.Entity, l.Plan, l.Resource})
}

// UnmarshalJSON reads a level as the agent writes it.
func (l *Level) UnmarshalJSON(data []byte) error {
	var found levelJSON
	if err := json.Unmarshal(data, &found); err != nil {
		return err
	}
	*l = Level{Entity: found.Entity, Plan: found.Plan, Resource: found.Resource, System: found.Level == OfSystem}
	if l.Kind() != found.Level || (l.Entity != "" && l.Plan != "") {
		return errNotOfTheAgent
	}
	return nil
}

// A Config is the limits of one level.
type Config struct {
	Limits []Limit `json:"limits"`
	Status Status  `json:"status"`
	// IsShadow says whether all its limits are in shadow mode.
	IsShadow bool `json:"is_shadow"`
	// Class is that of the callers of its entities, whatever a request says. Empty if the request says it.
	Class string `json:"class,omitempty"`
}

// EffectiveLimits are the limits in force for an entity on a resource, and where they come from.
type EffectiveLimits struct {
	// Buckets has that of the entity, then that of each ancestor which it cascades to and which has limits.
	Buckets []EffectiveBucket `json:"buckets"`
	// Levels has the levels of the entity on the resource. The first one with a configuration wins.
	Levels []ConfiguredLevel `json:"levels"`
	// MissingPlan is the entity's plan, if no level of it has limits: those of the resource or the system apply. Empty
	// otherwise.
	MissingPlan string `json:"missing_plan,omitempty"`
}

// An EffectiveBucket is the limits in force for one bucket.
type EffectiveBucket struct {
	Entity string `json:"entity"`
	// Level is where the limits come from; nil if no level has any.
	Level *Level `json:"level"`
	// Status is whether the limits apply; nil without any. An operator's stop is not a part of it.
	Status *Status `json:"status"`
	Limits []Limit `json:"limits"`
}

// A ConfiguredLevel is a level, and its configuration.
type ConfiguredLevel struct {
	Level Level `json:"level"`
	// Config is nil if the level has none.
	Config *Config `json:"config"`
	// IsFromFile says whether it is that of the agent's limits file, so that a change in the table has no effect.
	IsFromFile bool `json:"is_from_file"`
}

// A LimitsPatch is what a change sets of a level. What it does not name stays.
type LimitsPatch struct {
	Limits []Limit
	// Status is whether the limits apply. Default: as it is.
	Status Status
	// Shadow is whether all limits of the level only count what they would deny. Default: as it is.
	Shadow *bool
	// Class is that of the callers of the level's entities, whatever a request says. Default: as it is.
	Class string
	// Replace drops all limits and settings of the level that are not named.
	Replace bool
	// Author is who changes the limits, for the audit event; it has the agent's owner too.
	Author string
}

// A LimitsChange is the limits of a level before and after a change.
type LimitsChange struct {
	Changed bool    `json:"changed"`
	Before  *Config `json:"before"`
	After   *Config `json:"after"`
}
