package weirgate_test

import (
	"context"
	"errors"
	"net/http"
	"time"

	"weirgate"
)

func Example() {
	ctx := context.Background()
	client, err := weirgate.New(weirgate.Options{})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	bucket := weirgate.Bucket{Entity: "openai", Resource: "gpt-4", Take: weirgate.Amounts{"tpm": 1500, "slots": 1}}
	err = client.Scope(ctx, bucket, &weirgate.AcquireOptions{Wait: 2 * time.Second}, func(grant *weirgate.Grant) error {
		_, err := grant.Adjust(ctx, weirgate.Amounts{"tpm": 1213}) // what was really used
		return err
	})
	var refused *weirgate.RefusedError
	switch {
	case errors.As(err, &refused): // too few tokens, more than fit, or stopped
	case errors.Is(err, weirgate.ErrNotConfigured): // the text has the command that sets limits
	case errors.Is(err, weirgate.ErrUnavailable): // no decision
	}
}

// An HTTP service whose callers are limited. Authenticate first: the tenant must be the result of an authentication.
func ExampleRefusedError_ServeHTTP() {
	client, err := weirgate.New(weirgate.Options{OnAgentUnavailable: weirgate.Deny})
	if err != nil {
		panic(err)
	}
	limited := func(tenantOf func(*http.Request) string, next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tenant := tenantOf(r)
			if tenant == "" {
				http.Error(w, "authenticate first", http.StatusUnauthorized)
				return
			}
			bucket := weirgate.Bucket{Entity: tenant, Resource: "api", Take: weirgate.Amounts{"requests": 1}}
			grant, err := client.Acquire(r.Context(), bucket, &weirgate.AcquireOptions{OnUnavailable: weirgate.Deny})
			var refused *weirgate.RefusedError
			switch {
			case errors.As(err, &refused):
				refused.ServeHTTP(w, r)
			case err != nil:
				http.Error(w, "no decision of the rate limiter", http.StatusServiceUnavailable)
			default:
				defer grant.Release(r.Context(), nil)
				next.ServeHTTP(w, r)
			}
		})
	}
	_ = limited
}

func ExampleClient_SetLimits() {
	client, err := weirgate.New(weirgate.Options{})
	if err != nil {
		panic(err)
	}
	level := weirgate.Level{Entity: "user-1", Resource: "gpt-4"}
	patch := weirgate.LimitsPatch{Limits: []weirgate.Limit{weirgate.PerMinute("rpm", 600)}, Author: "alice"}
	if _, err := client.SetLimits(context.Background(), level, patch); errors.Is(err, weirgate.ErrNotAllowed) {
		panic(err) // start the agent with --allow-limit-changes
	}
}
